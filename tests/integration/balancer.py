"""A TCP balancer in a few lines: round robin over its backends; it can also swallow all bytes without a word."""

import asyncio
import contextlib
import itertools
from collections.abc import Sequence


class Balancer:
    """Listens on loopback.

    Attributes:
        backends: the ports behind it; may change.
        swallows: bytes in both directions vanish, and nobody is told.
    """

    def __init__(self, backends: Sequence[int]) -> None:
        self.backends = list(backends)
        self.swallows = False
        self.port = 0
        self._turn = itertools.count()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Balancer":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "it was entered"
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "this is a task"
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        port = self.backends[next(self._turn) % len(self.backends)]
        try:
            behind, to_behind = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        ways = [asyncio.create_task(self._pass(reader, to_behind)), asyncio.create_task(self._pass(behind, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, to_behind):
                end.transport.abort()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                if not self.swallows:
                    target.write(data)
                    await target.drain()
