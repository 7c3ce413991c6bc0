"""What every server of Rota's on the network is made of: a bound socket, and uvicorn inside a program of our own.

The exec server and the gateway serve an ASGI app on it. A link that is half open is noticed by the kernel, where
nothing that is written is acknowledged.
"""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame
from websockets.http11 import Request as WebSocketRequest

from rota.errors import SettingsError
from rota.io.batched import BatchedTransport
from rota.io.log import SILENT

STRAIGHT: Final = "rota.straight"
FRAMES_IN_A_ROW: Final = 64
"""After so many frames of one client others get their turn."""
BACKLOG: Final = 2048
HEAD_S_MAX: Final = 10.0
"""How long a request may take to say what it wants. Who says nothing, or a byte now and then, holds a descriptor."""
HEAD_BYTES_MAX: Final = 1024 * 1024
"""How long what it says may be. The older protocol of exec servers has a whole job in its URL, 768 KiB at most."""
UNACKNOWLEDGED_S: Final = 20.0
"""A peer that acknowledges nothing for so long is given up."""


class _Denials(logging.Filter):
    """uvicorn takes an answer that denies a websocket for one that never came, and calls that an error."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.msg != "ASGI callable returned without completing handshake."


_DENIALS: Final = _Denials()


@dataclass(frozen=True, slots=True)
class Place:
    """Where to listen.

    Attributes:
        host, port: the address; port 0 is any that is free.
        tls_cert, tls_key: files of a certificate and its key; None: no TLS.
    """

    host: str = "127.0.0.1"
    port: int = 0
    tls_cert: str | None = None
    tls_key: str | None = None


class Serving:
    """An app on a socket, for as long as it is started. `stop` may be called twice.

    Args:
        what: the server's name in messages, such as `The gateway`.
        place: where it listens.
        options: more of uvicorn's, such as the limits of websockets.
    """

    def __init__(self, what: str, place: Place, **options: Any) -> None:
        self._what = what
        self._place = place
        self._options = options
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        """Whether it serves."""
        return self._server is not None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._socket is not None, "the server is not started"
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def address(self) -> str:
        """Its address, such as `http://127.0.0.1:8750`."""
        host = f"[{self._place.host}]" if ":" in self._place.host else self._place.host
        return f"{'https' if self._place.tls_cert else 'http'}://{host}:{self.port}"

    async def start(self, app: Starlette) -> None:
        """Begins to listen.

        Raises: SettingsError if the address or the certificate cannot be used.
        """
        config = uvicorn.Config(
            app, http=BoundedHeads, loop="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            proxy_headers=False, backlog=BACKLOG, timeout_graceful_shutdown=1, ssl_certfile=self._place.tls_cert,
            ssl_keyfile=self._place.tls_key, **({"ws": QuietWebSocket} | self._options),
        )  # fmt: skip
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"The certificate {self._place.tls_cert} cannot be used: {error}.") from None
        logging.getLogger("uvicorn.error").addFilter(_DENIALS)
        self._socket = self._bind()
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        await self._server.ready.wait()

    async def stop(self) -> None:
        """Ends the connections and stops listening."""
        server, self._server = self._server, None
        if server is None or self._task is None:
            return
        server.should_exit = True
        await asyncio.wait({self._task})

    def _bind(self) -> socket.socket:
        host, port = self._place.host, self._place.port
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            bound = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        except (OSError, UnicodeError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            said = "another program has this port. Stop it, or take another" if taken else str(error)
            raise SettingsError(f"{self._what} cannot listen on {host}:{port}: {said}.") from None
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Also for what is accepted: a peer that acknowledges nothing is given up even if nothing can be written.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNACKNOWLEDGED_S * 1000))
        # Also for what is accepted: asyncio sets it only on sockets that were made with the protocol's number. Without
        # it a small frame waits for the acknowledgement of the one before, which takes up to 40 ms.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound


class QuietWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's websocket, whose library tells nothing of what passes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn.logger = SILENT
        self.conn.debug = False


class StraightWebSocket(QuietWebSocket):
    """uvicorn's websocket with a short way: frames go between the socket and the session within one callback.

    An app finds it in its scope's extensions, as STRAIGHT, and may do without: each frame can go either way, in order.
    Through the app's queue a frame costs a task's turn and two calls to the system more.

    Attributes:
        taker: called with each text frame that nothing is before in the app's queue; None: all go through the queue.
    """

    taker: Callable[[bytes], None] | None = None
    _left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """What is written in one turn of the event loop goes out at once."""
        super().connection_made(cast(asyncio.Transport, BatchedTransport(cast(asyncio.Transport, transport))))

    def handle_connect(self, event: WebSocketRequest) -> None:
        """Lets the app find it."""
        super().handle_connect(event)
        scope: Any = getattr(self, "scope", None)
        if scope is not None:
            scope["extensions"][STRAIGHT] = self

    def data_received(self, data: bytes) -> None:
        """Begins a row of frames."""
        self._left = FRAMES_IN_A_ROW
        super().data_received(data)

    def handle_text(self, event: Frame) -> None:
        """Hands a frame to the taker, or to the app's queue."""
        if self.taker is None or not event.fin or not self._left or self.close_sent or not self.queue.empty():
            super().handle_text(event)
            return
        self._left -= 1
        self.taker(bytes(event.data))

    def abort(self) -> None:
        """Ends the connection without waiting for a peer that does not read."""
        self.transport.abort()

    def write_at_once(self, frame: str) -> bool:
        """Writes a frame; False: not now, it has to go by the app's `send`, which waits or says why not."""
        if not self.handshake_complete or self.close_sent or self.transport.is_closing() or not self.writable.is_set():
            return False
        try:
            self.conn.send_text(frame.encode())
        except InvalidState:
            return False
        self.transport.write(b"".join(self.conn.data_to_send()))
        return True


class _Server(uvicorn.Server):
    """uvicorn inside a program that has its own signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


class BoundedHeads(HttpToolsProtocol):
    """uvicorn's protocol for HTTP, with bounds for the head of a request: it has none, neither of time nor of size."""

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_begins()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_ends()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.transport.abort()
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._head_begins()

    def on_headers_complete(self) -> None:
        self._head_ends()
        super().on_headers_complete()

    def _head_begins(self) -> None:
        self._head_bytes = 0
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_S_MAX, self.transport.abort)

    def _head_ends(self) -> None:
        timer, self._head_timer = self._head_timer, None
        if timer is not None:
            timer.cancel()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
