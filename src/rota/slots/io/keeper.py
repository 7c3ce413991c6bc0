"""The processes that run commands: a nursery, and the keepers that it forks, one for each command at a time.

A keeper is the parent of its command and adopts what that leaves behind, so everything below a keeper belongs to its
command, whatever sessions and process groups it made. A command has ended when nothing is left. A keeper whose exec
server is gone (its socket ends) kills its command and ends. Started by `rota.slots.io.keepers`; imports little, because
each process of it stays.
"""

import contextlib
import os
import resource
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final, NoReturn

from rota.io.kill import adopt_orphans, kill_descendants, kill_orphans, signal_descendants
from rota.slots.keeper_messages import Ended, Frames, Message, Ready, Run, Stop, frame

READ_BYTES: Final = 256 * 1024
LOOK_MS: Final = 50
"""How often the remains of a command are looked at until they are gone."""
IGNORED: Final = [signal.SIGPIPE, signal.SIGXFSZ]
"""What Python ignores, and a command is not used to."""
FAREWELL_S: Final = 10
"""How long the nursery waits for its keepers to clean up after the exec server has ended."""


class _ServerGone(Exception):
    """The exec server has closed the socket, or has ended."""


class _Children:
    """What this process has started and adopted: heard of by SIGCHLD, reaped here."""

    def __init__(self) -> None:
        self.wake, wake_write = os.pipe()
        for descriptor in (self.wake, wake_write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)

    def reap(self, main: int | None) -> tuple[tuple[int, int] | None, bool]:
        """The wait status and peak memory in KiB of `main`, if it has ended; whether other children are left."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        found: tuple[int, int] | None = None
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return found, False
            if pid == 0:
                return found, True
            if pid == main:
                found = status, usage.ru_maxrss


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler that does nothing: unlike an ignored signal, it is not handed down to commands."""


class _Keeper:
    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire
        self._frames = Frames()
        self._messages: deque[Message] = deque()
        self._descriptors: list[int] = []
        self._children = _Children()
        self._poll = select.poll()
        self._poll.register(wire, select.POLLIN)
        self._poll.register(self._children.wake, select.POLLIN)

    def serve(self) -> None:
        """Runs commands until the exec server is gone."""
        self._send(Ready(os.getpid()))
        try:
            while True:
                while not self._messages:
                    self._receive()
                message = self._messages.popleft()
                # A Stop that finds nothing to stop came too late.
                if isinstance(message, Run):
                    self._send(self._run(message))
        except (_ServerGone, OSError):
            self._clear()

    def _run(self, run: Run) -> Ended:
        descriptors, self._descriptors = self._descriptors, []
        try:
            os.chdir(run.folder)
            # A name without a slash is looked for along the exec server's own PATH. What is open here stays here:
            # descriptors are close-on-exec unless told otherwise.
            with _bounded(run.data_bytes_max) as bound:
                pid = os.posix_spawnp(
                    run.argv[0], run.argv, run.env, file_actions=[(os.POSIX_SPAWN_DUP2, descriptor, number)
                    for number, descriptor in enumerate(descriptors)], setsid=True, setsigdef=IGNORED,
                )  # fmt: skip
                bound(pid)
        except (OSError, ValueError) as error:
            return Ended(None, error=getattr(error, "strerror", None) or str(error))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        status, peak_kib = self._wait(pid)
        own_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        unit = 1 if sys.platform == "darwin" else 1024
        return Ended(status, peak_kib * unit if peak_kib > own_kib else 0)

    def _wait(self, pid: int) -> tuple[int, int]:
        while True:
            ended, left = self._children.reap(pid)
            if ended is not None:
                if left:
                    self._clear()
                return ended
            while self._messages:
                message = self._messages.popleft()
                assert isinstance(message, Stop), "one command at a time"
                if message.now:
                    kill_descendants()
                else:
                    signal_descendants(signal.SIGTERM)
            if any(descriptor == self._wire.fileno() for descriptor, _ in self._poll.poll()):
                self._receive()

    def _clear(self) -> None:
        """Kills and reaps until nothing is left below this process."""
        while True:
            kill_descendants()
            if not self._children.reap(None)[1]:
                return
            select.select([self._children.wake], [], [], LOOK_MS / 1000)

    def _receive(self) -> None:
        """Waits for something from the exec server; it need not be a whole message yet."""
        data, found, _, _ = socket.recv_fds(self._wire, READ_BYTES, 3)
        self._descriptors += found
        if not data:
            raise _ServerGone
        self._messages += self._frames.feed(data)

    def _send(self, message: Message) -> None:
        self._wire.sendall(frame(message))


@contextlib.contextmanager
def _bounded(data_bytes_max: int) -> Iterator[Callable[[int], None]]:
    """Within the block what is started may have so much memory for each process; what the block gives takes its id,
    and makes sure that it cannot allow itself more. A spawned process inherits the limit: it never runs without."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = [limit for limit in (data_bytes_max, soft, hard) if limit not in (0, resource.RLIM_INFINITY)]
    if not data_bytes_max:
        yield lambda _pid: None
        return
    least = min(allowed)
    resource.setrlimit(resource.RLIMIT_DATA, (least, hard))
    try:
        yield lambda pid: _settle(pid, least)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _settle(pid: int, limit: int) -> None:
    # It may have ended already, or be another user's (a set-user-id program), or the system has no such call.
    with contextlib.suppress(OSError, AttributeError):
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))


def _nursery(control: socket.socket) -> None:
    """Forks a keeper for each socket that comes in by `control`; ends after it, and after them."""
    children = _Children()
    keepers: set[int] = set()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(children.wake, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == children.wake:
                _bury(children, keepers)
                continue
            data, found, _, _ = socket.recv_fds(control, 1, 1)
            if not data:
                _farewell(children, keepers)
                return
            pid = os.fork()
            if pid == 0:
                control.close()
                _become_keeper(found[0])
            os.close(found[0])
            keepers.add(pid)


def _become_keeper(descriptor: int) -> NoReturn:
    status = 1
    try:
        adopt_orphans()  # is not inherited
        with socket.socket(fileno=descriptor) as wire:
            _Keeper(wire).serve()
        status = 0
    finally:
        os._exit(status)


def _bury(children: _Children, keepers: set[int]) -> None:
    """Reaps keepers that ended, and kills what one that was killed has left behind."""
    with contextlib.suppress(BlockingIOError):
        os.read(children.wake, 4096)
    died = False
    for pid in list(keepers):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            keepers.discard(pid)
            died = died or status != 0
    while died and kill_orphans(but=keepers):
        pass  # what those had started is an orphan now


def _farewell(children: _Children, keepers: set[int]) -> None:
    signal.alarm(FAREWELL_S)
    while keepers:
        select.select([children.wake], [], [])
        _bury(children, keepers)
    kill_orphans(but=set())


def main() -> None:
    """Runs the nursery on the socket whose number is the last argument."""
    adopt_orphans()
    os.umask(0o077)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # What is meant for the exec server: commands end in its order, or with it.
        signal.signal(number, _nothing)
    with socket.socket(fileno=int(sys.argv[-1])) as control:
        _nursery(control)
