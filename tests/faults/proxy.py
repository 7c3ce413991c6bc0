"""A stretch of bad network between a worker and its database: a TCP proxy that can fall silent or cut connections."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Self
from urllib.parse import parse_qs, urlsplit


class Proxy:
    """Forwards connections on loopback to a server's unix socket, from a thread of its own.

    Args:
        dsn: the server's address.
        cut_after: if given, each connection is cut after so many bytes at most, drawn at random; its last bytes may
            have reached the server or not.
        random: draws them.
    """

    def __init__(self, dsn: str, *, cut_after: int | None = None, random: Random | None = None) -> None:
        parts = urlsplit(dsn)
        query = parse_qs(parts.query)
        self._socket = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
        self._database = f"{parts.username}@", parts.path
        self._cut_after = cut_after
        self._random = random or Random()
        self._loop = asyncio.new_event_loop()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._silent = False
        self._loses: bytes | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._forwarding: set[asyncio.Task[None]] = set()
        self.cuts = 0

    @property
    def dsn(self) -> str:
        """The database's address by way of this proxy."""
        user, path = self._database
        return f"postgresql://{user}127.0.0.1:{self._listening.getsockname()[1]}{path}?sslmode=disable"

    def fall_silent(self) -> None:
        """From now on nothing passes, and nobody is told: the machine has left the network."""
        self._loop.call_soon_threadsafe(self._set_silent)

    def come_back(self) -> None:
        """New connections pass again; the old ones stay silent for ever, as after a crashed router."""
        self._silent = False

    def lose_answer(self, part: bytes) -> None:
        """From the next answer on that holds these bytes, nothing that the server says on its connection arrives."""
        self._loses = part

    def cut(self) -> None:
        """Ends all connections that there are."""
        self._loop.call_soon_threadsafe(self._abort_all)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _set_silent(self) -> None:
        self._silent = True
        for task in self._forwarding:
            task.cancel()

    def _abort_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self) -> None:
        self._server = await asyncio.start_server(self._on_client, sock=self._listening)

    async def _end(self) -> None:
        self._server.close()
        self._set_silent()
        self._abort_all()
        await asyncio.gather(*self._forwarding, return_exceptions=True)

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if self._silent:
            return
        try:
            their_reader, their_writer = await asyncio.open_unix_connection(self._socket)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(their_writer)
        left = [self._random.randint(500, self._cut_after) if self._cut_after else 1 << 60]
        for source, sink in ((reader, their_writer), (their_reader, writer)):
            task = asyncio.get_running_loop().create_task(self._forward(source, sink, left, (writer, their_writer)))
            self._forwarding.add(task)
            task.add_done_callback(self._forwarding.discard)

    async def _forward(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        left: list[int],
        both: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65_536):
                if sink is both[0] and self._loses is not None and self._loses in data:
                    self._loses = None
                    return
                sink.write(data[: left[0]])
                left[0] -= len(data)
                if left[0] <= 0:
                    self.cuts += 1
                    break
                await sink.drain()
        for writer in both:
            self._writers.discard(writer)
            writer.close()


@contextmanager
def proxy(dsn: str, *, cut_after: int | None = None, random: Random | None = None) -> Iterator[Proxy]:
    """A proxy to this database for as long as the block runs."""
    with Proxy(dsn, cut_after=cut_after, random=random) as made:
        yield made
