"""The exec server's side of its keepers: takes one for each command, keeps it for the next, starts it when needed.

No thread and no watcher for a command: a keeper's socket says when it has ended. Forking happens in the nursery, a
small process, so that a command costs one message there and one back. See `rota.slots.io.keeper`.
"""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rota.io.log import get_logger
from rota.slots.keeper_messages import Ended, Frames, Ready, Run, Stop, frame

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
from rota.slots.io.keeper import main
main()
"""

log = get_logger("rota.execserver")


class KeeperDied(Exception):
    """The keeper ended, or could not be started; its command is gone with it."""


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
        self._ending: asyncio.Future[Ended] | None = None
        self._loop.add_reader(wire, self._readable)

    @property
    def alive(self) -> bool:
        """Whether it can take a command."""
        return self._wire.fileno() >= 0

    async def run(self, run: Run, descriptors: Sequence[int]) -> asyncio.Future[Ended]:
        """Starts a command; the caller closes the descriptors.

        Returns: what ends when the command and all its processes are gone; it raises KeeperDied.

        Raises: KeeperDied.
        """
        assert self._ending is None, "one command at a time"
        self._ending = self._loop.create_future()
        data = frame(run)
        try:
            sent = socket.send_fds(self._wire, [data], descriptors)
            if sent < len(data):
                await self._loop.sock_sendall(self._wire, data[sent:])
        except OSError as error:
            self.close()
            raise KeeperDied(f"The process that runs commands cannot be reached: {error}") from None
        return self._ending

    def stop(self, *, now: bool) -> None:
        """Ends the command: SIGTERM to all its processes, or SIGKILL; safe to repeat and when there is none."""
        with contextlib.suppress(OSError):
            self._wire.send(frame(Stop(now)))

    def close(self) -> None:
        """Lets the process end, and its command with it; safe to repeat."""
        if not self.alive:
            return
        self._loop.remove_reader(self._wire)
        self._wire.close()
        gone = KeeperDied("The process that ran the command has ended, and the command with it")
        for future in (self.ready, self._ending):
            if future is not None and not future.done():
                future.set_exception(gone)
                future.exception()  # who waits for it gets it; if nobody does, that is no news
        self._died(self)

    def _readable(self) -> None:
        try:
            data = self._wire.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        for message in self._frames.feed(data):
            if isinstance(message, Ready):
                self.pid = message.pid
                if not self.ready.done():
                    self.ready.set_result(None)
            elif isinstance(message, Ended) and self._ending is not None:
                ending, self._ending = self._ending, None
                if not ending.done():
                    ending.set_result(message)


class Keepers:
    """All keepers of one exec server."""

    def __init__(self) -> None:
        self._idle: list[Keeper] = []
        self._all: set[Keeper] = set()
        self._control: socket.socket | None = None
        self._nursery: subprocess.Popen[bytes] | None = None

    async def take(self) -> Keeper:
        """A keeper that is free.

        Raises: KeeperDied if none can be started.
        """
        while self._idle:
            keeper = self._idle.pop()
            if keeper.alive:
                return keeper
        return await self._start()

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
        return keeper

    def _ask(self, theirs: socket.socket) -> None:
        if self._control is not None:
            try:
                socket.send_fds(self._control, [b"k"], [theirs.fileno()])
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
