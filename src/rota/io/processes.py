"""Child processes of one program: started, restarted when they crash, told to stop, and never left behind.

A child gets a process group of its own, so that Ctrl-C in a terminal reaches it through its parent alone, once, in
order. If the parent is killed, the system tells its children to stop (Linux: parent-death signal; elsewhere each child
watches its parent).
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import psutil

from rota.io.backoff import Backoff
from rota.io.clock import lease_clock
from rota.io.kill import adopt_orphans, kill_orphans, kill_tree
from rota.io.log import get_logger

PR_SET_PDEATHSIG: Final = 1
READY_OPTION: Final = "--ready-to"
STEADY_S: Final = 10.0
"""A child that lived for so long starts again at once after a crash."""
OUTLIVES_S: Final = 30.0
"""How long what a child left behind may take to finish: a warden gives back jobs within half of that."""
OUTLIVES_LOOK_S: Final = 0.25
"""Between two looks whether it has."""

log = get_logger("rota.processes")


@dataclass(frozen=True, slots=True)
class Command:
    """What a child runs. `name` is how lines and errors call it; `environ` is added to the parent's; what it prints
    goes to the file `log`, or where the parent's output goes. With `ready_s` the child gets the option READY_OPTION and
    a file descriptor, and writes to that once it is ready; one that is not within so many seconds is replaced."""

    name: str
    argv: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    ready_s: float | None = None


class ProcessTree:
    """Runs commands until `stop`; one that crashes is started again after a wait, unless told otherwise.

    Args:
        commands: what to run, one child each.
        grace_s: how long a child may take to stop before it is killed.
        restart: whether a crashed child is started again.
        hurry: what a second `stop` sends: where it is another signal than SIGTERM, a child that got that from somebody
            else too does not take it for impatience.
        outlives: a program, by its path, that a child may leave behind to finish what it does; it gets OUTLIVES_S.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        *,
        grace_s: float,
        restart: bool = True,
        hurry: signal.Signals = signal.SIGTERM,
        outlives: Path | None = None,
    ) -> None:
        self._commands = commands
        self._hurry = hurry
        self._grace_s = grace_s
        self._restart = restart
        self._outlives = outlives
        self._outliving: dict[int, asyncio.Task[None]] = {}
        self._children: dict[str, asyncio.subprocess.Process] = {}
        self._not_ready = {command.name for command in commands}
        self._stopping = asyncio.Event()
        self._counting = asyncio.Lock()
        """Held while a child is started, so that it is not taken for somebody's orphan."""
        self._others: set[int] = set()
        """Children of this process that were there before: a database, say."""

    def pid(self, name: str) -> int | None:
        """The process id of a child that runs now."""
        child = self._children.get(name)
        return child.pid if child is not None and child.returncode is None else None

    @property
    def pids(self) -> set[int]:
        """The process ids of all children that run now."""
        return {child.pid for child in self._children.values() if child.returncode is None}

    @property
    def not_ready(self) -> frozenset[str]:
        """The children that have not said yet, since their last start, that they are ready."""
        return frozenset(self._not_ready)

    def stop(self) -> None:
        """Tells every child to stop (SIGTERM); a second call tells them to hurry."""
        number = self._hurry if self._stopping.is_set() else signal.SIGTERM
        self._stopping.set()
        for child in self._children.values():
            _signal(child, number)

    async def run(self) -> int:
        """Runs until every child has ended.

        Returns: the first exit status that is not 0, as a shell gives it (128 + n for one that signal n ended), else 0.

        Raises: OSError if a child cannot be started; then no other is left running either.
        """
        adopt_orphans()
        self._others = {child.pid for child in psutil.Process().children()}
        keeping = [asyncio.create_task(self._keep(command)) for command in self._commands]
        try:
            statuses = await asyncio.gather(*keeping)
        finally:
            self._stopping.set()
            for child in self._children.values():
                _signal(child, signal.SIGKILL)
            await asyncio.gather(*keeping, return_exceptions=True)
            await asyncio.gather(*(child.wait() for child in self._children.values()))
            for task in list(self._outliving.values()):
                task.cancel()
        return next((status for status in statuses if status), 0)

    async def _keep(self, command: Command) -> int:
        backoff = Backoff(Random(), first_s=0.5, cap_s=10)  # noqa: S311 - jitter
        while True:
            started = lease_clock()
            self._not_ready.add(command.name)
            with contextlib.ExitStack() as stack:
                readiness = Readiness() if command.ready_s is not None else None
                if readiness is not None:
                    stack.callback(readiness.close)
                async with self._counting:
                    child = await self._start(command, readiness)
                    self._children[command.name] = child
                if self._stopping.is_set():
                    _signal(child, signal.SIGTERM)
                watching = asyncio.create_task(self._watch_start(command, child, readiness))
                status = await self._wait(child)
                watching.cancel()
                await asyncio.wait({watching})
            if status != 0:
                await self._kill_orphans(command.name)
            if self._stopping.is_set() and status == -signal.SIGTERM:
                # It was told to stop before it could arrange for that.
                return 0
            if self._stopping.is_set() or not self._restart or status in STAYS_DOWN:
                return status if status >= 0 else 128 - status
            if lease_clock() - started > STEADY_S:
                backoff.reset()
            log.warning("a process ended; it starts again", name=command.name, status=status)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_s()):
                    await self._stopping.wait()
                    return 0

    async def _kill_orphans(self, name: str) -> None:
        """What a child had started goes on when it did not end in good order, while its jobs may start elsewhere."""
        async with self._counting:
            own = {child.pid for child in self._children.values() if child.returncode is None}
            for pid in self._outliving_now() - self._outliving.keys():
                self._outliving[pid] = asyncio.create_task(self._outlive(pid))
            orphans = kill_orphans(but=own | self._others | self._outliving.keys())
        if orphans:
            log.warning("what a process left behind was killed", name=name, pids=orphans)

    def _outliving_now(self) -> set[int]:
        found = set()
        for child in psutil.Process().children() if self._outlives is not None else ():
            with contextlib.suppress(psutil.Error):
                if str(self._outlives) in child.cmdline():
                    found.add(child.pid)
        return found

    async def _outlive(self, pid: int) -> None:
        """Waits for the end of what a child left behind; in the end it is killed, too."""
        gives_up_at = lease_clock() + OUTLIVES_S
        while not _reaped(pid) and lease_clock() < gives_up_at:  # noqa: ASYNC110 - asyncio waits for its own only
            await asyncio.sleep(OUTLIVES_LOOK_S)
        if not _reaped(pid):
            kill_tree(pid)
        # The next look for orphans takes note of one that was killed.
        del self._outliving[pid]

    async def _watch_start(
        self, command: Command, child: asyncio.subprocess.Process, readiness: "Readiness | None"
    ) -> None:
        """Kills a child that hangs before it is ready: it would be taken for one that works, and never do so."""
        if readiness is not None:
            try:
                async with asyncio.timeout(command.ready_s):
                    if not await readiness.wait():
                        return
            except TimeoutError:
                if not self._stopping.is_set():
                    log.warning("a process was not ready in time and is replaced", name=command.name, pid=child.pid)
                    _signal(child, signal.SIGKILL)
                return
        self._not_ready.discard(command.name)

    async def _start(self, command: Command, readiness: "Readiness | None") -> asyncio.subprocess.Process:
        argv, passed = list(command.argv), [] if readiness is None else [readiness.child_end]
        if readiness is not None:
            argv += [READY_OPTION, str(readiness.child_end)]
        with contextlib.ExitStack() as stack:
            output = None if command.log is None else stack.enter_context(command.log.open("ab"))
            return await asyncio.create_subprocess_exec(
                *argv, env={**os.environ, **command.environ}, stdin=asyncio.subprocess.DEVNULL, stdout=output,
                stderr=output, pass_fds=passed, start_new_session=True, preexec_fn=_die_with_parent(os.getpid()),
            )  # fmt: skip

    async def _wait(self, child: asyncio.subprocess.Process) -> int:
        ended = asyncio.create_task(child.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        done, _ = await asyncio.wait({ended}, timeout=self._grace_s)
        if not done:
            log.warning("a process did not stop in time and is killed", pid=child.pid)
            _signal(child, signal.SIGKILL)
        return await ended


class Readiness:
    """A pipe by which one child says that it is ready.

    Attributes:
        child_end: the file descriptor that the child writes to.
    """

    def __init__(self) -> None:
        self._read_end, self.child_end = os.pipe()
        os.set_blocking(self._read_end, False)

    async def wait(self) -> bool:
        """Waits for the child's word. Returns: False if it can no longer come."""
        os.close(self.child_end)
        self.child_end = -1
        loop, said = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._read_end, said.set)
        try:
            await said.wait()
        finally:
            loop.remove_reader(self._read_end)
        return bool(os.read(self._read_end, 100))

    def close(self) -> None:
        """Lets go of the pipe."""
        for end in (self._read_end, self.child_end):
            if end >= 0:
                os.close(end)


STAYS_DOWN: Final = frozenset({0, 2})
"""A child that ended well, or that was started wrongly (bad settings), would only do so again."""


def _reaped(pid: int) -> bool:
    """Whether an adopted child has ended, and is no more."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _signal(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)


def _die_with_parent(parent: int) -> Callable[[], None] | None:
    """What a new child runs before its program: the system signals it when its parent ends."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            # The parent ended before the line above took effect.
            os._exit(1)

    return prepare
