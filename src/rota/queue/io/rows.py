"""Jobs, ends and batches as parameters of statements, and the rows of their answers as what the queue knows.

The order of parameters is that of each statement's header. Nothing is sent here.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rota.ids import BatchId, Holder, JobId
from rota.lease import Lease
from rota.queue.job import ClaimedJob, Finish, JobRow, NewJob, Scope, State, Swept
from rota.queue.marks import Mark

STATES: Final = {state.value: state for state in State}


def one_job(job: NewJob, *, now: datetime | None = None) -> tuple[Any, ...]:
    """The parameters of enqueue.sql."""
    return (
        job.kind,
        job.payload,
        job.priority,
        job.tenant,
        job.dedupe.key if job.dedupe else None,
        job.dedupe.word if job.dedupe else None,
        job.run_after,
        job.delay_s,
        job.max_tries,
        job.trace,
        None if job.parent_id is None else str(job.parent_id),
        None if job.batch_id is None else str(job.batch_id),
        job.dedupe.window_s if job.dedupe else None,
        now,
    )


def many_jobs(jobs: Sequence[NewJob], *, now: datetime | None = None) -> tuple[Any, ...]:
    """The parameters of enqueue_many.sql; a column that no job sets is sent as one null."""
    columns: list[list[Any] | None] = [
        list(column) for column in zip(*(one_job(job)[2:-1] for job in jobs), strict=True)
    ]
    return (
        [job.kind for job in jobs],
        [job.payload for job in jobs],
        *(None if column is None or all(value is None for value in column) else column for column in columns),
        now,
    )


def one_end(
    finish: Finish, *, unless_cancelled: bool = False, holder: Holder | None = None, now: datetime | None = None
) -> tuple[Any, ...]:
    """The parameters of finish_one.sql."""
    lease = finish.lease
    return (
        str(lease.job_id), lease.epoch, finish.outcome.value, finish.error, finish.result, finish.progress,
        unless_cancelled, now, None if finish.how is None else finish.how.value, holder,
    )  # fmt: skip


def one_batch(batch_id: BatchId, *, jobs: int, then: NewJob | None, now: datetime | None = None) -> tuple[Any, ...]:
    """The parameters of begin_batch.sql."""
    head = (str(batch_id), jobs)
    if then is None:
        return (*head, None, None, None, None, None, None, now)
    return (*head, then.kind, then.payload, then.priority, then.tenant, then.max_tries, then.trace, now)


def unless(values: list[Any], usual: Any) -> list[Any] | None:
    """A column, or one null for all of it where every value is the usual one: most batches send two columns of six."""
    return None if values.count(usual) == len(values) else values


def columns_of(marks: Sequence[Mark]) -> tuple[list[Any], ...]:
    """Marks as five columns: kind, priority, run_after, job id, age in seconds."""
    return (
        [mark.kind for mark in marks],
        [mark.priority for mark in marks],
        [mark.run_after for mark in marks],
        [mark.job_id for mark in marks],
        [mark.age_s for mark in marks],
    )


def in_order(rows: Iterable[Sequence[Any]]) -> list[ClaimedJob]:
    """Rows of claim.sql as jobs, in the queue's order: a statement that updates gives them in any."""
    claimed = [claimed_of(row) for row in rows]
    claimed.sort(key=lambda job: job.order)
    return claimed


def claimed_of(row: Sequence[Any]) -> ClaimedJob:
    """A row of claim.sql or claim_turns.sql, by position."""
    # By position, in the order of claim.sql: this runs for every job.
    job_id, kind, tenant, payload, priority, epoch, tries, max_tries, run_after, created_at, scope, progress, trace = (
        row
    )
    return ClaimedJob(
        Lease(job_id, epoch),
        kind,
        tenant,
        payload,
        priority,
        tries,
        max_tries,
        run_after,
        created_at,
        None if scope is None else Scope(scope),
        progress,
        trace,
    )


def swept_of(row: Mapping[str, Any]) -> Swept:
    """A row of sweep.sql: id, epoch, kind, holder, state, tries."""
    return Swept(Lease(JobId(row["id"]), row["epoch"]), row["kind"], row["holder"], State(row["state"]), row["tries"])


def row_of(row: Mapping[str, Any]) -> JobRow:
    """A row of list.sql or show.sql: the fields of `JobRow`."""
    values = dict(row)
    values["id"] = JobId(values["id"])
    values["state"] = State(values["state"])
    values["dedupe_scope"] = None if values["dedupe_scope"] is None else Scope(values["dedupe_scope"])
    return JobRow(**values)
