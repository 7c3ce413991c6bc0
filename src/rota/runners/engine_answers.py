"""What an engine reads from the gateway's internal API: a job, the answer to an op, and each refusal as an error. Pure.

The API is served to engines in any language, so both answers and codes are read with the care of a stranger: unknown
fields and codes are let be, and what is missing is said.

Spec: runners, "Gateway internal API (engine-facing)".
"""

from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from rota.errors import (
    GatewayAbsent,
    GatewayAway,
    GatewayRefused,
    OpCancelled,
    OpFailed,
    OpInFlight,
    OpTimeout,
    SessionError,
    SessionLost,
    SessionNotFound,
)
from rota.runners.codes import OpCode
from rota.runners.messages import JsonObject, OpError

AGAIN_S: Final = 30.0
"""How long a job waits whose gateway is away: a gateway is back or replaced within that."""
ABSENT_S: Final = 300.0
"""How long one waits that finds no gateway at all: somebody has to set one up."""
T = TypeVar("T")
TERMINAL: Final = frozenset({"Succeeded", "Failed", "Cancelled", "Expired"})


class JobView(Struct, frozen=True, rename="camel"):
    """A runner job as the API shows it."""

    job_id: str
    state: str
    session_id: str | None = None
    progress: JsonObject | None = None
    error: Any = None

    @property
    def ended(self) -> bool:
        """Whether it will not change any more."""
        return self.state in TERMINAL

    @property
    def open_session(self) -> str | None:
        """The session that takes ops: its runner has accepted the job."""
        return self.session_id if self.state == "Running" else None


class OpAnswer(Struct, frozen=True, rename="camel"):
    """A runner's answer to an op, passed through."""

    ok: bool
    result: JsonObject | None = None
    error: OpError | None = None


class Staging(Struct, frozen=True):
    """A number of a staging key."""

    n: Annotated[int, Meta(ge=0)]


class Refusal(Struct, frozen=True):
    """Why the API did not do something."""

    code: str
    message: str = ""
    reason: str | None = None


def read_job(body: bytes) -> JobView:
    """A job.

    Raises: SessionError if it is none.
    """
    return _read(body, JobView)


def read_staging(body: bytes) -> int:
    """A number of a staging key.

    Raises: SessionError if it is none.
    """
    return _read(body, Staging).n


def read_answer(body: bytes) -> OpAnswer:
    """The answer to an op.

    Raises: SessionError if it is none.
    """
    return _read(body, OpAnswer)


def result_or_raise(op: str, answer: OpAnswer) -> JsonObject:
    """What an op gave.

    Raises: OpFailed with the runner's code; SessionLost for `op_expired`, which an engine reads as that.
    """
    if answer.ok:
        return answer.result or {}
    error = answer.error or OpError("unknown", "The runner gave no reason.", False)
    if error.code == OpCode.OP_EXPIRED:
        raise SessionLost(
            f"The runner has forgotten what it answered to this {op}: the session is lost. Open a new one.",
            reason="op_expired",
        )
    raise OpFailed(
        f"The runner could not {op} ({error.code}): {error.message[:2000]}", code=error.code, retryable=error.retryable
    )


def refused(status: int, body: bytes) -> SessionError:
    """The error that an answer of the API means.

    Args:
        status: its HTTP status, which is not a success.
        body: its body.
    """
    refusal = _refusal(body)
    reason = refusal.reason or refusal.message or "no reason given"
    match (status, refusal.code):
        case HTTPStatus.SERVICE_UNAVAILABLE, "internal_api_disabled":
            return GatewayAbsent(
                "The gateway serves no engine: it has no token. Set ROTA_GATEWAY_TOKEN there and here.",
                after_s=ABSENT_S,
            )
        case HTTPStatus.NOT_FOUND, "session_not_found":
            return SessionNotFound("No such session was ever opened at this gateway. Do not try it again.")
        case HTTPStatus.GONE, _:
            return SessionLost(f"The session is lost: {reason[:500]}. Open a new one.", reason=refusal.reason or "")
        case HTTPStatus.CONFLICT, "op_in_flight":
            return OpInFlight("The session already runs an op. Wait for it, or cancel the session.")
        case HTTPStatus.CONFLICT, "op_cancelled":
            return OpCancelled("The session was cancelled while this op ran.")
        case HTTPStatus.GATEWAY_TIMEOUT, "op_timeout":
            return OpTimeout("The runner did not answer this op in time; it may still be at it.")
        case (_, "session_owner_unreachable") | (502 | 503 | 504, _):
            return GatewayAway(f"The gateway cannot serve this now ({status}): {reason[:500]}.", after_s=AGAIN_S)
        case _:
            return GatewayRefused(
                f"The gateway refused this ({status} {refusal.code}): {reason[:500]}.", code=refusal.code
            )


def _refusal(body: bytes) -> Refusal:
    try:
        # The code stands at the top, or below `error`, as people who write such APIs do either.
        found = msgspec.json.decode(body, type=dict[str, Any])
        inner = found.get("error")
        return msgspec.convert(inner if isinstance(inner, dict) else found, Refusal)
    except msgspec.DecodeError:
        text = " ".join(body[:2000].decode("utf-8", "replace").split())
        return Refusal("unknown", text[:500])


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise GatewayRefused(
            f"The gateway's answer is not the internal API's: {error}. Is ROTA_GATEWAY_URL right?", code="bad_answer"
        ) from None
