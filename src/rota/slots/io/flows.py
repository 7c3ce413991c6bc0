"""The open ends of one command's streams: what is read from them, fed to them, and when that is over.

stdin is fed and both outputs are read at the same time, always, so that no command waits for itself.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

from rota.errors import PipeError
from rota.slots.io.descriptors import Drain, Reader, Writer
from rota.slots.io.streams import Streams
from rota.slots.messages import STDOUT_PREFIX_BYTES_MAX, Work
from rota.slots.output import Data

COMMIT_BYTES: Final = STDOUT_PREFIX_BYTES_MAX
"""An output up to this size is only sent when its command has ended well."""
LINGER_S: Final = 5.0
"""How long an output is read after all processes of the command are gone: somebody else may hold it open."""


class Command(Protocol):
    """Whose streams they are."""

    def fed(self, count: int) -> None:
        """So many bytes went to its stdin."""

    def take_stdout(self, data: Data) -> Data:
        """It said this; returns what of it may go on."""

    def take_stderr(self, data: bytes) -> None:
        """It said this."""

    def broke(self, error: str) -> None:
        """A stream broke: the command is to end."""


class _Abandoned(Exception):
    """What breaks an output off whose command did not end well."""


class Flows:
    """The streams of one command.

    Attributes:
        delivered: whether a stream took all of stdout.
    """

    def __init__(self, command: Command, stdout: int, stderr: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._command = command
        self._stopping: asyncio.Future[None] = self._loop.create_future()
        self._verdict: asyncio.Future[bool] = self._loop.create_future()
        self._abandoned = False
        self.delivered = False
        self._stderr = Drain(stderr, command.take_stderr)
        self._stdout: Drain | None = None
        self._outflow: asyncio.Task[None] | None = None
        self._inflow: asyncio.Task[None] | None = None
        if stdout >= 0:
            self._stdout = Drain(stdout, command.take_stdout)

    @classmethod
    def open(cls, command: Command, work: Work, streams: Streams) -> "tuple[Flows, tuple[int, int, int]]":
        """Opens the streams that a job names.

        Returns: them, and the descriptors of the command, which the caller closes when it has them.

        Raises: OSError if there are no descriptors.
        """
        (out_read, out_write), (error_read, error_write), (in_read, in_write) = _pipes(with_stdin=bool(work.stdin))
        flows = cls(command, -1 if work.stdout else out_read, error_read)
        if work.stdout:
            flows._outflow = flows._loop.create_task(flows._send(streams, work.stdout, Reader(out_read)))
        if work.stdin:
            flows._inflow = flows._loop.create_task(flows._feed(streams, work.stdin, Writer(in_write)))
        return flows, (in_read, out_write, error_write)

    def stop(self) -> None:
        """The command is to end: nothing more is sent; safe to repeat."""
        if not self._stopping.done():
            self._stopping.set_result(None)
        self.judge(well=False)

    def judge(self, *, well: bool) -> None:
        """Whether the command ended well, so that its output may be committed; the first word counts."""
        if not self._verdict.done():
            self._verdict.set_result(well)

    async def end_input(self) -> None:
        """The command is gone: nobody reads any more."""
        if self._inflow is not None:
            self._inflow.cancel()
            await asyncio.wait({self._inflow})

    async def close(self) -> None:
        """Waits for the ends of both outputs. A stream may take its time, as long as the limits let it."""
        drains = [self._stderr] if self._stdout is None else [self._stderr, self._stdout]
        for drain in drains:
            drain.finish()
        if self._outflow is not None:
            flows: set[asyncio.Future[None]] = {self._outflow, self._stopping}
            await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
        open_yet = [drain.ended for drain in drains if not drain.ended.done()]
        if open_yet:
            await asyncio.wait(open_yet, timeout=LINGER_S)
        for drain in drains:
            drain.close()
        if self._outflow is not None and not self._outflow.done():
            await asyncio.wait({self._outflow}, timeout=LINGER_S)
            self._outflow.cancel()
            await asyncio.wait({self._outflow})

    async def _feed(self, streams: Streams, url: str, writer: Writer) -> None:
        try:
            await streams.fetch(url, writer, self._command.fed)
        except Exception as error:
            self._command.broke(_told(error))
            # An end of stdin now would look like a whole one: it stays open until the command is gone.
            await self._loop.create_future()
        finally:
            writer.close()

    async def _send(self, streams: Streams, url: str, reader: Reader) -> None:
        """Sends stdout until it has ended or the command is to end, then reads what is left, to count it."""
        sending = self._loop.create_task(self._put(streams, url, reader))
        try:
            either: set[asyncio.Future[Any]] = {sending, self._stopping}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            sending.cancel()
            await asyncio.wait({sending})
            with contextlib.suppress(asyncio.CancelledError):
                self.delivered = sending.result()
        except Exception as error:
            if not self._abandoned:
                self._command.broke(_told(error))
        finally:
            sending.cancel()
        try:
            while data := await reader.read():
                self._command.take_stdout(data)
        finally:
            reader.close()

    async def _put(self, streams: Streams, url: str, reader: Reader) -> bool:
        held = bytearray()
        while len(held) <= COMMIT_BYTES and (data := await reader.read()):
            held += self._command.take_stdout(data)
        if len(held) <= COMMIT_BYTES and not await self._verdict:
            return False
        await streams.put(url, self._chunks(bytes(held), reader))
        return True

    async def _chunks(self, first: bytes, reader: Reader) -> AsyncIterator[memoryview]:
        yield memoryview(first)
        while data := await reader.read():
            yield self._command.take_stdout(data)
        if not await self._verdict:
            self._abandoned = True
            raise _Abandoned


def _told(error: Exception) -> str:
    """Why a stream broke. What nobody thought of may name its address, which is a secret (I10)."""
    return (
        str(error) if isinstance(error, PipeError) else f"A stream failed in the exec server: {type(error).__name__}."
    )


def _pipes(*, with_stdin: bool) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Pipes for stdout, stderr and stdin, or nothing to read in place of the last. All of them, or OSError."""
    opened: list[int] = []
    try:
        opened += os.pipe()
        opened += os.pipe()
        opened += os.pipe() if with_stdin else (os.open(os.devnull, os.O_RDONLY), -1)
    except OSError:
        for descriptor in opened:
            os.close(descriptor)
        raise
    return (opened[0], opened[1]), (opened[2], opened[3]), (opened[4], opened[5])
