"""One command from its start to its receipt: its process by a keeper, its streams, and what ends it.

Whatever ends it first is what the receipt says. A command that is over within its first moments, and whose streams are
nowhere else, is a message to its keeper and a message back (`rota.slots.keeper_messages`): no descriptor is opened for
it, no timer set and no task made. What goes on for longer gets all of that when its keeper hands its outputs over.
"""

import asyncio
import os
import time
from collections.abc import Callable

from rota.io.log import get_logger
from rota.slots.io.flows import Flows
from rota.slots.io.keepers import Keeper, KeeperDied
from rota.slots.io.streams import Streams
from rota.slots.io.watch import Look
from rota.slots.keeper_messages import Ended, Outputs, Run
from rota.slots.messages import EndedBy, Receipt, Work
from rota.slots.output import Data, Stderr, Stdout
from rota.slots.progress import Moved, Movement
from rota.slots.receipts import Facts, Reason, receipt, refused, went_well
from rota.slots.service import Plan

log = get_logger("rota.execserver")


class Running:
    """One command.

    Attributes:
        keeper: what runs it, while something does.
        begun_at: by the monotonic clock.
    """

    def __init__(self, work: Work, plan: Plan, folder: str, streams: Streams) -> None:
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._plan = plan
        self._folder = folder
        self._streams = streams
        self._flows: Flows | None = None
        self._stdout = Stdout(plan.limits.stdout_bytes_max)
        self._stderr = Stderr()
        self._bytes_in = 0
        self._reason: Reason | None = None
        self._refusal: str | None = None
        self._status: int | None = None
        self._duration_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._kill_timer: asyncio.TimerHandle | None = None
        self._to_be_killed = False
        self._closing: asyncio.Task[None] | None = None
        self._over: Callable[[Receipt], None] | None = None
        self._peak_bytes = 0
        self.keeper: Keeper | None = None
        self.begun_at = time.monotonic()
        self._movement = Movement(self.begun_at)

    def begin(self, keeper: Keeper, over: Callable[[Receipt], None]) -> None:
        """Starts it.

        Args:
            keeper: one that is free.
            over: called once, perhaps at once, with its receipt: all its processes are gone and its outputs are read.

        Raises: OSError if there are no descriptors for its streams; then it did not begin.
        """
        if self._reason is not None:
            over(self._receipt())
            return
        descriptors: tuple[int, ...] = ()
        if self._work.stdin or self._work.stdout:
            self._flows, descriptors = Flows.open(self, self._work, self._streams)
        self._over = over
        self.begun_at = time.monotonic()
        try:
            run = Run(
                self._plan.argv, dict(self._plan.env), self._folder, len(descriptors), self._plan.limits.data_bytes_max
            )  # fmt: skip
            keeper.begin(run, descriptors, self)
        except KeeperDied as error:
            self.died(error)
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self.keeper = keeper
        if self._flows is not None:
            self._limit_time()

    def end(self, ended_by: EndedBy, error: str) -> None:
        """Ends the command for a reason; the first one counts."""
        if self._reason is not None:
            return
        self._reason = Reason(ended_by, error)
        if self._flows is not None:
            self._flows.stop()
        if self.keeper is not None:
            self._stop(self.keeper)

    # What is seen of it while it runs

    def moved(self) -> Moved:
        """How far it is."""
        return Moved(self._bytes_in, self._stdout.count, self._stderr.last_line, self._movement.moves)

    def saw(self, look: Look, now: float) -> bool:
        """Takes a look at its processes, and ends it if it has stalled.

        Returns: whether they may hold more memory than they may, so that a closer look is due.
        """
        limits = self._plan.limits
        if self._over is not None:
            self._limit_time()  # also if its keeper is kept from handing its outputs over
        if self._to_be_killed and self.keeper is not None:
            self.keeper.stop(now=True)  # again: see there
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

    # What its streams say

    def fed(self, count: int) -> None:
        """So many bytes went to its stdin."""
        self._bytes_in += count

    def take_stdout(self, data: Data) -> Data:
        """It said this; returns what of it may go on."""
        allowed = self._stdout.take(data)
        if self._stdout.over:
            bytes_max = self._plan.limits.stdout_bytes_max
            self.end(EndedBy.OUTPUT, f"It wrote more than {bytes_max:,} bytes to stdout, which is its limit")
        return allowed

    def take_stderr(self, data: bytes) -> None:
        """It said this."""
        self._stderr.take(data)

    def broke(self, error: str) -> None:
        """A stream broke."""
        self.end(EndedBy.BROKEN, error)

    # What its keeper says

    def outputs(self, so_far: Outputs, stdout: int, stderr: int) -> None:
        """It goes on for longer: its outputs are read here from now on."""
        self._take(so_far.stdout, so_far.stderr)
        self._flows = Flows(self, stdout, stderr)
        if self._reason is not None:
            self._flows.stop()
        self._limit_time()

    def unheard(self) -> None:
        """It goes on for longer, and nobody can read its outputs."""
        self.end(EndedBy.BROKEN, "The exec server has too many files open to read its outputs. Raise that limit.")

    def ended(self, ended: Ended) -> None:
        """The command and all its processes are gone."""
        if ended.status is None:
            self._refusal = f"'{self._plan.argv[0]}' cannot be started: {ended.error}. Look at the service's command."
        self._peak_bytes = max(self._peak_bytes, ended.peak_memory_bytes)
        self._gone(ended.status)
        if ended.status:
            # It may have been too quick to be looked at in time, and have met the system's own limit instead.
            self.holds(ended.peak_memory_bytes)
        if self._flows is None:
            self._take(ended.stdout, ended.stderr)
            self._finish()
        else:
            self._closing = self._loop.create_task(self._close(self._flows))

    def died(self, error: KeeperDied) -> None:
        """What ran it is gone, and it with that."""
        self._gone(None)
        self.end(EndedBy.BROKEN, str(error))
        if self._flows is None:
            self._finish()
        else:
            self._closing = self._loop.create_task(self._close(self._flows))

    def _gone(self, status: int | None) -> None:
        self.keeper = None
        self._status = status
        self._duration_s = time.monotonic() - self.begun_at
        if self._kill_timer is not None:
            self._kill_timer.cancel()

    async def _close(self, flows: Flows) -> None:
        try:
            await flows.end_input()
            if self._refusal is not None:
                self.end(EndedBy.REFUSED, self._refusal)
            flows.judge(well=self._status is not None and went_well(self._status, self._reason))
            await flows.close()
        except Exception as error:
            log.exception("the streams of a command failed in the exec server itself")
            self.end(EndedBy.BROKEN, f"The exec server failed: {error!r}")
        self._finish()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        assert self._over is not None, "it has begun"
        self._over(self._receipt() if self._refusal is None else refused(self._refusal))

    def _take(self, stdout: bytes, stderr: bytes) -> None:
        if stdout:
            self.take_stdout(stdout)
        if stderr:
            self.take_stderr(stderr)

    def _stop(self, keeper: Keeper) -> None:
        assert self._reason is not None, "it is stopped for a reason"
        grace_s = 0.0 if self._reason.ended_by is EndedBy.MEMORY else self._plan.limits.grace_s
        if grace_s:
            keeper.stop(now=False)
            self._kill_timer = self._loop.call_later(grace_s, self._kill, keeper)
        else:
            self._kill(keeper)

    def _kill(self, keeper: Keeper) -> None:
        self._to_be_killed = True
        keeper.stop(now=True)

    def _limit_time(self) -> None:
        if self._timer is None:
            left_s = self.begun_at + self._plan.limits.timeout_s - time.monotonic()
            self._timer = self._loop.call_later(max(0.0, left_s), self._time_is_up)

    def _time_is_up(self) -> None:
        self.end(EndedBy.TIMEOUT, f"It ran for {self._plan.limits.timeout_s:g} s, which is its limit")

    def _receipt(self) -> Receipt:
        return receipt(
            Facts(
                reason=self._reason,
                status=self._status,
                stdout=self._stdout,
                stderr=self._stderr,
                bytes_in=self._bytes_in,
                duration_s=self._duration_s,
                peak_memory_bytes=self._peak_bytes,
                streamed=self._work.stdout is not None,
                delivered=self._flows is not None and self._flows.delivered,
            )
        )
