"""A line between a runner and a gateway on which a test has its hand: it may be slow, impatient, or deaf to pings."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

UP, DOWN = "up", "down"
PIECE = 64 * 1024
CONTROLS = frozenset({9, 10})
"""Opcodes of a websocket's own ping and pong."""


@dataclass
class Line:
    """A TCP proxy.

    Attributes:
        clock: what idle times are counted by.
        idle_s: a direction that is silent for so long ends the connection, as many proxies do.
        deaf: whether pings and pongs of the websocket's own protocol are swallowed.
        connections, cuts, swallowed: how many there were.
        longest_s: the longest silence of each direction.
    """

    clock: Callable[[], float]
    idle_s: float | None = None
    deaf: bool = False
    port: int = 0
    connections: int = 0
    cuts: int = 0
    swallowed: int = 0
    longest_s: dict[str, float] = field(default_factory=lambda: {UP: 0.0, DOWN: 0.0})
    _allowed: int | None = None
    _more: asyncio.Event = field(default_factory=asyncio.Event)
    _heard_at: dict[str, float] = field(default_factory=dict)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def allow(self, count: int | None) -> None:
        """So many more bytes go up, and then none; None: as many as come."""
        self._allowed = count
        self._more.set()

    def look(self) -> None:
        """Time has passed: cuts what was silent for too long."""
        for direction, at in self._heard_at.items():
            silent_s = self.clock() - at
            self.longest_s[direction] = max(self.longest_s[direction], silent_s)
            if self.idle_s is not None and silent_s > self.idle_s and self._open:
                self.cuts += 1
                for writer in self._open:
                    writer.transport.abort()
                self._open.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to: int) -> None:
        self.connections += 1
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", to)
        self._open |= {writer, there_writer}
        pumps = [
            asyncio.create_task(self._pump(reader, there_writer, UP)),
            asyncio.create_task(self._pump(there_reader, writer, DOWN)),
        ]
        self._tasks |= set(pumps)
        await asyncio.wait(pumps)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        deaf = _Deaf() if self.deaf else None
        with suppress(OSError):
            while data := await reader.read(PIECE):
                self._heard_at[direction] = self.clock()
                if deaf is not None:
                    data = deaf.feed(data)
                    self.swallowed += deaf.taken
                if direction == UP:
                    await self._meter(data, writer)
                else:
                    writer.write(data)
                await writer.drain()
            writer.close()

    async def _meter(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        while data:
            while self._allowed == 0:
                self._more.clear()
                await self._more.wait()
            size = len(data) if self._allowed is None else min(self._allowed, len(data))
            writer.write(data[:size])
            data = data[size:]
            if self._allowed is not None:
                self._allowed -= size


class _Deaf:
    """Takes pings and pongs out of one direction of a websocket."""

    def __init__(self) -> None:
        self._rest = b""
        self._upgraded = False
        self.taken = 0

    def feed(self, data: bytes) -> bytes:
        self._rest, out = self._rest + data, b""
        self.taken = 0
        if not self._upgraded:
            head, end, rest = self._rest.partition(b"\r\n\r\n")
            if not end:
                return b""
            self._upgraded, self._rest, out = True, rest, head + end
        while (size := _frame_size(self._rest)) is not None and len(self._rest) >= size:
            frame, self._rest = self._rest[:size], self._rest[size:]
            if frame[0] & 0x0F in CONTROLS:
                self.taken += 1
            else:
                out += frame
        return out


def _frame_size(data: bytes) -> int | None:
    if len(data) < 10:  # enough for every length; shorter frames of these tests do not exist
        return None if len(data) < 2 or (data[1] & 0x7F) > 8 else 2 + (data[1] & 0x7F) + 4 * (data[1] >> 7)
    length, masked = data[1] & 0x7F, 4 * (data[1] >> 7)
    if length == 126:
        return 4 + masked + int.from_bytes(data[2:4])
    if length == 127:
        return 10 + masked + int.from_bytes(data[2:10])
    return 2 + masked + length


@asynccontextmanager
async def line(to: int, clock: Callable[[], float], **options: object) -> AsyncIterator[Line]:
    """A line to a port of this machine."""
    made = Line(clock, **options)  # type: ignore[arg-type]
    server = await asyncio.start_server(lambda r, w: made._serve(r, w, to=to), "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.allow(None)
        for writer in made._open:
            writer.transport.abort()
        server.close()
        for task in made._tasks:
            task.cancel()
        if made._tasks:
            await asyncio.wait(made._tasks)
        await server.wait_closed()
