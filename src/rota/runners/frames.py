"""How a runner and a gateway pack what they say. Pure.

One text frame is one envelope: its version, type and ids, and a payload. It is decoded in two steps, the envelope and
then the payload by its type, so that an unknown type can be ignored, as unknown fields are. What a known type lacks or
has wrong is a `ProtocolError` that names it.

Spec: runners, "Transport and envelope".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, structs

from rota.errors import ProtocolError
from rota.runners.codes import ErrorCode
from rota.runners.messages import (
    TEXT_MAX,
    AnyMessage,
    Complete,
    Fail,
    GatewayMessage,
    Id,
    Message,
    Progress,
    RunnerMessage,
    Uuid,
    lower,
)

SUBPROTOCOL: Final = "reelbolt.runner.v1"
ENVELOPE_VERSION: Final = 1
PAYLOAD_BYTES_MAX: Final = 4 * 1024 * 1024
"""The largest payload, in UTF-8, as it stands in its frame."""
READ_BYTES_MAX: Final = PAYLOAD_BYTES_MAX + 64 * 1024
"""The read limit of both sides: a larger frame closes the connection with 1009."""
DEPTH_MAX: Final = 200
"""How deep an object of a user's own may be: each side must be able to read what the other could, and to write it."""


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
        lower(self, "job_id", "session_id")


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
