"""What a runner and a gateway say to each other over `GET /v1/connect`, subprotocol `reelbolt.runner.v1`. Pure.

One text frame is one envelope: its version, type and ids, and a payload. It is decoded in two steps, the envelope and
then the payload by its type, so that an unknown type can be ignored, as unknown fields are. What a known type lacks or
has wrong is a `ProtocolError` that names it. Words from lists (reasons, codes, job types) are open: an unknown one is
kept as it came. What an op takes and gives is in `ops.py`.

    runner → gateway   hello ready accept reject progress op.response complete fail
    gateway → runner   welcome assign op.request cancel
    both               heartbeat (each side its own) drain bye

Spec: runners, "Transport and envelope", "Message catalogue".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct, structs

from rota.errors import ProtocolError

SUBPROTOCOL: Final = "reelbolt.runner.v1"
ENVELOPE_VERSION: Final = 1
PROTOCOL_VERSION: Final = "1.0"
PAYLOAD_BYTES_MAX: Final = 4 * 1024 * 1024
"""The largest payload, in UTF-8, as it stands in its frame."""
READ_BYTES_MAX: Final = PAYLOAD_BYTES_MAX + 64 * 1024
"""The read limit of both sides: a larger frame closes the connection with 1009."""
HEARTBEAT_S: Final = 15
DEAD_AFTER_S: Final = 45
DEPTH_MAX: Final = 200
"""How deep an object of a user's own may be: each side must be able to read what the other could, and to write it."""
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


class CloseCode(IntEnum):
    """Why a connection was closed, as a websocket's close code."""

    NORMAL = 1000
    GOING_AWAY = 1001
    TOO_BIG = 1009
    UNSUPPORTED = 4400
    UNAUTHENTICATED = 4401
    FORBIDDEN = 4403
    HEARTBEAT_TIMEOUT = 4408
    SUPERSEDED = 4409
    RATE_LIMITED = 4429


class ErrorCode(StrEnum):
    """What is wrong with a frame: the `code` of its `ProtocolError`."""

    BAD_MESSAGE = "bad_message"  # no JSON, a field is missing or wrong, an id that the type needs is absent
    TOO_LARGE = "message_too_large"  # the payload is over its limit
    UNSUPPORTED_VERSION = "unsupported_version"  # of the envelope


class JobType(StrEnum):
    """What a session may be for. An open list."""

    REMOTION = "remotion.workspace-session"
    COMPILE = "video.compile"
    EXTRACT = "video.analyze.extract"


class RejectReason(StrEnum):
    """Why a runner declines a job. An open list."""

    BUSY = "busy"
    CAPABILITY_MISMATCH = "capability_mismatch"
    SHUTTING_DOWN = "shutting_down"
    PAUSED_BY_USER = "paused_by_user"
    NO_CONTAINER_RUNTIME = "no_container_runtime"


class CancelReason(StrEnum):
    """Why a job must stop. An open list."""

    USER = "user"
    EXECUTION_ENDED = "execution_ended"
    LEASE_LOST = "lease_lost"
    REVOKED = "revoked"
    SHUTDOWN = "shutdown"


class Outcome(StrEnum):
    """How a job that did not fail ended. An open list."""

    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"


class FailureClass(StrEnum):
    """Whose fault a failure is. From a runner it is a claim, never a fact. An open list."""

    PLATFORM = "platform"
    RUNNER = "runner"
    INPUT = "input"


class OpCode(StrEnum):
    """The `code` of an op that failed. An open list."""

    INVALID_PATH = "invalid_path"
    ARGV_NOT_ALLOWED = "argv_not_allowed"
    EXEC_NOT_ALLOWED = "exec_not_allowed"
    FILE_TOO_LARGE = "file_too_large"
    OUTPUT_TOO_LARGE = "output_too_large"
    UNSUPPORTED_OP = "unsupported_op"
    OP_EXPIRED = "op_expired"
    OP_IN_FLIGHT = "op_in_flight"
    STAGE_FAILED = "stage_failed"
    PUBLISH_FAILED = "publish_failed"
    TIMEOUT = "timeout"
    CONTAINER_UNAVAILABLE = "container_unavailable"
    DISK_FULL = "disk_full"
    CANCELLED = "cancelled"
    # Ours, where no other word fits: an argument is missing or of a wrong type; a program took too much memory.
    INVALID_ARGS = "invalid_args"
    OUT_OF_MEMORY = "out_of_memory"


class Part(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What a message is made of: camelCase on the wire, fields that are not set are not sent, secrets stay out of
    `repr`."""

    def __repr__(self) -> str:
        shown = (
            f"{name}={'…' if name in SECRET_FIELDS and getattr(self, name) else repr(getattr(self, name))}"
            for name in self.__struct_fields__
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def _lower(part: Struct, *names: str) -> None:
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
        _lower(self, "job_id")


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
        _lower(self, "job_id")


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

P = TypeVar("P", RunnerMessage, GatewayMessage)


@dataclass(frozen=True, slots=True)
class Frame:
    """One message with its envelope."""

    id: str
    message: AnyMessage
    job_id: str | None = None
    session_id: str | None = None


_OWN_OBJECTS: Final = ("spec", "args", "result", "metrics")
_WRITTEN_DOWN = (Progress, Complete, Fail)
"""What a gateway keeps of a runner's words. Results of ops go on to their engine as they came."""


class _Envelope(Struct, frozen=True, rename="camel"):
    v: int
    type: str
    id: Id
    payload: Raw
    job_id: Uuid | None = None
    session_id: Uuid | None = None

    def __post_init__(self) -> None:
        _lower(self, "job_id", "session_id")


class _Sent(Struct, frozen=True, rename="camel", omit_defaults=True):
    v: int
    type: str
    id: str
    payload: Raw
    job_id: str | None = None
    session_id: str | None = None


class _Version(Struct, frozen=True):
    v: int


Decoders = Mapping[str, tuple[tuple[str, ...], "msgspec.json.Decoder[Any]"]]


def _decoders(types: tuple[type[Message], ...]) -> Decoders:
    return MappingProxyType({kind.type: (kind.needs, msgspec.json.Decoder(kind)) for kind in types})


_FROM_RUNNER: Final = _decoders(RunnerMessage.__args__)
_FROM_GATEWAY: Final = _decoders(GatewayMessage.__args__)
_envelope: Final = msgspec.json.Decoder(_Envelope)
_version: Final = msgspec.json.Decoder(_Version)
_encoder: Final = msgspec.json.Encoder()


def from_runner(frame: str | bytes) -> Frame | None:
    """What a runner said; None: a type that this gateway does not know, or not from a runner, to be ignored.

    Raises: ProtocolError if the frame is no envelope of this version, or a field is missing or wrong.
    """
    found = _decode(frame, _FROM_RUNNER)
    if found is None:
        return None
    message = _shortened(found.message)
    if message is not found.message:
        found = replace(found, message=message)
    if not isinstance(found.message, _WRITTEN_DOWN):
        return found
    if (b"\\u0000" if isinstance(frame, bytes) else "\\u0000") not in frame:  # type: ignore[operator]
        return found
    # A database holds no NUL: the end of a job must not be lost for one in somebody's words.
    kind: type[Any] = type(found.message)
    message = msgspec.convert(_without_nul(msgspec.to_builtins(found.message)), kind)
    return Frame(found.id, message, found.job_id, found.session_id)


def _shortened(message: Any) -> Any:
    said = ((name, getattr(message, name, None)) for name in ("message", "detail", "reason"))
    long = {name: f"{text[: TEXT_MAX - 1]}…" for name, text in said if isinstance(text, str) and len(text) > TEXT_MAX}
    return structs.replace(message, **long) if long else message


def _without_nul(value: Any) -> Any:
    match value:
        case str():
            return value.replace("\0", "\ufffd")
        case dict():
            return {_without_nul(key): _without_nul(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_without_nul(entry) for entry in value]
        case _:
            return value


def from_gateway(frame: str | bytes) -> Frame | None:
    """What a gateway said; None: a type that this runner does not know, to be ignored.

    Raises: ProtocolError as `from_runner`.
    """
    return _decode(frame, _FROM_GATEWAY)


def encode(frame: Frame) -> bytes:
    """The frame in UTF-8, to be sent as text.

    Raises: ProtocolError if its payload is over the limit. It is not sent then, and no retry helps.
    """
    message = frame.message
    payload = _encoder.encode(message)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise _too_large(message.type, len(payload), frame.job_id)
    return _encoder.encode(
        _Sent(ENVELOPE_VERSION, message.type, frame.id, Raw(payload), frame.job_id, frame.session_id)
    )


def check_depth(value: Any) -> None:
    """Looks into an object of a user's own.

    Raises: msgspec.ValidationError if it is deeper than `DEPTH_MAX`.
    """
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEPTH_MAX):
        if not level:
            return
        inside = (inner for one in level for inner in (one.values() if isinstance(one, dict) else one))
        level = [inner for inner in inside if isinstance(inner, dict | list)]
    if level:
        raise msgspec.ValidationError(f"It holds an object that is nested deeper than {DEPTH_MAX} levels")


def _too_large(kind: str, size: int, job_id: str | None) -> ProtocolError:
    return ProtocolError(
        f"The payload of this {kind} has {size:,} bytes, and {PAYLOAD_BYTES_MAX:,} are allowed. "
        "Move large content through a presigned URL.",
        code=ErrorCode.TOO_LARGE,
        job_id=job_id,
        type=kind,
    )


def _decode(frame: str | bytes, decoders: Decoders) -> Frame | None:
    what, job_id, kind = "This frame", None, None
    try:
        version = _version.decode(frame).v
        if version != ENVELOPE_VERSION:
            raise ProtocolError(
                f"This envelope has version {version}; supported is {ENVELOPE_VERSION}.",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        envelope = _envelope.decode(frame)
        what, job_id = f"This {envelope.type[:40]}", envelope.job_id
        known = decoders.get(envelope.type)
        if known is None:
            return None
        kind = envelope.type
        needs, decoder = known
        if "jobId" in needs and job_id is None:
            raise msgspec.ValidationError("Object missing required field `jobId`")
        if "sessionId" in needs and envelope.session_id is None:
            raise msgspec.ValidationError("Object missing required field `sessionId`")
        size = len(memoryview(envelope.payload))
        if size > PAYLOAD_BYTES_MAX:
            raise _too_large(envelope.type, size, job_id)
        message = decoder.decode(envelope.payload)
        for name in _OWN_OBJECTS:
            check_depth(getattr(message, name, None))
        return Frame(envelope.id, message, job_id, envelope.session_id)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ProtocolError(
            f"{what} is no good: {error}. See docs/protocol/runners.md.",
            code=ErrorCode.BAD_MESSAGE,
            job_id=job_id,
            type=kind,
        ) from None
