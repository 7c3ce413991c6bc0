"""Runs what has to be written, in order within a lane, lanes beside each other.

What concerns one job, or one connection, is written in the order in which the gateway said it; nothing waits for what
concerns another. What thousands of connections ask alike is gathered: as many as come while one statement is under way
go with the next.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from rota.io.cancelling import cancelled
from rota.io.log import get_logger

STOP_S: Final = 5.0
"""What a stopping gateway gives what is still to be written."""

Item = TypeVar("Item")

log = get_logger("rota.gateway")


class Lanes:
    """Work in lanes."""

    def __init__(self) -> None:
        self._lanes: dict[Hashable, deque[Callable[[], Awaitable[None]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, lane: Hashable, work: Callable[[], Awaitable[None]]) -> None:
        """Adds work at the end of a lane. What it raises is logged, and the lane goes on."""
        line = self._lanes.get(lane)
        if line is not None:
            line.append(work)
            return
        self._lanes[lane] = deque((work,))
        task = asyncio.create_task(self._run(lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, lane: Hashable) -> None:
        line = self._lanes[lane]
        while line:
            try:
                await line.popleft()()
            except Exception:
                log.exception("a write of the gateway failed")
        del self._lanes[lane]

    async def stop(self) -> None:
        """Waits a little for what is to be written, then drops the rest."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=STOP_S)
            await cancelled(late)


class Gathered(Generic[Item]):
    """Work for many at once, in a lane of its own.

    Args:
        lanes: where it runs.
        work: takes what was put, in order.
        most: how many it takes in one go.
        gather_s: how long the first waits for others.
    """

    def __init__(
        self, lanes: Lanes, work: Callable[[list[Item]], Awaitable[None]], *, most: int, gather_s: float
    ) -> None:
        self._lanes = lanes
        self._work = work
        self._most = most
        self._gather_s = gather_s
        self._items: list[Item] = []

    def put(self, item: Item) -> None:
        """Adds one."""
        self._items.append(item)
        if len(self._items) == 1:
            self._lanes.put(self, self._run)

    async def _run(self) -> None:
        if len(self._items) < self._most:
            await asyncio.sleep(self._gather_s)
        batch, self._items = self._items[: self._most], self._items[self._most :]
        if self._items:
            self._lanes.put(self, self._run)
        await self._work(batch)
