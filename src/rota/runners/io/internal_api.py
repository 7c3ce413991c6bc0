"""The gateway's HTTP routes for engines: the internal API.

Every internal route wants the shared token; a gateway without one answers 503 to all of them. An op whose session is on
another replica is forwarded there once. Nothing of a body, an argument or a result is logged.

Spec: runners, "Gateway internal API".
"""

import asyncio
import contextlib
import hmac
import ssl
from collections.abc import Collection, Coroutine
from typing import Any, Final, TypeVar
from urllib.parse import quote
from uuid import UUID

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rota.errors import DatabaseAway
from rota.io.log import get_logger
from rota.runners import api, pairing
from rota.runners.api import Problem
from rota.runners.credentials import find_credential
from rota.runners.gateway_events import AnswerOp, RefuseOp
from rota.runners.io.exchange import Exchange
from rota.runners.io.requests import Handler, Refused, answered, body_of, to_json
from rota.runners.io.waiters import Waiters
from rota.runners.openapi import document

FORWARDED: Final = "x-rota-forwarded"
"""Marks a request that came from another replica: it is not forwarded again (S58)."""
FORWARD_CONNECT_S: Final = 5.0
"""How long another replica, which is near, may take to accept a connection."""
FORWARD_LOOK_S: Final = 5.0
"""How often a gateway that forwarded an op looks whether the session is still there: one that stands still, or has left
the network, says nothing for as long as an op may take."""
ARRIVES_S: Final = 3.0
"""How long a session is awaited that is to come here."""
ARRIVES_LOOK_S: Final = 0.02
MOVES_MAX: Final = 8
"""How often an op is looked for anew because its runner has connected elsewhere."""
FORWARD_MARGIN_S: Final = 30.0
"""How much longer than the op itself the owner's answer is awaited."""

log = get_logger("rota.gateway")

T = TypeVar("T")


class InternalApi:
    """The routes of one replica.

    Args:
        exchange: its runners and its database.
        waiters: who waits for ends of jobs.
        token: what engines show; None: the internal API is off.
        buffer: slots of the pool beyond what is asked for.
        secrets: of this program; none of them goes to a runner.
        tls: whom it trusts to be another replica; None: whom the system trusts.
    """

    def __init__(
        self,
        exchange: Exchange,
        waiters: Waiters,
        *,
        token: str | None,
        buffer: int = 0,
        secrets: Collection[str] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._secrets = frozenset(secrets)
        self._exchange = exchange
        self._waiters = waiters
        self._token = token
        self._buffer = buffer
        self._http: aiohttp.ClientSession | None = None

    def routes(self) -> list[BaseRoute]:
        """What to serve."""

        # Routes are tried in their order: what is asked most comes first.
        served: dict[str, dict[str, Handler]] = {
            "/sessions/{id}/ops": {"POST": self._op},
            "/jobs": {"POST": self._create},
            "/jobs/{id}": {"GET": self._read, "DELETE": self._cancel},
            "/jobs/{id}/staging": {"POST": self._staging},
            "/jobs/{id}/verdict": {"POST": self._verdict},
            "/executions/{id}": {"DELETE": self._end_execution},
            "/organisations/{id}": {"GET": self._organisation, "PUT": self._put_organisation},
            "/runners": {"GET": self._runners},
            "/scaling": {"GET": self._scaling},
        }
        # One route for each path, so that whoever asks in another way is told all the methods that there are.
        return [
            *(
                Route("/internal/v1" + path, answered(handlers, before=self.refusal), methods=list(handlers))
                for path, handlers in served.items()
            ),
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
            return Refused(
                503,
                "internal_api_disabled",
                "This gateway has no internal token: set ROTA_GATEWAY_TOKEN to turn it on.",
            ).answer
        scheme, _, said = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":  # RFC 9110, 11.1: the name of a scheme has no case
            said = ""
        # In constant time: how long a comparison takes would tell how much of a guess is right.
        if not hmac.compare_digest(said.lstrip(" ").encode("utf-8", "replace"), wanted.encode()):
            return Refused(401, "unauthorized", "The internal token is missing or wrong.").answer
        return None

    async def _create(self, request: Request) -> Response:
        body = await body_of(request, api.CreateJob)
        self._check(body, urls=False)
        asked = api.new_job(body)
        job, created = await self._exchange.store.create(asked)
        if not created and not api.same_request(job, asked):
            log.warning("a key was used for another job", job_id=str(job.id), execution_id=job.execution_id)
        return to_json(api.job_body(job), 201 if created else 200)

    def _check(self, body: msgspec.Struct, *, urls: bool) -> None:
        found = find_credential(msgspec.to_builtins(body), own=self._secrets, urls=urls)
        if found is not None:
            log.warning("a credential was not sent to a runner", where=found.where, what=found.what)
            raise Refused(
                400, "credential_not_allowed",
                f"{found.where or 'The body'} holds {found.what}, and none goes to a runner. Lend objects by the URLs "
                "of stage and publish, and do what needs the credential in the engine.",
            )  # fmt: skip

    async def _read(self, request: Request) -> Response:
        wait_s = api.wait_s(request.query_params.get("wait"))
        if wait_s is None:
            raise Refused(400, "invalid_wait", "wait is a whole number of seconds, such as 30s.")
        job_id = _uuid(request, "job_not_found")
        until = request.query_params.get("until", "ended")
        if until not in api.UNTIL:
            raise Refused(400, "invalid_until", f"until is one of {', '.join(api.UNTIL)}.")
        job = await _unless_gone(request, self._waiters.job(job_id, wait_s, running=until == "running"))
        return to_json(api.job_body(job), 200)

    async def _cancel(self, request: Request) -> Response:
        job_id = _uuid(request, "job_not_found")
        await self._exchange.store.cancel([job_id], text="Cancelled by its engine.")
        job = await self._exchange.store.job(job_id)
        return to_json(api.job_body(job), 200 if job.ended else 202)

    async def _staging(self, request: Request) -> Response:
        n = await self._exchange.store.next_staging(_uuid(request, "job_not_found"))
        return to_json(api.Staging(n=n), 200)

    async def _verdict(self, request: Request) -> Response:
        job_id = _uuid(request, "job_not_found")
        asked = await body_of(request, api.Verdict)
        store = self._exchange.store
        job = await store.job(job_id)
        if job.state == "leased":
            await store.end([api.unverified(job, asked)])
            job = await store.job(job_id)
        if job.failure_code != api.UNVERIFIED:
            raise Refused(409, "job_not_running", f"The job is {job.shown_state}: its output has to be judged before.")
        return to_json(api.job_body(job), 200)

    async def _organisation(self, request: Request) -> Response:
        org_id = _org(request)
        found = await self._exchange.devices.disabled_orgs([org_id])
        return to_json(api.organisation(org_id, found[0] if found else None), 200)

    async def _put_organisation(self, request: Request) -> Response:
        org_id = _org(request)
        asked = await body_of(request, api.PutOrganisation)
        devices = self._exchange.devices
        disabled = None
        if asked.disabled:
            disabled = await devices.disable_org(org_id, reason=asked.reason)
        else:
            await devices.enable_org(org_id)
        log.info("organisation disabled" if asked.disabled else "organisation enabled", org_id=org_id)
        return to_json(api.organisation(org_id, disabled), 200)

    async def _end_execution(self, request: Request) -> Response:
        found = await self._exchange.store.cancel_execution(_name(request, "invalid_execution", "An execution's"))
        return to_json(api.Ended(jobs=len(found)), 200)

    async def _runners(self, request: Request) -> Response:
        gateway = self._exchange.gateway
        caps = [word for word in request.query_params.get("caps", "").split(",") if word]
        found = api.runner_bodies(
            gateway.registry.runners(), org_id=request.query_params.get("org") or None, job_types=caps
        )
        return to_json(api.Runners(gateway_instance=gateway.rules.instance, runners=found), 200)

    async def _scaling(self, _request: Request) -> Response:
        depths = await self._exchange.store.depth()
        figures = self._exchange.gateway.registry.figures()
        return to_json(api.scaling(depths, figures, buffer=self._buffer), 200)

    async def _op(self, request: Request) -> Response:
        session_id = _uuid(request, "session_not_found")
        asked = await body_of(request, api.RunOp)
        self._check(asked, urls=True)
        for _ in range(MOVES_MAX):
            answer = await _unless_gone(
                request,
                self._exchange.op(
                    str(session_id), op_id=asked.op_id, op=asked.op, args=asked.args, timeout_s=asked.timeout_sec
                ),
            )
            match answer:
                case AnswerOp(_, op_id, result, error):
                    return to_json(api.OpDone(op_id=op_id, ok=error is None, result=result, error=error), 200)
                case RefuseOp(_, status, code, reason):
                    raise Refused(status, code, f"The op was not answered: {reason}.", reason=reason)
            asked = msgspec.structs.replace(asked, op_id=answer.op_id)
            forwarded = await _unless_gone(request, self._forward(request, session_id, asked))
            if forwarded is not None:
                return forwarded
        raise Refused(502, "session_owner_unreachable", "The runner of this session goes from gateway to gateway.")

    async def _forward(self, request: Request, session_id: UUID, asked: api.RunOp) -> Response | None:
        """What the owner of the session answers; None if it is the owner no more."""
        row = await self._exchange.store.session(session_id)
        instance = self._exchange.gateway.rules.instance
        if row is not None and row.held and row.gateway_instance == instance:
            if await self._arrives(session_id):
                return None
            row = await self._exchange.store.session(session_id)
        where = api.seek(row, instance=instance, forwarded=FORWARDED in request.headers)
        if isinstance(where, Problem):
            return to_json(where, api.STATUS[where.code])
        assert row is not None, "an owner stands in a row"
        whole_s = asked.timeout_sec or row.timeout_s or 0
        passing = asyncio.ensure_future(self._pass_on(where, session_id, asked, whole_s + FORWARD_MARGIN_S))
        moving = asyncio.ensure_future(self._moved(session_id, row.gateway_instance))
        try:
            await asyncio.wait({passing, moving}, return_when=asyncio.FIRST_COMPLETED)
            return passing.result() if passing.done() else None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("the owner of a session is not reached", session_id=str(session_id), error=type(error).__name__)
            raise Refused(
                502, "session_owner_unreachable", "The gateway that has this session was not reached."
            ) from None
        finally:
            passing.cancel()
            moving.cancel()
            await asyncio.gather(passing, moving, return_exceptions=True)

    async def _arrives(self, session_id: UUID) -> bool:
        """Whether a session that the database has given to this gateway is here within moments: others may read so
        before the answer of that very statement has come."""
        for _ in range(round(ARRIVES_S / ARRIVES_LOOK_S)):
            live = self._exchange.gateway.live(str(session_id))
            if live is not None:
                return live.link is not None
            await asyncio.sleep(ARRIVES_LOOK_S)
        return False

    async def _pass_on(self, where: str, session_id: UUID, asked: api.RunOp, answer_s: float) -> Response:
        if self._http is None:
            self._http = aiohttp.ClientSession()
        async with self._http.post(
            f"{where}/internal/v1/sessions/{quote(str(session_id))}/ops",
            data=msgspec.json.encode(asked),
            headers={"Authorization": f"Bearer {self._token}", FORWARDED: self._exchange.gateway.rules.instance,
                     "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=answer_s, connect=FORWARD_CONNECT_S),
            allow_redirects=False, ssl=self._tls or True,
        ) as answer:  # fmt: skip
            return Response(await answer.read(), answer.status, media_type="application/json")

    async def _moved(self, session_id: UUID, owner: str) -> None:
        """Returns when the runner of the session is here, or its row names another gateway."""
        while True:
            await asyncio.sleep(FORWARD_LOOK_S)
            live = self._exchange.gateway.live(str(session_id))
            if live is not None and live.link is not None:
                return
            with contextlib.suppress(DatabaseAway):
                row = await self._exchange.store.session(session_id)
                if row is None or row.gateway_instance != owner:
                    return


_DOCUMENT: Final = msgspec.json.encode(document())


async def _openapi(_request: Request) -> Response:
    return Response(_DOCUMENT, media_type="application/json")


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Runs this until it is done, or until nobody waits for it any more (S96)."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Refused(499, "gone", "Nobody waits for this.")
        return doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()
        with contextlib.suppress(BaseException):
            await asyncio.gather(doing, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _org(request: Request) -> str:
    return _name(request, "invalid_organisation", "An organisation's")


def _name(request: Request, code: str, whose: str) -> str:
    name: str = request.path_params["id"]
    try:
        return msgspec.convert(name, api.Name)
    except msgspec.ValidationError:
        said = f"{whose} id has 1 to {pairing.NAME_MAX} characters, and no control characters."
        raise Refused(400, code, said) from None


def _uuid(request: Request, code: str) -> UUID:
    try:
        return UUID(request.path_params["id"])
    except ValueError:
        what = "session" if code == "session_not_found" else "job"
        raise Refused(404, code, f"This is no id of a {what}.") from None
