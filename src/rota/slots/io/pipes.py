"""One-time streams between this process and a command on an exec server: each has an URL that works once.

The exec server dials: it GETs a source and PUTs to a sink. The id in the URL is the only credential, 128 random bits.
Whatever is wrong with a request (unknown, used, guessed, other method, a slash too many), the answer is the same 404.
Memory is bounded: who is slow is waited for, on both sides. A stream that breaks off ends in an error (I9).
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from rota.errors import PipeError
from rota.io.log import SILENT

__all__ = ["Pipe", "PipeError", "Pipes"]

PREFIX: Final = "/pipe/"
ID_BYTES: Final = 16
EXPIRES_S: Final = 60.0
"""A source that nobody has begun to fetch by then is gone: an exec server fetches as soon as it has the job."""
PIPES_MAX: Final = 10_000
"""Pipes that wait or run at once in one process."""
HELD_BYTES_MAX: Final = 1024 * 1024
"""What a sink holds for a reader that is slow; then the exec server waits, and then the command."""
READ_BYTES: Final = 256 * 1024
HEAD_S_MAX: Final = 10.0
"""How long a request may take to name its pipe: until then it may be anybody's, and holds a descriptor."""


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
        self._serving: asyncio.Future[web.StreamResponse] | None = None
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

    def _begin(self) -> None:
        self.begun = True
        if self._expiry is not None:
            self._expiry.cancel()

    async def _take(self, request: web.BaseRequest) -> web.StreamResponse:
        """Takes what the exec server sends, no faster than it is read."""
        count = 0
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            # It waits for this word before it sends.
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async for chunk in request.content.iter_any():
                count += len(chunk)
                self._held.append(chunk)
                self._held_bytes += len(chunk)
                self._news.set()
                if self._held_bytes >= HELD_BYTES_MAX:
                    self._room.clear()
                    await self._room.wait()
                if self._ended:
                    break
        except Exception as error:
            self._end(f"the exec server broke it off ({type(error).__name__})")
            raise
        announced = request.content_length
        if announced is not None and count != announced:
            self._end(f"it ended after {count:,} of {announced:,} bytes")
        self._end(None)
        return web.Response(status=204 if self._error is None else 410)

    async def _give(self, request: web.BaseRequest) -> web.StreamResponse:
        """Sends what this process has, no faster than it is taken."""
        assert self._source is not None, "a sink has nothing to send"
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        try:
            async for chunk in self._made():
                await response.write(chunk)
        except Exception as error:
            self._end(
                f"the exec server stopped fetching it ({type(error).__name__})"
                if self.cause is None
                else f"what it came from failed: {error!r}"
            )
            raise
        await response.write_eof()
        self._end(None)
        return response

    async def _made(self) -> AsyncIterator[bytes]:
        """What the source is made of; what goes wrong here is its maker's, and not the network's."""
        assert self._source is not None, "a sink has nothing to send"
        try:
            async for chunk in self._source:
                if not isinstance(chunk, bytes | bytearray | memoryview):
                    raise TypeError(f"a chunk is {type(chunk).__name__}, and a command is fed bytes")
                yield chunk
        except Exception as error:
            self.cause = error
            raise


class _Server(web.Server):
    """aiohttp's server, which bounds the size of a request's head and not its time."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], **options: Any) -> None:
        super().__init__(handler, **options)
        self._unnamed: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._unnamed[handler] = asyncio.get_running_loop().call_later(HEAD_S_MAX, transport.abort)

    def named(self, handler: web.RequestHandler) -> None:
        """A request of this connection has come."""
        timer = self._unnamed.pop(handler, None)
        if timer is not None:
            timer.cancel()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self.named(handler)
        super().connection_lost(handler, exc)


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
        self._server: _Server | None = None
        self._runner: web.ServerRunner | None = None
        self._starting = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._all)

    async def start(self) -> None:
        """Listens; safe to repeat, also at the same time.

        Raises: OSError if it cannot.
        """
        async with self._starting:
            if self._runner is not None:
                return
            self._server = server = _Server(
                self._answer, access_log=None, handler_cancellation=True, read_bufsize=READ_BYTES,
                # What strangers send is refused, and no news; what fails in here is told where it is handled.
                logger=SILENT,
                keepalive_timeout=HEAD_S_MAX,
                # Bytes are handed on as they come: what they are is the command's business.
                auto_decompress=False,
            )  # fmt: skip
            runner = web.ServerRunner(server)
            await runner.setup()
            try:
                await web.TCPSite(runner, self._host, self.port).start()
            except BaseException:
                await runner.cleanup()
                raise
            self._runner = runner
            self.port = runner.addresses[0][1]

    async def stop(self) -> None:
        """Breaks off what runs and listens no more; safe to repeat."""
        for pipe in list(self._all):
            pipe.discard()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

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

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._server is not None:
            self._server.named(request.protocol)
        if request.method not in ("GET", "PUT"):
            return _refusal(405, {"Allow": "GET, PUT"})
        if "Range" in request.headers or "Content-Range" in request.headers:
            return _refusal(416)
        pipe = self._waiting.get(request.raw_path)
        if pipe is None or pipe.is_sink != (request.method == "PUT"):
            return _refusal(404)
        del self._waiting[pipe.path]
        pipe._begin()
        serving = asyncio.ensure_future(pipe._take(request) if pipe.is_sink else pipe._give(request))
        pipe._serving = serving
        try:
            return await serving
        except (Exception, asyncio.CancelledError) as error:
            pipe._end("the exec server went away")
            # Nothing that looks like an end may follow what was sent: the connection is cut.
            if request.transport is not None:
                request.transport.abort()
            if isinstance(error, asyncio.CancelledError) and _cancelled():
                raise
            return _refusal(410)


def _cancelled() -> bool:
    """Whether it is this task that is cancelled, and not what it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _refusal(status: int, headers: dict[str, str] | None = None) -> web.Response:
    response = web.Response(status=status, headers=headers)
    response.force_close()
    return response
