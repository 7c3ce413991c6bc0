"""What a job is: its states, what is asked for, what is claimed, and how a try can end. Pure data.

What there is one of for each job is a msgspec Struct, because those are made ten times as fast as a dataclass.
The state table at the end is the one place that says which state may follow which; the SQL and the reference store
are tested against it.

Spec: job queue, "The table" and "How a server takes a job".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from msgspec import Struct

from rota.ids import BatchId, JobId
from rota.lease import Lease
from rota.queue.history import TryEnd


class State(StrEnum):
    """Where a job stands. The last four are final: the job has ended."""

    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


ENDED: Final = frozenset({State.DONE, State.FAILED, State.CANCELLED, State.EXPIRED})

NEXT_STATES: Final[Mapping[State, frozenset[State]]] = {
    # claim; cancel
    State.QUEUED: frozenset({State.LEASED, State.CANCELLED}),
    # finish, release and sweep; a job whose queued twin waits ends done
    State.LEASED: frozenset({State.QUEUED, State.DONE, State.FAILED, State.CANCELLED, State.EXPIRED}),
    State.DONE: frozenset(),
    # a person's retry
    State.FAILED: frozenset({State.QUEUED}),
    State.CANCELLED: frozenset({State.QUEUED}),
    State.EXPIRED: frozenset({State.QUEUED}),
}


class Scope(StrEnum):
    """How far a dedupe key reaches."""

    OPEN = "open"
    """One open (queued or leased) job for each key."""

    QUEUED = "queued"
    """One queued job for each key; a running one does not count, because it may have read the old state."""

    FOREVER = "forever"
    """One job for each key, ever: also after it ended, and after its retention."""


@dataclass(frozen=True, slots=True)
class Dedupe:
    """A key and its scope; make one with `open_key`, `queued_key` or `forever_key`."""

    key: str
    scope: Scope


def open_key(key: str) -> Dedupe:
    """Two open jobs never share this key: the enqueue answers with the job that holds it."""
    return Dedupe(key, Scope.OPEN)


def queued_key(key: str) -> Dedupe:
    """One queued job for this key; while one runs, one more may wait."""
    return Dedupe(key, Scope.QUEUED)


def forever_key(key: str) -> Dedupe:
    """This key creates one job, ever."""
    return Dedupe(key, Scope.FOREVER)


class NewJob(Struct, frozen=True, gc=False):
    """One job to add. `payload` is JSON text that `rota.queue.payload` has checked."""

    kind: str
    payload: str = "{}"
    priority: int | None = None
    tenant: str | None = None
    dedupe: Dedupe | None = None
    run_after: datetime | None = None
    delay_s: float | None = None
    max_tries: int | None = None
    trace: str | None = None
    parent_id: JobId | None = None
    batch_id: BatchId | None = None


class Enqueued(Struct, frozen=True, gc=False):
    """The answer to an enqueue: `created` is False if another job holds the key, and `id` is then that job's."""

    id: JobId
    created: bool


class Ask(Struct, frozen=True, gc=False):
    """What a claim wants of one kind."""

    kind: str
    free: int
    lease_s: float
    max_tries: int


class ClaimedJob(Struct, frozen=True, gc=False):
    """A job as its holder gets it. `payload` and `progress` are JSON text."""

    lease: Lease
    kind: str
    tenant: str | None
    payload: str
    priority: int
    tries: int
    max_tries: int
    run_after: datetime
    created_at: datetime
    dedupe_scope: Scope | None
    progress: str | None
    trace: str | None

    @property
    def id(self) -> JobId:
        return self.lease.job_id

    @property
    def order(self) -> tuple[int, datetime, JobId]:
        """Sorts as the queue does: priority, oldest run_after, oldest job."""
        return (-self.priority, self.run_after, self.lease.job_id)


class Outcome(StrEnum):
    """How a try that counts ended, as the store writes it."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRY = "retry"


class Finish(Struct, frozen=True, gc=False):
    """The end of a try. `result` and `progress` are JSON text (None: what is stored stays); `wait_s` counts for RETRY.
    `keyed`: the job has a queued-scope key. `how` the try ended, where the outcome does not say it."""

    lease: Lease
    outcome: Outcome
    error: str | None = None
    result: str | None = None
    wait_s: float = 0.0
    keyed: bool = False
    progress: str | None = None
    how: TryEnd | None = None


class Release(Struct, frozen=True, gc=False):
    """A return to the queue that counts no try. `wait_s` None keeps run_after and with it the place in line.
    `how` the run ended, where it was not given back."""

    lease: Lease
    wait_s: float | None = None
    reason: str | None = None
    keyed: bool = False
    progress: str | None = None
    how: TryEnd | None = None


class Swept(Struct, frozen=True, gc=False):
    """A lease that ran out, and what became of its job."""

    lease: Lease
    kind: str
    holder: str
    state: State
    tries: int


class Poll(Struct, frozen=True, gc=False):
    """What an idle server sees: seconds until the next job is due (0 or less: now; None: nothing waits), whether a
    lease ran out, and which of its jobs somebody wants stopped."""

    next_due_s: float | None
    expired: bool
    cancels: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list; None means any. Ages are seconds since the job was added."""

    kinds: tuple[str, ...] | None = None
    states: tuple[State, ...] | None = None
    tenant: str | None = None
    older_s: float | None = None
    newer_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as people see it. `payload`, `result` and `trace` are None in lists."""

    id: JobId
    kind: str
    tenant: str | None
    priority: int
    state: State
    place: str
    tries: int
    max_tries: int | None
    run_after: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    heartbeat_at: datetime | None
    lease_until: datetime | None
    lease_epoch: int
    leased_by: str | None
    dedupe_key: str | None
    dedupe_scope: Scope | None
    last_error: str | None
    progress: str | None
    cancel_asked_at: datetime | None
    now: datetime
    payload: str | None = None
    result: str | None = None
    trace: str | None = None
    execution_id: str | None = None
    parent_id: JobId | None = None
    batch_id: BatchId | None = None


class Retried(Struct, frozen=True, gc=False):
    """The answer to a person's retry: `queued`, or why not: `held` (by the job `holder`), `leased`, `done`."""

    id: JobId
    outcome: str
    holder: JobId | None = None


class Answer(Struct, frozen=True, gc=False):
    """How a job stands, for whoever waits for its result. `result` is JSON text."""

    state: State
    result: str | None
    error: str | None


class FailedJob(Struct, frozen=True, gc=False):
    """A failed job that may run again. `keyed`: another job may hold its key by now."""

    id: JobId
    keyed: bool


# What a handler may return. Any other value is the job's result, and an exception is a failed try.


@dataclass(frozen=True, slots=True)
class Retry:
    """This try failed; run again after `after_s` seconds (None: the kind's own wait). Counts a try."""

    after_s: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Snooze:
    """Not now: run again after this many seconds. Counts no try."""

    after_s: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Yield:
    """Somebody more urgent may go first: back to the queue, at its old place. Counts no try."""


@dataclass(frozen=True, slots=True)
class GiveBack:
    """This server cannot run the job now: back to the queue. Counts no try."""

    reason: str | None = None
    after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Fail:
    """The job failed for good, whatever tries are left."""

    reason: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job ended because somebody wanted it to."""

    reason: str | None = None


HandlerOutcome = Retry | Snooze | Yield | GiveBack | Fail | Cancelled
