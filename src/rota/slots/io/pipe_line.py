"""One TCP connection of a pipe, with one request on it: bytes go by without being copied.

What is read lies in one buffer that is used again; what is sent is sent from where it lies. Whoever is slow is waited
for.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Final

from rota.slots.pipe_http import (
    CHUNK_END,
    LAST_CHUNK,
    Answer,
    AnswerReader,
    Body,
    Request,
    RequestReader,
    size_line,
)

READ_BYTES: Final = 512 * 1024
HEAD_READ_BYTES: Final = 4 * 1024
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: what was not sent yet is dropped, and the other side is told that this is no end."""


class Ended(Exception):
    """The other side closed the connection before the end of what it was sending."""


class PipeLine:
    """A connected socket. All methods that wait raise OSError when the connection breaks."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        with contextlib.suppress(OSError):  # it is broken already, which the first read tells
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop = asyncio.get_running_loop()
        self._socket = connected

    @classmethod
    async def dial(cls, host: str, port: int) -> "PipeLine":
        """Connects to the first of the host's addresses that answers.

        Raises: OSError of the last one tried, also for a name that nobody knows.
        """
        loop = asyncio.get_running_loop()
        failed = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                dialing = socket.socket(family, kind, protocol)
            except OSError as error:
                failed = error
                continue
            try:
                dialing.setblocking(False)
                await loop.sock_connect(dialing, address)
                return cls(dialing)
            except OSError as error:
                dialing.close()
                failed = error
            except BaseException:
                dialing.close()
                raise
        raise failed

    async def request(self) -> Request:
        """The head of a request.

        Raises: BadMessage; Ended.
        """
        reader = RequestReader()
        while (head := reader.feed(await self._some())) is None:
            pass
        return head

    async def answer(self, reader: AnswerReader) -> Answer:
        """The head of the answer to a request.

        Raises: BadMessage; Ended.
        """
        while (head := reader.feed(await self._some())) is None:
            pass
        return head

    async def pieces(self, body: Body, rest: bytes) -> AsyncIterator[memoryview]:
        """The body of a message to its end; each piece is good until the next is asked for.

        Args:
            rest: what came with the head.

        Raises: BadMessage; Ended.
        """
        for piece in body.feed(memoryview(rest)):
            yield piece
        buffer = memoryview(bytearray(READ_BYTES))
        while not body.ended:
            count = await self._loop.sock_recv_into(self._socket, buffer)
            if not count:
                raise Ended
            for piece in body.feed(buffer[:count]):
                yield piece

    async def gone(self) -> None:
        """Waits until the other side has closed, or broken its silence, which it has no reason to."""
        with contextlib.suppress(OSError):
            await self._loop.sock_recv(self._socket, 1)

    async def send(self, data: bytes) -> None:
        """Sends all of it."""
        await self._loop.sock_sendall(self._socket, data)

    async def send_chunk(self, data: bytes | bytearray | memoryview) -> None:
        """Sends it as one chunk; nothing, if it is empty, because that would be the end."""
        left = [memoryview(size_line(len(data))), memoryview(data), memoryview(CHUNK_END)] if data else []
        sent = 0
        if left and hasattr(self._socket, "sendmsg"):
            with contextlib.suppress(BlockingIOError, InterruptedError):
                sent = self._socket.sendmsg(left)
        for part in left:
            if sent < len(part):
                await self._loop.sock_sendall(self._socket, part[sent:])
            sent = max(0, sent - len(part))

    async def send_end(self) -> None:
        """Says that this was the last chunk."""
        await self.send(LAST_CHUNK)

    async def finish(self, linger_s: float) -> None:
        """Closes when the other side has, so that what was sent is not lost under what comes in yet."""
        self._socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(linger_s):
                while await self._loop.sock_recv(self._socket, READ_BYTES):
                    pass
        self._socket.close()

    def close(self) -> None:
        """Ends the connection; safe to repeat."""
        self._socket.close()

    def cut(self) -> None:
        """Breaks the connection off; safe to repeat, and after `close`."""
        if self._socket.fileno() >= 0:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._socket.close()

    async def _some(self) -> bytes:
        data = await self._loop.sock_recv(self._socket, HEAD_READ_BYTES)
        if not data:
            raise Ended
        return data
