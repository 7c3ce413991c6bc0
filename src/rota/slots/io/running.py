"""One command from its start to its receipt: its process by a keeper, its streams, and what ends it.

Whatever ends it first is what the receipt says. stdin is fed and both outputs are read at the same time, always, so
that no command waits for itself.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from rota.errors import PipeError
from rota.slots.io.descriptors import Drain, Reader, Writer
from rota.slots.io.keepers import Keeper, KeeperDied
from rota.slots.io.streams import Streams
from rota.slots.io.watch import Look
from rota.slots.keeper_messages import Run
from rota.slots.messages import STDOUT_PREFIX_BYTES_MAX, EndedBy, Receipt, Work
from rota.slots.output import Stderr, Stdout
from rota.slots.progress import Moved, Movement
from rota.slots.receipts import Facts, Reason, receipt, refused, went_well
from rota.slots.service import Plan

COMMIT_BYTES: Final = STDOUT_PREFIX_BYTES_MAX
"""An output up to this size is only sent when its command has ended well."""
LINGER_S: Final = 5.0
"""How long an output is read after all processes of the command are gone: somebody else may hold it open."""


class _Abandoned(Exception):
    """What breaks an output off whose command did not end well."""


class Running:
    """One command.

    Attributes:
        keeper: what runs it, once something does.
        begun_at: by the monotonic clock.
    """

    def __init__(self, work: Work, plan: Plan, folder: str, streams: Streams) -> None:
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._plan = plan
        self._folder = folder
        self._streams = streams
        self._stdout = Stdout(plan.limits.stdout_bytes_max)
        self._stderr = Stderr()
        self._bytes_in = 0
        self._reason: Reason | None = None
        self._stopping: asyncio.Future[None] = self._loop.create_future()
        self._verdict: asyncio.Future[bool] = self._loop.create_future()
        self._kill_timer: asyncio.TimerHandle | None = None
        self._delivered = False
        self._abandoned = False
        self._peak_bytes = 0
        self._largest_bytes = 0  # of one process, as the system measured it
        self.keeper: Keeper | None = None
        self.begun_at = time.monotonic()
        self._movement = Movement(self.begun_at)

    def end(self, ended_by: EndedBy, error: str) -> None:
        """Ends the command for a reason; the first one counts."""
        if self._reason is not None:
            return
        self._reason = Reason(ended_by, error)
        self._stopping.set_result(None)
        if not self._verdict.done():
            self._verdict.set_result(False)
        if self.keeper is not None:
            self._stop(self.keeper)

    def moved(self) -> Moved:
        """How far it is."""
        return Moved(self._bytes_in, self._stdout.count, self._stderr.last_line, self._movement.moves)

    def saw(self, look: Look, now: float) -> bool:
        """Takes a look at its processes, and ends it if it has stalled.

        Returns: whether they may hold more memory than they may, so that a closer look is due.
        """
        limits = self._plan.limits
        self._peak_bytes = max(self._peak_bytes, look.memory_bytes)
        moved_bytes = self._bytes_in + self._stdout.count + self._stderr.count
        self._movement.saw(bytes_count=moved_bytes, cpu_s=look.cpu_s, now=now)
        if limits.stall_s is not None and self._movement.still_s(now) >= limits.stall_s:
            self.end(EndedBy.STALL, f"Nothing moved for {limits.stall_s:g} s: no bytes, no output, no CPU time")
        return limits.memory_bytes_max is not None and look.memory_bytes > limits.memory_bytes_max

    def holds(self, memory_bytes: int) -> None:
        """Takes a close look at its memory, and ends it if that is too much."""
        memory_bytes_max = self._plan.limits.memory_bytes_max
        if memory_bytes_max is not None and memory_bytes > memory_bytes_max:
            self.end(
                EndedBy.MEMORY, f"Its processes held {memory_bytes:,} bytes; the service allows {memory_bytes_max:,}"
            )

    async def run(self, keeper: Keeper) -> Receipt:
        """Runs it to its end.

        Raises: OSError if there are no descriptors for its streams; then it did not begin.
        """
        if self._reason is not None:
            return self._receipt(None, 0.0)
        (out_read, out_write), (error_read, error_write), (in_read, in_write) = _pipes(
            with_stdin=bool(self._work.stdin)
        )
        stderr = Drain(error_read, self._stderr.take)
        outflow: asyncio.Task[None] | Drain
        if self._work.stdout:
            outflow = self._loop.create_task(self._send(self._work.stdout, Reader(out_read)))
        else:
            outflow = Drain(out_read, self._take)
        inflow = self._loop.create_task(self._feed(self._work.stdin, Writer(in_write))) if self._work.stdin else None
        timer = self._loop.call_later(self._plan.limits.timeout_s, self._time_is_up)
        try:
            status = await self._process(keeper, (in_read, out_write, error_write))
        finally:
            duration_s = time.monotonic() - self.begun_at
            if inflow is not None:
                inflow.cancel()
                await asyncio.wait({inflow})
        if isinstance(status, str):
            self.end(EndedBy.REFUSED, status)
        elif status:
            # It was too quick to be looked at in time, and met the system's own limit instead.
            self.holds(self._largest_bytes)
        if not self._verdict.done():
            self._verdict.set_result(isinstance(status, int) and went_well(status, self._reason))
        await self._close(outflow, stderr)
        timer.cancel()
        if isinstance(status, str):
            return refused(status)
        return self._receipt(status, duration_s)

    async def _process(self, keeper: Keeper, descriptors: tuple[int, int, int]) -> int | str | None:
        """Its wait status; a text: why it could not be started; None: it is not known."""
        run = Run(self._plan.argv, dict(self._plan.env), self._folder, self._plan.limits.data_bytes_max)
        self.begun_at = time.monotonic()
        try:
            try:
                ending = await keeper.run(run, descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            self.keeper = keeper
            if self._reason is not None:
                self._stop(keeper)
            ended = await ending
        except KeeperDied as error:
            self.end(EndedBy.BROKEN, str(error))
            return None
        finally:
            self.keeper = None
            if self._kill_timer is not None:
                self._kill_timer.cancel()
        if ended.status is None:
            return f"'{self._plan.argv[0]}' cannot be started: {ended.error}. Look at the service's command."
        self._largest_bytes = ended.peak_memory_bytes
        self._peak_bytes = max(self._peak_bytes, ended.peak_memory_bytes)
        return ended.status

    def _stop(self, keeper: Keeper) -> None:
        assert self._reason is not None, "it is stopped for a reason"
        grace_s = 0.0 if self._reason.ended_by is EndedBy.MEMORY else self._plan.limits.grace_s
        keeper.stop(now=grace_s == 0)
        if grace_s:
            self._kill_timer = self._loop.call_later(grace_s, lambda: keeper.stop(now=True))

    def _time_is_up(self) -> None:
        self.end(EndedBy.TIMEOUT, f"It ran for {self._plan.limits.timeout_s:g} s, which is its limit")

    def _take(self, data: bytes) -> bytes:
        allowed = self._stdout.take(data)
        if self._stdout.over:
            bytes_max = self._plan.limits.stdout_bytes_max
            self.end(EndedBy.OUTPUT, f"It wrote more than {bytes_max:,} bytes to stdout, which is its limit")
        return allowed

    async def _feed(self, url: str, writer: Writer) -> None:
        try:
            await self._streams.fetch(url, writer, self._fed)
        except Exception as error:
            self.end(EndedBy.BROKEN, _told(error))
            # An end of stdin now would look like a whole one: it stays open until the command is gone.
            await self._loop.create_future()
        finally:
            writer.close()

    def _fed(self, count: int) -> None:
        self._bytes_in += count

    async def _send(self, url: str, reader: Reader) -> None:
        """Sends stdout until it has ended or the command is to end, then reads what is left, to count it."""
        sending = self._loop.create_task(self._put(url, reader))
        try:
            either: set[asyncio.Future[Any]] = {sending, self._stopping}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            sending.cancel()
            await asyncio.wait({sending})
            with contextlib.suppress(asyncio.CancelledError):
                self._delivered = sending.result()
        except Exception as error:
            if not self._abandoned:
                self.end(EndedBy.BROKEN, _told(error))
        finally:
            sending.cancel()
        try:
            while data := await reader.read():
                self._take(data)
        finally:
            reader.close()

    async def _put(self, url: str, reader: Reader) -> bool:
        held = bytearray()
        while len(held) <= COMMIT_BYTES and (data := await reader.read()):
            held += self._take(data)
        if len(held) <= COMMIT_BYTES and not await self._verdict:
            return False
        await self._streams.put(url, self._chunks(bytes(held), reader))
        return True

    async def _chunks(self, first: bytes, reader: Reader) -> AsyncIterator[bytes]:
        if first:
            yield first
        while data := await reader.read():
            yield self._take(data)
        if not await self._verdict:
            self._abandoned = True
            raise _Abandoned

    async def _close(self, outflow: "asyncio.Task[None] | Drain", stderr: Drain) -> None:
        """Waits for the ends of both outputs. A stream may take its time, as long as the limits let it."""
        stderr.finish()
        drains = [stderr]
        if isinstance(outflow, Drain):
            outflow.finish()
            drains.append(outflow)
        else:
            flows: set[asyncio.Future[None]] = {outflow, self._stopping}
            await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
        open_yet = [drain.ended for drain in drains if not drain.ended.done()]
        if open_yet:
            await asyncio.wait(open_yet, timeout=LINGER_S)
        for drain in drains:
            drain.close()
        if isinstance(outflow, asyncio.Task) and not outflow.done():
            await asyncio.wait({outflow}, timeout=LINGER_S)
            outflow.cancel()
            await asyncio.wait({outflow})

    def _receipt(self, status: int | None, duration_s: float) -> Receipt:
        return receipt(
            Facts(
                reason=self._reason,
                status=status,
                stdout=self._stdout,
                stderr=self._stderr,
                bytes_in=self._bytes_in,
                duration_s=duration_s,
                peak_memory_bytes=self._peak_bytes,
                streamed=self._work.stdout is not None,
                delivered=self._delivered,
            )
        )


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
