"""Work that is carried to its end although its caller is cancelled: what has begun to clean up has to finish."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

Result = TypeVar("Result")


async def to_the_end(work: Coroutine[None, None, Result]) -> tuple[Result, bool]:
    """Runs `work` to its end though this task is cancelled meanwhile.

    Returns: its result, and whether the task was cancelled, for the caller to raise.

    Raises: what `work` raises; CancelledError if it fails and the task was cancelled.
    """
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled and task.exception() is not None:
        raise asyncio.CancelledError
    return task.result(), cancelled
