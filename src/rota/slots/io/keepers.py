"""The exec server's side of its keepers: takes one for each command, keeps it for the next, starts it when needed.

No thread and no watcher for a command: a keeper's socket says when it has ended. Forking happens in the nursery, a
small process. A short command costs one message there and one back: no descriptor, no timer, no task. See
`rota.slots.io.keeper`.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from rota.io.log import get_logger
from rota.io.passing import receive
from rota.slots.keeper_messages import Ended, Frames, Outputs, Ready, Run, Stop, frame

START_S_MAX: Final = 30.0
"""How long a keeper may take to be there."""
CLOSE_S_MAX: Final = 15.0
"""How long the nursery may take to end; it waits 10 seconds for its keepers."""
READ_BYTES: Final = 64 * 1024
PACKAGE: Final = Path(__file__).parents[2]

# The package's own __init__ would import the database driver and all else into processes that stay: it is stood in for.
_PROGRAM: Final = """
import sys, types
package = types.ModuleType("rota")
package.__path__ = [sys.argv[1]]
sys.modules["rota"] = package
from rota.slots.io.nursery import main
main()
"""

log = get_logger("rota.execserver")


class KeeperDied(Exception):
    """The keeper ended, or could not be started; its command is gone with it."""


class Listener(Protocol):
    """Whoever hears of one command. None of it may raise."""

    def outputs(self, so_far: Outputs, stdout: int, stderr: int) -> None:
        """It goes on for longer: its outputs are handed over. At most once, and never if descriptors went to it."""

    def unheard(self) -> None:
        """The same, and there were no descriptors free for them: nobody will read what it says."""

    def ended(self, ended: Ended) -> None:
        """The command and all its processes are gone."""

    def died(self, error: KeeperDied) -> None:
        """The keeper is gone, and the command with it."""


class Keeper:
    """One process that runs one command at a time.

    Attributes:
        pid: everything below this process belongs to its command.
    """

    def __init__(self, wire: socket.socket, died: Callable[["Keeper"], None]) -> None:
        self.pid = 0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._wire = wire
        self._died = died
        self._frames = Frames()
        self._descriptors: list[int] = []
        self._listener: Listener | None = None
        self._rest: asyncio.Task[None] | None = None
        self._loop.add_reader(wire, self._readable)

    @property
    def alive(self) -> bool:
        """Whether it can take a command."""
        return self._wire.fileno() >= 0

    def begin(self, run: Run, descriptors: Sequence[int], listener: Listener) -> None:
        """Starts a command; the caller closes the descriptors. The listener hears how it ends, and never before this
        call has returned.

        Raises: KeeperDied; then the listener hears nothing.
        """
        assert self._listener is None, "one command at a time"
        data = frame(run)
        try:
            sent = socket.send_fds(self._wire, [data], descriptors) if descriptors else self._wire.send(data)
        except OSError as error:
            self.close()
            raise KeeperDied(f"The process that runs commands cannot be reached: {error}") from None
        self._listener = listener
        if sent < len(data):
            self._rest = self._loop.create_task(self._send_rest(data[sent:]))

    async def _send_rest(self, data: bytes) -> None:
        try:
            await self._loop.sock_sendall(self._wire, data)
        except OSError:
            self.close()

    async def run(self, run: Run, descriptors: Sequence[int]) -> asyncio.Future[Ended]:
        """Starts a command with its three descriptors; the caller closes them.

        Returns: what ends when the command and all its processes are gone; it raises KeeperDied.

        Raises: KeeperDied.
        """
        assert descriptors, "its outputs are elsewhere"
        waiting = _Waiting(self._loop)
        self.begin(run, descriptors, waiting)
        return waiting.ending

    def stop(self, *, now: bool) -> None:
        """Ends the command: SIGTERM to all its processes, or SIGKILL; safe to repeat and when there is none.

        A command may have stopped its keeper (SIGSTOP): it goes on. One that does it over and over takes repeating.
        """
        with contextlib.suppress(OSError):
            self._wire.send(frame(Stop(now)))
        if self.alive and self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Lets the process end, and its command with it; safe to repeat."""
        if not self.alive:
            return
        self._loop.remove_reader(self._wire)
        self._wire.close()
        self._close_descriptors()
        gone = KeeperDied("The process that ran the command has ended, and the command with it")
        if not self.ready.done():
            self.ready.set_exception(gone)
            self.ready.exception()  # who waits for it gets it; if nobody does, that is no news
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.died(gone)
        self._died(self)

    def _close_descriptors(self) -> None:
        descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            os.close(descriptor)

    def _readable(self) -> None:
        try:
            data, found = receive(self._wire, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data, found = b"", []
        self._descriptors += found
        if not data:
            self.close()
            return
        for message in self._frames.feed(data):
            if isinstance(message, Ready):
                self.pid = message.pid
                if not self.ready.done():
                    self.ready.set_result(None)
            elif isinstance(message, Outputs) and self._listener is not None:
                if len(self._descriptors) == 2:
                    (stdout, stderr), self._descriptors = self._descriptors, []
                    self._listener.outputs(message, stdout, stderr)
                else:  # this process has too many open: the system has thrown them away
                    self._close_descriptors()
                    self._listener.unheard()
            elif isinstance(message, Ended) and self._listener is not None:
                listener, self._listener = self._listener, None
                listener.ended(message)


class _Waiting:
    """Waits for the end of a command, for whoever awaits it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ending: asyncio.Future[Ended] = loop.create_future()

    def outputs(self, so_far: Outputs, stdout: int, stderr: int) -> None:
        raise AssertionError("its outputs are elsewhere")

    def unheard(self) -> None:
        raise AssertionError("its outputs are elsewhere")

    def ended(self, ended: Ended) -> None:
        if not self.ending.done():
            self.ending.set_result(ended)

    def died(self, error: KeeperDied) -> None:
        if not self.ending.done():
            self.ending.set_exception(error)
            self.ending.exception()  # who waits for it gets it; if nobody does, that is no news


class Keepers:
    """All keepers of one exec server."""

    def __init__(self) -> None:
        self._idle: list[Keeper] = []
        self._all: set[Keeper] = set()
        self._control: socket.socket | None = None
        self._nursery: subprocess.Popen[bytes] | None = None

    def take_idle(self) -> Keeper | None:
        """A keeper that is there and free; None: `take` would have to start one."""
        while self._idle:
            keeper = self._idle.pop()
            if keeper.alive:
                return keeper
        return None

    async def take(self) -> Keeper:
        """A keeper that is free.

        Raises: KeeperDied if none can be started.
        """
        return self.take_idle() or await self._start()

    def give_back(self, keeper: Keeper) -> None:
        """Returns one whose command has ended."""
        if keeper.alive:
            self._idle.append(keeper)

    async def close(self) -> None:
        """Ends all keepers with their commands, and the nursery; safe to repeat."""
        self._idle.clear()
        for keeper in list(self._all):
            keeper.close()
        if self._control is not None:
            self._control.close()
            self._control = None
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            await asyncio.to_thread(_wait_for, nursery)

    async def _start(self) -> Keeper:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            try:
                self._ask(theirs)
            except OSError as error:
                ours.close()
                raise KeeperDied(f"No process can be started for a command: {error}") from None
        keeper = Keeper(ours, self._all.discard)
        self._all.add(keeper)
        try:
            async with asyncio.timeout(START_S_MAX):
                await keeper.ready
        except TimeoutError:
            keeper.close()
            raise KeeperDied(f"A process for commands was not ready within {START_S_MAX:g} s") from None
        except asyncio.CancelledError:
            # Nobody would take it, and nobody would end it.
            keeper.close()
            raise
        return keeper

    def _ask(self, theirs: socket.socket) -> None:
        if self._control is not None:
            try:
                socket.send_fds(self._control, [b"k"], [theirs.fileno()])
                if self._nursery is not None:
                    self._nursery.send_signal(signal.SIGCONT)  # a command may have stopped it
                return
            except OSError:
                log.warning("the process that starts commands has ended; it is started again")
                self._control.close()
                self._control = None
        if self._nursery is not None:
            _wait_for(self._nursery)
        self._control = control = self._start_nursery()
        socket.send_fds(control, [b"k"], [theirs.fileno()])

    def _start_nursery(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._nursery = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-P", "-c", _PROGRAM, str(PACKAGE), str(theirs.fileno())],
                pass_fds=(theirs.fileno(),), start_new_session=True, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        return ours


def _wait_for(nursery: "subprocess.Popen[bytes]") -> None:
    try:
        nursery.wait(CLOSE_S_MAX)
    except subprocess.TimeoutExpired:
        nursery.send_signal(signal.SIGKILL)
        nursery.wait()
