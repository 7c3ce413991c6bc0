"""Describes a job to add: what is wrong is said here, by the name of the argument, before anything is sent. Pure.

The database checks again (`rota.job_ok`), because jobs also come by SQL.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

from rota.errors import BatchNotFound, EnqueueError, JobNotFound
from rota.ids import BatchId, JobId
from rota.queue.checks import PRIORITY_MAX, as_uuid, is_number
from rota.queue.job import Dedupe, Enqueued, NewJob
from rota.queue.payload import check_text, encode

KIND_NAME: Final = "__rota_kind__"
"""The attribute of a handler's function that keeps the name of its kind, so that a child process finds it."""

TENANT_MAX: Final = 200
"""Characters of a tenant's name: with its kind it stands in an index, whose entries the database bounds."""
DELAY_S_MAX: Final = 3_155_760_000
"""A hundred years; the function rota.enqueue says the same."""
FIRST: Final = datetime(2, 1, 1, tzinfo=UTC)
LAST: Final = datetime(9998, 12, 31, tzinfo=UTC)
"""Python knows no times beyond the year 9999, in whatever zone it shows them."""


def describe(
    kind: str,
    payload: Any = None,
    *,
    known: bool = False,
    priority: int = 0,
    tenant: str | None = None,
    dedupe: Dedupe | None = None,
    run_after: datetime | None = None,
    delay_s: float | None = None,
    max_tries: int | None = None,
    parent: JobId | None = None,
    batch_id: BatchId | None = None,
    trace: str | None = None,
) -> NewJob:
    """Makes a checked NewJob; see `App.enqueue` for the arguments.

    Args:
        known: the kind is the program's own, and was checked when it was made.
        trace: the traceparent of the span that the enqueue stands in.

    Raises: PayloadError with the field's path; EnqueueError.
    """
    if not known:
        if not kind or len(kind) > 200:
            raise EnqueueError(f"{kind[:50]!r} is no kind: give a name of 1 to 200 characters.")
        check_text("kind", kind)
    _check_names(tenant, dedupe)
    check_priority(priority)
    if dedupe is not None and dedupe.wait_s is not None:
        if run_after is not None or delay_s is not None:
            raise EnqueueError("A debounce key says how long the job waits: leave out run_after and delay_s.")
        delay_s = dedupe.wait_s
    check_times(run_after, delay_s)
    if max_tries is not None and not is_number(max_tries, 1, 1000, whole=True):
        raise EnqueueError(f"max_tries={max_tries!r} is no good: give a whole number, 1 to 1,000.")
    parent_id = None if parent is None else as_uuid(parent)
    if parent_id is None and parent is not None:
        raise EnqueueError(f"parent={parent!r} is no id of a job: give that of what enqueue returned.")
    return NewJob(
        kind=kind,
        payload="{}" if payload is None else encode(payload),
        priority=priority,
        tenant=tenant,
        dedupe=dedupe,
        run_after=run_after,
        delay_s=delay_s,
        max_tries=max_tries,
        parent_id=None if parent_id is None else JobId(parent_id),
        batch_id=batch_id,
        trace=trace,
    )


def kind_of(kind: str | Callable[..., Any]) -> str:
    """The name of a kind, or of a handler's kind.

    Raises: EnqueueError if the function is no handler.
    """
    if isinstance(kind, str):
        return kind
    name: str | None = getattr(kind, KIND_NAME, None)
    if name is None:
        raise EnqueueError(
            f"{getattr(kind, '__name__', repr(kind))} is no handler. "
            "Decorate it with @app.job, or give the kind's name."
        )
    return name


def check_priority(priority: Any) -> None:
    """Refuses what is no priority.

    Raises: EnqueueError.
    """
    if not is_number(priority, -PRIORITY_MAX, PRIORITY_MAX, whole=True):
        raise EnqueueError(f"priority={priority!r} is no good: give a whole number; higher runs first.")


def check_times(run_after: Any, delay_s: Any) -> None:
    """Refuses a start that is no time, or that is given twice.

    Raises: EnqueueError.
    """
    if run_after is not None:
        if not isinstance(run_after, datetime):
            raise EnqueueError(f"run_after={run_after!r} is no good: give a datetime with a time zone.")
        if run_after.tzinfo is None:
            raise EnqueueError("run_after has no time zone: give one, such as datetime.now(UTC) + timedelta(hours=1).")
        if delay_s is not None:
            raise EnqueueError("Give run_after or delay_s, not both.")
        if not FIRST <= run_after <= LAST:
            raise EnqueueError(f"run_after={run_after} is no good: give a time of the years 2 to 9998.")
    if delay_s is not None and not is_number(delay_s, 0, DELAY_S_MAX):
        raise EnqueueError(f"delay_s={delay_s!r} is no good: give seconds from 0 to {DELAY_S_MAX:,}.")


def _check_names(tenant: Any, dedupe: Any) -> None:
    if tenant is not None:
        if not isinstance(tenant, str):
            raise EnqueueError(f"tenant={tenant!r} is no good: give text.")
        if len(tenant) > TENANT_MAX:
            raise EnqueueError(f"A tenant's name has at most {TENANT_MAX} characters, and {tenant[:30]!r}… has more.")
        check_text("tenant", tenant)
    if dedupe is None:
        return
    if not isinstance(dedupe, Dedupe):
        raise EnqueueError(f"dedupe={dedupe!r} is no good: give rota.open_key(…) or one of its siblings.")
    check_text("dedupe key", dedupe.key)
    if not 1 <= len(dedupe.key) <= 500:
        raise EnqueueError("A dedupe key has 1 to 500 characters.")
    if dedupe.window_s is not None and not (is_number(dedupe.window_s, 0, DELAY_S_MAX) and dedupe.window_s > 0):
        raise EnqueueError(
            f"{dedupe.window_s!r} is no good for a key's window: give over 0 to {DELAY_S_MAX:,} seconds."
        )


def job_id_of(value: Any) -> JobId:
    """The id of a job, from what a caller gave as one: an id, its text, or what an enqueue returned.

    Raises: JobNotFound if it is none.
    """
    found = as_uuid(value.id if isinstance(value, Enqueued) else value)
    if found is None:
        raise JobNotFound(f"{value!r} is no id of a job: give what enqueue returned, its id, or the id's text.")
    return JobId(found)


def batch_id_of(value: Any) -> BatchId:
    """The id of a batch, from what a caller gave as one.

    Raises: BatchNotFound if it is none.
    """
    found = as_uuid(value)
    if found is None:
        raise BatchNotFound(f"{value!r} is no id of a batch: give that of what enqueue_batch returned.")
    return BatchId(found)


def checked(jobs: Iterable[Any]) -> list[NewJob]:
    """What was described by `describe`, all of it.

    Raises: EnqueueError if something else is among it.
    """
    given = list(jobs)
    if not set(map(type, given)) <= {NewJob}:
        strange = next(job for job in given if not isinstance(job, NewJob))
        raise EnqueueError(f"{strange!r} is no new job: make it with app.new(kind, payload).")
    return given
