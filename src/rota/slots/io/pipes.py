"""One-time streams between this process and a command on an exec server: each has an URL that works once.

The exec server dials: it GETs a source and PUTs to a sink. The id in the URL is the only credential, 128 random bits.
Whatever is wrong with a request (unknown, used, guessed, other method, a slash too many), the answer is the same 404.
Memory is bounded: who is slow is waited for, on both sides. A stream that breaks off ends in an error (I9).
"""

import asyncio
import errno
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from http import HTTPStatus
from typing import Final

from rota.errors import PipeError
from rota.slots.io.pipe_line import Ended, PipeLine
from rota.slots.pipe_http import GO_ON, BadMessage, Request, answer_head

__all__ = ["Pipe", "PipeError", "Pipes"]

PREFIX: Final = "/pipe/"
ID_BYTES: Final = 16
EXPIRES_S: Final = 60.0
"""A source that nobody has begun to fetch by then is gone: an exec server fetches as soon as it has the job."""
PIPES_MAX: Final = 10_000
"""Pipes that wait or run at once in one process."""
HELD_BYTES_MAX: Final = 1024 * 1024
"""What a sink holds for a reader that is slow; then the exec server waits, and then the command."""
HEAD_S_MAX: Final = 10.0
"""How long a request may take to name its pipe: until then it may be anybody's, and holds a descriptor."""
LINGER_S: Final = 2.0
"""How long the other side may take to read its answer and close."""
BACKLOG: Final = 1024
"""Connections that wait to be let in; the system may allow fewer."""
FULL_S: Final = 1.0
"""How long nobody is let in when this process can open nothing more."""

_FULL: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_EMPTY: Final = ("Content-Length", "0")
_CHUNKED: Final = (("Content-Type", "application/octet-stream"), ("Transfer-Encoding", "chunked"))


class Pipe:
    """One stream. A sink is iterated for its bytes; it raises PipeError unless they came to their end.

    Attributes:
        path: its path on the server; the last part is secret.
        begun: whether the exec server has come for it.
        cause: what went wrong with what a source is made of; None: nothing did.
    """

    def __init__(self, pipes: "Pipes", chunks: AsyncIterator[bytes] | None) -> None:
        self.path = PREFIX + secrets.token_urlsafe(ID_BYTES)
        self.begun = False
        self.cause: Exception | None = None
        self._pipes = pipes
        self._source = chunks
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False
        self._error: str | None = None
        self._serving: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<{'sink' if self._source is None else 'source'} {self.path[: len(PREFIX) + 4]}…>"

    @property
    def is_sink(self) -> bool:
        """Whether the exec server writes it."""
        return self._source is None

    @property
    def error(self) -> str | None:
        """Why it broke; None: it has not."""
        return self._error

    def url(self, address: str) -> str:
        """Its URL for an exec server that sees this process at an address."""
        host = f"[{address}]" if ":" in address else address
        return f"http://{host}:{self._pipes.port}{self.path}"

    def discard(self) -> None:
        """Nobody wants it any more: its URL is gone, a transfer under way is broken off. Safe to repeat."""
        self._end("it was discarded")
        self._held.clear()
        if self._serving is not None:
            self._serving.cancel()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The bytes of a sink as they come.

        Raises: PipeError after the last of them, if there should have been more.
        """
        assert self.is_sink, "a source is read by the exec server"
        while True:
            while self._held:
                chunk = self._held.popleft()
                self._held_bytes -= len(chunk)
                if self._held_bytes < HELD_BYTES_MAX:
                    self._room.set()
                yield chunk
            if self._ended:
                if self._error is not None:
                    raise PipeError(f"The stream did not come whole: {self._error}.")
                return
            self._news.clear()
            await self._news.wait()

    def _end(self, error: str | None) -> None:
        """The first end counts."""
        self._pipes.forget(self)
        if self._expiry is not None:
            self._expiry.cancel()
        if not self._ended:
            self._ended = True
            self._error = error
        self._news.set()
        self._room.set()

    def _expire_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(seconds, self._end, f"nobody came for it within {seconds:g} s")

    def _begin(self, serving: asyncio.Task[None] | None) -> None:
        self.begun = True
        self._serving = serving
        if self._expiry is not None:
            self._expiry.cancel()

    async def _take(self, request: Request, line: PipeLine) -> None:
        """Takes what the exec server sends, no faster than it is read, and tells it whether that was all."""
        body = request.body
        try:
            if request.asks_first:
                await line.send(GO_ON)
            async for piece in line.pieces(body, request.rest):
                self._held.append(bytes(piece))
                self._held_bytes += len(piece)
                self._news.set()
                if self._held_bytes >= HELD_BYTES_MAX:
                    self._room.clear()
                    await self._room.wait()
        except Ended:
            of_all = "" if body.length is None else f" of {body.length:,}"
            self._end(f"it ended after {body.count:,}{of_all} bytes, before its end")
            raise
        except (OSError, BadMessage) as error:
            self._end(f"the exec server broke it off ({error})")
            raise
        self._end(None)
        await line.send(answer_head(HTTPStatus.NO_CONTENT if self._error is None else HTTPStatus.GONE))

    async def _give(self, line: PipeLine) -> None:
        """Sends what this process has, no faster than it is taken, as long as somebody is there."""
        gone = asyncio.ensure_future(line.gone())
        sending = asyncio.ensure_future(self._send(line))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise Ended
            sending.result()
        except (OSError, Ended) as error:
            self._end(f"the exec server stopped fetching it ({type(error).__name__})")
            raise
        finally:
            sending.cancel()
            gone.cancel()
            await asyncio.wait({sending, gone})

    async def _send(self, line: PipeLine) -> None:
        await line.send(answer_head(HTTPStatus.OK, _CHUNKED))
        async for chunk in self._made():
            await line.send_chunk(chunk)
        await line.send_end()
        self._end(None)

    async def _made(self) -> AsyncIterator[memoryview]:
        """What the source is made of; what goes wrong here is its maker's, and not the network's."""
        assert self._source is not None, "a sink has nothing to send"
        try:
            async for chunk in self._source:
                if not isinstance(chunk, bytes | bytearray | memoryview):
                    raise TypeError(f"a chunk is {type(chunk).__name__}, and a command is fed bytes")
                yield memoryview(chunk).cast("B")
        except Exception as error:
            self.cause = error
            self._end(f"what it came from failed: {error!r}")
            raise _SourceFailed from error


class _SourceFailed(Exception):
    """What a source is made of cannot be read; its cause says why."""


class Pipes:
    """The server of all pipes of this process.

    Args:
        host: where it listens: the address at which exec servers see this process.
        port: 0 takes a free one.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, pipes_max: int = PIPES_MAX) -> None:
        self.port = port
        self._host = host
        self._pipes_max = pipes_max
        self._waiting: dict[str, Pipe] = {}
        self._all: set[Pipe] = set()
        self._listening: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each listening socket, and one for each connection."""
        self._starting = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._all)

    async def start(self) -> None:
        """Listens; safe to repeat, also at the same time.

        Raises: OSError if it cannot.
        """
        async with self._starting:
            if self._listening:
                return
            self._listening = await _listen(self._host, self.port)
            self.port = self._listening[0].getsockname()[1]
            for listening in self._listening:
                self._do(self._let_in(listening))

    async def stop(self) -> None:
        """Breaks off what runs and listens no more; safe to repeat."""
        for pipe in list(self._all):
            pipe.discard()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        listening, self._listening = self._listening, []
        for each in listening:
            each.close()

    def source(self, chunks: AsyncIterator[bytes], *, expires_s: float = EXPIRES_S) -> Pipe:
        """A stream that the exec server fetches.

        Args:
            chunks: what it gets; not begun before the exec server comes, and never if it does not.
            expires_s: how long it may take to come.

        Raises: PipeError if there are too many.
        """
        return self._add(Pipe(self, chunks), expires_s)

    def sink(self, *, expires_s: float | None = None) -> Pipe:
        """A stream that the exec server writes: iterate over it.

        Args:
            expires_s: how long it may take to begin; None: until it is discarded, because a command may think long.

        Raises: PipeError if there are too many.
        """
        return self._add(Pipe(self, None), expires_s)

    def forget(self, pipe: Pipe) -> None:
        """The pipe is over."""
        self._waiting.pop(pipe.path, None)
        self._all.discard(pipe)

    def _add(self, pipe: Pipe, expires_s: float | None) -> Pipe:
        if len(self._all) >= self._pipes_max:
            raise PipeError(f"There are {self._pipes_max:,} streams open: wait until some have ended.")
        self._waiting[pipe.path] = pipe
        self._all.add(pipe)
        if expires_s is not None:
            pipe._expire_in(expires_s)
        return pipe

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _let_in(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, _ = await loop.sock_accept(listening)
            except OSError as error:
                # Whoever broke off before it was let in is no news.
                await asyncio.sleep(FULL_S if error.errno in _FULL else 0)
            else:
                self._do(self._serve(PipeLine(connected)))

    async def _serve(self, line: PipeLine) -> None:
        """One connection. What strangers send is refused, and no news; what breaks is told by the pipe."""
        try:
            try:
                async with asyncio.timeout(HEAD_S_MAX):
                    request = await line.request()
            except TimeoutError:
                line.close()
                return
            except BadMessage:
                await line.send(answer_head(HTTPStatus.BAD_REQUEST, [_EMPTY]))
            else:
                await self._answer(request, line)
            await line.finish(LINGER_S)
        except (OSError, Ended, BadMessage, _SourceFailed):
            # Nothing that looks like an end may follow what was sent: the connection is cut.
            pass
        finally:
            line.cut()

    async def _answer(self, request: Request, line: PipeLine) -> None:
        if request.method not in ("GET", "PUT"):
            await line.send(answer_head(HTTPStatus.METHOD_NOT_ALLOWED, [_EMPTY, ("Allow", "GET, PUT")]))
            return
        if request.ranged:
            await line.send(answer_head(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, [_EMPTY]))
            return
        pipe = self._waiting.get(request.target)
        if pipe is None or pipe.is_sink != (request.method == "PUT"):
            await line.send(answer_head(HTTPStatus.NOT_FOUND, [_EMPTY]))
            return
        del self._waiting[pipe.path]
        pipe._begin(asyncio.current_task())
        try:
            await (pipe._take(request, line) if pipe.is_sink else pipe._give(line))
        finally:
            pipe._end("the exec server went away")


async def _listen(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of the host, all on one port.

    Raises: OSError if one cannot be had.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            at = (address[0], opened[0].getsockname()[1] if opened else port, *address[2:])
            opened.append(socket.create_server(at, family=family, backlog=BACKLOG))
            opened[-1].setblocking(False)
    except BaseException:
        for each in opened:
            each.close()
        raise
    return opened
