"""What a job is: its states, what is asked for, what is claimed, and how a try can end. Pure data.

What there is one of for each job is a msgspec Struct, because those are made ten times as fast as a dataclass.
The table `NEXT_STATES` is the one place that says which state may follow which; the SQL and the reference store are
tested against it.

Spec: job queue, "The table" and "How a server takes a job".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from msgspec import Struct, structs

from rota.ids import BatchId, JobId
from rota.lease import Lease
from rota.queue.history import TryEnd
from rota.queue.limits import NO_LIMITS, Limits


class State(StrEnum):
    """Where a job stands. The last four are final: the job has ended."""

    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


CANCEL_GRACE_S: Final = 30.0
"""How long a holder has to answer a cancel before the job ends without it."""

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

    THROTTLE = "throttle"
    """At most one new job for each key in a window of time, whatever became of the one before."""


class Twin(StrEnum):
    """What an enqueue does to the queued job that holds its queued-scope key."""

    KEEP = "keep"
    """Nothing."""

    REPLACE = "replace"
    """Its payload becomes the new one."""

    MERGE = "merge"
    """Arrays of the new payload are joined to its own."""

    DEBOUNCE = "debounce"
    """Its payload becomes the new one, and it waits anew."""


@dataclass(frozen=True, slots=True)
class Dedupe:
    """A key and its scope; make one with `open_key` or one of its siblings.

    Attributes:
        key: 1 to 500 characters.
        scope: how far it reaches.
        twin: what becomes of the queued job that holds it; only for the scope QUEUED.
        window_s: for THROTTLE how long a window is; for DEBOUNCE how long a job may be pushed back at most.
        wait_s: for DEBOUNCE, how long each enqueue makes the job wait.
    """

    key: str
    scope: Scope
    twin: Twin = Twin.KEEP
    window_s: float | None = None
    wait_s: float | None = None

    @property
    def word(self) -> str:
        """The dedupe_scope of the SQL functions, which is one word for both."""
        return self.scope.value if self.twin is Twin.KEEP else self.twin.value


def open_key(key: str) -> Dedupe:
    """Two open jobs never share this key: the enqueue answers with the job that holds it."""
    return Dedupe(key, Scope.OPEN)


def queued_key(key: str) -> Dedupe:
    """One queued job for this key; while one runs, one more may wait."""
    return Dedupe(key, Scope.QUEUED)


def forever_key(key: str) -> Dedupe:
    """This key creates one job, ever."""
    return Dedupe(key, Scope.FOREVER)


def replace_key(key: str) -> Dedupe:
    """A queued key; the new payload takes the place of the queued twin's."""
    return Dedupe(key, Scope.QUEUED, Twin.REPLACE)


def merge_key(key: str) -> Dedupe:
    """A queued key; arrays of the new payload are joined to those of the queued twin, other values are replaced."""
    return Dedupe(key, Scope.QUEUED, Twin.MERGE)


def debounce_key(key: str, *, wait_s: float, at_most_s: float | None = None) -> Dedupe:
    """A queued key; the job runs when nobody has asked for it during `wait_s`, with the last payload.

    Args:
        key: 1 to 500 characters.
        wait_s: seconds from the last enqueue until the job is due.
        at_most_s: seconds from the first enqueue after which it is due however many follow; None: no bound.
    """
    return Dedupe(key, Scope.QUEUED, Twin.DEBOUNCE, window_s=at_most_s, wait_s=wait_s)


def throttle_key(key: str, *, window_s: float) -> Dedupe:
    """At most one job is created for this key in `window_s` seconds; within them the enqueue answers with that job."""
    return Dedupe(key, Scope.THROTTLE, window_s=window_s)


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


class EnqueuedBatch(Struct, frozen=True):
    """The answer to the enqueue of a batch: its id, and for each job, in order, its id and whether it was created."""

    id: BatchId
    jobs: list[Enqueued]


class Full(Struct, frozen=True, gc=False):
    """A kind without a free slot, as a look asks about it: how many jobs run, and the lowest of their priorities."""

    kind: str
    running: int
    lowest: int


class Ask(Struct, frozen=True, gc=False):
    """What a claim wants of one kind. `lowest`: no job of a lower priority; `after`: the tenant whose turn was the
    last, where tenants take turns."""

    kind: str
    free: int
    lease_s: float
    max_tries: int
    lowest: int | None = None
    limits: Limits = NO_LIMITS
    after: str | None = None

    def behind(self, tenant: str | None) -> "Ask":
        """The same, behind that tenant's turn."""
        return structs.replace(self, after=tenant)


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
        """The job's id, of its lease."""
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
    AGAIN = "again"
    """It went well, and the same row runs again, with its tries at 0."""


class Finish(Struct, frozen=True, gc=False):
    """The end of a try. `result` and `progress` are JSON text (None: what is stored stays); `wait_s` counts for RETRY
    and AGAIN. `keyed`: it goes apart from the others, because the job has a queued-scope key or is the run of a pass.
    `follow_ups`: jobs that are added if and when a DONE or AGAIN is written. `alone`: the write is a commit of its own.
    `follows`: the pass whose next run is written in the same transaction. `how` the try ended, where the outcome does
    not say it."""

    lease: Lease
    outcome: Outcome
    error: str | None = None
    result: str | None = None
    wait_s: float = 0.0
    keyed: bool = False
    progress: str | None = None
    how: TryEnd | None = None
    follow_ups: tuple[NewJob, ...] = ()
    alone: bool = False
    follows: str | None = None


class Release(Struct, frozen=True, gc=False):
    """A return to the queue that counts no try. `wait_s` None keeps run_after and with it the place in line.
    `unstart_s`: the job has not begun, and its kind's rate, per so many seconds, counts it no longer.
    `how` the run ended, where it was not given back."""

    lease: Lease
    wait_s: float | None = None
    reason: str | None = None
    keyed: bool = False
    progress: str | None = None
    how: TryEnd | None = None
    unstart_s: float | None = None
    alone: bool = False


class Swept(Struct, frozen=True, gc=False):
    """A lease that ran out, and what became of its job."""

    lease: Lease
    kind: str
    holder: str
    state: State
    tries: int


class Poll(Struct, frozen=True, gc=False):
    """What a server sees: seconds until the next job is due (0 or less: now; None: nothing waits), whether a lease ran
    out, which of its jobs somebody wants stopped, for full kinds the priorities of due jobs that are more urgent than
    one that runs, the highest first, and what is paused (`kind:thumbnail`, `tenant:acme`, `all:`)."""

    next_due_s: float | None
    expired: bool
    cancels: tuple[JobId, ...]
    urgent: dict[str, list[int]] = {}
    paused: tuple[str, ...] = ()


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


class BatchStatus(Struct, frozen=True, gc=False):
    """A batch: how many jobs it has, how they stand, and the follow-up once all have ended."""

    id: BatchId
    created_at: datetime
    ended_at: datetime | None
    jobs: int
    open: int
    done: int
    failed: int
    cancelled: int
    expired: int
    then_kind: str | None
    then_id: JobId | None


class BatchCounts(Struct, frozen=True, gc=False):
    """What the follow-up of a batch finds under `batch` in its payload."""

    id: UUID
    jobs: int
    done: int
    failed: int
    cancelled: int
    expired: int


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
