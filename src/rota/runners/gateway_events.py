"""What happens to one replica of the gateway, and what it says to do. Pure data.

Events come from sockets (the server), from the database (the store, in answer to a command), from engines (the
internal API) and from the clock. `Gateway.handle` takes one and gives commands, which the shell carries out in their
order; an answer to a command comes back as an event. A connection's number is never used again, and neither is the
number of an ask. Every lease is a job id with its epoch; the store compares both in the `WHERE` of each statement.
"""

from dataclasses import dataclass

from rota.runners.frames import Frame
from rota.runners.matching import Needs
from rota.runners.messages import Capabilities, Hello, JsonObject, Limits, OpError, Progress, Requires


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run one job: its id as it travels, and the epoch of its claim."""

    job_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a runner is, as the platform knows it.

    Attributes:
        runner_id: the id of a device, or the name of a pool worker with its kind before it; unique among all runners.
            A new connection of the same one replaces the old one.
        kind: `Desktop` or `CloudPool`.
        org_id: of a device; None for the pool.
    """

    runner_id: str
    kind: str
    org_id: str | None


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the gateway needs it: what the claim returned, or what the store knows of one that a runner resumes.

    Attributes:
        lease: of the claim.
        session_id: of its session.
        org_id: whose job it is.
        target: `CloudPool` or `OrgRunner`.
        job_type: open list.
        attempt: which try it is, 1 for the first.
        timeout_s: how long the session may last in all.
        limits: as they are sent.
        requires: as they are sent.
        spec: as it is sent.
        one_shot: requeued when its lease runs out; a session expires instead.
        age_s: for how long it has been leased; 0 for one just claimed. The limits count from there.
        accepted: whether its accept is stored.
        cancelling: whether somebody cancelled it.
    """

    lease: Lease
    session_id: str
    org_id: str
    target: str
    job_type: str
    attempt: int
    timeout_s: int
    limits: Limits
    requires: Requires
    spec: JsonObject
    one_shot: bool = False
    age_s: float = 0.0
    accepted: bool = False
    cancelling: bool = False


# Events. Each says who sends it.


@dataclass(frozen=True, slots=True)
class Opened:
    """Server: a websocket was upgraded. Its hello has 10 seconds.

    `host` is the name that the runner dialled and that this gateway answers to; see `handshake.dialled_host`."""

    connection: int
    host: str


@dataclass(frozen=True, slots=True)
class Received:
    """Server: a frame that could be read. It counts as life."""

    connection: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class Garbled:
    """Server: a frame that is no good: the code and text of its `ProtocolError`; or `binary`; or `unknown_type`, where
    `from_runner` gave None. It counts as life. Before the welcome it ends the connection; after it an answer to an op
    that nobody can read ends the wait for it, and nothing else happens."""

    connection: int
    code: str
    reason: str
    type: str | None = None
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class Unsendable:
    """Server: an assign or an op.request of this job fits into no frame, so it was not sent. No retry helps."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Heard:
    """Server: bytes came in, though no whole frame yet (S47). Say it once a second at most."""

    connection: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Server: the socket is gone, whoever closed it. Comes for each connection, once, and last."""

    connection: int


@dataclass(frozen=True, slots=True)
class Verified:
    """Store: answers `Authenticate`: the runner is who it says.

    `order` grows with each hello that any replica found good: the newest connection of a runner has the highest."""

    connection: int
    identity: Identity
    order: int = 0


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Store: another replica has found a hello of this runner good. The word of it may be late, or come twice."""

    runner_id: str
    order: int


@dataclass(frozen=True, slots=True)
class Listening:
    """Store: what other replicas say is heard from now on; what they said before may be lost."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Store or server: the runner may not connect: answers `Authenticate`, or comes before it (too many at once).

    `tells_time`: its clock is the trouble, so the goodbye tells this gateway's."""

    connection: int
    code: int
    reason: str
    retry_after_s: float | None = None
    tells_time: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """Store: answers `CheckHeld`: the jobs whose lease is this runner's, of the same epoch and not over. The store has
    renewed them and has written this replica into their sessions."""

    connection: int
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class Claimed:
    """Store: answers `Claim`: what was leased; empty if nothing fits."""

    connection: int
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class Renewed:
    """Store: answers `Renew`: of what was asked, the leases that do not hold any more; None: nobody knows, because the
    database does not answer. The runner then hears nothing about them, and its own deadline counts.

    `unknown`: the same for some of them, because somebody's transaction holds the rows."""

    connection: int
    lost: tuple[Lease, ...] | None
    unknown: tuple[Lease, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Store: a fenced write of this lease changed nothing, or the reaper ended it: the runner must stop."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Demand:
    """Store: so many jobs that need this are queued. On each notification, and for each group of equal needs in the
    look of every second, which makes up for lost notifications."""

    needs: Needs
    count: int = 1


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Internal API, or the reaper for jobs whose execution ended: this leased job must stop. Without effect where the
    job is not here."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Store: somebody has ended this job, such as an engine whose verifier refused its output. Without effect where the
    job is not here, as after an end that this replica has written itself."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Revoked:
    """Store: this runner's device was revoked, or the secret that it came with is good no more: by event, and by the
    look of every minute at least."""

    runner_id: str
    reason: str = "the device was revoked"


@dataclass(frozen=True, slots=True)
class Forbidden:
    """Store: this organisation may not use runners any more."""

    org_id: str


@dataclass(frozen=True, slots=True)
class Moved:
    """Store: the session of this lease belongs to another replica now, because its runner connected there."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class OpAsked:
    """Internal API: an engine wants one op. Answered with `AnswerOp`, `RefuseOp` or `SeekOp`, in good time.

    `op_id` None: the gateway makes one. `timeout_s` None: the job's own. The args fit into a payload."""

    ask: int
    session_id: str
    op_id: str | None
    op: str
    args: JsonObject
    timeout_s: int | None


@dataclass(frozen=True, slots=True)
class AskGone:
    """Internal API: nobody waits for this ask any more. Its op goes on."""

    ask: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Shell: deal no more jobs and tell the runners so."""

    reason: str
    deadline_s: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Shell: this replica ends: goodbye to all, 1001. Their jobs stay leased, for the replica that they go to."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Clock: the time of `next_at` has come."""


Event = (
    Opened
    | Received
    | Garbled
    | Unsendable
    | Heard
    | Lost
    | Verified
    | Elsewhere
    | Listening
    | Refused
    | Kept
    | Claimed
    | Renewed
    | LeaseLost
    | Demand
    | CancelJob
    | JobEnded
    | Revoked
    | Forbidden
    | Moved
    | OpAsked
    | AskGone
    | Drain
    | Stop
    | Tick
)


# Commands. Each says who carries it out.


@dataclass(frozen=True, slots=True)
class Send:
    """Server: this frame to this connection. One that is gone is no error."""

    connection: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class Close:
    """Server: close, after what was sent before. `Lost` follows."""

    connection: int
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Authenticate:
    """Store: who is this? Versions and shape are good already. `Verified` or `Refused` follows.

    A device: `handshake.check_time`, its row, `handshake.verify_device` for this host, then its nonce is stored. A pool
    worker: the hash of its credential is known."""

    connection: int
    hello: Hello
    host: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Store: tell the other replicas again that this runner is connected here, since the hello of this order."""

    runner_id: str
    order: int


@dataclass(frozen=True, slots=True)
class Seen:
    """Store: this runner is connected here, with these capabilities; or, None, it is not any more. For its row, the
    audit and the figures."""

    connection: int
    identity: Identity
    capabilities: Capabilities | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CheckHeld:
    """Store: which of these leases are this runner's still? Renew those. `Kept` follows."""

    connection: int
    identity: Identity
    held: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """Store: lease up to `slots` jobs for this runner, with their sessions; 45 seconds. `Claimed` follows, always: it
    is empty if the database does not answer.

    `target` and `org_id` bound what may be claimed (org None: any), `capabilities` what fits, and `without` are jobs
    that it declined lately."""

    connection: int
    identity: Identity
    target: str
    org_id: str | None
    capabilities: Capabilities
    slots: int
    without: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreAccept:
    """Store: the job runs. `LeaseLost` follows if the lease is over."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Release:
    """Store: the job is queued again, no try counts, its session closes."""

    lease: Lease
    runner_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Store: 45 seconds more for these leases. `Renewed` follows, always."""

    connection: int
    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class NoteProgress:
    """Store: what people see of a running job. Its texts are the runner's: claims, and not free of anything odd."""

    lease: Lease
    progress: Progress


@dataclass(frozen=True, slots=True)
class Succeed:
    """Store: the job is done and its session closed. `claims` is what the runner says, for information only."""

    lease: Lease
    claims: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class FailJob:
    """Store: the job failed. `failure_class` counts, `claimed_class` is what the runner said."""

    lease: Lease
    failure_class: str
    claimed_class: str
    code: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class EndCancelled:
    """Store: the job is cancelled: the runner said so, or its grace is over."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Expire:
    """Store: treat this lease as one that ran out: a one-shot job is queued again while tries are left, a session
    expires."""

    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class AnswerOp:
    """Internal API: 200 with what the runner said."""

    ask: int
    op_id: str
    result: JsonObject | None
    error: OpError | None


@dataclass(frozen=True, slots=True)
class RefuseOp:
    """Internal API: this status with this code, and the reason in words."""

    ask: int
    status: int
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class SeekOp:
    """Internal API: the session is not here. By its row: 404 if there is none, 410 if it is closed or names this
    replica, else forward it once, with this op id, to the replica that the row names. A request that was forwarded
    already is not forwarded again."""

    ask: int
    op_id: str


Command = (
    Send
    | Close
    | Authenticate
    | Announce
    | Seen
    | CheckHeld
    | Claim
    | StoreAccept
    | Release
    | Renew
    | NoteProgress
    | Succeed
    | FailJob
    | EndCancelled
    | Expire
    | AnswerOp
    | RefuseOp
    | SeekOp
)
