"""What is measured of the runner fabric, and what it is set against. All of a measurement runs in one event loop: the
engine, the gateway and the runner of the one side, and caller, server and echo of the other.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any
from uuid import uuid4

import aiohttp
import asyncpg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect

from bench.report import Sample, quantile
from rota.io.migrate import up
from rota.io.postgres import Target
from rota.io.serving import Place, Serving
from rota.runners.io.gateway_client import GatewayClient
from rota.runners.io.replica import Replica
from rota.settings import Settings

TOKEN = "a token of the bench"
SLOTS = 100
ASSIGN_S = 60.0
CAPABILITIES = {
    "protocolVersion": "1.0", "agentVersion": "1.0.0", "os": "linux", "arch": "amd64", "slots": SLOTS,
    "container": "none", "runtimeImageDigest": None, "ffmpegVersion": "8.0", "fontsetVersion": "1",
    "jobTypes": ["video.compile"], "maxOutputBytes": 8 * 2**30,
}  # fmt: skip
ANSWER = {"exists": True, "bytes": 1}


class Runner:
    """A runner that accepts each job and answers each op at once.

    Args:
        socket: its connection.
        keeps: whether it keeps its jobs, or says that each is done.
    """

    def __init__(self, socket: ClientConnection, *, keeps: bool) -> None:
        self._socket = socket
        self._keeps = keeps
        self._assigned: dict[str, asyncio.Future[float]] = {}

    async def assigned(self, job_id: str) -> float:
        """When the job was assigned."""
        return await self._assigned.setdefault(job_id, asyncio.get_running_loop().create_future())

    async def say(self, kind: str, payload: dict[str, Any], **envelope: Any) -> None:
        frame = {"v": 1, "type": kind, "id": str(uuid4()), "payload": payload, **envelope}
        await self._socket.send(json.dumps(frame))

    async def run(self, credential: str, welcomed: asyncio.Event) -> None:
        auth = {"kind": "pool", "credential": credential, "workerName": "bench"}
        await self.say("hello", {"protocolVersion": "1.0", "auth": auth, "capabilities": CAPABILITIES})
        proofs: dict[str, dict[str, Any]] = {}
        async for text in self._socket:
            said = json.loads(text)
            payload, job_id = said["payload"], said.get("jobId")
            match said["type"]:
                case "welcome":
                    await self.say("ready", {"freeSlots": SLOTS})
                    welcomed.set()
                case "assign":
                    at = self._assigned.setdefault(job_id, asyncio.get_running_loop().create_future())
                    at.set_result(time.perf_counter())
                    proofs[job_id] = {"leaseEpoch": payload["leaseEpoch"], "jobToken": payload["jobToken"]}
                    await self.say("accept", proofs[job_id], jobId=job_id)
                    if not self._keeps:
                        await self.say("complete", {**proofs.pop(job_id), "outcome": "succeeded"}, jobId=job_id)
                        await self.say("ready", {"freeSlots": SLOTS})
                case "op.request":
                    answer = {**proofs[job_id], "opId": payload["opId"], "ok": True, "result": ANSWER}
                    await self.say("op.response", answer, jobId=job_id, sessionId=said["sessionId"])


@asynccontextmanager
async def fabric(dsn: str, *, keeps: bool) -> AsyncIterator[tuple[GatewayClient, Runner]]:
    """A gateway, a runner and an engine."""
    await up(Target(dsn))
    settings = Settings(gateway_port=0, gateway_token=TOKEN, gateway_key="a key of the bench that is long enough")
    replica = Replica(settings, Target(dsn), instance="bench")
    await replica.start()
    client = GatewayClient(replica.server.serving.address, token=TOKEN)
    try:
        credential = str(await replica.exchange.devices.new_credential())
        url = replica.server.serving.address.replace("http", "ws", 1) + "/v1/connect"
        async with connect(url, subprotocols=["reelbolt.runner.v1"], proxy=None) as socket:
            runner, welcomed = Runner(socket, keeps=keeps), asyncio.Event()
            task = asyncio.create_task(runner.run(credential, welcomed))
            await asyncio.wait_for(welcomed.wait(), 30)
            try:
                yield client, runner
            finally:
                task.cancel()
                await asyncio.wait({task})
    finally:
        await client.close()
        await replica.stop()


async def _create(client: GatewayClient) -> str:
    body = {"target": "CloudPool", "orgId": "bench", "jobType": "video.compile", "executionId": str(uuid4())}
    return (await client.create(body)).job_id


async def _session(client: GatewayClient, job_id: str) -> str:
    while True:
        session_id = (await client.job(job_id)).open_session
        if session_id is not None:
            return session_id
        await asyncio.sleep(0.01)


async def _p50_ms(times: int, work: Callable[[], Awaitable[float]]) -> float:
    for _ in range(max(1, times // 10)):
        await work()
    return quantile([await work() for _ in range(times)], 0.5) * 1000


async def ops(dsn: str, times: int) -> list[Sample]:
    """An op of a session: from the engine's call to its answer."""
    async with fabric(dsn, keeps=True) as (client, _):
        session_id = await _session(client, await _create(client))
        numbers = count()

        async def one() -> float:
            began = time.perf_counter()
            args = {"path": "in.mp4"}
            await client.op(session_id, op_id=f"op-{next(numbers)}", op="stat", args=args, timeout_s=30)
            return time.perf_counter() - began

        return [Sample("op.rota", await _p50_ms(times, one))]


async def echoes(times: int) -> list[Sample]:
    """The same way on the same stack with nothing on it: HTTP in, a frame out, a frame back, HTTP out."""
    sockets: list[WebSocket] = []
    answers: asyncio.Queue[str] = asyncio.Queue()
    held = asyncio.Event()

    async def take(request: Request) -> Response:
        await sockets[0].send_text((await request.body()).decode())
        return Response(await answers.get(), media_type="application/json")

    async def hold(websocket: WebSocket) -> None:
        await websocket.accept()
        sockets.append(websocket)
        held.set()
        async for text in websocket.iter_text():
            answers.put_nowait(text)

    serving = Serving("The echo", Place())
    await serving.start(Starlette(routes=[Route("/echo", take, methods=["POST"]), WebSocketRoute("/hold", hold)]))
    body = json.dumps({"opId": "op-1", "op": "stat", "args": {"path": "in.mp4"}, "timeoutSec": 30})

    async def answer(socket: ClientConnection) -> None:
        async for text in socket:
            await socket.send(text)

    async def one() -> float:
        began = time.perf_counter()
        async with http.post(serving.address + "/echo", data=body) as response:
            await response.read()
        return time.perf_counter() - began

    try:
        async with (
            connect(serving.address.replace("http", "ws", 1) + "/hold", proxy=None) as socket,
            aiohttp.ClientSession() as http,
        ):
            task = asyncio.create_task(answer(socket))
            await asyncio.wait_for(held.wait(), 30)
            found = await _p50_ms(times, one)
            task.cancel()
            await asyncio.wait({task})
            return [Sample("op.echo", found)]
    finally:
        await serving.stop()


async def assigns(dsn: str, times: int) -> list[Sample]:
    """From the engine's call that creates a job to the `assign` at a free runner."""
    async with fabric(dsn, keeps=False) as (client, runner):

        async def one() -> float:
            began = time.perf_counter()
            job_id = await _create(client)
            return await asyncio.wait_for(runner.assigned(job_id), ASSIGN_S) - began

        return [Sample("assign.rota", await _p50_ms(times, one))]


async def notifies(dsn: str, times: int) -> list[Sample]:
    """An INSERT with a NOTIFY on one connection, and a claim by whoever hears it on another."""
    adding, claiming = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    heard: asyncio.Queue[None] = asyncio.Queue()
    try:
        await adding.execute("CREATE TABLE raw (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, taken boolean)")
        await claiming.add_listener("raw", lambda *_: heard.put_nowait(None))

        async def one() -> float:
            began = time.perf_counter()
            async with adding.transaction():
                await adding.execute("INSERT INTO raw (taken) VALUES (false)")
                await adding.execute("NOTIFY raw")
            await heard.get()
            await claiming.fetch(
                "UPDATE raw SET taken = true WHERE id = "
                "(SELECT id FROM raw WHERE NOT taken ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id"
            )
            return time.perf_counter() - began

        return [Sample("assign.raw", await _p50_ms(times, one))]
    finally:
        await adding.close()
        await claiming.close()
