"""The gateway on the network: `/v1/connect` for runners, the routes of the internal API, and pages for probes.

Whoever connects is looked at cheaply first: the path, the subprotocol, the name that was dialled; then the gateway sees
whether too many come at once. Only then may a hello cost a signature and a statement. Life is what comes in, bytes that
make no frame yet included (S47); the pings of the websocket's own protocol play no part in it (S50).

Spec: runners, "Transport and envelope", "Connection handshake and authentication".
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from rota.errors import ProtocolError
from rota.io.log import get_logger
from rota.io.open_files import limit
from rota.io.outbox import Outbox
from rota.io.serving import Place, QuietWebSocket, Serving
from rota.runners.frames import PAYLOAD_BYTES_MAX, READ_BYTES_MAX, SUBPROTOCOL, from_runner
from rota.runners.handshake import dialled_host
from rota.runners.io.exchange import Exchange
from rota.runners.io.figures import Figures
from rota.runners.io.internal_api import InternalApi

CONNECTIONS_MAX: Final = 15_000
"""Connections at once, where the system allows that many open files."""
FILES_SPARE: Final = 200
"""Of the files that may be open, so many are left to engines, to the database and to whoever is told to go away."""
OUTBOX_BYTES_MAX: Final = 4 * PAYLOAD_BYTES_MAX
"""Unsent bytes of one runner: more than its slots could ask for at once."""
FRAMES_IN_A_ROW: Final = 64
"""After so many frames of one runner others get their turn."""
FLUSH_S: Final = 2.0
"""What a stopping gateway gives its runners to take their last frames."""
HEARD_EVERY_S: Final = 1.0

log = get_logger("rota.gateway")


class GatewayServer:
    """One replica's sockets.

    Args:
        exchange: its rules, runners and database.
        api: its HTTP routes.
        figures: what it tells Prometheus.
        place: where it listens.
        names: the host names that runners dial, in lower case.
        metrics_token: what a scraper shows; None: the internal token.
        more: routes that are served beside its own, such as those of a folder of objects.
    """

    def __init__(
        self,
        exchange: Exchange,
        api: InternalApi,
        figures: Figures,
        place: Place,
        *,
        names: Collection[str],
        metrics_token: str | None = None,
        more: Sequence[BaseRoute] = (),
    ) -> None:
        self.exchange = exchange
        self._api = api
        self._figures = figures
        self._names = frozenset(names)
        self._metrics_token = metrics_token
        self._more = more
        self._sessions: set[asyncio.Task[None]] = set()
        files = limit()
        room = CONNECTIONS_MAX if files is None else max(files // 2, files - FILES_SPARE)
        self._connections_max = min(CONNECTIONS_MAX, room)
        self.serving = Serving(
            "The gateway", place, ws=_HeardProtocol, ws_max_size=READ_BYTES_MAX, ws_ping_interval=None,
            ws_ping_timeout=None, ws_per_message_deflate=False,
        )  # fmt: skip

    async def start(self) -> None:
        """Begins to listen.

        Raises: SettingsError if the address or the certificate cannot be used.
        """
        app = Starlette(
            routes=[
                *self._api.routes(),
                WebSocketRoute("/v1/connect", self._connect),
                Route("/healthz", _healthy),
                Route("/readyz", self._ready),
                Route("/metrics", self._metrics),
                *self._more,
            ]
        )
        await self.serving.start(app)

    async def stop(self) -> None:
        """Gives runners their last frames and closes; safe to repeat. The exchange has said goodbye before."""
        if self._sessions:
            _, late = await asyncio.wait(set(self._sessions), timeout=FLUSH_S)
            for session in late:
                session.cancel()
        await self._api.stop()
        await self.serving.stop()

    async def _ready(self, _request: Request) -> Response:
        if self.exchange.gateway.draining is not None:
            return PlainTextResponse("draining\n", 503)
        return PlainTextResponse("ready\n")

    async def _metrics(self, request: Request) -> Response:
        refusal = self._api.refusal(request, token=self._metrics_token)
        return refusal or Response(self._figures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _connect(self, websocket: WebSocket) -> None:
        host = dialled_host(websocket.headers.get("host", ""), self._names)
        refusal: Response | None = None
        if SUBPROTOCOL not in websocket.scope.get("subprotocols", ()):
            refusal = PlainTextResponse(f"This is the runners' door: offer the subprotocol {SUBPROTOCOL}.\n", 400)
        elif host is None:
            refusal = PlainTextResponse("This gateway has another name: set ROTA_GATEWAY_NAMES.\n", 421)
        elif len(self._sessions) >= self._connections_max:
            refusal = PlainTextResponse("Too many runners are connected; try again later.\n", 503)
        if refusal is not None or host is None:
            await websocket.send_denial_response(refusal or PlainTextResponse("", 421))
            return
        await websocket.accept(subprotocol=SUBPROTOCOL)
        task = asyncio.current_task()
        assert task is not None, "a session is a task"
        self._sessions.add(task)
        try:
            await _Session(websocket, self.exchange).run(host)
        finally:
            self._sessions.discard(task)


class _Session:
    """One runner's websocket: what it says goes to the exchange, what it is told goes through its outbox."""

    def __init__(self, websocket: WebSocket, exchange: Exchange) -> None:
        self._websocket = websocket
        self._exchange = exchange
        self._loop = asyncio.get_running_loop()
        self._outbox = Outbox(websocket.send_text, self._loop.time, bytes_max=OUTBOX_BYTES_MAX)
        self._closing: tuple[int, str] | None = None
        self._heard_at = 0.0

    def deliver(self, text: str) -> None:
        self._outbox.put(text)

    def close(self, code: int, reason: str) -> None:
        if self._closing is None:
            self._closing = code, reason
            self._outbox.close()

    async def run(self, host: str) -> None:
        exchange = self._exchange
        number = exchange.join(self, host)
        protocol = self._websocket.scope["state"].get(_PROTOCOL)
        if protocol is not None:
            protocol.heard = lambda: self._heard(number)
        reader = asyncio.create_task(self._read(number))
        writer = asyncio.create_task(self._outbox.run())
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            exchange.leave(number)
            if protocol is not None:
                protocol.heard = None
            for task in (reader, writer):
                task.cancel()
            await asyncio.wait({reader, writer})
        if self._outbox.overflowed:
            log.warning("a runner is too slow to take its frames", connection=number)
        if not reader.cancelled() and (error := reader.exception()) is not None:
            log.error("a runner's session failed", connection=number, exc_info=error)
        if not writer.cancelled():
            writer.exception()  # the connection ended while it was written to: nothing that the reader does not see
        code, reason = self._closing or (1008, "too slow to take its frames")
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # it may be closed already
            # A close frame holds 123 bytes of text.
            await self._websocket.close(int(code), reason.encode()[:120].decode(errors="ignore"))

    def _heard(self, number: int) -> None:
        now = self._loop.time()
        if now - self._heard_at >= HEARD_EVERY_S:
            self._heard_at = now
            self._exchange.heard(number)

    async def _read(self, number: int) -> None:
        receive, exchange = self._websocket.receive, self._exchange
        in_a_row = 0
        while True:
            event = await receive()
            if event["type"] == "websocket.disconnect":
                return
            text = event.get("text")
            if text is None:
                exchange.garble(number, "binary", "this protocol has text frames alone")
            else:
                self._frame(number, text)
            in_a_row += 1
            if in_a_row == FRAMES_IN_A_ROW:
                in_a_row = 0
                await asyncio.sleep(0)

    def _frame(self, number: int, text: str) -> None:
        try:
            frame = from_runner(text)
        except ProtocolError as error:
            log.info("a runner's frame is no good", connection=number, code=error.code, job_id=error.job_id)
            self._exchange.garble(number, error.code, str(error), of=error.type, job_id=error.job_id)
            return
        if frame is None:
            self._exchange.garble(number, "unknown_type", "a message of an unknown type")
        else:
            self._exchange.say(number, frame)


_PROTOCOL: Final = "rota.protocol"


class _HeardProtocol(QuietWebSocket):
    """uvicorn's websocket, which also tells that bytes came in."""

    heard: Callable[[], None] | None = None

    def data_received(self, data: bytes) -> None:
        if self.heard is not None:
            self.heard()
        super().data_received(data)

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        scope = getattr(self, "scope", None)
        if scope is not None:
            scope["state"][_PROTOCOL] = self


async def _healthy(_request: Request) -> Response:
    return PlainTextResponse("alive\n")
