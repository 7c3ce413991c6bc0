"""How the gateway's HTTP routes read a request and say what is wrong with one.

Spec: runners, "Gateway internal API (engine-facing)".
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rota.errors import DatabaseAway, JobNotFound, OrganisationDisabled
from rota.runners import api
from rota.runners.api import Problem
from rota.runners.frames import check_depth

OWN_FIELDS: Final = frozenset({"spec", "args"})

Handler = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")


class Refused(Exception):
    """Ends a request with this answer."""

    def __init__(self, status: int, code: str, message: str, *, reason: str | None = None) -> None:
        super().__init__(code)
        self.answer = to_json(Problem(code=code, message=message, reason=reason), status)


def answered(handlers: Mapping[str, Handler], *, before: Callable[[Request], Response | None] | None = None) -> Handler:
    """A route whose errors become answers.

    Args:
        handlers: what is done, by method.
        before: gives an answer to whoever may not use it.
    """

    async def answer(request: Request) -> Response:
        refusal = None if before is None else before(request)
        if refusal is not None:
            return refusal
        try:
            return await handlers["GET" if request.method == "HEAD" else request.method](request)
        except Refused as refused:
            return refused.answer
        except JobNotFound as error:
            return Refused(404, "job_not_found", str(error)).answer
        except OrganisationDisabled as error:
            return Refused(403, "organisation_disabled", str(error)).answer
        except DatabaseAway:
            return Refused(503, "database_away", "The database does not answer; try again.").answer

    return answer


async def body_of(request: Request, kind: type[T]) -> T:
    """The request's body.

    Raises: Refused if it is too large, or is no such thing.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > api.BODY_BYTES_MAX:
            raise Refused(413, "too_large", f"A body has at most {api.BODY_BYTES_MAX:,} bytes.")
    try:
        try:
            found = msgspec.json.decode(bytes(body), type=kind)
        except msgspec.ValidationError:
            found = msgspec.convert(_plain(msgspec.json.decode(bytes(body))), kind)
        for name in OWN_FIELDS:
            check_depth(getattr(found, name, None))
        _check_text(found)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Refused(400, "invalid_request", f"This body is no good: {error}.") from None
    return found


def to_json(value: Any, status: int) -> Response:
    """An answer."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _plain(value: Any) -> Any:
    """The value with 5.0 as 5, as JSON means it: both are the same number; and without fields that are null, as many
    languages write one that is not set. What is the engine's own is left alone."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        said = ((name, inner) for name, inner in value.items() if inner is not None)
        return {name: inner if name in OWN_FIELDS else _plain(inner) for name, inner in said}
    return value


def _check_text(body: Any) -> None:
    # PostgreSQL stores no NUL and no lone surrogate, in text and in JSON alike.
    text = msgspec.json.encode(body)
    if b"\\u0000" in text:
        raise msgspec.ValidationError("it holds a NUL character")
