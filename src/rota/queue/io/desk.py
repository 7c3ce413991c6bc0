"""Where an app's jobs go: the seam between the words of a program and the queue behind them.

The queue is the database of the app's settings, and everything there is said by `DatabaseDesk`. Tests of a program put
a queue in memory in its place with `App.use_queue` (see `rota.testing`); nothing else of the app knows which it is. A
desk holds no rules: jobs come to it described and checked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol

from rota.commands import Place
from rota.errors import RotaError
from rota.ids import BatchId, JobId
from rota.io import migrate
from rota.io.postgres import Database, Target, statement
from rota.queue.io import batches, bulk, callers
from rota.queue.io.results import Results
from rota.queue.io.rows import many_jobs, one_job
from rota.queue.io.store import Store
from rota.queue.io.watch import Watch
from rota.queue.job import BatchStatus, Enqueued, EnqueuedBatch, NewJob, State
from rota.queue.pause import Pause, PauseScope


class Asked(Protocol):
    """What an app asks of a queue about what is there; `Store` answers it for the database."""

    def cancel(self, ids: Iterable[JobId], *, children: bool, reason: str) -> Awaitable[dict[JobId, State]]:
        """Cancels open jobs."""
        ...

    def move(
        self, ids: Iterable[JobId], *, priority: int | None, run_after: datetime | None, delay_s: float | None
    ) -> Awaitable[dict[JobId, State]]:
        """Gives queued jobs another priority or time."""
        ...

    def batch(self, batch_id: BatchId) -> Awaitable[BatchStatus]:
        """How a batch stands."""
        ...

    def pause(
        self, scope: PauseScope, name: str = "", *, note: str | None, paused_by: str, for_s: float | None
    ) -> Awaitable[None]:
        """Holds back a kind, a tenant or all."""
        ...

    def resume(self, scope: PauseScope, name: str = "") -> Awaitable[Pause | None]:
        """Takes back a pause."""
        ...

    def pauses(self) -> Awaitable[list[Pause]]:
        """What is held back now."""
        ...


class Desk(Protocol):
    """A queue as an app's words need it. `conn` is a connection of the caller's, or None."""

    def start(self) -> Awaitable[None]:
        """Opens what it needs, and checks that it is of use."""
        ...

    def asked(self) -> Awaitable[Asked]:
        """Who answers for what is there."""
        ...

    def position(self, job_id: JobId) -> Awaitable[Place | None]:
        """Where a job stands in line for slots of exec servers."""
        ...

    def result(self, job_id: JobId, *, timeout_s: float | None) -> Awaitable[Any]:
        """The result of a job, once it has ended."""
        ...

    def result_sync(self, job_id: JobId, *, timeout_s: float | None) -> Any:
        """The same for a program without asyncio."""
        ...

    def enqueue(self, job: NewJob, *, conn: Any) -> Awaitable[Enqueued]:
        """Adds one job."""
        ...

    def enqueue_many(self, jobs: Sequence[NewJob], *, conn: Any) -> Awaitable[list[Enqueued]]:
        """Adds jobs, all or none."""
        ...

    def enqueue_batch(self, jobs: Sequence[NewJob], *, then: NewJob | None, conn: Any) -> Awaitable[EnqueuedBatch]:
        """Adds jobs as one batch, all or none."""
        ...

    def enqueue_sync(self, job: NewJob, *, conn: Any) -> Enqueued:
        """Adds one job, from a program without asyncio."""
        ...

    def enqueue_many_sync(self, jobs: Sequence[NewJob], *, conn: Any) -> list[Enqueued]:
        """The same for many."""
        ...

    def enqueue_batch_sync(self, jobs: Sequence[NewJob], *, then: NewJob | None, conn: Any) -> EnqueuedBatch:
        """The same for a batch."""
        ...


class DatabaseDesk:
    """The queue in the database of an app.

    Args:
        database: gives the app's pool, opened when first asked for.
        target: says which database that is.
        schema: says where Rota's tables live.
    """

    def __init__(
        self, database: Callable[[], Awaitable[Database]], *, target: Callable[[], Target], schema: Callable[[], str]
    ) -> None:
        self._database = database
        self._target = target
        self._schema = schema
        self._results: Results | None = None

    async def start(self) -> None:
        """Opens the database and checks that its schema is this program's."""
        await self._database()
        await migrate.require_current(self._target())

    async def stop(self) -> None:
        """Tells who waits for results that the program stops."""
        results, self._results = self._results, None
        if results is not None:
            await results.stop()

    async def asked(self) -> Store:
        """The store of the app's own pool."""
        return Store(await self._database())

    async def position(self, job_id: JobId) -> Place | None:
        """Where a job stands: what the workers said of the want-books, and what the database knows."""
        database = await self._database()
        rows = await Store(database).show(job_id)
        return await Watch(database).place(rows[0]) if rows else None

    async def result(self, job_id: JobId, *, timeout_s: float | None) -> Any:
        """Waits for a job's end, with one question at a time for all that are waited for."""
        if self._results is None:
            self._results = Results((await self.asked()).results)
        return await self._results.wait(job_id, timeout_s=timeout_s)

    def result_sync(self, job_id: JobId, *, timeout_s: float | None) -> Any:
        """The same on a connection of its own.

        Raises: RotaError where an event loop runs in this thread.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._result_alone(job_id, timeout_s))
        raise RotaError("An event loop runs in this thread: use `await app.result(…)`, which does not block it.")

    async def _result_alone(self, job_id: JobId, timeout_s: float | None) -> Any:
        database = Database(self._target(), size=1)
        results = Results(Store(database).results)
        try:
            return await results.wait(job_id, timeout_s=timeout_s)
        finally:
            await results.stop()
            await database.stop()

    async def enqueue(self, job: NewJob, *, conn: Any) -> Enqueued:
        """Adds one job, in the caller's transaction or in one of its own."""
        if conn is None:
            return await (await self.asked()).enqueue(job)
        rows = await callers.fetch_on(conn, self._sql("enqueue.sql"), one_job(job), schema=self._schema())
        return _answer(rows[0])

    async def enqueue_many(self, jobs: Sequence[NewJob], *, conn: Any) -> list[Enqueued]:
        """Adds jobs by COPY or by one statement."""
        if conn is None:
            async with (await self._database()).acquire() as own:
                return await self.enqueue_many(jobs, conn=own)
        return await bulk.copy_on(conn, jobs, schema=self._schema())

    async def enqueue_batch(self, jobs: Sequence[NewJob], *, then: NewJob | None, conn: Any) -> EnqueuedBatch:
        """Adds jobs as one batch; one of which no job was new has ended at once."""
        if conn is None:
            async with (await self._database()).acquire() as own:
                added = await self.enqueue_batch(jobs, then=then, conn=own)
            if not any(answer.created for answer in added.jobs):
                await (await self.asked()).close_batches([added.id])
            return added
        return await batches.add_on(conn, jobs, then=then, schema=self._schema())

    def enqueue_sync(self, job: NewJob, *, conn: Any) -> Enqueued:
        """Adds one job in the transaction of a synchronous connection."""
        return _answer(callers.fetch_on_sync(conn, self._sql("enqueue.sql"), one_job(job), schema=self._schema())[0])

    def enqueue_many_sync(self, jobs: Sequence[NewJob], *, conn: Any) -> list[Enqueued]:
        """The same for many."""
        text, schema = self._sql("enqueue_many.sql"), self._schema()
        return [_answer(row) for row in callers.fetch_on_sync(conn, text, many_jobs(jobs), schema=schema)]

    def enqueue_batch_sync(self, jobs: Sequence[NewJob], *, then: NewJob | None, conn: Any) -> EnqueuedBatch:
        """The same for a batch."""
        return batches.add_on_sync(conn, jobs, then=then, schema=self._schema())

    def _sql(self, name: str) -> str:
        return statement("rota.queue.io.sql", name, self._schema())


def _answer(row: callers.Row) -> Enqueued:
    return Enqueued(JobId(row["id"]), row["created"])
