"""Gateways in the test's own event loop, runners written from the protocol's page alone, and an engine over HTTP."""

import asyncio
import base64
import json
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import uuid4

import aiohttp
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from rota.io.postgres import Target
from rota.runners.io.replica import Pace, Replica
from rota.settings import Settings

TOKEN = "engine token of the tests"
KEY = "a key for job tokens that is long enough"
WAIT_S = 60.0
"""How long anything that must come is awaited."""
ACME = "acme"
_instances = count(1)


class LateReplica(Replica):
    """One that hears late, or never, what the others say through the database: when the test says so."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.unheard: list[str] = []

    def _heard(self, said: str) -> None:
        self.unheard.append(said)

    async def told_by(self, other: Replica) -> None:
        """Waits until the other has said that a runner is connected there."""
        name = other.exchange.gateway.rules.instance
        async with asyncio.timeout(WAIT_S):
            while not any(said.startswith("connected:") and name in said for said in self.unheard):
                await asyncio.sleep(0.01)

    def hear(self) -> None:
        """Hears all, in order."""
        words, self.unheard = self.unheard, []
        for said in words:
            super()._heard(said)

    def listen_anew(self) -> None:
        """As after a connection that broke: what was said meanwhile is lost."""
        self.unheard.clear()
        self._connected()


@asynccontextmanager
async def gateway(
    dsn: str, *, pace: Pace | None = None, clock: Callable[[], float] | None = None, of: type[Replica] = Replica,
    **settings: Any,
) -> AsyncIterator[Replica]:  # fmt: skip
    """One replica on a free port."""
    values: dict[str, Any] = {"gateway_port": 0, "gateway_token": TOKEN, "gateway_key": KEY}
    replica = of(
        Settings(**(values | settings)), Target(dsn), instance=f"gateway-{next(_instances)}",
        pace=pace or Pace(look_s=0.2, reap_s=0.2, tidy_s=60, barred_s=60), clock=clock,
    )  # fmt: skip
    await replica.start()
    try:
        yield replica
    finally:
        await replica.stop()


STILL = Pace(look_s=3600, reap_s=3600, tidy_s=3600, barred_s=3600)
"""A replica that does nothing by the clock: what happens in time happens by event."""


class Engine:
    """An engine in some language: nothing but HTTP."""

    def __init__(self, replica: Replica, *, token: str | None = TOKEN, tls: ssl.SSLContext | None = None) -> None:
        self.base = replica.server.serving.address
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls or True))

    async def __aenter__(self) -> "Engine":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def ask(self, method: str, path: str, *, headers: Any = None, **options: Any) -> tuple[int, Any]:
        """One request: its status and its body, if that is JSON."""
        async with self._http.request(
            method, self.base + path, headers=self._headers | (headers or {}), **options
        ) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text

    async def create(self, execution: str | None = None, **body: Any) -> dict[str, Any]:
        """A job that was created."""
        asked = {
            "target": "OrgRunner", "orgId": ACME, "jobType": "video.compile", "executionId": execution or str(uuid4()),
            "stepId": "s", "iteration": 0, "purpose": "compile", "spec": {"mode": "Reencode"},
        }  # fmt: skip
        status, job = await self.ask("POST", "/internal/v1/jobs", json=asked | body)
        assert status == 201, job
        return dict(job)

    async def job(self, job: dict[str, Any], *, wait: str | None = None) -> dict[str, Any]:
        status, found = await self.ask(
            "GET", f"/internal/v1/jobs/{job['jobId']}", params={} if wait is None else {"wait": wait}
        )
        assert status == 200, found
        return dict(found)

    async def until(self, job: dict[str, Any], state: str) -> dict[str, Any]:
        """The job, once it is in this state."""
        async with asyncio.timeout(WAIT_S):
            while (found := await self.job(job))["state"] != state:
                await asyncio.sleep(0.02)
        return found

    async def op(self, session_id: str, op: str, args: Any = None, **body: Any) -> tuple[int, Any]:
        return await self.ask(
            "POST", f"/internal/v1/sessions/{session_id}/ops", json={"op": op, "args": args or {}} | body
        )


CAPABILITIES = {
    "protocolVersion": "1.0", "agentVersion": "1.0.0", "os": "linux", "arch": "amd64", "slots": 2, "container": "none",
    "runtimeImageDigest": None, "ffmpegVersion": "8.0", "fontsetVersion": "2025.1",
    "jobTypes": ["video.compile", "video.analyze.extract"], "maxOutputBytes": 8 * 2**30,
}  # fmt: skip


@dataclass
class Device:
    """A desktop that was paired: its id, and its key, which never left it."""

    device_id: str
    key: Ed25519PrivateKey

    def auth(self, *, host: str = "127.0.0.1", ahead_s: float = 0, **changes: Any) -> dict[str, Any]:
        """A proof for one hello."""
        ts = (datetime.now(UTC) + timedelta(seconds=ahead_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        proof = {"kind": "device", "deviceId": self.device_id, "ts": ts, "nonce": b64(os.urandom(16))} | changes
        text = f"reelbolt-runner-hello-v1|{proof['deviceId']}|{proof['ts']}|{proof['nonce']}|{host}"
        return {"sig": b64(self.key.sign(text.encode()))} | proof


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


async def pair(replica: Replica, engine: Engine, *, org: str = ACME) -> Device:
    """Pairs a new device, over HTTP as any runner does."""
    code = await replica.exchange.devices.new_code(org, "a desktop")
    key = Ed25519PrivateKey.generate()
    status, paired = await engine.ask(
        "POST", "/v1/pair", json={"code": str(code), "publicKey": b64(key.public_key().public_bytes_raw())}
    )
    assert status == 201, paired
    return Device(paired["deviceId"], key)


@dataclass
class Runner:
    """One connection of a runner that answers what it is told to."""

    socket: ClientConnection
    seen: list[dict[str, Any]] = field(default_factory=list)

    async def say(self, kind: str, payload: Any = None, **envelope: Any) -> None:
        await self.socket.send(
            json.dumps({"v": 1, "type": kind, "id": str(uuid4()), "payload": payload or {}} | envelope)
        )

    async def hear(self, kind: str) -> dict[str, Any]:
        """The next message of this type; others that come before it are kept in `seen`."""
        async with asyncio.timeout(WAIT_S):
            while True:
                message = json.loads(await self.socket.recv())
                if message["type"] == kind:
                    return dict(message)
                self.seen.append(message)

    async def closed(self) -> tuple[int, str]:
        """The code and reason with which the gateway closes."""
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    self.seen.append(json.loads(await self.socket.recv()))
                except ConnectionClosed as closed:
                    assert closed.rcvd is not None, "it was not closed by the gateway"
                    return closed.rcvd.code, closed.rcvd.reason

    async def hello(self, auth: dict[str, Any], **changes: Any) -> None:
        capabilities = CAPABILITIES | changes.pop("capabilities", {})
        await self.say("hello", {"protocolVersion": "1.0", "auth": auth, "capabilities": capabilities} | changes)

    async def take(self, *, free: int = 1) -> dict[str, Any]:
        """Says that it is free, and accepts the next job."""
        await self.say("ready", {"freeSlots": free})
        return await self.accept()

    async def accept(self) -> dict[str, Any]:
        assign = await self.hear("assign")
        await self.of_job("accept", assign)
        return assign

    async def of_job(self, kind: str, assign: dict[str, Any], session_id: str | None = None, **payload: Any) -> None:
        proof = {"leaseEpoch": assign["payload"]["leaseEpoch"], "jobToken": assign["payload"]["jobToken"]}
        envelope = {"jobId": assign["jobId"]} | ({} if session_id is None else {"sessionId": session_id})
        await self.say(kind, proof | payload, **envelope)

    async def answer(self, assign: dict[str, Any], result: Any) -> dict[str, Any]:
        """Answers the next op."""
        request = await self.hear("op.request")
        op_id = request["payload"]["opId"]
        await self.of_job("op.response", assign, request["sessionId"], opId=op_id, ok=True, result=result)
        return request


@asynccontextmanager
async def dialled(replica: Replica, **options: Any) -> AsyncIterator[Runner]:
    """A connection on which nothing was said yet; `port`: of what stands in between; `ssl`: whom it trusts."""
    port = options.pop("port", None) or replica.server.serving.port
    url = f"{'wss' if options.get('ssl') else 'ws'}://{options.pop('name', '127.0.0.1')}:{port}/v1/connect"
    options = {
        "subprotocols": ["reelbolt.runner.v1"], "max_size": None, "proxy": None, "host": "127.0.0.1", "port": port,
    } | options  # fmt: skip
    async with connect(url, **options) as socket:
        yield Runner(socket)


@asynccontextmanager
async def connected(
    replica: Replica,
    auth: dict[str, Any],
    *,
    port: int | None = None,
    tls: ssl.SSLContext | None = None,
    **hello: Any,
) -> AsyncIterator[Runner]:
    """A runner that was welcomed; its welcome is the first that it has `seen`."""
    async with dialled(replica, port=port, ssl=tls) as runner:
        await runner.hello(auth, **hello)
        runner.seen.append(await runner.hear("welcome"))
        yield runner
