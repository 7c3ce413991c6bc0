"""What an engine and the gateway's internal API say to each other: bodies, codes, and the rule for waits. Pure.

Field names are camelCase, times RFC 3339 in UTC, unknown fields are ignored. An error is `{code, message}`, with a
`reason` where the code has several. The document that is served at /openapi.json is made from these structs.

Spec: runners, "Engine to gateway", "Gateway internal API".
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from rota.lease import Lease
from rota.runners import pairing, records
from rota.runners.codes import FailureClass
from rota.runners.messages import OpError
from rota.runners.records import Depth, DisabledOrg, End, NewRunnerJob, RunnerJob, SessionRow, version_key
from rota.runners.registry import Figures, RunnerView

WAIT_S_MAX: Final = 60
"""A longer wait is cut to this: many proxies end a request that is silent for longer."""
UNTIL: Final = ("ended", "running")
"""What a read can wait for; `running` also ends when the job has ended."""
BODY_BYTES_MAX: Final = 4 * 1024 * 1024 + 64 * 1024
"""As large as the frame that the arguments of an op go into."""

UNVERIFIED: Final = "verification_failed"
"""The code of a job whose output the platform refused."""

Name = Annotated[str, Meta(min_length=1, max_length=pairing.NAME_MAX, pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)")]
"""Without control characters, as the protocol has it: a runner would not read the message that holds one."""
PublicKey = Annotated[str, Meta(max_length=200, extra_json_schema={"pattern": r"^[A-Za-z0-9_-]{43}=?$"})]
"""The 32 bytes of an Ed25519 key in base64url. Told in the document; checked where the answer can say it in words."""
Seconds = Annotated[int, Meta(ge=1, le=records.SESSION_S_MAX)]


class Body(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What these bodies are made of."""


class RequiresBody(Body, frozen=True):
    """What a runner must have beside the job's type."""

    runtime_image_digest: Name | None = None
    fontset_version: Name | None = None


class LimitsBody(Body, frozen=True):
    """What a session may use; the protocol's defaults where it is not said."""

    max_output_bytes: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    idle_timeout_sec: Seconds | None = None


class CreateJob(Body, frozen=True):
    """A job to be created. `idempotencyKey` is SHA-256 in hexadecimal of `executionId|stepId|iteration|purpose`;
    without it the gateway makes it of these four."""

    target: Literal["CloudPool", "OrgRunner"]
    org_id: Name
    job_type: Name
    execution_id: Name
    step_id: Annotated[str, Meta(max_length=200)] = ""
    iteration: Annotated[str, Meta(max_length=200)] | int = ""
    purpose: Annotated[str, Meta(max_length=200)] = ""
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    spec: dict[str, Any] = {}
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    requires: RequiresBody = RequiresBody()
    limits: LimitsBody = LimitsBody()
    timeout_sec: Seconds = records.SESSION_S_MAX
    one_shot: bool = False
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = records.ONE_SHOT_TRIES
    traceparent: Annotated[str, Meta(max_length=100)] | None = None


class Failure(Body, frozen=True):
    """Why a job failed. `class` is what the platform finds; what the runner said is only `claimedClass`."""

    failure_class: str | None = msgspec.field(name="class", default=None)
    code: str | None = None
    message: str | None = None
    retryable: bool | None = None
    claimed_class: str | None = None


class JobBody(Body, frozen=True):
    """One job. `result` is the runner's word, and `fromRunner` says so."""

    job_id: UUID
    state: str
    target: str
    org_id: str
    job_type: str
    execution_id: str
    idempotency_key: str
    priority: int
    attempt: int
    lease_epoch: int
    created_at: datetime
    started_at: datetime | None = None
    accepted_at: datetime | None = None
    finished_at: datetime | None = None
    session_id: UUID | None = None
    runner_id: str | None = None
    gateway_instance: str | None = None
    cancel_requested: bool = False
    error: Failure | None = None
    progress: Any = None
    result: Any = None
    from_runner: bool = False


class RunOp(Body, frozen=True):
    """One op. A repeated `opId` is answered with what it gave, and not carried out again."""

    op: Name
    op_id: Name | None = None
    args: dict[str, Any] = {}
    timeout_sec: Seconds | None = None


class OpDone(Body, frozen=True):
    """What an op gave. One that failed is `ok: false`, and still a 200."""

    op_id: str
    ok: bool
    result: dict[str, Any] | None = None
    error: OpError | None = None


class RunnerBody(Body, frozen=True):
    """One runner that is connected to the replica that answers."""

    runner_id: str
    kind: str
    org_id: str | None
    agent_version: str
    job_types: tuple[str, ...]
    slots: int
    free_slots: int
    running: int
    draining: bool
    available: bool
    container: str = "none"
    fontset_version: str = ""
    max_output_bytes: int = 0
    runtime_image_digest: str | None = None


class Runners(Body, frozen=True):
    """Who is connected to the replica that answers: a no is a hint, and never a routing decision."""

    gateway_instance: str
    runners: tuple[RunnerBody, ...]


class Scaling(Body, frozen=True):
    """The scaling signal. `queued` and `running` count all replicas; the others are of the one that answers."""

    desired_cloud_pool_slots: int
    queued: int
    running: int
    buffer: int
    connected_cloud_pool: int
    available_cloud_pool: int
    free_slots_cloud_pool: int
    free_slots_org_runner: int
    runners_without_job_types: int
    draining_runners: int


class Staging(Body, frozen=True):
    """A number for `runner-staging/{jobId}/{n}` that no other op, epoch or session of the job was or will be given."""

    n: int


class Ended(Body, frozen=True):
    """How many open jobs of an execution were cancelled, or are asked to stop."""

    jobs: int


class Verdict(Body, frozen=True):
    """An output of the job was judged by the platform and refused: the job fails with class `runner`."""

    message: Annotated[str, Meta(max_length=2000)] = ""


class PutOrganisation(Body, frozen=True):
    """Whether an organisation may use runners, and why it may not."""

    disabled: bool
    reason: Annotated[str, Meta(max_length=pairing.NAME_MAX)] | None = None


class Organisation(Body, frozen=True):
    """Whether an organisation may use runners."""

    org_id: str
    disabled: bool
    disabled_at: datetime | None = None
    reason: str | None = None


class Problem(Body, frozen=True):
    """What went wrong: a code, and words."""

    code: str
    message: str
    reason: str | None = None


class Pair(Body, frozen=True):
    """A device's public key, with the one-time code that registers it."""

    code: Annotated[str, Meta(max_length=100, extra_json_schema={"pattern": pairing.CODE_PATTERN})]
    public_key: PublicKey
    name: Annotated[str, Meta(max_length=200)] | None = None


class Proof(Body, frozen=True):
    """A device's signature, as in its hello, over `rota-runner-rotate-v1|deviceId|ts|nonce|host|publicKey`."""

    device_id: Name
    ts: Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z$")]
    nonce: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{22,171}={0,2}$")]
    sig: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{86}={0,2}$")]


class Rotate(Body, frozen=True):
    """A device's next public key, signed with the one that it has."""

    auth: Proof
    public_key: PublicKey
    overlap_sec: Annotated[int, Meta(ge=0, le=pairing.OVERLAP_S_MAX)] | None = None


class Rotated(Body, frozen=True):
    """The device's next key is registered; the one before is good until then."""

    device_id: str
    previous_until: datetime | None = None


class Paired(Body, frozen=True):
    """Who the device is from now on."""

    device_id: str
    org_id: str
    name: str


def new_job(asked: CreateJob) -> NewRunnerJob:
    """The job of a request, with the protocol's defaults."""
    limits = asked.limits
    key = asked.idempotency_key or records.idempotency_key(
        asked.execution_id, asked.step_id, str(asked.iteration), asked.purpose
    )
    fontset = asked.requires.fontset_version
    return NewRunnerJob(
        key, asked.target, asked.org_id, asked.job_type, asked.execution_id, asked.spec, asked.priority,
        asked.requires.runtime_image_digest, fontset, None if fontset is None else version_key(fontset) or (),
        limits.max_output_bytes or records.OUTPUT_BYTES.get(asked.job_type, records.OUTPUT_BYTES_OTHER),
        asked.timeout_sec, limits.idle_timeout_sec or records.IDLE_S, asked.one_shot, asked.max_attempts,
        asked.traceparent,
    )  # fmt: skip


def job_body(job: RunnerJob) -> JobBody:
    """One job as it is answered."""
    failed = job.state in ("failed", "expired")
    failure = Failure(
        failure_class=job.failure_class, code=job.failure_code, message=job.error, retryable=job.failure_retryable,
        claimed_class=job.claimed_class,
    )  # fmt: skip
    return JobBody(
        job_id=job.id, state=job.shown_state, target=job.target, org_id=job.org_id, job_type=job.job_type,
        execution_id=job.execution_id, idempotency_key=job.idempotency_key, priority=job.priority, attempt=job.tries,
        lease_epoch=job.epoch, created_at=_utc(job.created_at), started_at=_maybe(job.started_at),
        accepted_at=_maybe(job.accepted_at), finished_at=_maybe(job.finished_at), session_id=job.session_id,
        runner_id=job.runner_id, gateway_instance=job.gateway_instance,
        cancel_requested=job.cancel_asked_at is not None, error=failure if failed else None, progress=job.progress,
        result=job.result, from_runner=job.result is not None,
    )  # fmt: skip


def unverified(job: RunnerJob, verdict: Verdict) -> End:
    """How a job ends whose output was refused."""
    return End(
        Lease(job.id, job.epoch), "failed", verdict.message or "What was published is not what was asked for.",
        failure_class=FailureClass.RUNNER, code=UNVERIFIED, retryable=True,
    )  # fmt: skip


def organisation(org_id: str, disabled: DisabledOrg | None) -> Organisation:
    """An organisation as it is answered."""
    if disabled is None:
        return Organisation(org_id=org_id, disabled=False)
    return Organisation(
        org_id=org_id, disabled=True, disabled_at=_utc(disabled.disabled_at), reason=disabled.reason
    )  # fmt: skip


def rotated(device_id: str, until: datetime | None) -> Rotated:
    """A rotated key as it is answered."""
    return Rotated(device_id=device_id, previous_until=_maybe(until))


def same_request(job: RunnerJob, asked: NewRunnerJob) -> bool:
    """Whether a job that has the key of a request is what the request asks for (S92)."""
    return (
        (job.target, job.org_id, job.job_type, job.execution_id, dict(job.spec))
        == (asked.target, asked.org_id, asked.job_type, asked.execution_id, dict(asked.spec))
    )  # fmt: skip


def wait_s(text: str | None) -> int | None:
    """How long a read waits: whole seconds, with or without `s`, at most 60; None: this is no such number."""
    if text is None:
        return 0
    found = re.fullmatch(r"(\d{1,9})s?", text, re.ASCII)
    return None if found is None else min(int(found[1]), WAIT_S_MAX)


def runner_bodies(
    views: Iterable[RunnerView], *, org_id: str | None, job_types: Iterable[str]
) -> tuple[RunnerBody, ...]:
    """The runners that could serve an organisation (None: any) and have all of these job types."""
    wanted = set(job_types)
    return tuple(
        RunnerBody(
            runner_id=view.identity.runner_id, kind=view.identity.kind, org_id=view.identity.org_id,
            agent_version=view.capabilities.agent_version, job_types=view.capabilities.job_types,
            slots=view.capabilities.slots, free_slots=view.free, running=view.running, draining=view.draining,
            available=view.available, container=view.capabilities.container,
            fontset_version=view.capabilities.fontset_version, max_output_bytes=view.capabilities.max_output_bytes,
            runtime_image_digest=view.capabilities.runtime_image_digest,
        )
        for view in views
        if wanted <= set(view.capabilities.job_types)
        and (org_id is None or view.identity.org_id in (None, org_id))
    )  # fmt: skip


def scaling(depths: Iterable[Depth], figures: Figures, *, buffer: int) -> Scaling:
    """The scaling signal: what waits and runs for the pool, and some room."""
    pool = [depth for depth in depths if depth.target == records.POOL]
    queued = sum(depth.jobs for depth in pool if depth.state == "queued")
    running = sum(depth.jobs for depth in pool if depth.state == "leased")
    return Scaling(
        desired_cloud_pool_slots=queued + running + buffer, queued=queued, running=running, buffer=buffer,
        connected_cloud_pool=figures.connected_cloud_pool, available_cloud_pool=figures.available_cloud_pool,
        free_slots_cloud_pool=figures.free_slots_cloud_pool, free_slots_org_runner=figures.free_slots_org_runner,
        runners_without_job_types=figures.runners_without_job_types, draining_runners=figures.draining_runners,
    )  # fmt: skip


def seek(session: SessionRow | None, *, instance: str, forwarded: bool) -> str | Problem:
    """Where an op goes whose session is not on this replica: the address of its owner, or why it goes nowhere.

    A request that was forwarded once is never forwarded again (S58).
    """
    if session is None:
        return Problem(code="session_not_found", message="No such session was ever opened. Do not ask again.")
    if session.closed_at is not None:
        return _lost(f"closed: {session.closed_reason or 'ended'}")
    if not session.held:
        return _lost("its lease is gone")
    if session.cancel_asked:
        return _lost("its job was cancelled")
    if session.gateway_instance == instance:
        return _lost("its runner is not connected")
    if session.address is None or forwarded:
        # A gateway that was started anew where another one was is asked for that one's sessions: they are not lost.
        what = "was not heard of" if session.address is None else f"is not this one, {instance}"
        return Problem(
            code="session_owner_unreachable",
            message=f"The gateway {session.gateway_instance} that has this session {what}.",
        )
    return session.address


STATUS: Final[Mapping[str, int]] = {
    "session_not_found": 404, "session_lost": 410, "session_owner_unreachable": 502,
}  # fmt: skip


def _lost(reason: str) -> Problem:
    return Problem(
        code="session_lost", reason=reason, message=f"This session cannot serve an op: {reason}. Open a new one."
    )


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC)


def _maybe(at: datetime | None) -> datetime | None:
    return None if at is None else _utc(at)
