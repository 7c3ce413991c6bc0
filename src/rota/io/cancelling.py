"""The end of tasks that may miss that they were cancelled."""

import asyncio
from collections.abc import Collection
from typing import Final

CANCEL_AGAIN_S: Final = 1.0
"""How long a task may take to end before it is told again."""


async def cancelled(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancels tasks until all have ended. While the database is away one may miss it: a wait for a connection that
    fails in the same moment takes the cancellation for its own."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
