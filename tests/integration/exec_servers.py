"""Exec servers for tests: in this process, with commands that end when the test says so, and clients on real
sockets."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from rota.slots.broker import Broker
from rota.slots.io.server import ExecServer, Listen
from rota.slots.load import Load
from rota.slots.messages import (
    ClientMessage,
    Overview,
    Query,
    Receipt,
    ServerMessage,
    Want,
    Work,
    encode,
    from_server,
)
from rota.slots.progress import Moved
from rota.slots.rules import Rules

WAIT_S = 60.0
"""A bound for what should happen at once, on a machine that does much else."""


class Hands:
    """Commands that run until the test ends them. A cancelled one dies when the test lets it (`dies`)."""

    def __init__(self, ended: Callable[[str, Receipt], None], moved: Callable[[str, Moved], None]) -> None:
        self._ended = ended
        self.moved = moved
        self.running: dict[str, Work] = {}
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.dies = True
        self.at_once = False
        self.changed = asyncio.Event()
        self.most = 0

    def start(self, job_id: str, service: str, job: Work) -> None:
        assert job_id not in self.running, "nothing runs twice at once"
        self.running[job_id] = job
        self.started.append(job_id)
        self.most = max(self.most, len(self.running))
        self.changed.set()
        if self.at_once:
            self.end(job_id)

    def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)
        self.changed.set()
        if self.dies and job_id in self.running:
            asyncio.get_running_loop().call_soon(self.end, job_id, Receipt(ended_by="cancelled"))

    async def stop(self, grace_s: float = 0.0) -> None:
        if grace_s:
            with contextlib.suppress(TimeoutError):
                await self.until(lambda: not self.running, grace_s)
        for job_id in list(self.running):
            self.end(job_id, Receipt(ended_by="stopped", retryable=True))

    def end(self, job_id: str, receipt: Receipt | None = None) -> None:
        if self.running.pop(job_id, None) is not None:
            self.changed.set()
            self._ended(job_id, receipt or Receipt(ended_by="exit", exit=0))

    async def until(self, holds: Callable[[], Any], timeout_s: float = WAIT_S) -> None:
        async with asyncio.timeout(timeout_s):
            while not holds():
                self.changed.clear()
                await self.changed.wait()


class Client:
    """A client that does nothing by itself."""

    _ids = itertools.count(1)

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket

    async def send(self, message: ClientMessage | str) -> None:
        await self.websocket.send(message if isinstance(message, str) else encode(message).decode())

    async def want(self, job_id: str | None = None, service: str = "cut", **more: Any) -> str:
        job_id = job_id or f"j{next(self._ids)}"
        await self.send(Want(job_id, service, **more))
        return job_id

    async def get(self) -> ServerMessage:
        frame = await asyncio.wait_for(self.websocket.recv(), WAIT_S)
        message = from_server(frame)
        assert message is not None
        return message

    async def expect(self, kind: type[Any]) -> Any:
        """The next message of this type; others are passed over."""
        while True:
            message = await self.get()
            if isinstance(message, kind):
                return message

    async def until_clients(self, count: int) -> None:
        """Asks until so many clients are connected. HELLO does not tell of who came and went between two of them."""
        async with asyncio.timeout(WAIT_S):
            while True:
                await self.send(Query())
                if (await self.expect(Overview)).clients == count:
                    return

    async def closed(self) -> int:
        """Waits for the end of the connection. Returns: its close code."""
        await asyncio.wait_for(self.websocket.wait_closed(), WAIT_S)
        return self.websocket.close_code or 0


@contextlib.asynccontextmanager
async def exec_server(
    *, processes: int = 1, services: dict[str, str] | None = None, listen: Listen | None = None, **rules: Any
) -> AsyncIterator[tuple[ExecServer, Hands]]:
    """A running exec server and its commands."""
    told = Rules("box:1", services or {"cut": "cpu"}, {"cpu": processes}, **rules)
    server = ExecServer(Broker(told, Load(learns=False)), listen or Listen(), Hands)
    await server.start()
    hands = server.exchange.runner
    assert isinstance(hands, Hands)
    try:
        yield server, hands
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def client_of(server: ExecServer, **options: Any) -> AsyncIterator[Client]:
    """A connected client, which has had its HELLO."""
    options.setdefault("proxy", None)
    async with connect(f"ws://127.0.0.1:{server.port}/broker", **options) as websocket:
        client = Client(websocket)
        await client.expect(object)
        yield client
