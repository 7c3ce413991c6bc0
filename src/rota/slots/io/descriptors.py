"""Pipes to and from a command on the event loop: no thread, bounded memory, and whoever is slow is waited for."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import Final

READ_BYTES: Final = 512 * 1024
PIPE_BYTES: Final = 1024 * 1024
"""The room asked for in a pipe that carries a stream; the system may give less."""


def widen(descriptor: int) -> None:
    """Asks for a pipe with more room, where there is such a thing."""
    number = getattr(fcntl, "F_SETPIPE_SZ", None)
    if number is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, number, PIPE_BYTES)


class Drain:
    """Reads a pipe to its end and hands everything on at once; for what is bounded by who takes it.

    Attributes:
        ended: done when everything that held the other end has closed it, or `close` was called.
    """

    def __init__(self, descriptor: int, take: Callable[[bytes], object]) -> None:
        os.set_blocking(descriptor, False)
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._take = take
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(descriptor, self._readable)

    def _readable(self) -> bool:
        """Reads once; whether there was something."""
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self.close()
        return bool(data)

    def finish(self) -> None:
        """Reads what is there now, without waiting for the loop: after the command that is usually all."""
        while not self.ended.done() and self._readable():
            pass

    def close(self) -> None:
        """Reads no more; safe to repeat."""
        if not self.ended.done():
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self.ended.set_result(None)


class Reader:
    """Reads a pipe piece by piece, when somebody asks. What is not asked for fills the pipe, and stops the command."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        widen(descriptor)
        self._descriptor = descriptor
        self._buffer = memoryview(bytearray(READ_BYTES))

    async def read(self) -> memoryview:
        """The next piece, good until the one after it is asked for; empty at the end."""
        while True:
            try:
                return self._buffer[: os.readv(self._descriptor, [self._buffer])]
            except BlockingIOError:
                await _until(self._descriptor, writable=False)

    def close(self) -> None:
        """Safe to repeat."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Writer:
    """Writes a pipe, waiting while it is full."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        widen(descriptor)
        self._descriptor = descriptor

    async def write(self, data: bytes | memoryview) -> None:
        """Writes all of it.

        Raises: BrokenPipeError when nobody reads any more.
        """
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                await _until(self._descriptor, writable=True)

    def close(self) -> None:
        """Says that this was all; safe to repeat."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


async def _until(descriptor: int, *, writable: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def done() -> None:
        if not ready.done():
            ready.set_result(None)

    (loop.add_writer if writable else loop.add_reader)(descriptor, done)
    try:
        await ready
    finally:
        (loop.remove_writer if writable else loop.remove_reader)(descriptor)
