"""Stand-in until the worker's pipes are merged."""

import asyncio
import secrets
from collections.abc import AsyncIterator

from aiohttp import web


class PipeError(Exception):
    """A stream broke."""


class Pipe:
    def __init__(self, owner: "Pipes", chunks: AsyncIterator[bytes] | None) -> None:
        self.path = f"/pipe/{secrets.token_urlsafe(16)}"
        self._owner = owner
        self.chunks = chunks
        self.begun = False
        self.queue: asyncio.Queue[bytes | PipeError | None] = asyncio.Queue(4)
        self.gone = asyncio.Event()

    def url(self, host: str) -> str:
        return f"http://{host}:{self._owner.port}{self.path}"

    def discard(self) -> None:
        self._owner.open.pop(self.path, None)
        self.gone.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        gone = asyncio.ensure_future(self.gone.wait())
        try:
            while True:
                got = asyncio.ensure_future(self.queue.get())
                await asyncio.wait([got, gone], return_when=asyncio.FIRST_COMPLETED)
                if not got.done():
                    got.cancel()
                    raise PipeError("discarded")
                item = got.result()
                if item is None:
                    return
                if isinstance(item, PipeError):
                    raise item
                yield item
        finally:
            gone.cancel()


class Pipes:
    def __init__(self, host: str, port: int) -> None:
        self._host, self.port = host, port
        self.open: dict[str, Pipe] = {}

    async def start(self) -> None:
        app = web.Application(client_max_size=0)
        app.router.add_route("*", "/{tail:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    def source(self, chunks: AsyncIterator[bytes]) -> Pipe:
        return self._add(Pipe(self, chunks))

    def sink(self) -> Pipe:
        return self._add(Pipe(self, None))

    def _add(self, pipe: Pipe) -> Pipe:
        self.open[pipe.path] = pipe
        return pipe

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        pipe = self.open.pop(request.path, None)
        if pipe is None:
            return web.Response(status=404)
        pipe.begun = True
        if pipe.chunks is not None:
            response = web.StreamResponse()
            await response.prepare(request)
            async for chunk in pipe.chunks:
                await response.write(chunk)
            await response.write_eof()
            return response
        try:
            async for chunk in request.content.iter_any():
                put = asyncio.ensure_future(pipe.queue.put(chunk))
                gone = asyncio.ensure_future(pipe.gone.wait())
                await asyncio.wait([put, gone], return_when=asyncio.FIRST_COMPLETED)
                put.cancel(), gone.cancel()
                if pipe.gone.is_set():
                    raise PipeError
        except Exception:
            if not pipe.gone.is_set():
                await pipe.queue.put(PipeError("broke off"))
            raise
        await pipe.queue.put(None)
        return web.Response(status=204)
