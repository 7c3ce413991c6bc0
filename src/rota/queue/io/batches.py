"""Adds jobs as one batch on the caller's connection, with the row that says what follows when all have ended."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from msgspec import structs

from rota.ids import BatchId, JobId
from rota.io.postgres import statement
from rota.queue.io import bulk, callers
from rota.queue.io.rows import many_jobs, one_batch
from rota.queue.io.transactions import together, together_sync
from rota.queue.job import Enqueued, EnqueuedBatch, NewJob


class Batch:
    """What `async with app.batch(…)` gives: it takes jobs, and adds them at the end of the block.

    Attributes:
        waiting: the jobs that were taken.
        added: the answer, once they are added.
    """

    def __init__(self, new: Callable[..., NewJob]) -> None:
        self._new = new
        self.waiting: list[NewJob] = []
        self.added: EnqueuedBatch | None = None

    def add(self, kind: Any, payload: Any = None, **options: Any) -> None:
        """Takes one job, described as for `app.new`.

        Raises: PayloadError, EnqueueError, at once.
        """
        self.waiting.append(self._new(kind, payload, **options))

    @property
    def id(self) -> BatchId:
        """The batch's id, after the block."""
        return self._done.id

    @property
    def jobs(self) -> list[Enqueued]:
        """For each job, in order, its id and whether it was created; after the block."""
        return self._done.jobs

    @property
    def _done(self) -> EnqueuedBatch:
        if self.added is None:
            raise AttributeError("A batch has its id and its jobs after the block: they are added at its end.")
        return self.added


async def add_on(conn: Any, jobs: Sequence[NewJob], *, then: NewJob | None, schema: str) -> EnqueuedBatch:
    """Adds jobs as one batch, all or none, in the transaction of an asynchronous connection or in one of its own.

    Raises: as `callers.fetch_on`.
    """
    batch_id = BatchId(uuid4())
    async with together(conn):
        # The jobs first: whoever looks for batches without open jobs meanwhile finds no batch.
        added = await bulk.copy_on(conn, _of(batch_id, jobs), schema=schema)
        await callers.fetch_on(conn, _begin(schema), _row(batch_id, added, then), schema=schema)
    return EnqueuedBatch(batch_id, added)


def add_on_sync(conn: Any, jobs: Sequence[NewJob], *, then: NewJob | None, schema: str) -> EnqueuedBatch:
    """The same on a synchronous connection."""
    batch_id = BatchId(uuid4())
    with together_sync(conn):
        text, rows = statement("rota.queue.io.sql", "enqueue_many.sql", schema), []
        if jobs:
            rows = callers.fetch_on_sync(conn, text, many_jobs(_of(batch_id, jobs)), schema=schema)
        added = [Enqueued(JobId(row["id"]), row["created"]) for row in rows]
        callers.fetch_on_sync(conn, _begin(schema), _row(batch_id, added, then), schema=schema)
    return EnqueuedBatch(batch_id, added)


def _of(batch_id: BatchId, jobs: Sequence[NewJob]) -> list[NewJob]:
    return [structs.replace(job, batch_id=batch_id) for job in jobs]


def _begin(schema: str) -> str:
    return statement("rota.queue.io.sql", "begin_batch.sql", schema)


def _row(batch_id: BatchId, added: Sequence[Enqueued], then: NewJob | None) -> tuple[Any, ...]:
    return one_batch(batch_id, jobs=sum(answer.created for answer in added), then=then)
