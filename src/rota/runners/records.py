"""What the gateways keep in the database about runner jobs, sessions and devices, as values. Pure.

A runner job is a job of the one table whose place is a target, with facts beside it. What the protocol calls its state
is a view of the job's: leased is Assigned until the runner has accepted, then Running.

Spec: runners, "Job lifecycle, leases and fencing"; design, "One jobs table".
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from rota.ids import JobId
from rota.lease import Lease

POOL: Final = "CloudPool"
DESKTOP: Final = "OrgRunner"
TARGETS: Final = (POOL, DESKTOP)

SESSION_S_MAX: Final = 14_400
IDLE_S: Final = 1_800
ONE_SHOT_TRIES: Final = 2
OUTPUT_BYTES: Final[Mapping[str, int]] = {
    "remotion.workspace-session": 2 * 1024**3,
    "video.compile": 4 * 1024**3,
    "video.analyze.extract": 512 * 1024**2,
}
"""The largest output of a job type, where a job does not say: the protocol's default caps."""
OUTPUT_BYTES_OTHER: Final = 2 * 1024**3

STATES: Final[Mapping[str, str]] = {
    "queued": "Queued", "done": "Succeeded", "failed": "Failed", "cancelled": "Cancelled", "expired": "Expired",
}  # fmt: skip


def version_key(version: str) -> tuple[int, ...] | None:
    """The numbers of a version, in an order that PostgreSQL's arrays and Python's tuples share, as `is_older` compares
    them; None: it has none, and is older than all."""
    numbers = [int(number) for number in re.findall(r"\d{1,9}", version)]
    if not numbers:
        return None
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def idempotency_key(execution_id: str, step_id: str, iteration: str, purpose: str) -> str:
    """What makes one job of many requests for it: SHA-256 in hexadecimal of the four, with `|` between them."""
    return hashlib.sha256("|".join((execution_id, step_id, iteration, purpose)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class NewRunnerJob:
    """A job that an engine asks for.

    Attributes:
        idempotency_key: a key that is there already gives the job that has it.
        target: `CloudPool` or `OrgRunner`.
        org_id: the organisation it is done for.
        job_type: such as `video.compile`.
        execution_id: the workflow execution; a running queue job's id binds this job's life to that try.
        spec: what the job needs to run; goes to the runner.
        priority: higher goes first.
        runtime_digest, fontset_version: what the runner must have; None: nothing.
        fontset_key: `fontset_version` as numbers that sort.
        output_bytes_max: the largest object that it may publish.
        timeout_s: how long its session lives at most.
        idle_s: how long without an op.
        one_shot: no session: it is queued again when its lease runs out, while tries are left.
        max_tries: of a one-shot job.
        trace: a W3C traceparent.
    """

    idempotency_key: str
    target: str
    org_id: str
    job_type: str
    execution_id: str
    spec: Mapping[str, Any]
    priority: int = 0
    runtime_digest: str | None = None
    fontset_version: str | None = None
    fontset_key: tuple[int, ...] | None = None
    output_bytes_max: int = OUTPUT_BYTES_OTHER
    timeout_s: int = SESSION_S_MAX
    idle_s: int = IDLE_S
    one_shot: bool = False
    max_tries: int = ONE_SHOT_TRIES
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class RunnerAsk:
    """What one connected runner could take.

    Attributes:
        runner_id: the device's id, or the pool worker's.
        target: whose jobs it takes.
        org_id: the organisation that it was paired to; None for the pool.
        job_types, runtime_digest, output_bytes_max: what it says it can do.
        fontset_key: its font set's version as numbers; None: it has none.
        free: how many jobs it has room for.
        without: jobs that it is not given, because it declined them lately.
    """

    runner_id: str
    target: str
    org_id: str | None
    job_types: tuple[str, ...]
    runtime_digest: str | None
    fontset_key: tuple[int, ...] | None
    output_bytes_max: int
    free: int = 1
    without: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class Assigned:
    """A job that a runner was given, or still holds, with what an `assign` says.

    Attributes:
        left_s: seconds until the end of its session.
        session_id: of its session; the job's own id where its execution had an open session already, and this one has
            no row.
        accepted: the runner has taken it.
        cancel_asked: somebody wants it to stop.
    """

    lease: Lease
    target: str
    org_id: str
    job_type: str
    spec: Mapping[str, Any]
    priority: int
    tries: int
    created_at: datetime
    execution_id: str
    runtime_digest: str | None
    fontset_version: str | None
    output_bytes_max: int
    timeout_s: int
    idle_s: int
    one_shot: bool
    session_id: UUID
    left_s: float
    accepted: bool = False
    cancel_asked: bool = False


@dataclass(frozen=True, slots=True)
class RunnerJob:
    """One runner job, open or ended."""

    id: JobId
    target: str
    org_id: str
    job_type: str
    spec: Mapping[str, Any]
    state: str
    priority: int
    epoch: int
    lease_until: datetime | None
    tries: int
    max_tries: int
    error: str | None
    result: Any
    progress: Any
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_asked_at: datetime | None
    idempotency_key: str
    execution_id: str
    runtime_digest: str | None
    fontset_version: str | None
    output_bytes_max: int
    timeout_s: int
    idle_s: int
    one_shot: bool
    runner_id: str | None
    gateway_instance: str | None
    session_id: UUID | None
    accepted_at: datetime | None
    deadline_at: datetime | None
    cancel_reason: str | None
    failure_class: str | None
    failure_code: str | None
    failure_retryable: bool | None
    claimed_class: str | None

    @property
    def shown_state(self) -> str:
        """Its state in the protocol's words."""
        return STATES.get(self.state) or ("Assigned" if self.accepted_at is None else "Running")

    @property
    def ended(self) -> bool:
        """Whether it will not change any more."""
        return self.state not in ("queued", "leased")


@dataclass(frozen=True, slots=True)
class End:
    """How a runner job ends.

    Attributes:
        lease: its lease; epoch 0: it is queued, and nobody holds it.
        state: done, failed, cancelled or expired.
        error: for people.
        result: JSON text.
        failure_class: whose fault, as the platform finds it: platform, runner or input.
        code: a word for it.
        retryable: a hint.
        claimed_class: what the runner said; nothing rests on it.
    """

    lease: Lease
    state: str
    error: str | None = None
    result: str | None = None
    failure_class: str | None = None
    code: str | None = None
    retryable: bool | None = None
    claimed_class: str | None = None


@dataclass(frozen=True, slots=True)
class Back:
    """A runner job that goes back to the queue.

    Attributes:
        counted: its try was one that counts.
        reason: for people.
        rejected_by: the runner that declined it, or did not answer.
    """

    lease: Lease
    reason: str
    counted: bool = False
    rejected_by: str | None = None


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A runner job whose time is over, and why: its lease, an unanswered cancel, or its execution's end."""

    lease: Lease
    why: str
    queued: bool
    one_shot: bool
    cancel_asked: bool
    tries: int
    max_tries: int


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session, and what has become of its job."""

    session_id: UUID
    job_id: JobId
    epoch: int
    execution_id: str
    runner_id: str
    gateway_instance: str
    closed_at: datetime | None
    closed_reason: str | None
    state: str | None
    job_type: str | None
    cancel_asked: bool
    held: bool
    timeout_s: int | None
    address: str | None


@dataclass(frozen=True, slots=True)
class Device:
    """One paired desktop runner."""

    device_id: str
    org_id: str
    name: str
    public_key: bytes
    previous_key: bytes | None
    previous_until: datetime | None
    capabilities: Mapping[str, Any] | None
    created_at: datetime
    seen_at: datetime | None
    revoked_at: datetime | None
    org_disabled: bool = False


@dataclass(frozen=True, slots=True)
class DisabledOrg:
    """An organisation that may not use runners now."""

    org_id: str
    disabled_at: datetime
    reason: str | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many jobs of equal needs wait."""

    target: str
    org_id: str
    job_type: str
    runtime_digest: str | None
    fontset_version: str | None
    output_bytes_max: int
    jobs: int


@dataclass(frozen=True, slots=True)
class Depth:
    """How many jobs of one type wait, or are held, for one target."""

    target: str
    job_type: str
    state: str
    jobs: int


@dataclass(frozen=True, slots=True)
class AuditNote:
    """One event for an audit trail: of an organisation, or of the pool where `org_id` is None."""

    org_id: str | None
    event: str
    runner_id: str | None = None
    job_id: UUID | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One event of an organisation's devices and jobs."""

    id: int
    at: datetime
    org_id: str | None
    event: str
    runner_id: str | None
    job_id: UUID | None
    detail: str | None


def verdict(lapsed: Lapsed) -> End | Back | None:
    """What becomes of a job whose time is over; None: its execution is over while a runner holds it: ask it to stop.

    A session ends with its lease, and its engine decides; a one-shot job is queued again while tries are left. The
    class is the platform's in both cases: it is what the platform observed.
    """
    lease = lapsed.lease
    if lapsed.why == "execution":
        return _cancelled(Lease(lease.job_id, 0), "execution_ended") if lapsed.queued else None
    if lapsed.cancel_asked:
        return _cancelled(lease, None)
    if not lapsed.one_shot:
        return End(
            lease, "expired", "The lease ran out: the runner was not heard of for 45 s.",
            failure_class="platform", code="session_lost", retryable=True,
        )  # fmt: skip
    if lapsed.tries < lapsed.max_tries:
        return Back(lease, "The lease ran out: the runner was not heard of for 45 s.", counted=True)
    return End(
        lease, "failed", "The lease ran out on the last try.",
        failure_class="platform", code="lease_expired", retryable=True,
    )  # fmt: skip


def _cancelled(lease: Lease, code: str | None) -> End:
    return End(lease, "cancelled", "Its execution is over." if code else None, code=code or "cancelled")
