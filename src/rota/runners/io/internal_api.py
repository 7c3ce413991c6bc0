"""The gateway's HTTP routes: the internal API for engines, and the pairing of devices.

Every internal route wants the shared token; a gateway without one answers 503 to all of them. An op whose session is on
another replica is forwarded there once. Nothing of a body, an argument or a result is logged.

Spec: runners, "Gateway internal API".
"""

import asyncio
import base64
import binascii
import contextlib
import hmac
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar
from urllib.parse import quote
from uuid import UUID

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rota.errors import DatabaseAway, JobNotFound, PairingError
from rota.io.log import get_logger
from rota.runners import api
from rota.runners.api import Problem
from rota.runners.gateway_events import AnswerOp, RefuseOp
from rota.runners.io.exchange import Exchange
from rota.runners.io.waiters import Waiters
from rota.runners.openapi import document
from rota.runners.pairing import read_code
from rota.runners.ramp import Ramp

FORWARDED: Final = "x-rota-forwarded"
"""Marks a request that came from another replica: it is not forwarded again (S58)."""
FORWARD_CONNECT_S: Final = 5.0
FORWARD_MARGIN_S: Final = 30.0
"""How much longer than the op itself the owner's answer is awaited."""
PAIRS_PER_S: Final = 5.0
"""Attempts to pair in a second, from everybody together: people type codes."""
KEY_BYTES: Final = 32

log = get_logger("rota.gateway")

Handler = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")


class _Stop(Exception):
    """Ends a request with this answer."""

    def __init__(self, status: int, code: str, message: str, *, reason: str | None = None) -> None:
        super().__init__(code)
        self.answer = _json(Problem(code=code, message=message, reason=reason), status)


class InternalApi:
    """The routes of one replica.

    Args:
        exchange: its runners and its database.
        waiters: who waits for ends of jobs.
        token: what engines show; None: the internal API is off.
        buffer: slots of the pool beyond what is asked for.
    """

    def __init__(self, exchange: Exchange, waiters: Waiters, *, token: str | None, buffer: int = 0) -> None:
        self._exchange = exchange
        self._waiters = waiters
        self._token = token
        self._buffer = buffer
        self._pairs = Ramp(PAIRS_PER_S)
        self._http: aiohttp.ClientSession | None = None

    def routes(self) -> list[BaseRoute]:
        """What to serve."""

        def internal(path: str, method: str, handler: Handler) -> Route:
            return Route("/internal/v1" + path, self._answered(handler, internal=True), methods=[method])

        return [  # routes are tried in their order: what is asked most comes first
            internal("/sessions/{id}/ops", "POST", self._op),
            internal("/jobs", "POST", self._create),
            internal("/jobs/{id}", "GET", self._read),
            internal("/jobs/{id}", "DELETE", self._cancel),
            internal("/jobs/{id}/staging", "POST", self._staging),
            internal("/executions/{id}", "DELETE", self._end_execution),
            internal("/runners", "GET", self._runners),
            internal("/scaling", "GET", self._scaling),
            Route("/v1/pair", self._answered(self._pair, internal=False), methods=["POST"]),
            Route("/openapi.json", _openapi),
        ]

    async def stop(self) -> None:
        """Closes the connections to other replicas; safe to repeat."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    def refusal(self, request: Request, *, token: str | None = None) -> Response | None:
        """Why this caller, who has to show the internal token or this one, is not served; None: it is."""
        wanted = token or self._token
        if wanted is None:
            return _Stop(
                503,
                "internal_api_disabled",
                "This gateway has no internal token: set ROTA_GATEWAY_TOKEN to turn it on.",
            ).answer
        said = request.headers.get("authorization", "").removeprefix("Bearer ")
        # In constant time: how long a comparison takes would tell how much of a guess is right.
        if not hmac.compare_digest(said.encode("utf-8", "replace"), wanted.encode()):
            return _Stop(401, "unauthorized", "The internal token is missing or wrong.").answer
        return None

    def _answered(self, handler: Handler, *, internal: bool) -> Handler:
        async def answer(request: Request) -> Response:
            refusal = self.refusal(request) if internal else None
            if refusal is not None:
                return refusal
            try:
                return await handler(request)
            except _Stop as stop:
                return stop.answer
            except JobNotFound as error:
                return _Stop(404, "job_not_found", str(error)).answer
            except DatabaseAway:
                return _Stop(503, "database_away", "The database does not answer; try again.").answer

        return answer

    async def _create(self, request: Request) -> Response:
        asked = api.new_job(await _body(request, api.CreateJob))
        job, created = await self._exchange.store.create(asked)
        if not created and not api.same_request(job, asked):
            log.warning("a key was used for another job", job_id=str(job.id), execution_id=job.execution_id)
        return _json(api.job_body(job), 201 if created else 200)

    async def _read(self, request: Request) -> Response:
        wait_s = api.wait_s(request.query_params.get("wait"))
        if wait_s is None:
            raise _Stop(400, "invalid_wait", "wait is a whole number of seconds, such as 30s.")
        job_id = _uuid(request, "job_not_found")
        job = await _unless_gone(request, self._waiters.ended(job_id, wait_s))
        return _json(api.job_body(job), 200)

    async def _cancel(self, request: Request) -> Response:
        job_id = _uuid(request, "job_not_found")
        await self._exchange.store.cancel([job_id], text="Cancelled by its engine.")
        job = await self._exchange.store.job(job_id)
        return _json(api.job_body(job), 200 if job.ended else 202)

    async def _staging(self, request: Request) -> Response:
        n = await self._exchange.store.next_staging(_uuid(request, "job_not_found"))
        return _json(api.Staging(n=n), 200)

    async def _end_execution(self, request: Request) -> Response:
        found = await self._exchange.store.cancel_execution(request.path_params["id"][:200])
        return _json(api.Ended(jobs=len(found)), 200)

    async def _runners(self, request: Request) -> Response:
        gateway = self._exchange.gateway
        caps = [word for word in request.query_params.get("caps", "").split(",") if word]
        found = api.runner_bodies(
            gateway.registry.runners(), org_id=request.query_params.get("org") or None, job_types=caps
        )
        return _json(api.Runners(gateway_instance=gateway.rules.instance, runners=found), 200)

    async def _scaling(self, _request: Request) -> Response:
        depths = await self._exchange.store.depth()
        figures = self._exchange.gateway.registry.figures()
        return _json(api.scaling(depths, figures, buffer=self._buffer), 200)

    async def _op(self, request: Request) -> Response:
        session_id = _uuid(request, "session_not_found")
        asked = await _body(request, api.RunOp)
        answer = await _unless_gone(
            request,
            self._exchange.op(
                str(session_id), op_id=asked.op_id, op=asked.op, args=asked.args, timeout_s=asked.timeout_sec
            ),
        )
        match answer:
            case AnswerOp(_, op_id, result, error):
                return _json(api.OpDone(op_id=op_id, ok=error is None, result=result, error=error), 200)
            case RefuseOp(_, status, code, reason):
                raise _Stop(status, code, f"The op was not answered: {reason}.", reason=reason)
        return await self._forward(request, session_id, asked, answer.op_id)

    async def _forward(self, request: Request, session_id: UUID, asked: api.RunOp, op_id: str) -> Response:
        row = await self._exchange.store.session(session_id)
        instance = self._exchange.gateway.rules.instance
        where = api.seek(row, instance=instance, forwarded=FORWARDED in request.headers)
        if isinstance(where, Problem):
            return _json(where, api.STATUS[where.code])
        if self._http is None:
            self._http = aiohttp.ClientSession()
        whole_s = asked.timeout_sec or (row.timeout_s if row is not None else None) or 0
        timeout = aiohttp.ClientTimeout(total=whole_s + FORWARD_MARGIN_S, connect=FORWARD_CONNECT_S)
        try:
            async with self._http.post(
                f"{where}/internal/v1/sessions/{quote(str(session_id))}/ops",
                data=msgspec.json.encode(msgspec.structs.replace(asked, op_id=op_id)),
                headers={"Authorization": f"Bearer {self._token}", FORWARDED: instance,
                         "Content-Type": "application/json"},
                timeout=timeout,
                allow_redirects=False,
            ) as answer:  # fmt: skip
                return Response(await answer.read(), answer.status, media_type="application/json")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("the owner of a session is not reached", session_id=str(session_id), error=type(error).__name__)
            raise _Stop(
                502, "session_owner_unreachable", "The gateway that has this session was not reached."
            ) from None

    async def _pair(self, request: Request) -> Response:
        retry_after_s = self._pairs.admit(asyncio.get_running_loop().time())
        if retry_after_s is not None:
            answer = _Stop(429, "rate_limited", "Too many devices are being paired; try again in a minute.").answer
            answer.headers["retry-after"] = str(max(1, round(retry_after_s)))
            return answer
        asked = await _body(request, api.Pair)
        key = _key(asked.public_key)
        if key is None:
            raise _Stop(400, "invalid_key", "publicKey is the 32 bytes of an Ed25519 key in base64url.")
        try:
            device = await self._exchange.devices.pair(read_code(asked.code), key, name=asked.name or None)
        except PairingError as error:
            status = 400 if error.code == "invalid_code" else 403
            raise _Stop(status, error.code, str(error)) from None
        log.info("device paired", device_id=device.device_id, org_id=device.org_id)
        return _json(api.Paired(device_id=device.device_id, org_id=device.org_id, name=device.name), 201)


_DOCUMENT: Final = msgspec.json.encode(document())


async def _openapi(_request: Request) -> Response:
    return Response(_DOCUMENT, media_type="application/json")


async def _body(request: Request, kind: type[T]) -> T:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > api.BODY_BYTES_MAX:
            raise _Stop(413, "too_large", f"A body has at most {api.BODY_BYTES_MAX:,} bytes.")
    try:
        found = msgspec.json.decode(bytes(body), type=kind)
        _check_text(found)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _Stop(400, "invalid_request", f"This body is no good: {error}.") from None
    return found


def _check_text(body: Any) -> None:
    # PostgreSQL stores no NUL and no lone surrogate, in text and in JSON alike.
    text = msgspec.json.encode(body)
    if b"\\u0000" in text:
        raise msgspec.ValidationError("it holds a NUL character")


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Runs this until it is done, or until nobody waits for it any more (S96)."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise _Stop(499, "gone", "Nobody waits for this.")
        return doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()
        with contextlib.suppress(BaseException):
            await asyncio.gather(doing, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _uuid(request: Request, code: str) -> UUID:
    try:
        return UUID(request.path_params["id"])
    except ValueError:
        what = "session" if code == "session_not_found" else "job"
        raise _Stop(404, code, f"This is no id of a {what}.") from None


def _key(text: str) -> bytes | None:
    try:
        raw = base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if len(raw) == KEY_BYTES else None


def _json(value: Any, status: int) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
