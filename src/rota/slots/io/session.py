"""One client's websocket at the exec server: what it says goes to the exchange, what it is told goes out to it.

Where uvicorn's websocket has the short way (`rota.io.serving.StraightWebSocket`), a frame in and the frames that answer
it are one callback; the tasks here take what does not fit through there, and see the end.
"""

import asyncio
import contextlib
import re
from typing import Final

from starlette.types import Receive, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from rota.errors import ProtocolError
from rota.io.log import get_logger
from rota.io.outbox import Outbox
from rota.io.serving import FRAMES_IN_A_ROW, STRAIGHT, StraightWebSocket
from rota.slots.io.exchange import Exchange
from rota.slots.messages import Error, Offer, Queued, ServerMessage, encode, from_client

QUEUED_S: Final = 0.02
"""How long QUEUED waits for the OFFER that makes it old news."""
INTERNAL_ERROR: Final = 1011  # the code that websockets have for it

log = get_logger("rota.execserver")


class Session:
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
        """Tells the client; see `rota.slots.io.exchange.Link`."""
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
        """Ends the connection when what was said is out."""
        if self._closing is None:
            self._closing = code, reason
            self._outbox.close()

    async def run(self) -> None:
        """Serves the client until it is gone, or has to go."""
        number = self._exchange.join(self, weight=_weight(self._websocket))
        log.info("client connected", client=number, peer=peer_of(self._websocket))
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
        why = "closed"
        if self._outbox.overflowed:
            why = "too slow to take its frames"
            if self._straight is not None:
                self._straight.abort()
        error = self._failed.exception() if self._failed.done() else None
        if error is None and not reader.cancelled():
            error = reader.exception()
        if error is not None:
            why = "its session failed"
            self._closing = self._closing or (INTERNAL_ERROR, why)
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


def _weight(websocket: WebSocket) -> int:
    asked = websocket.query_params.get("weight", "1")
    # Only these ten digits: others are digits too, and no numbers.
    return int(asked) if re.fullmatch("[0-9]{1,5}", asked) and int(asked) else 1


def peer_of(websocket: WebSocket) -> str:
    """Where a client is, for people."""
    client = websocket.client
    return "" if client is None else f"{client.host}:{client.port}"
