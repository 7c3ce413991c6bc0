"""What an app's words say to a queue in memory: `App.use_queue` takes it in place of the database.

A connection that is given is not touched, and its transaction decides nothing: a job is there as soon as it is added.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import structs

from rota.commands import Place
from rota.errors import ResultTimeout
from rota.ids import BatchId, JobId
from rota.queue.io.desk import Asked
from rota.queue.io.results import result_of
from rota.queue.job import ENDED, BatchStatus, Enqueued, EnqueuedBatch, NewJob, State
from rota.queue.pause import Pause, PauseScope
from rota.queue.reference import Reference


class MemoryDesk:
    """A desk over the queue in memory.

    Args:
        reference: the queue.
        added: awaited after jobs were added.
        added_sync: called after jobs were added by a synchronous program.
    """

    def __init__(
        self, reference: Reference, *, added: Callable[[], Awaitable[None]], added_sync: Callable[[], None]
    ) -> None:
        self._reference = reference
        self._added = added
        self._added_sync = added_sync
        self._batches = 0

    async def start(self) -> None:
        """There is nothing to open."""

    async def asked(self) -> Asked:
        """It answers itself."""
        return self

    async def position(self, job_id: JobId) -> Place | None:
        """Nothing waits for a slot in memory: calls are answered at once."""
        return None

    async def result(self, job_id: JobId, *, timeout_s: float | None) -> Any:
        """The result of a job that has ended; one that has not will not end while somebody waits."""
        return self.result_sync(job_id, timeout_s=timeout_s)

    def result_sync(self, job_id: JobId, *, timeout_s: float | None) -> Any:
        """The same."""
        answer = self._reference.results([job_id]).get(job_id)
        if answer is not None and answer.state not in ENDED:
            raise ResultTimeout(
                f"Job {job_id} is {answer.state}, and nothing runs by itself in memory: `await queue.drain()` first, "
                "or use in_memory(app, runs_at_once=True)."
            )
        return result_of(job_id, answer)

    # Adding

    async def enqueue(self, job: NewJob, *, conn: Any) -> Enqueued:
        """Adds one job."""
        return (await self.enqueue_many([job], conn=conn))[0]

    async def enqueue_many(self, jobs: Sequence[NewJob], *, conn: Any) -> list[Enqueued]:
        """Adds jobs, all or none."""
        added = self._reference.enqueue_many(jobs)
        await self._added()
        return added

    async def enqueue_batch(self, jobs: Sequence[NewJob], *, then: NewJob | None, conn: Any) -> EnqueuedBatch:
        """Adds jobs as one batch."""
        added = self._add_batch(jobs, then)
        await self._added()
        return added

    def enqueue_sync(self, job: NewJob, *, conn: Any) -> Enqueued:
        """Adds one job."""
        return self.enqueue_many_sync([job], conn=conn)[0]

    def enqueue_many_sync(self, jobs: Sequence[NewJob], *, conn: Any) -> list[Enqueued]:
        """Adds jobs, all or none."""
        added = self._reference.enqueue_many(jobs)
        self._added_sync()
        return added

    def enqueue_batch_sync(self, jobs: Sequence[NewJob], *, then: NewJob | None, conn: Any) -> EnqueuedBatch:
        """Adds jobs as one batch."""
        added = self._add_batch(jobs, then)
        self._added_sync()
        return added

    def _add_batch(self, jobs: Sequence[NewJob], then: NewJob | None) -> EnqueuedBatch:
        self._batches += 1
        batch_id = BatchId(UUID(int=self._batches))
        added = self._reference.enqueue_many([structs.replace(job, batch_id=batch_id) for job in jobs])
        created = sum(answer.created for answer in added)
        self._reference.begin_batch(batch_id, jobs=created, then=then)
        if not created:
            self._reference.close_batches([batch_id])
        return EnqueuedBatch(batch_id, added)

    # What is there

    async def cancel(self, ids: Iterable[JobId], *, children: bool, reason: str) -> dict[JobId, State]:
        """Cancels open jobs."""
        return self._reference.cancel(ids, children=children, reason=reason)

    async def move(
        self, ids: Iterable[JobId], *, priority: int | None, run_after: datetime | None, delay_s: float | None
    ) -> dict[JobId, State]:
        """Gives queued jobs another priority or time."""
        return self._reference.move(ids, priority=priority, run_after=run_after, delay_s=delay_s)

    async def batch(self, batch_id: BatchId) -> BatchStatus:
        """How a batch stands."""
        return self._reference.batch(batch_id)

    async def pause(
        self, scope: PauseScope, name: str = "", *, note: str | None, paused_by: str, for_s: float | None
    ) -> None:
        """Holds back a kind, a tenant or all."""
        self._reference.pause(scope, name, note=note, paused_by=paused_by, for_s=for_s)

    async def resume(self, scope: PauseScope, name: str = "") -> Pause | None:
        """Takes back a pause."""
        return self._reference.resume(scope, name)

    async def pauses(self) -> list[Pause]:
        """What is held back now."""
        return self._reference.pauses()
