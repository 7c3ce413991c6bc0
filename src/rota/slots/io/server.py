"""The exec server on the network: `/broker` for clients, `/healthz`, `/readyz`, `/metrics` and `/overview` for people.

It listens on loopback unless told otherwise, and off loopback only with a token. A page in a browser is no client: what
says where it comes from is refused, or any web page could run commands on the machine of whoever reads it. A frame that
is too large closes the connection that sent it, and only that (S38). A link that is half open is noticed by pings, and
where they cannot be written, by the kernel (S39).
"""

import asyncio
import contextlib
import hmac
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from rota.errors import ProtocolError, SettingsError
from rota.io.log import get_logger
from rota.io.outbox import OUTBOX_BYTES_MAX, Outbox
from rota.io.serving import FRAMES_IN_A_ROW, STRAIGHT, Place, Serving, StraightWebSocket, is_loopback
from rota.slots import view
from rota.slots.broker import Broker
from rota.slots.io.exchange import Exchange, Runner
from rota.slots.io.figures import Figures
from rota.slots.messages import Error, Offer, Queued, Receipt, ServerMessage, encode, from_client
from rota.slots.progress import Moved

PING_S: Final = 10.0
"""Between two pings, and for how long a pong is awaited: a dead link is noticed within 20 seconds."""
QUEUED_S: Final = 0.02
"""How long QUEUED waits for the OFFER that makes it old news."""
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
            log.warning("a client is refused", peer=_peer(websocket), status=refusal.status_code, why=why)
            await websocket.send_denial_response(refusal)
            return
        await websocket.accept()
        session = asyncio.current_task()
        assert session is not None, "a session is a task"
        self._sessions.add(session)
        try:
            await _Session(websocket, receive, send, self.exchange, self._listen.outbox_bytes_max).run()
        finally:
            self._sessions.discard(session)


class _Endpoint:
    """A route that is given the connection as it is. Starlette's own wrapper looks at each frame twice."""

    def __init__(self, session: ASGIApp) -> None:
        self._session = session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._session(scope, receive, send)


class _Session:
    """One client's websocket: what it says goes to the exchange, what it is told goes through its outbox."""

    def __init__(
        self, websocket: WebSocket, receive: Receive, send: Send, exchange: Exchange, outbox_bytes_max: int
    ) -> None:
        self._websocket = websocket
        self._receive = receive
        self._send = send
        self._exchange = exchange
        loop = asyncio.get_running_loop()
        self._straight: StraightWebSocket | None = websocket.scope.get("extensions", {}).get(STRAIGHT)
        at_once = None if self._straight is None else self._straight.write_at_once
        self._outbox = Outbox(self._write, loop.time, bytes_max=outbox_bytes_max, at_once=at_once)
        self._closing: tuple[int, str] | None = None
        self._failed: asyncio.Future[None] = loop.create_future()
        self._queued: dict[str, Queued] = {}  # not told yet
        self._timer: asyncio.TimerHandle | None = None

    def deliver(self, message: ServerMessage) -> None:
        if isinstance(message, Queued):
            # No news to act on, and most lines are short: the slot may come first.
            self._queued[message.job_id] = message
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(QUEUED_S, self._tell_queued)
            return
        if isinstance(message, Offer) and self._queued:
            self._queued.pop(message.job_id, None)
        self._outbox.put(encode(message).decode())

    def _tell_queued(self) -> None:
        self._timer = None
        queued, self._queued = self._queued, {}
        for message in queued.values():
            self._outbox.put(encode(message).decode())

    async def _write(self, frame: str) -> None:
        await self._send({"type": "websocket.send", "text": frame})

    def close(self, code: int, reason: str) -> None:
        if self._closing is None:
            self._closing = code, reason
            self._outbox.close()

    async def run(self) -> None:
        number = self._exchange.join(self, weight=_weight(self._websocket))
        log.info("client connected", client=number, peer=_peer(self._websocket))
        reader = asyncio.create_task(self._read(number))
        writer = asyncio.create_task(self._outbox.run())
        if self._straight is not None:
            self._straight.taker = lambda frame: self._take_straight(number, frame)
        try:
            await asyncio.wait({reader, writer, self._failed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._straight is not None:
                self._straight.taker = None
            if self._timer is not None:
                self._timer.cancel()
            # However it ends: with the connection go its wants and its offers (S31).
            self._exchange.leave(number)
            for task in (reader, writer):
                task.cancel()
            await asyncio.wait({reader, writer})
        why = "too slow to take its frames" if self._outbox.overflowed else "closed"
        error = self._failed.exception() if self._failed.done() else None
        if error is None and not reader.cancelled():
            error = reader.exception()
        if error is not None:
            why = "its session failed"
            log.error("a client's session failed", client=number, exc_info=error)
        if not writer.cancelled():
            writer.exception()  # the connection ended while it was written to: nothing that the reader does not see
        log.info("client disconnected", client=number, why=why)
        if self._closing is not None:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # it may be closed already
                await self._websocket.close(*self._closing)

    async def _read(self, number: int) -> None:
        receive = self._receive
        in_a_row = 0
        while True:
            event = await receive()
            if event["type"] == "websocket.disconnect":
                return
            frame = event.get("text")
            self._take(number, event["bytes"] if frame is None else frame)
            in_a_row += 1
            if in_a_row == FRAMES_IN_A_ROW:
                in_a_row = 0
                await asyncio.sleep(0)

    def _take_straight(self, number: int, frame: bytes) -> None:
        try:
            self._take(number, frame)
        except Exception as error:
            if not self._failed.done():
                self._failed.set_exception(error)

    def _take(self, number: int, frame: str | bytes) -> None:
        if self._closing is not None:
            return
        try:
            message = from_client(frame)
        except ProtocolError as error:
            self._exchange.garble(number, Error(error.code, str(error), error.job_id))
        else:
            if message is not None:
                self._exchange.say(number, message)


async def _healthy(_request: Request) -> Response:
    return PlainTextResponse("alive\n")


def _weight(websocket: WebSocket) -> int:
    asked = websocket.query_params.get("weight", "1")
    # Only these ten digits: others are digits too, and no numbers.
    return int(asked) if re.fullmatch("[0-9]{1,5}", asked) and int(asked) else 1


def _peer(websocket: WebSocket) -> str:
    client = websocket.client
    return "" if client is None else f"{client.host}:{client.port}"
