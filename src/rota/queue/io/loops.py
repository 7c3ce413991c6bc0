"""How the loops of a worker run: on and on whatever they meet, and to their end when they are told."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from rota.errors import DatabaseAway, RotaError
from rota.io.backoff import Backoff
from rota.io.log import get_logger

CANCEL_AGAIN_S: Final = 1.0
"""How long a loop may take to end before it is told again."""
AWAY_LOG_EVERY: Final = 10
"""Of so many failures in a row one is told."""

log = get_logger("rota.worker")


async def supervised(
    name: str,
    loop: Callable[[Backoff], Awaitable[None]],
    *,
    stopping: asyncio.Event,
    random: Random,
    failed: Callable[[], None],
) -> None:
    """Runs a loop until `stopping`, whatever it meets. The loop resets the waits when it got through: a network that
    fails now and then is no reason to wait for as long as for one that is down.

    Args:
        name: of the loop, for the log.
        loop: it, with the waits between its failures.
        stopping: set when it shall not start again.
        random: for the jitter of waits.
        failed: called before it starts again.
    """
    backoff = Backoff(random)
    while not stopping.is_set():
        try:
            await loop(backoff)
            return
        except (DatabaseAway, OSError) as error:
            if backoff.failures % AWAY_LOG_EVERY == 0:
                log.warning("the database is away; trying again", loop=name, error=str(error))
        except Exception:
            log.exception("a loop of the worker failed; it starts again", loop=name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(backoff.next_s()):
                await stopping.wait()
        failed()


class Asides:
    """Short work beside the loops that need not succeed: the loops say if the database is away."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def tasks(self) -> frozenset[asyncio.Task[None]]:
        """What is under way."""
        return frozenset(self._tasks)

    def begin(self, work: Awaitable[object]) -> None:
        """Begins to do it; returns at once."""
        # An event loop keeps no task by itself.
        task = asyncio.create_task(_quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _quietly(work: Awaitable[object]) -> None:
    with contextlib.suppress(RotaError, OSError):
        await work


async def cancelled(tasks: set[asyncio.Task[None]]) -> None:
    """Cancels tasks until all have ended. While the database is away one may miss it: a wait for a connection that
    fails in the same moment takes the cancellation for its own."""
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=CANCEL_AGAIN_S)
