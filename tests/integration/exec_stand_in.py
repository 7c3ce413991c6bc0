"""A small exec server for tests of the client: it speaks the messages, runs functions in place of commands, and can be
made to behave badly."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from rota.slots.messages import (
    Cancel,
    Decline,
    Done,
    EndedBy,
    Error,
    ErrorCode,
    Hello,
    Job,
    Message,
    Offer,
    Position,
    Progress,
    Query,
    Queued,
    Receipt,
    Unwant,
    Want,
    encode,
    from_client,
)  # fmt: skip
from rota.slots.output import digest_of

Command = Callable[["Streams", Any], Awaitable[Receipt | None]]


class Streams:
    """The streams of one command."""

    def __init__(self, session: aiohttp.ClientSession, job: Job, say: Callable[[Message], Awaitable[None]]) -> None:
        self.job, self.session, self.say = job, session, say

    async def read(self) -> bytes:
        assert self.job.job.stdin is not None
        async with self.session.get(self.job.job.stdin) as response:
            assert response.status == 200, response.status
            return await response.read()

    async def write(self, *chunks: bytes, length: int | None = None) -> Receipt:
        """Writes all of the output. With a `length` that is not its own, the receipt lies."""

        async def body() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

        assert self.job.job.stdout is not None
        async with self.session.put(self.job.job.stdout, data=body()) as response:
            assert response.status < 300, response.status
        whole = b"".join(chunks)
        return Receipt(
            ended_by=EndedBy.EXIT,
            exit=0,
            bytes_out=len(whole) if length is None else length,
            digest=digest_of(whole),
        )

    async def progress(self) -> None:
        await self.say(Progress(self.job.job_id))


class StandIn:
    """One exec server with slots for its commands.

    Attributes:
        heard: every message of every client.
        connections: the sockets that are open.
    """

    def __init__(self, commands: dict[str, Command], *, slots: int = 2, name: str = "stand-in") -> None:
        self.commands, self.slots, self.name = commands, slots, name
        self.heard: list[Message] = []
        self.connections: list[ServerConnection] = []
        self.wants: list[tuple[ServerConnection, Want]] = []
        self.offers: set[str] = set()
        self.running: dict[str, asyncio.Task[None]] = {}
        self.news = asyncio.Condition()
        self.token: str | None = None
        self.status: int | None = None
        self.offering = True
        self.draining = False
        self.refuse_jobs = 0
        """So many jobs come too late for their offer."""
        self.port = 0
        self._server: Server | None = None

    async def __aenter__(self) -> "StandIn":
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.crash()

    async def listen(self) -> None:
        self._server = await serve(
            self._serve, "127.0.0.1", self.port, process_request=self._greet, compression=None, close_timeout=1
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def crash(self) -> None:
        """Every socket breaks and every command dies, as with SIGKILL."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close(close_connections=False)
        for connection in self.connections:
            connection.transport.abort()
        tasks = list(self.running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
        self.wants.clear()
        self.offers.clear()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Returns when it holds; looks after each message."""
        async with asyncio.timeout(30), self.news:
            await self.news.wait_for(condition)

    def count(self, kind: type) -> int:
        return sum(isinstance(message, kind) for message in self.heard)

    async def greet_again(self) -> None:
        for connection in self.connections:
            await self._say(connection, self._hello())

    def _greet(self, _connection: ServerConnection, request: Request) -> Response | None:
        if self.status is not None:
            return _connection.respond(self.status, "no")
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _connection.respond(401, "no")
        return None

    def _hello(self) -> Hello:
        return Hello(
            self.name, dict.fromkeys(self.commands, "all"), {"all": self.slots}, len(self.connections), self.draining
        )

    async def _serve(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        try:
            await self._say(connection, self._hello())
            await self._tell()
            async for frame in connection:
                message = from_client(frame)
                assert message is not None
                await self._take(connection, message)
                await self._tell(message)
        finally:
            self.connections.remove(connection)
            self.wants = [(at, want) for at, want in self.wants if at is not connection]
            await self._tell()

    async def _take(self, connection: ServerConnection, message: Message) -> None:
        match message:
            case Want():
                self.wants.append((connection, message))
                if not await self.deal():
                    await self._say(connection, Queued(message.job_id))
            case Unwant(job_id):
                self.wants = [(at, want) for at, want in self.wants if want.job_id != job_id]
            case Decline(job_id):
                self.offers.discard(job_id)
                await self.deal()
            case Job(job_id) if self.refuse_jobs:
                self.refuse_jobs -= 1
                self.offers.discard(job_id)
                for code in (ErrorCode.OFFER_EXPIRED, ErrorCode.NO_OFFER):
                    await self._say(connection, Error(code, "too late", job_id))
            case Job(job_id):
                self.offers.discard(job_id)
                self.running[job_id] = asyncio.create_task(self._run(connection, message))
            case Cancel(job_id):
                if job_id in self.running:
                    self.running[job_id].cancel()
            case Query(str(job_id)):
                waiting = [want.job_id for _, want in self.wants]
                answer: Position | Error = Error(ErrorCode.UNKNOWN_JOB, "it waits no more", job_id)
                if job_id in waiting:
                    answer = Position(job_id, waiting.index(job_id), eta_low_s=1.0, eta_high_s=2.0)
                await self._say(connection, answer)

    async def deal(self) -> bool:
        dealt = False
        while self.offering and self.wants and len(self.offers) + len(self.running) < self.slots:
            connection, want = self.wants.pop(0)
            self.offers.add(want.job_id)
            await self._say(connection, Offer(want.job_id))
            dealt = True
        return dealt

    async def _run(self, connection: ServerConnection, job: Job) -> None:
        receipt: Receipt | None = Receipt(ended_by=EndedBy.CANCELLED, error="It was cancelled.")
        try:
            async with aiohttp.ClientSession() as session:
                service = job.job.args["service"] if isinstance(job.job.args, dict) else self._service_of(job)
                receipt = await self.commands[service](
                    Streams(session, job, lambda message: self._say(connection, message)), job.job.args
                )
        except aiohttp.ClientError as error:
            receipt = Receipt(ended_by=EndedBy.BROKEN, error=str(error))
        except asyncio.CancelledError:
            pass
        finally:
            del self.running[job.job_id]
        if receipt is not None and connection in self.connections:
            await self._say(connection, Done(job.job_id, receipt))
        await self.deal()
        await self._tell()

    def _service_of(self, job: Job) -> str:
        return next(
            message.service for message in self.heard if isinstance(message, Want) and message.job_id == job.job_id
        )

    async def _say(self, connection: ServerConnection, message: Message) -> None:
        with contextlib.suppress(ConnectionClosed):
            await connection.send(encode(message), text=True)

    async def _tell(self, message: Message | None = None) -> None:
        async with self.news:
            if message is not None:
                self.heard.append(message)
            self.news.notify_all()


async def cat(streams: Streams, _args: Any) -> Receipt:
    return await streams.write(await streams.read())


async def say(streams: Streams, args: Any) -> Receipt:
    return await streams.write(" ".join(args).encode())


async def fail(streams: Streams, _args: Any) -> Receipt:
    return Receipt(ended_by=EndedBy.EXIT, exit=3, stderr_line="no such codec", stdout_prefix="{", bytes_out=1)


async def hang(streams: Streams, _args: Any) -> Receipt:
    await streams.progress()
    await asyncio.Event().wait()
    raise AssertionError
