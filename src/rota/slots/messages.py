"""What a client and an exec server say to each other over `GET /broker`. Pure.

One frame is one JSON object with its `type`. Where it does not fit, its type is looked at first, then the fields of
that type: an unknown type is ignored, as unknown fields are, because either side may be newer than the other; what a
known type lacks or has wrong is a `ProtocolError` that names it. Fields that are not set are not sent.

    client → exec server   WANT  UNWANT  JOB  DECLINE  CANCEL  QUERY
    exec server → client   HELLO  QUEUED  OFFER  DONE  POSITION  PROGRESS  OVERVIEW  ERROR
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from rota.errors import ProtocolError

FRAME_BYTES_MAX: Final = 1024 * 1024
"""What each side takes in one frame, unless HELLO says another number. Bulk goes through pipes, never through here."""
STDOUT_PREFIX_BYTES_MAX: Final = 4000
"""How much of a command's output a receipt holds at most; as much as is kept back before an output is committed."""
OVERVIEW_ROWS_MAX: Final = 200
"""How many wants, and how many running commands, an OVERVIEW lists."""

Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._:-]{0,99}$(?!\n)")]
"""Of one exec call: unguessable, chosen by the client, the same on every exec server it is parked at."""
Name = Annotated[str, Meta(min_length=1, max_length=100)]
Subject = Annotated[str, Meta(min_length=1, max_length=200)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
PRIORITY_MAX: Final = 2**31 - 1
Priority = Annotated[int, Meta(ge=-PRIORITY_MAX - 1, le=PRIORITY_MAX)]
Value = str | int | float | bool
"""A value for a template; on its way to a command it becomes text."""


class EndedBy(StrEnum):
    """How a command ended. A receipt may hold a word that is not here, from a newer exec server."""

    EXIT = "exit"  # by itself: `exit` or `signal` of the receipt says how
    TIMEOUT = "timeout"  # the wall-clock limit
    STALL = "stall"  # no progress for too long
    MEMORY = "memory"  # its processes together took too much
    OUTPUT = "output"  # it wrote more than its service allows
    CANCELLED = "cancelled"  # the client said so, or went away
    STOPPED = "stopped"  # the exec server ends
    REFUSED = "refused"  # it never began: arguments, environment, a full disk
    BROKEN = "broken"  # a stream of it broke


class Hello(Struct, frozen=True, tag_field="type", tag="HELLO", omit_defaults=True):
    """What the exec server is: first on each connection, and again when it changes."""

    instance_id: Name
    services: dict[str, str]  # service: waitgroup
    waitgroups: dict[str, Count]  # waitgroup: processes
    clients: Count
    draining: bool = False
    frame_bytes_max: Count = FRAME_BYTES_MAX


class Want(Struct, frozen=True, tag_field="type", tag="WANT", omit_defaults=True):
    """A standing ask for one slot."""

    job_id: Id
    service: Name
    priority: Priority = 0
    tenant: Name | None = None


class Unwant(Struct, frozen=True, tag_field="type", tag="UNWANT", omit_defaults=True):
    """The want is over: served elsewhere, or given up."""

    job_id: Id


class Queued(Struct, frozen=True, tag_field="type", tag="QUEUED", omit_defaults=True):
    """No slot was free: the want stands in the want-book."""

    job_id: Id


class Offer(Struct, frozen=True, tag_field="type", tag="OFFER", omit_defaults=True):
    """A slot is reserved for this want, for a short time."""

    job_id: Id


class Work(Struct, frozen=True, omit_defaults=True):
    """What to run: the arguments of the service's template, and where its streams are."""

    args: dict[str, Value] | list[Value] = {}
    stdin: str | None = None
    stdout: str | None = None
    timeout_s: Seconds | None = None
    env: dict[str, str] = {}
    subject: Subject | None = None  # what it is about: the same when it is tried again, so that poison is recognised


class Job(Struct, frozen=True, tag_field="type", tag="JOB", omit_defaults=True):
    """The offer is taken: run this."""

    job_id: Id
    job: Work


class Decline(Struct, frozen=True, tag_field="type", tag="DECLINE", omit_defaults=True):
    """The offer is not needed: another exec server was faster."""

    job_id: Id


class Cancel(Struct, frozen=True, tag_field="type", tag="CANCEL", omit_defaults=True):
    """Stop this command, or forget this want. The answer to a running one is its DONE."""

    job_id: Id


class Receipt(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a finished command reports. `error` says in a sentence why it did not go well."""

    ended_by: str
    exit: int | None = None
    signal: str | None = None
    stderr_line: str | None = None
    stdout_prefix: str | None = None
    duration_s: Seconds = 0.0
    peak_memory_bytes: Count = 0
    bytes_in: Count = 0
    bytes_out: Count = 0
    digest: str | None = None  # of all of stdout: its name, a colon, and hexadecimal digits
    dropped_bytes: Count = 0
    error: str | None = None
    retryable: bool = False

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with status 0."""
        return self.ended_by == EndedBy.EXIT and self.exit == 0 and self.error is None


class Done(Struct, frozen=True, tag_field="type", tag="DONE", omit_defaults=True):
    """The command is over and its slot is free."""

    job_id: Id
    receipt: Receipt


class Query(Struct, frozen=True, tag_field="type", tag="QUERY", omit_defaults=True):
    """Where is this want? The answer is a POSITION. Without a job_id: how is all? The answer is an OVERVIEW."""

    job_id: Id | None = None


class Position(Struct, frozen=True, tag_field="type", tag="POSITION", omit_defaults=True):
    """How many wants are dealt a slot before this one. The time is a guess from mean run times, never a promise."""

    job_id: Id
    ahead: Count
    running: Count = 0
    capacity: Count = 0
    eta_low_s: Seconds | None = None
    eta_high_s: Seconds | None = None


class Progress(Struct, frozen=True, tag_field="type", tag="PROGRESS", omit_defaults=True):
    """A command moved."""

    job_id: Id
    bytes_in: Count = 0
    bytes_out: Count = 0
    line: str | None = None


class WaitgroupView(Struct, frozen=True, omit_defaults=True):
    """The slots of one waitgroup as an OVERVIEW shows them."""

    processes: Count
    running: Count = 0
    offered: Count = 0
    waiting: Count = 0
    reserve: Count = 0  # slots that only quick services may take


class ServiceView(Struct, frozen=True, omit_defaults=True):
    """What an exec server has learned of one service."""

    waitgroup: str
    runs: Count = 0
    mean_s: Seconds | None = None
    quick: bool = False


class JobView(Struct, frozen=True, omit_defaults=True):
    """One want, or one running command. `for_s` is how long it has been that; when a want's turn comes is a guess."""

    job_id: Id
    client: str
    service: str
    state: str  # waiting, offered or running
    priority: int = 0
    tenant: str | None = None
    ahead: Count | None = None
    for_s: Seconds = 0.0
    eta_low_s: Seconds | None = None
    eta_high_s: Seconds | None = None


class Overview(Struct, frozen=True, tag_field="type", tag="OVERVIEW", omit_defaults=True):
    """All of an exec server at a glance, for people."""

    instance_id: Name
    clients: Count
    waitgroups: dict[str, WaitgroupView]
    services: dict[str, ServiceView]
    jobs: list[JobView] = []
    draining: bool = False
    truncated: bool = False  # there are more jobs than are listed


class ErrorCode(StrEnum):
    """Why an exec server refuses. A client may meet a word that is not here."""

    BAD_FRAME = "bad_frame"  # no JSON, a field is missing or wrong
    FRAME_TOO_LARGE = "frame_too_large"
    UNKNOWN_SERVICE = "unknown_service"
    DUPLICATE_WANT = "duplicate_want"  # this job id is live on this connection
    TOO_MANY_WANTS = "too_many_wants"
    OFFER_EXPIRED = "offer_expired"  # not answered in time: the slot went to another; want again if you still do
    NO_OFFER = "no_offer"  # JOB without an offer, or too late
    RUNNING = "running"  # this job id has its command already: JOB twice, UNWANT or DECLINE after JOB
    UNKNOWN_JOB = "unknown_job"  # QUERY of what is not here
    DRAINING = "draining"


class Error(Struct, frozen=True, tag_field="type", tag="ERROR", omit_defaults=True):
    """Something that was said is refused. Nothing else changes by it."""

    code: str
    message: str
    job_id: str | None = None


ClientMessage = Want | Unwant | Job | Decline | Cancel | Query
ServerMessage = Hello | Queued | Offer | Done | Position | Progress | Overview | Error
Message = ClientMessage | ServerMessage


class _Envelope(Struct, frozen=True):
    type: str


class _Named(Struct, frozen=True):
    job_id: str | None = None


M = TypeVar("M")


def _decoders(types: Sequence[type[M]]) -> Mapping[str, msgspec.json.Decoder[M]]:
    return MappingProxyType({str(kind.__struct_config__.tag): msgspec.json.Decoder(kind) for kind in types})  # type: ignore[attr-defined]


_FROM_CLIENT: Final[Mapping[str, msgspec.json.Decoder[ClientMessage]]] = _decoders(ClientMessage.__args__)
_FROM_SERVER: Final[Mapping[str, msgspec.json.Decoder[ServerMessage]]] = _decoders(ServerMessage.__args__)
_any_from_client: Final = msgspec.json.Decoder(ClientMessage)
_any_from_server: Final = msgspec.json.Decoder(ServerMessage)
_envelope: Final = msgspec.json.Decoder(_Envelope)
_named: Final = msgspec.json.Decoder(_Named)
_encoder: Final = msgspec.json.Encoder()


def from_client(frame: str | bytes) -> ClientMessage | None:
    """What a client said; None: a type that this exec server does not know, to be ignored.

    Raises: ProtocolError if the frame is no JSON object with a type, or a field is missing or wrong.
    """
    try:
        return _any_from_client.decode(frame)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _decode(frame, _FROM_CLIENT)  # slower: whether its type is known, and what it lacks


def from_server(frame: str | bytes) -> ServerMessage | None:
    """What an exec server said; None: a type that this client does not know, to be ignored.

    Raises: ProtocolError as `from_client`.
    """
    try:
        return _any_from_server.decode(frame)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _decode(frame, _FROM_SERVER)


def encode(message: Message, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> bytes:
    """The message as one frame, UTF-8.

    Raises: ProtocolError if it is larger than the other side takes. It is not sent then, and no retry helps.
    """
    frame = _encoder.encode(message)
    if len(frame) > frame_bytes_max:
        raise ProtocolError(
            f"{type(message).__name__.upper()} would be a frame of {len(frame):,} bytes, and the other side takes "
            f"{frame_bytes_max:,}. Send bulk through a pipe (stdin), not as an argument.",
            code=ErrorCode.FRAME_TOO_LARGE,
            job_id=getattr(message, "job_id", None),
        )
    return frame


def _decode(frame: str | bytes, decoders: Mapping[str, msgspec.json.Decoder[M]]) -> M | None:
    kind = ""
    try:
        kind = _envelope.decode(frame).type
        decoder = decoders.get(kind)
        return None if decoder is None else decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        what = f"This {kind[:40]} frame" if kind else "This frame"
        raise ProtocolError(
            f"{what} is no good: {error}. See docs/protocol/slots.md.",
            code=ErrorCode.BAD_FRAME,
            job_id=_job_id(frame) if kind else None,
        ) from None


def _job_id(frame: str | bytes) -> str | None:
    try:
        found = _named.decode(frame).job_id
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return None if found is None else found[:100]
