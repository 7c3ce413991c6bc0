"""The store's part for adding jobs and for batches: one method for each statement, as in `rota.queue.io.store`.

The same methods, over plain dicts, are in `rota.queue.reference_adding` and `rota.queue.reference_batches`.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from rota.errors import BatchNotFound
from rota.ids import BatchId, JobId
from rota.io.postgres import Connection
from rota.queue.io.fleet import Fleet
from rota.queue.io.rows import many_jobs, one_batch, one_job
from rota.queue.job import BatchStatus, Enqueued, NewJob

BATCHES_MAX: Final = 100
"""Batches that are closed in one statement."""


class Adding(Fleet):
    """Jobs and batches, as they are added, in one schema of one database."""

    async def enqueue(self, job: NewJob, *, conn: Connection | None = None, now: datetime | None = None) -> Enqueued:
        """Adds one job, in the connection's transaction if one is given.

        Raises: asyncpg.InvalidParameterValueError for a job that the database refuses.
        """
        rows = await self._fetch("enqueue.sql", *one_job(job, now=now), conn=conn)
        return Enqueued(JobId(rows[0]["id"]), rows[0]["created"])

    async def enqueue_many(
        self, jobs: Sequence[NewJob], *, conn: Connection | None = None, now: datetime | None = None
    ) -> list[Enqueued]:
        """Adds jobs, all or none; the answers come in the order of `jobs`."""
        if not jobs:
            return []
        rows = await self._fetch("enqueue_many.sql", *many_jobs(jobs, now=now), conn=conn)
        return [Enqueued(JobId(row["id"]), row["created"]) for row in rows]

    async def begin_batch(
        self, batch_id: BatchId, *, jobs: int, then: NewJob | None, conn: Connection, now: datetime | None = None
    ) -> None:
        """Begins a batch, in the transaction that adds its jobs."""
        await self._fetch("begin_batch.sql", *one_batch(batch_id, jobs=jobs, then=then, now=now), conn=conn)

    async def close_batches(
        self, ids: Iterable[BatchId] | None = None, *, limit: int = BATCHES_MAX, now: datetime | None = None
    ) -> dict[BatchId, JobId | None]:
        """Closes those of these batches (None: of any) that have no open job, and adds their follow-ups.

        Returns: the closed ones, each with the id of its follow-up.
        """
        rows = await self._fetch("close_batches.sql", None if ids is None else sorted(ids), limit, now)
        return {BatchId(row["id"]): row["then_id"] for row in rows}

    async def batch(self, batch_id: BatchId) -> BatchStatus:
        """How a batch stands.

        Raises: BatchNotFound.
        """
        rows = await self._fetch("batch.sql", batch_id)
        if not rows:
            raise BatchNotFound(f"There is no batch {batch_id}. It may have ended longer ago than its retention.")
        return BatchStatus(**rows[0])

    async def prune_batches(self, *, keep_s: float, limit: int = 1000, now: datetime | None = None) -> int:
        """Removes at most `limit` batches, and windows of keys, that are over for longer than `keep_s` seconds."""
        removed: int = (await self._fetch("prune_batches.sql", keep_s, limit, now))[0]["removed"]
        return removed
