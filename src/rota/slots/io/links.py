"""One connection to an exec server, or to a balancer in front of several: a websocket that carries the messages.

It decides nothing: it hands on what comes and sends what it is given. A link that is half open is noticed by
websocket pings within PING_EVERY_S + PING_TIMEOUT_S, on this side as on the other.

Spec: slot broker, "Protocol".
"""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException

from rota.errors import ProtocolError
from rota.io.log import SILENT, get_logger
from rota.slots.address import Address
from rota.slots.messages import FRAME_BYTES_MAX, ClientMessage, Hello, ServerMessage, encode, from_server

OPEN_TIMEOUT_S: Final = 10.0
"""How long a connection may take until its HELLO."""
PING_EVERY_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 1.0
"""How long to wait for a peer's goodbye."""
PING_TIMEOUT_S: Final = 10.0
"""Together: how long a peer may be silent before the link counts as broken (S39)."""
TAKES_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest frame that is taken from an exec server; an OVERVIEW of a full want-book stays far below it."""
OUTBOX_MAX: Final = 100_000
"""Frames that may wait to be sent: twice the wants that an exec server keeps. One that takes no more is given up."""
NO_BROKER: Final = frozenset({403, 404, 405, 426, 501})
"""What servers without such a route say to a websocket. One with a broker says 401 where the token is wrong."""


log = get_logger("rota.exec")


class Link(Protocol):
    """What carries messages to one exec server."""

    number: int
    local_host: str
    """This process's own address as the exec server sees it: pipes are there."""
    frame_bytes_max: int

    def send(self, frame: bytes) -> None:
        """Takes a frame to send; never waits."""
        ...

    def close(self) -> None:
        """Ends it; nothing is reported afterwards."""
        ...


class NoBroker(Exception):
    """The address answers, and has no `/broker`: an older exec server."""


class SocketLink:
    """A websocket to an address.

    Args:
        number: names it in this process.
        address: where to.
        token: the shared token, or None.
        tls: for `wss`; None uses the system's certificates.
        heard: awaited with each message, in order; the first is a HELLO.
        ended: told once how it ended: the error in words, or a NoBroker.
    """

    def __init__(
        self,
        number: int,
        address: Address,
        *,
        token: str | None,
        tls: ssl.SSLContext | None,
        heard: Callable[["SocketLink", ServerMessage], Awaitable[None]],
        ended: Callable[["SocketLink", str | NoBroker], None],
    ) -> None:
        self.number = number
        self.address = address
        self.local_host = ""
        self.frame_bytes_max = FRAME_BYTES_MAX
        self._token = token
        self._tls = tls
        self._heard = heard
        self._ended = ended
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, frame: bytes) -> None:
        """Takes a frame to send; never waits."""
        self._outbox.put_nowait(frame)
        if self._outbox.qsize() > OUTBOX_MAX:
            self._task.cancel()

    def say(self, message: ClientMessage) -> None:
        """The same with a message that is small by its nature."""
        self.send(encode(message))

    def close(self) -> None:
        """Ends it; nothing is reported afterwards."""
        self._ended = _ignored
        self._task.cancel()

    async def closed(self) -> None:
        """Returns when it has ended."""
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        how: str | NoBroker = "it closed the connection"
        try:
            await self._serve()
        except InvalidStatus as error:
            status = error.response.status_code
            how = NoBroker() if status in NO_BROKER else _status_words(status)
        except ProtocolError as error:
            how = f"it said what is no message: {error}"
        except TimeoutError:
            how = f"it did not greet within {OPEN_TIMEOUT_S:g} s"
        except (OSError, WebSocketException) as error:
            how = str(error) or type(error).__name__
        except Exception as error:
            log.exception("a connection to an exec server failed", address=self.address.shown)
            how = repr(error)
        except asyncio.CancelledError:
            how = f"it took no frame while {OUTBOX_MAX:,} waited"
        ended, self._ended = self._ended, _ignored
        ended(self, how)

    async def _serve(self) -> None:
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            socket = await connect(
                self.address.broker_url, additional_headers=headers,
                ssl=(self._tls or True) if self.address.tls else None,
                compression=None, proxy=None, max_size=TAKES_BYTES_MAX, user_agent_header=None,
                ping_interval=PING_EVERY_S, ping_timeout=PING_TIMEOUT_S,
                open_timeout=None, close_timeout=CLOSE_TIMEOUT_S, logger=SILENT,
            )  # fmt: skip
        writing = asyncio.create_task(self._write(socket))
        try:
            self.local_host = str(socket.local_address[0])
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                first = from_server(await socket.recv())
            if not isinstance(first, Hello):
                raise InvalidHandshake("the first frame was no HELLO")
            await self._take(first)
            async for frame in socket:
                message = from_server(frame)
                if message is not None:
                    await self._take(message)
        finally:
            writing.cancel()
            await socket.close()

    async def _take(self, message: ServerMessage) -> None:
        if isinstance(message, Hello):
            self.frame_bytes_max = message.frame_bytes_max
        await self._heard(self, message)

    async def _write(self, socket: ClientConnection) -> None:
        with contextlib.suppress(OSError, WebSocketException):
            while True:
                await socket.send(await self._outbox.get(), text=True)


def _ignored(_link: SocketLink, _how: str | NoBroker) -> None:
    pass


def _status_words(status: int) -> str:
    if status == 401:
        return "it wants another token: set exec_token to the exec server's own"
    return f"it answered with status {status}"
