"""The exec server on the network: `/broker` for clients, `/healthz`, `/readyz`, `/metrics` and `/overview` for people.

It listens on loopback unless told otherwise, and off loopback only with a token. A page in a browser is no client: what
says where it comes from is refused, or any web page could run commands on the machine of whoever reads it. A frame that
is too large closes the connection that sent it, and only that (S38). A link that is half open is noticed by pings, and
where they cannot be written, by the kernel (S39).
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from rota.errors import SettingsError
from rota.io.log import get_logger
from rota.io.outbox import OUTBOX_BYTES_MAX
from rota.io.serving import Place, Serving, StraightWebSocket, is_loopback
from rota.slots import view
from rota.slots.broker import Broker
from rota.slots.io.exchange import Exchange, Runner
from rota.slots.io.figures import Figures
from rota.slots.io.session import Session, peer_of
from rota.slots.messages import Receipt
from rota.slots.progress import Moved

PING_S: Final = 10.0
"""Between two pings, and for how long a pong is awaited: a dead link is noticed within 20 seconds."""
FLUSH_S: Final = 2.0
"""What a stopping exec server gives its clients to take their last frames."""
CLIENTS_MAX: Final = 5000
"""Connections at once: each takes a descriptor and some 30 KB, and many systems allow 20,000 descriptors."""

log = get_logger("rota.execserver")

MakeRunner = Callable[[Callable[[str, Receipt], None], Callable[[str, Moved], None]], Runner]


@dataclass(frozen=True, slots=True)
class Listen:
    """Where and how an exec server listens.

    Attributes:
        host, port: the address; port 0 is any that is free.
        token: what a client has to show; None: nothing, and then only on loopback.
        tls_cert, tls_key: files of a certificate and its key; None: no TLS.
        ping_s: between two pings, and for how long a pong is awaited.
        outbox_bytes_max: unsent bytes of a client that reads slowly, before it is dropped.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    ping_s: float = PING_S
    outbox_bytes_max: int = OUTBOX_BYTES_MAX


class ExecServer:
    """One exec server.

    Args:
        broker: its rules and its state.
        listen: its address.
        runner: makes what runs its commands.
        routes: more routes, such as those of the old protocol; made when the exchange is there.

    Raises: SettingsError if it would listen off loopback without a token.
    """

    def __init__(
        self,
        broker: Broker,
        listen: Listen,
        runner: MakeRunner,
        *,
        routes: Callable[["ExecServer"], Sequence[BaseRoute]] | None = None,
    ) -> None:
        self.check_listen(listen.host, listen.token)
        self.broker = broker
        self._listen = listen
        self._make_runner = runner
        self._routes = routes
        self._exchange: Exchange | None = None
        self._serving = Serving(
            "The exec server", Place(listen.host, listen.port, listen.tls_cert, listen.tls_key),
            ws=StraightWebSocket, ws_max_size=broker.rules.frame_bytes_max, ws_ping_interval=listen.ping_s,
            ws_ping_timeout=listen.ping_s, ws_per_message_deflate=False,
        )  # fmt: skip
        self._sessions: set[asyncio.Task[None]] = set()

    @staticmethod
    def check_listen(host: str, token: str | None) -> None:
        """Whether an exec server may listen there.

        Raises: SettingsError if whoever reaches it could run commands.
        """
        if token is None and not is_loopback(host):
            raise SettingsError(
                f"An exec server that listens on {host} runs commands for whoever reaches it: set a token "
                "(ROTA_EXEC_TOKEN, or server.token in exec.toml), or listen on 127.0.0.1."
            )

    @property
    def exchange(self) -> Exchange:
        """The broker in the event loop; there while the exec server is started."""
        assert self._exchange is not None, "the exec server is not started"
        return self._exchange

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._serving.port

    @property
    def address(self) -> str:
        """Its address as clients write it, such as `http://127.0.0.1:8750`."""
        return self._serving.address

    async def start(self) -> None:
        """Begins to listen; safe to repeat.

        Raises: SettingsError if the address or the certificate cannot be used.
        """
        if self._serving.started:
            return
        figures = Figures(self.broker)
        self._exchange = Exchange(self.broker, self._make_runner, figures)
        try:
            await self._serving.start(self._app(figures))
        except SettingsError:
            await self._exchange.runner.stop()
            raise
        log.info("exec server started", address=self.address, instance_id=self.broker.rules.instance_id)

    async def drain(self, limit_s: float) -> None:
        """Deals no more slots, and lets what runs go on for at most `limit_s`; then ends it, to be run elsewhere."""
        self.exchange.drain()
        log.info("exec server drains", running=self.broker.in_use, limit_s=limit_s)
        await self.exchange.runner.stop(limit_s)

    async def stop(self) -> None:
        """Ends all that runs, gives clients their last frames and closes; safe to repeat."""
        if not self._serving.started:
            return
        await self.drain(0.0)
        self.exchange.stop()
        if self._sessions:
            _, late = await asyncio.wait(set(self._sessions), timeout=FLUSH_S)
            for session in late:
                session.cancel()
        await self._serving.stop()
        log.info("exec server stopped")

    def _app(self, figures: Figures) -> Starlette:
        more = self._routes(self) if self._routes is not None else ()
        return Starlette(
            routes=[
                WebSocketRoute("/broker", _Endpoint(self._broker_session)),
                Route("/healthz", _healthy),
                Route("/readyz", self._ready),
                Route("/metrics", self._guarded(lambda: Response(figures.text(), media_type="text/plain"))),
                Route("/overview", self._guarded(self._overview)),
                *more,
            ]
        )

    def refusal(self, connection: HTTPConnection) -> PlainTextResponse | None:
        """Why this caller is not served; None: it is."""
        if "origin" in connection.headers:
            return PlainTextResponse("Pages in a browser are not served here.\n", 403)
        token = self._listen.token
        if token is not None:
            said = connection.headers.get("authorization", "").removeprefix("Bearer ")
            # In constant time: how long a comparison takes would tell how much of a guess is right.
            # A header is read as latin-1, so this is what was sent, byte for byte.
            if not hmac.compare_digest(said.encode("latin-1"), token.encode()):
                return PlainTextResponse(
                    "The token is missing or wrong: send Authorization: Bearer TOKEN (ROTA_EXEC_TOKEN).\n", 401
                )
        return None

    def _guarded(self, answer: Callable[[], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            return self.refusal(request) or answer()

        return guarded

    async def _ready(self, _request: Request) -> Response:
        if self.broker.draining:
            return PlainTextResponse("draining\n", 503)
        return PlainTextResponse("ready\n")

    def _overview(self) -> Response:
        found = view.overview(self.broker, asyncio.get_running_loop().time())
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def _broker_session(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        refusal = self.refusal(websocket)
        if refusal is None and len(self._sessions) >= CLIENTS_MAX:
            refusal = PlainTextResponse("Too many clients are connected; try again later.\n", 503)
        if refusal is not None:
            why = bytes(refusal.body).decode().strip()
            log.warning("a client is refused", peer=peer_of(websocket), status=refusal.status_code, why=why)
            await websocket.send_denial_response(refusal)
            return
        await websocket.accept()
        session = asyncio.current_task()
        assert session is not None, "a session is a task"
        self._sessions.add(session)
        try:
            await Session(websocket, receive, send, self.exchange, self._listen.outbox_bytes_max).run()
        finally:
            self._sessions.discard(session)


class _Endpoint:
    """A route that is given the connection as it is. Starlette's own wrapper looks at each frame twice."""

    def __init__(self, session: ASGIApp) -> None:
        self._session = session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._session(scope, receive, send)


async def _healthy(_request: Request) -> Response:
    return PlainTextResponse("alive\n")
