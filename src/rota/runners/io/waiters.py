"""Who waits for the start or the end of runner jobs: woken by the database's notifications, with a look now and
then in case one was lost."""

import asyncio
from typing import Final
from uuid import UUID

from rota.runners.io.store import RunnerStore
from rota.runners.records import RunnerJob

LOOK_S: Final = 5.0
"""Between two looks while somebody waits: a lost notification costs that long."""


class Waiters:
    """The waits of one replica.

    Args:
        store: where jobs are read.
    """

    def __init__(self, store: RunnerStore) -> None:
        self._store = store
        self._waiting: dict[UUID, set[asyncio.Event]] = {}

    def told(self, job_id: str) -> None:
        """A job was accepted, or has ended, on whatever replica."""
        try:
            waiting = self._waiting.get(UUID(job_id), ())
        except ValueError:
            return
        for event in waiting:
            event.set()

    def look(self) -> None:
        """Notifications may have been lost: all who wait look anew."""
        for waiting in self._waiting.values():
            for event in waiting:
                event.set()

    async def job(self, job_id: UUID, wait_s: float, *, running: bool = False) -> RunnerJob:
        """The job, once it has ended or the time is up.

        Args:
            job_id: of the job.
            wait_s: for how long to wait.
            running: whether it is enough that a runner has accepted it.

        Raises: JobNotFound.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        event = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(event)
        try:
            while True:
                event.clear()
                job = await self._store.job(job_id)
                left_s = until - loop.time()
                if job.ended or left_s <= 0 or (running and job.shown_state == "Running"):
                    return job
                try:
                    async with asyncio.timeout(min(left_s, LOOK_S)):
                        await event.wait()
                except TimeoutError:
                    continue
        finally:
            waiting = self._waiting[job_id]
            waiting.discard(event)
            if not waiting:
                del self._waiting[job_id]
