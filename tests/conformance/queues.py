"""One face for the reference and for PostgreSQL, so that one suite can run against both."""

import asyncio
import inspect
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
from msgspec import structs

from rota.errors import EnqueueError
from rota.ids import BatchId, Holder, JobId
from rota.io.postgres import Database, channel
from rota.lease import Lease, Renewal
from rota.queue.history import KeptLine, LogLine, Stopped, Try
from rota.queue.io.store import Store
from rota.queue.job import (
    Answer,
    Ask,
    BatchStatus,
    ClaimedJob,
    Enqueued,
    FailedJob,
    Finish,
    JobFilter,
    JobRow,
    NewJob,
    Outcome,
    Poll,
    Release,
    Retried,
    State,
    Swept,
)
from rota.queue.reference import Reference
from rota.queue.retention import Keep, Pruned, Rule

LEASE_S = 300.0
MAX_TRIES = 3
HOLDER = Holder("here:1:aa")
OTHER = Holder("there:2:bb")
FIRST_ID, LAST_ID = JobId(UUID(int=0)), JobId(UUID(int=2**128 - 1))
NOBODY = JobId(UUID(int=7))


class Queue:
    """A queue whose clock stands still until the test moves it."""

    def __init__(self, store: Store | None = None, *, dsn: str | None = None, random: Any = None) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.reference = None if store is not None else Reference(clock=lambda: self.now, random=random)
        self.inner: Any = store or self.reference
        self._dsn = dsn
        self._ears: asyncpg.Connection | None = None
        self._heard: list[str] = []

    def later(self, seconds: float) -> None:
        """Moves the clock."""
        self.now += timedelta(seconds=seconds)

    def at(self, seconds: float) -> datetime:
        """A time so many seconds from now."""
        return self.now + timedelta(seconds=seconds)

    async def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Calls a method of the queue under test, and looks at the invariants afterwards."""
        answer = getattr(self.inner, name)(*args, **options)
        if inspect.isawaitable(answer):
            answer = await answer
        if self.reference is not None:
            self.reference.check_invariants()
        return answer

    async def add(self, kind: str = "work", **options: Any) -> JobId:
        """Adds a job that is not there yet."""
        added = await self.enqueue(NewJob(kind, **options))
        assert added.created
        return added.id

    async def enqueue(self, job: NewJob) -> Enqueued:
        return (await self._enqueue("enqueue", job))[0]

    async def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return await self._enqueue("enqueue_many", jobs)

    async def _enqueue(self, name: str, what: Any) -> list[Enqueued]:
        self.later(0.001)  # ids of the same microsecond are in no order
        try:
            answer = await self.call(name, what, now=self.now)
        except asyncpg.InvalidParameterValueError as error:
            raise EnqueueError(str(error)) from error
        return answer if isinstance(answer, list) else [answer]

    async def claim(self, *asks: Ask, holder: Holder = HOLDER, **one: Any) -> list[ClaimedJob]:
        """Claims by asks, or by the parts of one."""
        claimed: list[ClaimedJob] = await self.call("claim", asks or (ask(**one),), holder=holder, now=self.now)
        return claimed

    async def take(self, job_id: JobId, *, holder: Holder = HOLDER, **one: Any) -> Lease:
        """Claims one job, which has to be the next."""
        claimed = await self.claim(ask(free=1, **one), holder=holder)
        assert [job.id for job in claimed] == [job_id]
        return claimed[0].lease

    async def renew(self, *leases: Lease, lease_s: float = LEASE_S, progress: Any = None) -> dict[JobId, bool]:
        renewals = [Renewal(lease, lease_s, progress) for lease in leases]
        answer: dict[JobId, bool] = await self.call("renew", renewals, now=self.now)
        return answer

    async def finish(self, *finishes: Finish) -> dict[JobId, State]:
        answer: dict[JobId, State] = await self.call("finish", finishes, now=self.now)
        return answer

    async def end(self, lease: Lease, outcome: Outcome = Outcome.DONE, **options: Any) -> State | None:
        """Finishes one job; None if it was refused."""
        return (await self.finish(Finish(lease, outcome, **options))).get(lease.job_id)

    async def end_alone(self, *leases: Lease, outcome: Outcome = Outcome.DONE, **options: Any) -> dict[JobId, State]:
        """Ends jobs, each in a commit of its own."""
        finishes = [Finish(lease, outcome, **options) for lease in leases]
        answer: dict[JobId, State] = await self.call("finish_each", finishes, now=self.now)
        return answer

    async def release(self, *releases: Release) -> dict[JobId, State]:
        answer: dict[JobId, State] = await self.call("release", releases, now=self.now)
        return answer

    async def back(self, lease: Lease, **options: Any) -> State | None:
        """Releases one job; None if it was refused."""
        return (await self.release(Release(lease, **options))).get(lease.job_id)

    async def disown(self, *known: JobId, holder: Holder = HOLDER, before: datetime | None = None) -> int:
        answer: int = await self.call("disown", holder, known=known, before=before or self.now, now=self.now)
        return answer

    async def sweep(self, **options: Any) -> list[Swept]:
        answer: list[Swept] = await self.call("sweep", now=self.now, **options)
        return answer

    async def cancel(self, *ids: JobId, reason: str = "Not wanted", **options: Any) -> dict[JobId, State]:
        answer: dict[JobId, State] = await self.call("cancel", ids, reason=reason, now=self.now, **options)
        return answer

    async def move(self, *ids: JobId, **options: Any) -> dict[JobId, State]:
        answer: dict[JobId, State] = await self.call("move", ids, now=self.now, **options)
        return answer

    async def add_batch(self, *jobs: NewJob, then: NewJob | None = None) -> tuple[BatchId, list[JobId]]:
        """Adds jobs as one batch."""
        batch_id = BatchId(uuid4())
        options = {"jobs": len(jobs), "then": then, "now": self.now}
        if self.reference is not None:
            self.reference.begin_batch(batch_id, **options)
        else:
            async with self.inner.database.transaction() as conn:
                await self.inner.begin_batch(batch_id, conn=conn, **options)
        added = await self.enqueue_many([structs.replace(job, batch_id=batch_id) for job in jobs])
        return batch_id, [answer.id for answer in added]

    async def batch(self, batch_id: BatchId) -> BatchStatus:
        status: BatchStatus = await self.call("batch", batch_id)
        return status

    async def close_batches(self, *ids: BatchId) -> dict[BatchId, JobId | None]:
        answer: dict[BatchId, JobId | None] = await self.call("close_batches", ids or None, now=self.now)
        return answer

    async def poll(self, *kinds: str, holder: Holder = HOLDER, **options: Any) -> Poll:
        seen: Poll = await self.call("poll", kinds or ("work",), holder=holder, now=self.now, **options)
        return Poll(seen.next_due_s, seen.expired, tuple(sorted(seen.cancels)), seen.urgent, seen.paused)

    async def wait(self, holder: Holder, *, kinds: Sequence[str], seconds: float) -> None:
        await self.call("wait", holder, kinds=kinds, seconds=seconds)

    async def awake(self, holder: Holder) -> None:
        await self.call("awake", holder)

    async def prune(self, *, keep_s: float, **options: Any) -> int:
        """Removes what ended so long ago, failed or not."""
        removed = 0
        for failed in (False, True):
            removed += (await self.prune_by(Rule(None, failed, keep_s), **options)).removed
        return removed

    async def prune_by(self, rule: Rule, **options: Any) -> Pruned:
        answer: Pruned = await self.call("prune", rule, now=self.now, **options)
        return answer

    async def keep(self, *keeps: Keep) -> list[Keep]:
        answer: list[Keep] = await self.call("keep", keeps)
        return answer

    async def tries(self, *ids: JobId) -> list[Try]:
        answer: list[Try] = await self.call("tries", ids, now=self.now)
        return answer

    async def stopped(self, *stops: Stopped, holder: Holder = HOLDER) -> dict[Lease, float]:
        answer: dict[Lease, float] = await self.call("stopped", stops, holder=holder, now=self.now)
        return answer

    async def overlap_s(self) -> float:
        answer: float = await self.call("overlap_s", now=self.now)
        return answer

    async def log(self, *lines: LogLine, clock: float = 0.0) -> None:
        await self.call("log", lines, clock=clock, now=self.now)

    async def logs(self, *ids: JobId, **options: Any) -> list[KeptLine]:
        lines: list[KeptLine] = await self.call("logs", ids, **options)
        return [replace(line, fields=plain(line.fields)) for line in lines]

    async def results(self, *ids: JobId) -> dict[JobId, Answer]:
        answers: dict[JobId, Answer] = await self.call("results", ids)
        return {job_id: Answer(answer.state, plain(answer.result), answer.error) for job_id, answer in answers.items()}

    async def failed(self, **options: Any) -> list[FailedJob]:
        answer: list[FailedJob] = await self.call("failed", now=self.now, **options)
        return answer

    async def failed_count(self, **options: Any) -> dict[str, int]:
        answer: dict[str, int] = await self.call("failed_count", now=self.now, **options)
        return answer

    async def retry_many(self, *ids: JobId) -> list[JobId]:
        answer: list[JobId] = await self.call("retry_many", ids, now=self.now)
        return answer

    async def page(self, *, limit: int = 100, below: JobId | None = None, **wanted: Any) -> list[JobRow]:
        rows = await self.call("page", JobFilter(**wanted), limit=limit, below=below, now=self.now)
        return [self._plain(row) for row in rows]

    async def retry(self, job_id: JobId) -> Retried:
        answer: Retried = await self.call("retry", job_id, now=self.now)
        return answer

    async def show(self, lowest: JobId, highest: JobId | None = None, *, limit: int = 10) -> list[JobRow]:
        return [self._plain(row) for row in await self.call("show", lowest, highest, limit=limit)]

    async def row(self, job_id: JobId) -> JobRow:
        """The whole row of a job that exists."""
        (row,) = await self.show(job_id)
        return row

    async def rows(self) -> list[JobRow]:
        """All rows, whole, the newest first."""
        return await self.show(FIRST_ID, LAST_ID, limit=100_000)

    async def states(self, ids: Iterable[JobId]) -> list[State]:
        """The states of these jobs, in their order."""
        return [(await self.row(job_id)).state for job_id in ids]

    def _plain(self, row: JobRow) -> JobRow:
        """JSON in one form, and the time of the look as the clock has it."""
        return replace(
            row, now=self.now, payload=plain(row.payload), progress=plain(row.progress), result=plain(row.result)
        )

    async def listen(self) -> None:
        """Begins to hear what wakes workers and stops jobs."""
        if self._dsn is not None:
            self._ears = await asyncpg.connect(self._dsn)
            await self._ears.add_listener(channel("rota"), lambda *heard: self._heard.append(heard[-1]))

    async def close(self) -> None:
        """Ends what `listen` began."""
        if self._ears is not None:
            await self._ears.close()

    async def heard(self) -> list[str]:
        """What was said since the last time, sorted."""
        if self.reference is not None:
            heard, self.reference.notices = self.reference.notices, []
            return sorted(heard)
        assert self._ears is not None
        # Notices come in the order of the commits: this one is behind all that the test has caused.
        await self._ears.execute(f"SELECT pg_notify('{channel('rota')}', 'end')")
        async with asyncio.timeout(10):
            while "end" not in self._heard:
                await asyncio.sleep(0.001)
        heard, self._heard = self._heard, []
        return sorted(word for word in heard if word != "end")


def ask(kind: str = "work", *, free: int = 100, lease_s: float = LEASE_S, max_tries: int = MAX_TRIES) -> Ask:
    """What a claim wants, with this suite's defaults."""
    return Ask(kind, free, lease_s, max_tries)


def plain(text: str | None) -> str | None:
    """JSON text in one form: jsonb has spaces and an order of its own."""
    return None if text is None else json.dumps(json.loads(text), sort_keys=True)


async def empty(database: Database) -> None:
    """Removes all that tests have written."""
    tables = (
        "open_jobs", "ended_jobs", "forever_keys", "throttle_keys", "batches", "waiting", "starts", "servers", "passes",
        "pauses", "tries", "job_logs", "retention",
    )  # fmt: skip
    async with database.acquire() as conn:
        await conn.execute(";".join(f"DELETE FROM rota.{table}" for table in tables))  # one way there and back
