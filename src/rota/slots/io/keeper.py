"""A process that runs commands, one at a time. The nursery forks it, see `rota.slots.io.nursery`.

A keeper is the parent of its command and adopts what that leaves behind, so everything below a keeper belongs to its
command, whatever sessions and process groups it made. A command has ended when nothing is left. A keeper whose exec
server is gone (its socket ends) kills its command and ends. It imports little, because each process of it stays.

What a command says in its first moments stays here (`_Kept`): most short commands are over by then, and neither
descriptors nor a watch on them have to travel. Of one that goes on the exec server reads the outputs itself.
"""

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

from rota.io.kill import adopt_orphans, kill_descendants, signal_descendants
from rota.io.passing import receive
from rota.slots.keeper_messages import Ended, Frames, Message, Outputs, Ready, Run, Stop, frame

READ_BYTES: Final = 16 * 1024
KEPT_S: Final = 0.01
"""For how long a command's outputs are kept here. Whoever fills its pipe waits for no longer than this."""
KEPT_BYTES: Final = 64 * 1024
"""What a pipe holds where nobody asks for more."""
LOOK_MS: Final = 50
"""How often the remains of a command are looked at until they are gone."""
CHILD: Final = frozenset({signal.SIGCHLD})
IGNORED: Final = [signal.SIGPIPE, signal.SIGXFSZ]
"""What Python ignores, and a command is not used to."""


class _ServerGone(Exception):
    """The exec server has closed the socket, or has ended."""


class Children:
    """Hears by SIGCHLD of what this process has started and adopted, when that ends."""

    def __init__(self) -> None:
        self.wake, wake_write = os.pipe()
        for descriptor in (self.wake, wake_write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, nothing)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Hears of them although the signal is blocked."""
        before = signal.pthread_sigmask(signal.SIG_UNBLOCK, CHILD)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def clear(self) -> None:
        """What has ended by now is known."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)


def _reap(main: int | None) -> tuple[tuple[int, int] | None, bool]:
    """The wait status and peak memory in KiB of `main`, if it has ended; whether other children are left."""
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


def _has_children() -> bool:
    """Whether there are any, once those that have ended are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler that does nothing: unlike an ignored signal, it is not handed down to commands."""


class _Kept:
    """The outputs of a command that are kept here."""

    def __init__(self) -> None:
        self.stdout, self.stdout_write = os.pipe()
        try:
            self.stderr, self.stderr_write = os.pipe()
        except OSError:
            os.close(self.stdout)
            os.close(self.stdout_write)
            raise
        os.set_blocking(self.stdout, False)
        os.set_blocking(self.stderr, False)

    def started(self) -> None:
        """The command has them; what is open here would hide their ends."""
        os.close(self.stdout_write)
        os.close(self.stderr_write)

    def read(self) -> tuple[bytes, bytes, bool]:
        """All that was said, and whether that is all there will ever be."""
        stdout, stdout_ended = _read(self.stdout)
        stderr, stderr_ended = _read(self.stderr)
        return stdout, stderr, stdout_ended and stderr_ended

    def close(self) -> None:
        """Once."""
        os.close(self.stdout)
        os.close(self.stderr)


def _read(descriptor: int) -> tuple[bytes, bool]:
    found = b""
    try:
        while len(found) <= KEPT_BYTES:
            data = os.read(descriptor, KEPT_BYTES)
            if not data:
                return found, True
            found += data
    except BlockingIOError:
        pass
    return found, False


class _Keeper:
    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire
        self._frames = Frames()
        self._messages: deque[Message] = deque()
        self._descriptors: list[int] = []
        self._kept: _Kept | None = None
        self._over: _Kept | None = None
        self._next: _Kept | None = None
        self._own_kib = 0
        self._children = Children()
        # Heard of only where it is needed, see `_wait`: a handler costs a short command more than its wait.
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, CHILD)
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
                    self._make_ready()
        except (_ServerGone, OSError):
            self._clear()

    def _make_ready(self) -> None:
        """Does what can be done while the exec server deals with the end of one command and finds another."""
        over, self._over = self._over, None
        if over is not None:
            over.close()
        if self._next is None:
            with contextlib.suppress(OSError):  # too many files open: the next command says so, if there still are
                self._next = _Kept()

    def _run(self, run: Run) -> Ended:
        descriptors, self._descriptors = self._descriptors, []
        kept: _Kept | None = None
        try:
            if len(descriptors) != run.descriptors:
                return Ended(None, error="the process that runs commands has too many files open")
            if descriptors:
                actions = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(descriptors)]
            else:
                kept, self._next = self._next or _Kept(), None  # and stdin is the keeper's own: nothing
                actions = [(os.POSIX_SPAWN_DUP2, kept.stdout_write, 1), (os.POSIX_SPAWN_DUP2, kept.stderr_write, 2)]
            os.chdir(run.folder)
            # A name without a slash is looked for along the exec server's own PATH. What is open here stays here:
            # descriptors are close-on-exec unless told otherwise.
            with _bounded(run.data_bytes_max) as bound:
                pid = os.posix_spawnp(
                    run.argv[0], run.argv, run.env, file_actions=actions, setsid=True, setsigdef=IGNORED,
                    setsigmask=self._mask,
                )  # fmt: skip
                bound(pid)
        except (OSError, ValueError) as error:
            if kept is not None:
                kept.close()
            return Ended(None, error=getattr(error, "strerror", None) or str(error))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
            if kept is not None:
                kept.started()
        self._kept = kept
        status, peak_kib = self._wait(pid)
        peak_bytes = self._peak_bytes(peak_kib)
        if self._kept is None:
            return Ended(status, peak_bytes)
        stdout, stderr, whole = self._kept.read()
        if whole:
            self._over = self._kept
            return Ended(status, peak_bytes, None, stdout, stderr)
        # Somebody who does not belong to the command holds them open.
        self._hand_over(stdout, stderr)
        return Ended(status, peak_bytes)

    def _hand_over(self, stdout: bytes, stderr: bytes) -> None:
        kept, self._kept = self._kept, None
        assert kept is not None, "they are kept"
        message = frame(Outputs(stdout, stderr))
        sent = socket.send_fds(self._wire, [message], (kept.stdout, kept.stderr))
        self._wire.sendall(message[sent:])
        kept.close()

    def _peak_bytes(self, peak_kib: int) -> int:
        """The peak of a command, 0 where it is not known: below its keeper's own."""
        if peak_kib > self._own_kib:
            self._own_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        unit = 1 if sys.platform == "darwin" else 1024
        return peak_kib * unit if peak_kib > self._own_kib else 0

    def _wait(self, pid: int) -> tuple[int, int]:
        kept_until = time.monotonic() + KEPT_S
        if self._kept is not None and hasattr(signal, "sigtimedwait"):
            # For its end, or for one that it left behind. Whatever the exec server says can wait for so long.
            signal.sigtimedwait(CHILD, KEPT_S)
            found, status, usage = os.wait4(pid, os.WNOHANG)
            if found:
                if _has_children():
                    self._clear()
                return status, usage.ru_maxrss
        # Others of its processes may end before it: they are heard of by a signal.
        with self._children.heard():
            return self._wait_longer(pid, kept_until)

    def _wait_longer(self, pid: int, kept_until: float) -> tuple[int, int]:
        while True:
            self._children.clear()
            ended, left = _reap(pid)
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
            left_s = 0.0 if self._kept is None else max(0.0, kept_until - time.monotonic())
            ready = self._poll.poll(None if self._kept is None else left_s * 1000)
            if self._kept is not None and time.monotonic() >= kept_until:
                self._hand_over(b"", b"")
            if any(descriptor == self._wire.fileno() for descriptor, _ in ready):
                self._receive()

    def _clear(self) -> None:
        """Kills and reaps until nothing is left below this process."""
        with self._children.heard():
            while True:
                self._children.clear()
                kill_descendants()
                if not _reap(None)[1]:
                    return
                select.select([self._children.wake], [], [], LOOK_MS / 1000)

    def _receive(self) -> None:
        """Waits for something from the exec server; it need not be a whole message yet."""
        data, found = receive(self._wire, READ_BYTES)
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
    if not data_bytes_max:
        yield lambda _pid: None
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    least = min(limit for limit in (data_bytes_max, soft, hard) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (least, hard))
    try:
        yield lambda pid: _settle(pid, least)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _settle(pid: int, limit: int) -> None:
    # It may have ended already, or be another user's (a set-user-id program), or the system has no such call.
    with contextlib.suppress(OSError, AttributeError):
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))


def serve(wire: socket.socket) -> None:
    """Is a keeper until the exec server closes the socket or is gone."""
    adopt_orphans()  # is not inherited
    _Keeper(wire).serve()
