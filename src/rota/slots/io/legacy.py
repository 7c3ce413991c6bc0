"""The older protocol on an exec server: `GET /token/{service}` reserves a slot, `PUT /job` uses it.

For clients that do not know `/broker` yet. Such a client is a connection of the broker like any other, for the life of
one token: its want is granted at once or not at all, so it never takes a slot from a call that is parked (503 while
the want-book is not empty), and a token that is not used is an offer that times out. The body of the PUT is the
command's input, the response its output; a command that fails with little output is an answer 500 with its receipt.

Nothing else knows of this module but the command that adds its routes; it is deleted with `legacy_client`.

Spec: slot broker, "Failure matrix" (old fylr, new execserver) and "Migration".
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final
from uuid import uuid4

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from rota.slots.io.pipes import Pipe, PipeError, Pipes
from rota.slots.io.server import ExecServer
from rota.slots.messages import Done, Error, Job, Offer, Receipt, ServerMessage, Want, Work

RECEIPT_HEADER: Final = "X-Rota-Receipt"
JOB_BYTES_MAX: Final = 256 * 1024
"""What a job may be long, as a query; far more than servers in between let through."""
BODY_CHUNKS_MAX: Final = 4
"""Chunks of a body that are held for a command that reads slowly; then its sender waits."""
HOST: Final = "127.0.0.1"
"""The command's streams stay on this machine: this module stands between them and the request."""


class Legacy:
    """The two routes, and the tokens that are out."""

    def __init__(self) -> None:
        self._pipes = Pipes(HOST)
        self._tokens: dict[str, _Session] = {}
        self._server: ExecServer | None = None

    def routes(self, server: ExecServer) -> Sequence[BaseRoute]:
        """The routes for a server; give this to `ExecServer`."""
        self._server = server
        return (
            Route("/token/{service}", self._token, methods=["GET"]),
            Route("/job", _Put(self), methods=["PUT"]),
        )

    async def stop(self) -> None:
        """Closes what the streams of commands went through; safe to repeat."""
        await self._pipes.stop()

    @property
    def server(self) -> ExecServer:
        """The exec server that has the routes."""
        assert self._server is not None, "routes are asked for first"
        return self._server

    async def _token(self, request: Request) -> Response:
        if (refusal := self.server.refusal(request)) is not None:
            return refusal
        service = request.path_params["service"]
        broker = self.server.broker
        waitgroup = broker.rules.services.get(service)
        if waitgroup is None:
            return PlainTextResponse(f"There is no service {service[:80]} here.\n", 404)
        if len(broker.groups[waitgroup].book):
            return PlainTextResponse("Others wait for these slots.\n", 503)
        session = _Session(self.server, self._tokens)
        if not session.ask(service):
            return PlainTextResponse("All slots are taken.\n", 503)
        return JSONResponse({"token": session.job_id})

    def take(self, token: str) -> "_Session | None":
        """The session of a token, which is then used."""
        return self._tokens.pop(token, None)

    async def pipes(self) -> Pipes:
        """Where the streams go through."""
        await self._pipes.start()
        return self._pipes


class _Session:
    """One token, from its request until its command has ended: a connection of the broker."""

    def __init__(self, server: ExecServer, tokens: dict[str, "_Session"]) -> None:
        self.job_id = uuid4().hex
        self.ended = asyncio.Event()
        self.receipt: Receipt | None = None
        self._tokens = tokens
        self._exchange = server.exchange
        self._offered = False
        self._number = self._exchange.join(self, counts=False)

    def ask(self, service: str) -> bool:
        """Whether a slot was free at once; it is reserved then."""
        self._exchange.say(self._number, Want(self.job_id, service))
        if self._offered:
            self._tokens[self.job_id] = self
        else:
            self.leave()
        return self._offered

    def begin(self, work: Work) -> None:
        """Starts the command."""
        self._exchange.say(self._number, Job(self.job_id, work))

    def leave(self) -> None:
        """Ends it: what runs is killed; safe to repeat."""
        self._tokens.pop(self.job_id, None)
        self._exchange.leave(self._number)

    def deliver(self, message: ServerMessage) -> None:
        match message:
            case Offer():
                self._offered = True
            case Done(_, receipt):
                self.receipt = receipt
                self.ended.set()
            case Error():
                # The token was not used in time, or came too late.
                self.ended.set()
                asyncio.get_running_loop().call_soon(self.leave)
            case _:
                pass

    def close(self, _code: int, _reason: str) -> None:
        self.ended.set()
        asyncio.get_running_loop().call_soon(self.leave)


class _Put:
    """`PUT /job?token=…&job={…}` as an ASGI application: input and output flow at the same time."""

    def __init__(self, legacy: Legacy) -> None:
        self._legacy = legacy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        answer = self._legacy.server.refusal(request)
        session = None
        if answer is None:
            session = self._legacy.take(request.query_params.get("token", ""))
            if session is None:
                answer = PlainTextResponse("Token not found\n", 404)
        if session is None:
            assert answer is not None, "no session has an answer"
            await answer(scope, receive, send)
            return
        try:
            work = _work(request.query_params.get("job", "{}"))
        except msgspec.DecodeError as error:
            session.leave()
            await PlainTextResponse(f"The job is no good: {error}.\n", 400)(scope, receive, send)
            return
        body = _Body(receive, session)
        pipes = await self._legacy.pipes()
        source = pipes.source(body.chunks()) if _has_body(request) else None
        sink = pipes.sink()
        try:
            stdin = None if source is None else source.url(HOST)
            session.begin(Work(work.args, stdin, sink.url(HOST), work.timeout_s, work.env))
            await self._answer(session, sink, scope, receive, send)
        finally:
            session.leave()
            await body.close()
            for pipe in (source, sink):
                if pipe is not None:
                    pipe.discard()

    async def _answer(self, session: _Session, sink: Pipe, scope: Scope, receive: Receive, send: Send) -> None:
        chunks = aiter(sink)
        first = asyncio.ensure_future(anext(chunks, None))
        ended = asyncio.ensure_future(session.ended.wait())
        try:
            await asyncio.wait({first, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not first.done() and session.receipt is not None and not session.receipt.ok:
                first.cancel()
        finally:
            ended.cancel()
        begun = False
        with contextlib.suppress(asyncio.CancelledError):
            try:
                chunk = await first
                if chunk is not None:
                    begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": []})
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    async for more in chunks:
                        await send({"type": "http.response.body", "body": more, "more_body": True})
            except PipeError:
                pass
        await session.ended.wait()
        receipt = session.receipt
        if begun:
            # Without the last chunk the response never looks whole (I9).
            if receipt is not None and receipt.ok:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                raise PipeError("the command failed after its output had begun")
            return
        await _small(receipt)(scope, receive, send)


class _Body:
    """The body of a request, and the end of its connection, read by one task."""

    def __init__(self, receive: Receive, session: _Session) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(BODY_CHUNKS_MAX)
        self._whole = False
        self._task = asyncio.create_task(self._read(receive, session))

    async def chunks(self) -> AsyncIterator[bytes]:
        while (chunk := await self._queue.get()) is not None:
            yield chunk
        if not self._whole:
            raise PipeError("the request broke off")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _read(self, receive: Receive, session: _Session) -> None:
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                # Whoever waits for the output is gone: the command is killed.
                session.leave()
                session.ended.set()
                await self._queue.put(None)
                return
            if event.get("body"):
                await self._queue.put(event["body"])
            if not event.get("more_body", False) and not self._whole:
                self._whole = True
                await self._queue.put(None)


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"


def _work(text: str) -> Work:
    if len(text) > JOB_BYTES_MAX:
        raise msgspec.DecodeError(f"it is longer than {JOB_BYTES_MAX:,} bytes")
    return msgspec.json.decode(text, type=Work)


def _small(receipt: Receipt | None) -> Response:
    if receipt is None:
        return PlainTextResponse("Token not found\n", 404)
    if receipt.ok:
        return Response(b"", 200, {RECEIPT_HEADER: msgspec.json.encode(receipt).decode()})
    return Response(msgspec.json.encode(receipt), 500, media_type="application/json")
