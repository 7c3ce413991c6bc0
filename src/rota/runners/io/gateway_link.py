"""One connection of a runner to its gateway: a websocket that carries the messages. It dials out, and never listens.

It decides nothing: it hands on what comes, sends what it is given, and says how it ended. It has no pings of its own:
what counts as life are bytes, also of a frame that is still arriving (S47, S50). No library logs what passes here,
because it holds signatures and tokens (I10).

Spec: runners, "Transport and envelope".
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidProxy, InvalidStatus, ProxyError, WebSocketException
from websockets.typing import Subprotocol

from rota.errors import ProtocolError, SettingsError
from rota.io.log import SILENT, get_logger, redact
from rota.runners.agent_events import Connected, DialFailed, Dropped, Heard, Received
from rota.runners.dial import Gateway
from rota.runners.frames import READ_BYTES_MAX, SUBPROTOCOL, from_gateway
from rota.runners.io.trust import proxy_to, with_plain_account

OPEN_TIMEOUT_S: Final = 20.0
"""How long dialling may take, with a proxy and TLS on a slow line."""
CLOSE_TIMEOUT_S: Final = 2.0
"""How long to wait for a peer's goodbye."""
HEARD_EVERY_S: Final = 1.0
"""How often bytes that are no whole frame yet are told."""
OUTBOX_MAX: Final = 10_000
"""Frames that may wait to be sent: progress of many jobs on a line that stalls for long. Then the link is given up."""
REASON_CHARS_MAX: Final = 300
ABNORMAL: Final = 1006
"""The code of a connection that ended without one. Spec: RFC 6455, 7.4.1."""

LinkEvent = Connected | DialFailed | Received | Heard | Dropped

log = get_logger("rota.runner")


class GatewayLink:
    """A websocket to a gateway.

    Args:
        number: names it in this process.
        gateway: where to.
        tls: which certificates to trust.
        say: told what happens: `Heard` aside, `Connected` or `DialFailed` first, `DialFailed` or `Dropped` last.
    """

    def __init__(self, number: int, gateway: Gateway, *, tls: ssl.SSLContext, say: Callable[[LinkEvent], None]) -> None:
        self.number = number
        self._gateway = gateway
        self._tls = tls
        self._say = say
        self._outbox: asyncio.Queue[bytes | tuple[int, str]] = asyncio.Queue()
        self._told_at = 0.0
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, frame: bytes) -> None:
        """Takes a frame to send; never waits."""
        self._outbox.put_nowait(frame)
        if self._outbox.qsize() > OUTBOX_MAX:
            self._task.cancel()

    def hang(self, code: int, reason: str) -> None:
        """Sends what waits, then closes."""
        self._outbox.put_nowait((code, reason))

    def drop(self) -> None:
        """Ends it without waiting for anything, as for a peer that does not answer."""
        self._task.cancel()

    async def closed(self) -> None:
        """Returns when it has ended."""
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        socket: ClientConnection | None = None
        end: DialFailed | Dropped
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                socket = await self._dial()
            end = await self._carry(socket)
        except InvalidStatus as error:
            end = self._refused(error)
        except (OSError, WebSocketException, SettingsError, asyncio.CancelledError) as error:
            words = _words(error)
            end = DialFailed(self.number, words) if socket is None else Dropped(self.number, ABNORMAL, words)
            if socket is not None:
                socket.transport.abort()
        self._say(end)

    async def _dial(self) -> ClientConnection:
        heard = self._heard_bytes

        class Counted(ClientConnection):
            def data_received(self, data: bytes) -> None:
                heard()
                super().data_received(data)

        gateway = self._gateway
        proxy = proxy_to(gateway.host, gateway.port, tls=gateway.tls)
        more: dict[str, Any] = {"proxy_ssl": self._tls} if proxy and proxy.startswith("https:") else {}
        # No redirects are followed: what is signed is for the host that is dialled.
        return await _Straight(
            gateway.connect_url, subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=READ_BYTES_MAX,
            ssl=self._tls if gateway.tls else None, compression=None, user_agent_header=None, logger=SILENT,
            ping_interval=None, open_timeout=None, close_timeout=CLOSE_TIMEOUT_S, create_connection=Counted,
            proxy=None if proxy is None else with_plain_account(proxy), **more,
        )  # fmt: skip

    def _heard_bytes(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= HEARD_EVERY_S:
            self._told_at = now
            self._say(Heard(self.number))

    async def _carry(self, socket: ClientConnection) -> DialFailed | Dropped:
        if socket.subprotocol != SUBPROTOCOL:
            await socket.close()
            return DialFailed(self.number, f"what answers there does not speak {SUBPROTOCOL}")
        writing = asyncio.create_task(self._write(socket))
        self._say(Connected(self.number))
        try:
            async for frame in socket:
                self._heard_frame(frame)
        except ConnectionClosed:
            pass  # as any other end: its code is below
        finally:
            writing.cancel()
        came, went = socket.protocol.close_rcvd, socket.protocol.close_sent
        if came is not None:
            return Dropped(self.number, came.code, came.reason[:REASON_CHARS_MAX])
        words = f"closed from here with {went.code} {went.reason}" if went is not None else "the connection broke"
        return Dropped(self.number, ABNORMAL, words[:REASON_CHARS_MAX].rstrip())

    def _heard_frame(self, text: str | bytes) -> None:
        if isinstance(text, bytes):
            log.warning("gateway sent a binary frame, ignored", bytes=len(text))
            return
        try:
            frame = from_gateway(text)
        except ProtocolError as error:
            log.warning("gateway sent what is no message", code=error.code, why=str(error))
            return
        if frame is not None:
            self._say(Received(self.number, frame))

    async def _write(self, socket: ClientConnection) -> None:
        with contextlib.suppress(OSError, WebSocketException):
            while True:
                frame = await self._outbox.get()
                if isinstance(frame, tuple):
                    await socket.close(*frame)
                    return
                await socket.send(frame, text=True)

    def _refused(self, error: InvalidStatus) -> DialFailed:
        response = error.response
        wait = response.headers.get("Retry-After", "")
        words = {401: "it wants other credentials", 404: "there is no gateway", 503: "it is not ready"}
        return DialFailed(
            self.number,
            words.get(response.status_code, f"it answered with status {response.status_code}"),
            float(wait) if wait.isdecimal() and len(wait) < 6 else None,
        )


class _Straight(connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


def _words(error: BaseException) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"TLS: its certificate is not trusted ({error.verify_message}); runner_ca names more to trust"
        case ssl.SSLError():
            return f"TLS: {error.reason or error}"
        case TimeoutError():
            return f"it did not answer within {OPEN_TIMEOUT_S:g} s"
        case ProxyError() | InvalidProxy():
            # Its address may hold an account, and the library quotes it.
            return f"the proxy: {redact(str(error))[:REASON_CHARS_MAX]}"
        case asyncio.CancelledError():
            return "it was given up"
        case _:
            return (str(error) or type(error).__name__)[:REASON_CHARS_MAX]
