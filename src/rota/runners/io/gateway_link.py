"""One connection of a runner to its gateway: a websocket that carries the messages. It dials out, and never listens.

It decides nothing: it hands on what comes, sends what it is given, and says how it ended. It has no pings of its own:
what counts as life are bytes, also of a frame that is still arriving (S47, S50). No library logs what passes here,
because it holds signatures and tokens (I10).

Spec: runners, "Transport and envelope".
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from rota.runners.dial import Gateway
from rota.runners.messages import READ_BYTES_MAX, SUBPROTOCOL

OPEN_TIMEOUT_S: Final = 20.0
"""How long dialling may take, with a proxy and TLS on a slow line."""
CLOSE_TIMEOUT_S: Final = 2.0
"""How long to wait for a peer's goodbye."""
OUTBOX_MAX: Final = 10_000
"""Frames that may wait to be sent: progress of many jobs on a line that stalls for long. Then the link is given up."""
REASON_CHARS_MAX: Final = 300

_silent: Final = logging.Logger("rota.runners.gateway_link", level=logging.CRITICAL + 1)


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """How a connection ended, or that there never was one.

    Attributes:
        code: the gateway's close code; None: it did not close it.
        why: in words, without secrets.
        opened: whether there was a connection.
        status: the HTTP status with which it was refused.
        retry_after_s: how long the refusal asks to wait, at least.
    """

    code: int | None
    why: str
    opened: bool
    status: int | None = None
    retry_after_s: float | None = None


class Link(Protocol):
    """What carries frames to a gateway."""

    def send(self, frame: bytes) -> None:
        """Takes a frame to send; never waits."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Sends what waits, then closes; `ended` is told."""
        ...

    def drop(self) -> None:
        """Ends it without a word, as for a peer that does not answer; nothing is reported afterwards."""
        ...

    async def closed(self) -> None:
        """Returns when it has ended."""
        ...


class SocketLink:
    """A websocket to a gateway.

    Args:
        gateway: where to.
        tls: which certificates to trust.
        opened: told when the connection stands.
        heard: told of each frame.
        alive: told whenever bytes came.
        ended: told once how it ended.
    """

    def __init__(
        self,
        gateway: Gateway,
        *,
        tls: ssl.SSLContext,
        opened: Callable[[], None],
        heard: Callable[[str], None],
        alive: Callable[[], None],
        ended: Callable[[LinkEnd], None],
    ) -> None:
        self._gateway = gateway
        self._tls = tls
        self._opened = opened
        self._heard = heard
        self._alive = alive
        self._ended = ended
        self._outbox: asyncio.Queue[bytes | tuple[int, str]] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, frame: bytes) -> None:
        """Takes a frame to send; never waits."""
        self._outbox.put_nowait(frame)
        if self._outbox.qsize() > OUTBOX_MAX:
            self._task.cancel()

    def close(self, code: int, reason: str) -> None:
        """Sends what waits, then closes; `ended` is told."""
        self._outbox.put_nowait((code, reason))

    def drop(self) -> None:
        """Ends it without a word; nothing is reported afterwards."""
        self._ended = _ignored
        self._task.cancel()

    async def closed(self) -> None:
        """Returns when it has ended."""
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        opened = False
        end: LinkEnd | None = None
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                socket = await self._dial()
            opened = True
            end = await self._carry(socket)
        except InvalidStatus as error:
            end = _refused(error)
        except TimeoutError:
            end = LinkEnd(None, f"it did not answer within {OPEN_TIMEOUT_S:g} s", opened)
        except (OSError, WebSocketException, ssl.SSLError) as error:
            end = LinkEnd(None, _words(error), opened)
        except asyncio.CancelledError:
            end = LinkEnd(None, f"it took no frame while {OUTBOX_MAX:,} waited", opened)
        ended, self._ended = self._ended, _ignored
        ended(end)

    async def _dial(self) -> ClientConnection:
        alive = self._alive

        class Counted(ClientConnection):
            def data_received(self, data: bytes) -> None:
                alive()
                super().data_received(data)

        return await _Straight(
            self._gateway.connect_url, subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=READ_BYTES_MAX,
            ssl=self._tls if self._gateway.tls else None, compression=None, user_agent_header=None, logger=_silent,
            ping_interval=None, open_timeout=None, close_timeout=CLOSE_TIMEOUT_S, create_connection=Counted,
        )  # fmt: skip

    async def _carry(self, socket: ClientConnection) -> LinkEnd:
        if socket.subprotocol != SUBPROTOCOL:
            await socket.close()
            return LinkEnd(None, f"what answers there does not speak {SUBPROTOCOL}", opened=True)
        writing = asyncio.create_task(self._write(socket))
        self._opened()
        try:
            async for frame in socket:
                # A binary frame is against the protocol; it is not for us to end a connection over it.
                if isinstance(frame, str):
                    self._heard(frame)
        except ConnectionClosed:
            pass  # as any other end: its code is below
        finally:
            writing.cancel()
            await socket.close()
        reason = (socket.close_reason or "")[:REASON_CHARS_MAX]
        by_peer = socket.close_code is not None and socket.close_code not in (1005, 1006)
        return LinkEnd(socket.close_code if by_peer else None, reason or "the connection broke", opened=True)

    async def _write(self, socket: ClientConnection) -> None:
        with contextlib.suppress(OSError, WebSocketException):
            while True:
                frame = await self._outbox.get()
                if isinstance(frame, tuple):
                    await socket.close(*frame)
                    return
                await socket.send(frame, text=True)


class _Straight(connect):
    """A redirect is a refusal: what was signed is for the host that was dialled."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


def _ignored(_end: LinkEnd) -> None:
    pass


def _refused(error: InvalidStatus) -> LinkEnd:
    response = error.response
    wait = response.headers.get("Retry-After", "")
    words = {401: "it wants other credentials", 404: "there is no gateway at this address", 503: "it is not ready"}
    return LinkEnd(
        None,
        words.get(response.status_code, f"it answered with status {response.status_code}"),
        opened=False,
        status=response.status_code,
        retry_after_s=float(wait) if wait.isdecimal() and len(wait) < 6 else None,
    )


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}; runner_ca names a file with more to trust"
    return (str(error) or type(error).__name__)[:REASON_CHARS_MAX]
