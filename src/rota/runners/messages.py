"""What a runner and a gateway say to each other over `GET /v1/connect`, subprotocol `reelbolt.runner.v1`. Pure.

One class for each type of message, whose fields are its payload. How it travels is in `frames.py`, the words from open
lists (reasons, codes, job types) are in `codes.py`, and what an op takes and gives is in `ops.py`.

    runner → gateway   hello ready accept reject progress op.response complete fail
    gateway → runner   welcome assign op.request cancel
    both               heartbeat (each side its own) drain bye

Spec: runners, "Message catalogue".
"""

from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta, Struct, structs

PROTOCOL_VERSION: Final = "1.0"
HEARTBEAT_S: Final = 15
DEAD_AFTER_S: Final = 45
LEASE_S: Final = 45.0
"""How long a lease of a runner is, from when a heartbeat was sent that is confirmed."""
RUNNING_MAX: Final = 1024
"""How many jobs one heartbeat or hello lists at most: far more than a machine can run, and little to look up."""

Epoch = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Uuid = Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$(?!\n)")]
Id = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)")]
Word = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)")]
"""No control characters: words and ids go into logs and into the database."""
Text = str
"""Something for people. A gateway keeps TEXT_MAX characters of it: a message does not count less for its length."""
TEXT_MAX: Final = 20_000
"""Long enough for the last lines of a program's complaints."""
JsonObject = dict[str, Any]
"""A user's own object, or one whose fields an op or a job type defines."""

SECRET_FIELDS: Final = frozenset(
    {"job_token", "credential", "sig", "url", "put_url", "args", "result", "spec", "content"}
)
"""Fields that `repr` hides, so that no message can be logged with a secret in it."""


class Part(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What a message is made of: camelCase on the wire, fields that are not set are not sent, secrets stay out of
    `repr`."""

    def __repr__(self) -> str:
        shown = (
            f"{name}={'…' if name in SECRET_FIELDS and getattr(self, name) else repr(getattr(self, name))}"
            for name in self.__struct_fields__
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def lower(part: Struct, *names: str) -> None:
    """One id has one spelling here: some languages write a UUID in upper case, whatever they were sent."""
    for name in names:
        text = getattr(part, name)
        if text is not None and text != (lowered := text.lower()):
            structs.force_setattr(part, name, lowered)


class Message(Part, frozen=True):
    """The payload of one type. `needs` are the ids that its envelope must carry."""

    type: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()


class OfJob(Message, frozen=True):
    """What a runner says about one job: it proves by epoch and token that the job is its own."""

    needs: ClassVar[tuple[str, ...]] = ("jobId",)
    lease_epoch: Epoch
    job_token: Annotated[str, Meta(max_length=8192)]


class Held(Part, frozen=True):
    """One job that a runner holds, or that a gateway kept for it."""

    job_id: Uuid
    lease_epoch: Epoch

    def __post_init__(self) -> None:
        lower(self, "job_id")


HeldJobs = Annotated[tuple[Held, ...], Meta(max_length=RUNNING_MAX)]


class DeviceAuth(Part, frozen=True, tag_field="kind", tag="device"):
    """A paired device proves its key: `handshake.signed_text` is what `sig` signs."""

    device_id: Id
    ts: Word
    nonce: Word
    sig: Word


class PoolAuth(Part, frozen=True, tag_field="kind", tag="pool"):
    """A worker of the pool shows the pool's secret."""

    credential: Annotated[str, Meta(max_length=4096)]
    worker_name: Id


class Capabilities(Part, frozen=True):
    """What a runner says it can do. All of it is a claim."""

    protocol_version: Word
    agent_version: Word
    os: Word
    arch: Word
    slots: Count
    container: Word
    runtime_image_digest: Word | None
    ffmpeg_version: Word
    fontset_version: Word
    job_types: Annotated[tuple[Word, ...], Meta(max_length=100)]
    max_output_bytes: Count
    container_mode: Word | None = None
    isolation: Annotated[tuple[Word, ...], Meta(max_length=20)] = ()
    """Additive: what keeps ffmpeg in its folders and off the network here; empty: nothing but the argv gate."""


class Hello(Message, frozen=True):
    """First on each connection."""

    type: ClassVar[str] = "hello"
    protocol_version: Word
    auth: DeviceAuth | PoolAuth
    capabilities: Capabilities
    running: HeldJobs | None = None


class Welcome(Message, frozen=True):
    """The connection stands. A job that the runner listed and that is not in `resumed` is cancelled next."""

    type: ClassVar[str] = "welcome"
    runner_id: Id
    kind: Word
    org_id: Id | None
    protocol_version: Word
    heartbeat_sec: Count
    dead_after_sec: Count
    max_inline_bytes: Count
    gateway_instance: Id
    server_time: Word
    resumed: HeldJobs
    min_agent_version: Word | None = None


class RunnerHeartbeat(Message, frozen=True):
    """A runner lives, and so do these jobs."""

    type: ClassVar[str] = "heartbeat"
    free_slots: Count
    running: HeldJobs


class LeaseAnswer(Part, frozen=True):
    """`ok: false`: the lease is lost, and the runner must stop this job."""

    job_id: Uuid
    ok: bool

    def __post_init__(self) -> None:
        lower(self, "job_id")


class GatewayHeartbeat(Message, frozen=True):
    """The answer to a runner's heartbeat."""

    type: ClassVar[str] = "heartbeat"
    server_time: Word
    leases: Annotated[tuple[LeaseAnswer, ...], Meta(max_length=RUNNING_MAX)]


class Ready(Message, frozen=True):
    """So many more jobs may be assigned now."""

    type: ClassVar[str] = "ready"
    free_slots: Count


class Limits(Part, frozen=True):
    """What a session may use."""

    max_output_bytes: Count
    idle_timeout_sec: Count


class Requires(Part, frozen=True):
    """What a runner must have for a job, beside its type and the size of its outputs. An unset field asks nothing."""

    runtime_image_digest: Word | None = None
    fontset_version: Word | None = None


class Assign(Message, frozen=True):
    """A job is offered, with the token that proves it."""

    type: ClassVar[str] = "assign"
    needs: ClassVar[tuple[str, ...]] = ("jobId",)
    job_type: Word
    lease_epoch: Epoch
    job_token: str
    attempt: Count
    timeout_sec: Count
    limits: Limits
    requires: Requires
    spec: JsonObject
    org_id: Id


class Accept(OfJob, frozen=True):
    """The runner takes the job."""

    type: ClassVar[str] = "accept"


class Reject(OfJob, frozen=True):
    """The runner declines; the job is queued again and no try counts."""

    type: ClassVar[str] = "reject"
    reason: Word
    message: Text | None = None


class Progress(OfJob, frozen=True):
    """How far a job is, for people."""

    type: ClassVar[str] = "progress"
    stage: Word
    op_id: Id | None = None
    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    detail: Text | None = None


class OpRequest(Message, frozen=True):
    """One op for the session."""

    type: ClassVar[str] = "op.request"
    needs: ClassVar[tuple[str, ...]] = ("jobId", "sessionId")
    op_id: Id
    op: Word
    args: JsonObject
    timeout_sec: Count


class OpError(Part, frozen=True):
    """Why an op failed."""

    code: Word
    message: Text
    retryable: bool


class OpResponse(OfJob, frozen=True):
    """What an op gave: a result or an error."""

    type: ClassVar[str] = "op.response"
    needs: ClassVar[tuple[str, ...]] = ("jobId", "sessionId")
    op_id: Id
    ok: bool
    result: JsonObject | None = None
    error: OpError | None = None

    def __post_init__(self) -> None:
        if self.ok == (self.result is None) or self.ok != (self.error is None):
            raise ValueError("an op.response has a `result` if `ok` is true, and an `error` if it is false")


class Complete(OfJob, frozen=True):
    """The job is over. Result and metrics are claims that nothing rests on."""

    type: ClassVar[str] = "complete"
    outcome: Word
    result: JsonObject | None = None
    metrics: JsonObject | None = None


class Fail(OfJob, frozen=True, rename={"failure_class": "class"}):
    """The job failed, in the runner's opinion for this class of reason."""

    type: ClassVar[str] = "fail"
    failure_class: Word
    code: Word
    message: Text
    retryable: bool


class Cancel(Message, frozen=True):
    """Stop this job now."""

    type: ClassVar[str] = "cancel"
    needs: ClassVar[tuple[str, ...]] = ("jobId",)
    reason: Word
    grace_sec: Count


class Drain(Message, frozen=True):
    """No new jobs. From a gateway: ask for none. From a runner: give me none."""

    type: ClassVar[str] = "drain"
    reason: Word
    deadline_sec: Count | None = None


class Bye(Message, frozen=True):
    """The connection ends after this."""

    type: ClassVar[str] = "bye"
    reason: Text
    retry_after_sec: Count | None = None
    """Additive: how long to wait before the next try, at least."""
    server_time: Word | None = None
    """Additive: the gateway's clock, where the runner's is the trouble."""


RunnerMessage = (
    Hello | RunnerHeartbeat | Ready | Accept | Reject | Progress | OpResponse | Complete | Fail | Drain | Bye
)
GatewayMessage = Welcome | GatewayHeartbeat | Assign | OpRequest | Cancel | Drain | Bye
AnyMessage = RunnerMessage | GatewayMessage
