"""Describes a job to add: what is wrong is said here, by the name of the argument, before anything is sent. Pure.

The database checks again (`rota.job_ok`), because jobs also come by SQL.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from rota.errors import EnqueueError
from rota.ids import BatchId, JobId
from rota.queue.job import Dedupe, NewJob
from rota.queue.payload import check_text, encode

KIND_NAME: Final = "__rota_kind__"
"""The attribute of a handler's function that keeps the name of its kind, so that a child process finds it."""

PRIORITY_MAX: Final = 2**31 - 1
DELAY_S_MAX: Final = 3_155_760_000
"""A hundred years; the function rota.enqueue says the same."""


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
    if max_tries is not None and not 1 <= max_tries <= 1000:
        raise EnqueueError(f"max_tries={max_tries!r} is no good: give 1 to 1,000.")
    return NewJob(
        kind=kind,
        payload="{}" if payload is None else encode(payload),
        priority=priority,
        tenant=tenant,
        dedupe=dedupe,
        run_after=run_after,
        delay_s=delay_s,
        max_tries=max_tries,
        parent_id=parent,
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
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > PRIORITY_MAX:
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
    if delay_s is not None and not _is_seconds(delay_s):
        raise EnqueueError(f"delay_s={delay_s!r} is no good: give seconds from 0 to {DELAY_S_MAX:,}.")


def _check_names(tenant: Any, dedupe: Any) -> None:
    if tenant is not None:
        if not isinstance(tenant, str):
            raise EnqueueError(f"tenant={tenant!r} is no good: give text.")
        check_text("tenant", tenant)
    if dedupe is None:
        return
    if not isinstance(dedupe, Dedupe):
        raise EnqueueError(f"dedupe={dedupe!r} is no good: give rota.open_key(…) or one of its siblings.")
    check_text("dedupe key", dedupe.key)
    if not 1 <= len(dedupe.key) <= 500:
        raise EnqueueError("A dedupe key has 1 to 500 characters.")
    if dedupe.window_s is not None and not (_is_seconds(dedupe.window_s) and dedupe.window_s > 0):
        raise EnqueueError(
            f"{dedupe.window_s!r} is no good for a key's window: give over 0 to {DELAY_S_MAX:,} seconds."
        )


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= DELAY_S_MAX
