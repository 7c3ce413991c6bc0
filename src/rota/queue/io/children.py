"""Warm child processes for jobs of `isolation="process"`: one job each at a time, killed as a whole tree and replaced.

A child is a process group of its own.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from rota.io.kill import kill_tree
from rota.io.log import get_logger, log_settings
from rota.queue.child_messages import MOVES_S, START_S_MAX, Begin, Frames, Message, Ready, Stop, frame

READ_BYTES: Final = 1 << 20

log = get_logger("rota.worker")


class ChildDied(Exception):
    """The child ended in the middle of a job, by itself or because it was killed."""


class Child:
    """One child process.

    Attributes:
        pid: its process id.
    """

    def __init__(self, process: asyncio.subprocess.Process, wire: socket.socket) -> None:
        self._process = process
        self._wire = wire
        self._frames = Frames()
        self._unsent: deque[bytes] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._killed = False
        self.pid = process.pid

    @property
    def alive(self) -> bool:
        """Whether it can take a job: one that was killed cannot, also while the system has not told of its end."""
        if self._killed or self._process.returncode is not None or self._wire.fileno() < 0:
            return False
        try:
            return self._wire.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    async def messages(self) -> list[Message]:
        """The next messages.

        Raises: ChildDied.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = await loop.sock_recv(self._wire, READ_BYTES)
            except OSError:
                data = b""
            if not data:
                status = await self._process.wait()
                how = f"signal {-status}" if status < 0 else f"exit status {status}"
                raise ChildDied(f"The child process ended in the middle of the job ({how})")
            try:
                found = list(self._frames.feed(data))
            except ValueError as error:
                # No later message of it can be read, and no other job may find it.
                self.kill()
                raise ChildDied(f"The child process could not be understood and was killed: {error}") from None
            if found:
                return found

    def ask_to_stop(self) -> None:
        """Tells the job to end."""
        self.say(Stop())

    def say(self, message: Message) -> None:
        """Sends a message whole and after those before it; does not wait. A child that is gone shows at `messages`."""
        data = frame(message)
        if self._writing is None:
            try:
                data = data[self._wire.send(data) :]
            except BlockingIOError:
                pass
            except OSError:
                return
            if not data:
                return
            # What the socket does not take at once: whoever stops waiting for it must not leave half a frame.
            self._writing = asyncio.get_running_loop().create_task(self._write())
        self._unsent.append(data)

    async def _write(self) -> None:
        with contextlib.suppress(OSError):
            while self._unsent:
                await asyncio.get_running_loop().sock_sendall(self._wire, self._unsent.popleft())
        self._unsent.clear()
        self._writing = None

    def hold(self) -> None:
        """Makes the child stand still, until it is killed; from any thread."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """Kills the child and everything that it started; safe to repeat."""
        self._killed = True
        if self._process.returncode is None:
            kill_tree(self.pid)

    async def close(self) -> None:
        """Ends the child and waits for it."""
        self.kill()
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
        with contextlib.suppress(OSError):
            self._wire.close()
        await self._process.wait()


class Children:
    """The idle children of one worker, and the way to new ones."""

    def __init__(self, *, idle_max: int) -> None:
        self._idle_max = idle_max
        self._idle: list[Child] = []
        self._all: set[Child] = set()

    async def take(self, *, starting: Callable[[], None]) -> Child:
        """A child that is ready for a job.

        Args:
            starting: called again and again while a new one starts: its job cannot move meanwhile.

        Raises: ChildDied if none can be started.
        """
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            await self._discard(child)
        return await self._start(starting)

    async def give_back(self, child: Child) -> None:
        """Returns a child whose job has ended; one that died or was killed is replaced when it is needed."""
        if child.alive and len(self._idle) < self._idle_max:
            self._idle.append(child)
        else:
            await self._discard(child)

    async def close(self) -> None:
        """Ends all children."""
        self._idle.clear()
        await asyncio.gather(*(child.close() for child in list(self._all)))
        self._all.clear()

    async def _discard(self, child: Child) -> None:
        self._all.discard(child)
        await child.close()

    async def _start(self, starting: Callable[[], None]) -> Child:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                # -P: a file of the working folder must not stand in for a module that Rota needs.
                sys.executable, "-P", "-m", "rota.queue.io.child", str(theirs.fileno()), str(os.getpid()),
                pass_fds=(theirs.fileno(),), start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        child = Child(process, ours)
        self._all.add(child)
        telling = asyncio.create_task(_tell(starting))
        try:
            child.say(_begin())
            async with asyncio.timeout(START_S_MAX):
                while not any(isinstance(message, Ready) for message in await child.messages()):
                    pass
        except TimeoutError:
            await self._discard(child)
            raise ChildDied(f"A child process was not ready within {START_S_MAX:g} s and was killed") from None
        except BaseException:
            await self._discard(child)
            raise
        finally:
            telling.cancel()
        starting()
        return child


async def _tell(starting: Callable[[], None]) -> None:
    while True:
        starting()
        await asyncio.sleep(MOVES_S)


def kill_all(children: Iterable[Child]) -> None:
    """Kills children, and everything that they started."""
    for child in children:
        child.kill()


def _begin() -> Begin:
    """What the program could import, and how it logs, its children can and do."""
    log_format, log_level = log_settings()
    return Begin([path or os.getcwd() for path in sys.path], log_format, log_level)
