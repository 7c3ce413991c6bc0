"""One exec call while it waits, runs and after: what `async with app.exec(…) as run` gives.

Its output ends only where it is whole and the command went well; everything else is an error at the end of it (I9).
What the receipt says of the output, its length and digest, is compared with what came.
"""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Final

from rota.commands import Call, Place, Stdin
from rota.errors import ExecError, ExecFailed, ExecLost, ExecRefused, ExecStopped
from rota.io.clock import lease_clock
from rota.slots.io.pipes import Pipe, PipeError
from rota.slots.messages import EndedBy, Receipt, Work
from rota.slots.output import Digest

CHUNK_BYTES: Final = 256 * 1024
"""How much of a file or of bytes is fed at a time."""
END_PATIENCE_S: Final = 30.0
"""How long after its output broke a command's receipt may take: longer than a half-open link takes to be noticed."""
STOPPED_WAIT_S: Final = 5.0
"""How long a job waits whose command an exec server handed back: a server that ends is gone by then."""


class ExecRun:
    """A call's state. The client fills it in; the caller reads it.

    Args:
        call: what to run.
        job_id: its id on the wire.
        work: what exec servers are told to run, but for its streams.
        stop: asks for the command to be stopped.
        locate: asks where it stands in line.
    """

    def __init__(
        self,
        call: Call,
        job_id: str,
        work: Work,
        *,
        stop: Callable[[str], None],
        locate: Callable[[str], "asyncio.Future[Place | None]"],
    ) -> None:
        self.call = call
        self.job_id = job_id
        self.work = work
        self.wanted_at = lease_clock()
        self.place_told: Place | None = None
        """Where it stood in line when that was last asked; the want-book's number alone."""
        self.cancelled = False
        self.reading = False
        self._stop = stop
        self._locate = locate
        self._has_slot = asyncio.Event()
        self._ended = asyncio.Event()
        self._source: Pipe | None = None
        self._sink: Pipe | None = None
        self._placed = False
        self._receipt: Receipt | None = None
        self._error: ExecError | None = None
        self._closed = False
        self._told = False
        """The caller has seen the error."""
        self._stdout = self._read()

    # For the caller

    @property
    def stdout(self) -> AsyncIterator[bytes]:
        """The output as it comes; see `rota.commands.Run`."""
        if self._closed:
            raise RuntimeError("The output of a command is read inside its `async with` block.")
        return self._stdout

    @property
    def receipt(self) -> Receipt:
        """How it ended."""
        if self._receipt is None:
            raise RuntimeError("The command has no receipt (yet): read this after the `async with` block.")
        return self._receipt

    async def started(self) -> None:
        """Returns when it has a slot."""
        while not self._has_slot.is_set():
            # Between the news and this task's turn the slot may have gone to somebody else.
            await self._has_slot.wait()
        if self._error is not None and not self._placed:
            self._told = True
            raise self._error

    async def position(self) -> Place | None:
        """Where it stands in line."""
        if self._has_slot.is_set():
            return None
        unclaimed = 0 if self.call.unclaimed is None else await self.call.unclaimed()
        # Others may wait for the same answer: who waits no longer must not end it for them.
        place = await asyncio.shield(self._locate(self.job_id))
        return None if place is None or self._has_slot.is_set() else place.behind(unclaimed)

    def cancel(self) -> None:
        """Stops the command, or its wait."""
        if not (self._ended.is_set() or self.cancelled or self._closed):
            self.cancelled = True
            self._stop(self.job_id)

    # For the client

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self._ended.is_set()

    def place(self, source: Pipe | None, sink: Pipe | None) -> None:
        """It has a slot, and these are its streams."""
        self._source, self._sink, self._placed = source, sink, True
        self._has_slot.set()

    def take_back(self) -> None:
        """It does not have the slot after all."""
        self._has_slot.clear()
        self._discard()
        self._source, self._sink, self._placed = None, None, False

    def settle(self, receipt: Receipt) -> None:
        """It ended."""
        self._receipt = receipt
        self._end()

    def fail(self, error: ExecError) -> None:
        """It will have no receipt. What ended it first counts."""
        if not self._ended.is_set():
            self._error = error
            self._end()

    async def finish(self) -> None:
        """Waits for the end; output that nobody began to read is thrown away, and a rest that nobody reads cancels.

        Raises: as `stdout`, if the call is checked and nobody cancelled it.
        """
        if self.reading:
            self.cancel()
            await self._ended.wait()
        else:
            try:
                async for _ in self._stdout:
                    pass
            except ExecError:
                if self.call.check and not self.cancelled:
                    raise
        if self._error is not None and not self._told:
            raise self._error

    async def close(self) -> None:
        """Nobody is interested any more."""
        self._closed = True
        self._discard()
        with contextlib.suppress(RuntimeError):  # another task of the caller reads it yet, and finds it broken
            await self._stdout.aclose()

    def _end(self) -> None:
        self._ended.set()
        self._has_slot.set()
        self._discard_unused()

    def _discard_unused(self) -> None:
        """The command is over: what it did not fetch or write, it never will."""
        if self._source is not None:
            self._source.discard()
        if self._sink is not None and (self._error is not None or not self._sink.begun):
            self._sink.discard()

    def _discard(self) -> None:
        for pipe in (self._source, self._sink):
            if pipe is not None:
                pipe.discard()

    async def _read(self) -> AsyncGenerator[bytes, None]:
        count, digest = 0, Digest()
        self.reading = True
        broke: PipeError | None = None
        while True:
            await self.started()
            sink = self._sink
            try:
                if sink is not None:
                    async for chunk in sink:
                        count += len(chunk)
                        digest.update(chunk)
                        self.call.moved()
                        yield chunk
            except PipeError as error:
                if self._sink is not sink:
                    # Its job had not begun, and the slot went to somebody else: it waits again.
                    continue
                broke = error
            break
        await self._wait_for_end(broke)
        self.reading = False
        self._verify(count, digest, broke)

    async def _wait_for_end(self, broke: PipeError | None) -> None:
        try:
            async with asyncio.timeout(None if broke is None else END_PATIENCE_S):
                await self._ended.wait()
        except TimeoutError:
            self.fail(ExecLost(f"The output of {self.call.service} broke off ({broke}), and no receipt came."))

    def _verify(self, count: int, digest: Digest, broke: PipeError | None) -> None:
        if self._error is not None:
            self._told = True
            raise self._error
        receipt = self.receipt
        if not receipt.ok:
            if self.call.check or self.cancelled:
                cause = None if self._source is None else self._source.cause
                if cause is not None and receipt.ended_by == EndedBy.BROKEN:
                    # The exec server saw a stream that broke off. Why, is known here alone.
                    why = f"its input could not be read here ({type(cause).__name__}: {cause})."
                    raise ExecFailed(f"{self.call.service} did not go well: {why}", receipt=receipt) from cause
                raise error_of(self.call.service, receipt)
            return
        if not self.call.output:
            return
        whole = count == receipt.bytes_out and receipt.dropped_bytes == 0 and not digest.denies(receipt.digest)
        if not whole:
            raise ExecFailed(
                f"The output of {self.call.service} did not arrive whole: {count:,} of {receipt.bytes_out:,} bytes "
                f"came, {receipt.dropped_bytes:,} were over its limit{f' ({broke})' if broke else ''}. "
                "Do not use what came.",
                receipt=receipt,
            )


def error_of(service: str, receipt: Receipt) -> ExecError:
    """The error that a bad receipt is: in words, with the line of its stderr that tells most."""
    how = receipt.error or _how(receipt)
    line = f" It said: {receipt.stderr_line}" if receipt.stderr_line else ""
    if receipt.retryable and receipt.ended_by in (EndedBy.STOPPED, EndedBy.REFUSED):
        return ExecStopped(f"{service} was handed back by its exec server: {how}", after_s=STOPPED_WAIT_S)
    if receipt.ended_by == EndedBy.REFUSED:
        return ExecRefused(f"{service} was not run: {how}")
    return ExecFailed(f"{service} did not go well: {how}{line}", receipt=receipt)


def _how(receipt: Receipt) -> str:
    if receipt.ended_by != EndedBy.EXIT:
        return f"it ended by {receipt.ended_by} after {receipt.duration_s:.1f} s."
    if receipt.signal is not None:
        return f"it was ended by {receipt.signal}."
    return f"it ended with status {receipt.exit}."


async def chunks_of(stdin: Stdin, *, moved: Callable[[], None]) -> AsyncIterator[bytes]:
    """What a command reads, piece by piece; files and blocking iterables are read in a thread."""
    async for chunk in _chunks(stdin):
        moved()
        yield chunk


async def _chunks(stdin: Any) -> AsyncIterator[bytes]:
    if isinstance(stdin, bytes | bytearray | memoryview):
        whole = memoryview(stdin)
        for start in range(0, len(whole), CHUNK_BYTES):
            yield bytes(whole[start : start + CHUNK_BYTES])
    elif isinstance(stdin, Path):
        with await asyncio.to_thread(stdin.open, "rb") as file:
            async for chunk in _file(file):
                yield chunk
    elif hasattr(stdin, "read"):
        async for chunk in _file(stdin):
            yield chunk
    elif isinstance(stdin, AsyncIterable):
        async for chunk in stdin:
            yield chunk
    else:
        pieces = iter(stdin)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece


async def _file(file: Any) -> AsyncIterator[bytes]:
    # What is there is handed on, where a file can tell: its writer may be slow.
    read = getattr(file, "read1", file.read)
    if inspect.iscoroutinefunction(read):
        # A stream of asyncio's kind. It would iterate by lines, of which data may have none.
        while chunk := await read(CHUNK_BYTES):
            yield chunk
        return
    while chunk := await asyncio.to_thread(read, CHUNK_BYTES):
        yield chunk


def check_stdin(stdin: object) -> None:
    """Refuses early what cannot be fed.

    Raises: ExecRefused.
    """
    if isinstance(stdin, str) or not (
        stdin is None
        or isinstance(stdin, bytes | bytearray | memoryview | Path | Iterable | AsyncIterable)
        or hasattr(stdin, "read")
    ):
        raise ExecRefused(
            f"stdin={type(stdin).__name__} cannot be fed to a command: give bytes, a Path, an open binary file, or "
            "chunks of bytes."
        )
