"""Runs ffmpeg and ffprobe of sessions: behind the machine's walls, below a keeper, within limits.

A keeper is the parent of its command and adopts what that leaves behind, so when a run is left, in whatever way, its
whole tree is gone; and it is gone too when the runner itself is killed. Both output streams are read all the time, so
a command never waits for us. What is said is judged elsewhere: `rota.runners.ffmpeg_report`.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from rota.io.ffmpeg import Tools
from rota.io.memory import memory_bytes, taken_bytes
from rota.io.to_the_end import to_the_end
from rota.runners.codes import OpCode
from rota.runners.failures import OpFailure
from rota.runners.isolation import Isolation, Limits
from rota.slots.io.descriptors import Drain
from rota.slots.io.keepers import Keeper, KeeperDied, Keepers
from rota.slots.keeper_messages import FRAME_BYTES_MAX, Ended, Run

TERM_GRACE_S: Final = 2.0
"""After SIGTERM ffmpeg writes the end of its file, which nobody wants any more."""
LOOK_S: Final = 0.5
"""How often the quota of a session and the memory of its command are looked at: a fast disk takes a gigabyte meanwhile
at most, and so does memory. A single file, and what may be mapped, have their limits in the kernel."""
MEMORY_SHARE: Final = 0.75
"""How much of the memory that there is its programs may take together, where nothing else was set."""
MAPPED_BYTES: Final = 4 << 30
MAPPED_BYTES_OF_CPU: Final = 192 << 20
"""What a program may map beyond what it may take: code, and for each thread a stack and the reserve of an allocator."""
ARGV_BYTES_MAX: Final = FRAME_BYTES_MAX // 2
ONE_BYTES_MAX: Final = 128 * 1024 - 1
"""The longest argument that Linux hands to a program."""
CPUS_MAX: Final = 256
_TOO_BIG: Final = frozenset({-signal.SIGXFSZ, 128 + signal.SIGXFSZ})
_KILLED: Final = frozenset({-signal.SIGKILL, 128 + signal.SIGKILL})


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """How a command ended by itself: its exit status, minus the number of a signal that ended it, and its wall time."""

    exit_code: int
    duration_ms: int


class ToolRunner:
    """What runs the tools of all sessions of one runner; make it in the event loop that uses it.

    Args:
        tools: the two programs.
        isolation: what stands around them.
        memory_bytes_max: what one run may take; None: `MEMORY_SHARE` of what there is.
    """

    def __init__(self, tools: Tools, isolation: Isolation, *, memory_bytes_max: int | None = None) -> None:
        self._programs = {"ffmpeg": str(tools.ffmpeg), "ffprobe": str(tools.ffprobe)}
        self._isolation = isolation
        self._memory_bytes_max = int(memory_bytes() * MEMORY_SHARE) if memory_bytes_max is None else memory_bytes_max
        self._keepers = Keepers()

    async def run(
        self,
        tool: Literal["ffmpeg", "ffprobe"],
        argv: Sequence[str],
        *,
        folder: Path,
        timeout_s: float,
        bytes_left: Callable[[], int],
        stdout: Callable[[bytes], object],
        stderr: Callable[[bytes], object],
    ) -> ToolEnd:
        """Runs one command to its end. If this call is left, the command's whole tree is gone before it returns.

        Args:
            tool: which program.
            argv: its arguments, from the argv gate.
            folder: the session's, where it runs.
            timeout_s: after which it is ended.
            bytes_left: reads how much more the session may write; called in a thread.
            stdout, stderr: take what it says.

        Raises: OpFailure with `timeout`, `disk_full`, `out_of_memory` or `argv_not_allowed` (it is too long to be run).
        """
        if any(len(word.encode()) > ONE_BYTES_MAX for word in argv) or sum(map(len, argv)) > ARGV_BYTES_MAX:
            raise OpFailure(OpCode.ARGV_NOT_ALLOWED, "The command line is longer than a system takes.")
        left = await asyncio.to_thread(bytes_left)
        if left <= 0:
            raise _full()
        cpus = min(os.cpu_count() or 1, CPUS_MAX)
        limits = Limits(
            cpu_s=int(min(timeout_s, 86_400) * cpus) + 10, file_bytes=left,
            memory_bytes=self._memory_bytes_max + MAPPED_BYTES + cpus * MAPPED_BYTES_OF_CPU,
        )  # fmt: skip
        command = self._isolation.command(self._programs[tool], argv, folder=str(folder), limits=limits)
        began_at = time.monotonic()
        try:
            ended = await self._run(command, folder, timeout_s, bytes_left, (stdout, stderr))
        except KeeperDied as error:
            raise OpFailure("internal_error", f"{tool} cannot be run here: {error}", retryable=True) from None
        if ended.status is None:
            raise OpFailure("internal_error", f"{tool} cannot be started here: {ended.error}", retryable=True)
        code = os.waitstatus_to_exitcode(ended.status)
        if code in _TOO_BIG:
            raise _full()
        if code in _KILLED:
            # Not by us: those ends were raised above.
            raise OpFailure(
                OpCode.OUT_OF_MEMORY,
                f"The system has killed {tool}, as it does with what takes the most when memory runs out.",
            )
        return ToolEnd(code, round((time.monotonic() - began_at) * 1000))

    async def close(self) -> None:
        """Ends all that runs; safe to repeat."""
        await self._keepers.close()

    async def _run(
        self,
        command: Sequence[str],
        folder: Path,
        timeout_s: float,
        bytes_left: Callable[[], int],
        takers: Sequence[Callable[[bytes], object]],
    ) -> Ended:
        keeper = await self._keepers.take()
        drains: list[Drain] = []
        try:
            ending = await self._start(keeper, command, folder, takers, drains)
            try:
                why = await _watch(ending, timeout_s, bytes_left, self._too_much_memory(keeper.pid))
            finally:
                _, cancelled = await to_the_end(_end(keeper, ending))
                if cancelled:
                    raise asyncio.CancelledError
            for drain in drains:
                drain.finish()
            if why is not None:
                raise why
            return ending.result()
        finally:
            for drain in drains:
                drain.close()
            self._keepers.give_back(keeper)

    def _too_much_memory(self, pid: int) -> Callable[[], OpFailure | None]:
        most = self._memory_bytes_max

        def look() -> OpFailure | None:
            taken = taken_bytes(pid)
            if taken <= most:
                return None
            said = f"It took {taken >> 20:,} MiB of memory and was stopped: {most >> 20:,} are allowed"
            return OpFailure(OpCode.OUT_OF_MEMORY, f"{said} (runner_memory_mib).")

        return look

    async def _start(
        self,
        keeper: Keeper,
        command: Sequence[str],
        folder: Path,
        takers: Sequence[Callable[[bytes], object]],
        drains: list[Drain],
    ) -> "asyncio.Future[Ended]":
        with contextlib.ExitStack() as stack:
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, nothing)
            theirs = [nothing]
            for take in takers:
                read, write = os.pipe()
                stack.callback(os.close, write)
                theirs.append(write)
                drains.append(Drain(read, take))
            return await keeper.run(Run(tuple(command), {}, str(folder), len(theirs)), theirs)


async def _watch(
    ending: "asyncio.Future[Ended]",
    timeout_s: float,
    bytes_left: Callable[[], int],
    too_much_memory: Callable[[], OpFailure | None],
) -> OpFailure | None:
    """Waits for the end; returns why it was not waited for."""
    until = time.monotonic() + timeout_s
    while True:
        await asyncio.wait([ending], timeout=min(LOOK_S, max(0.0, until - time.monotonic())))
        if ending.done():
            return None
        if time.monotonic() >= until:
            return OpFailure(
                OpCode.TIMEOUT, f"The op did not end within {timeout_s:g} s and was stopped.", retryable=True
            )
        failure = await asyncio.to_thread(too_much_memory)
        if failure is not None:
            return failure
        if await asyncio.to_thread(bytes_left) <= 0:
            return _full()


async def _end(keeper: Keeper, ending: "asyncio.Future[Ended]") -> None:
    if ending.done():
        return
    keeper.stop(now=False)
    await asyncio.wait([ending], timeout=TERM_GRACE_S)
    if not ending.done():
        keeper.stop(now=True)
        await asyncio.wait([ending])


def _full() -> OpFailure:
    return OpFailure(
        OpCode.DISK_FULL, "The session has used the disk that it may use. Free some, or open another session."
    )
