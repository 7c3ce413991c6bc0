"""A gateway that does what a test says, with the JSON of the protocol page and without our messages.

It answers pairing, checks the signature of a hello itself, and hands each connection to the test, which reads frames
and sends them by name.
"""

import asyncio
import base64
import contextlib
import json
import ssl
import uuid
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import WSMsgType, web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Payload = dict[str, Any]
WAIT_S = 30.0
"""Far longer than anything here takes, on a busy machine."""


class Connection:
    """One runner's connection, as a test drives it."""

    def __init__(self, request: web.Request, socket: web.WebSocketResponse, hello: Payload) -> None:
        self.request = request
        self.socket = socket
        self.hello = hello
        self.seen: list[Payload] = []
        self.answers_heartbeats = True
        self._inbox: asyncio.Queue[Payload | None] = asyncio.Queue()

    async def send(self, kind: str, payload: Payload, *, job: str | None = None, session: str | None = None) -> None:
        envelope: Payload = {"v": 1, "type": kind, "id": str(uuid.uuid4()), "payload": payload}
        envelope |= {"jobId": job} if job else {}
        envelope |= {"sessionId": session} if session else {}
        await self.socket.send_str(json.dumps(envelope))

    async def expect(self, *kinds: str) -> Payload:
        """The next frame of one of these types; others are passed over."""
        async with asyncio.timeout(WAIT_S):
            while True:
                frame = await self._inbox.get()
                assert frame is not None, f"the connection ended without {kinds}; it said {self.seen}"
                if frame["type"] in kinds:
                    return frame

    async def ended(self) -> int | None:
        """Waits until it is closed; its close code."""
        async with asyncio.timeout(WAIT_S):
            while await self._inbox.get() is not None:
                pass
        return self.socket.close_code

    async def welcome(self, *, resumed: list[Payload] | None = None, **more: Any) -> None:
        auth = self.hello["payload"]["auth"]
        device = auth["kind"] == "device"
        told = {
            "runnerId": auth.get("deviceId", auth.get("workerName")), "kind": "Desktop" if device else "CloudPool",
            "orgId": "org-1" if device else None, "protocolVersion": "1.0", "heartbeatSec": 15, "deadAfterSec": 45,
            "maxInlineBytes": 4_194_304, "gatewayInstance": "stand-in", "serverTime": "2026-01-02T03:04:05Z",
            "resumed": resumed or [],
        }  # fmt: skip
        await self.send("welcome", told | more)

    async def assign(self, job: str, *, epoch: int = 1, job_type: str = "video.compile", **more: Any) -> Payload:
        """Offers a job; returns the runner's accept or reject."""
        told = {
            "jobType": job_type, "leaseEpoch": epoch, "jobToken": "FIXTURE.job.token", "attempt": 1, "timeoutSec": 600,
            "limits": {"maxOutputBytes": 1 << 30, "idleTimeoutSec": 600}, "requires": {},
            "spec": {"executionId": "execution-1", "stepId": "step-1", "mode": "Reencode"}, "orgId": "org-1",
        }  # fmt: skip
        await self.send("assign", told | more, job=job)
        return await self.expect("accept", "reject")

    async def op(self, job: str, op: str, args: Payload, *, op_id: str = "", timeout_s: int = 60) -> Payload:
        """Asks for an op; returns the payload of its response."""
        op_id = op_id or str(uuid.uuid4())
        await self.ask(job, op, args, op_id=op_id, timeout_s=timeout_s)
        while True:
            payload: Payload = (await self.expect("op.response"))["payload"]
            if payload["opId"] == op_id:
                return payload

    async def ask(self, job: str, op: str, args: Payload, *, op_id: str, timeout_s: int = 60) -> None:
        told = {"opId": op_id, "op": op, "args": args, "timeoutSec": timeout_s}
        await self.send("op.request", told, job=job, session=job)

    def transport(self) -> asyncio.Transport:
        """What carries the bytes, for frames that arrive in parts."""
        transport = self.request.transport
        assert isinstance(transport, asyncio.Transport)
        return transport

    async def read(self) -> None:
        """Takes what comes until the connection ends."""
        async for message in self.socket:
            if message.type is not WSMsgType.TEXT:
                break
            frame = json.loads(message.data)
            self.seen.append(frame)
            if frame["type"] == "heartbeat" and self.answers_heartbeats:
                leases = [{"jobId": held["jobId"], "ok": True} for held in frame["payload"]["running"]]
                await self.send("heartbeat", {"serverTime": "2026-01-02T03:04:05Z", "leases": leases})
            self._inbox.put_nowait(frame)
        self._inbox.put_nowait(None)


class StandIn:
    """The gateway. `connections` yields runners that have said hello."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.port = 0
        self.devices: dict[str, bytes] = {}
        self.codes: dict[str, str] = {}
        self.connections: asyncio.Queue[Connection] = asyncio.Queue()
        self.refuses: web.Response | None = None
        self.silent = False
        """It takes connections, and does not even answer the upgrade."""
        self.taken = asyncio.Event()
        """A connection was taken in silence."""
        self.objects: dict[str, bytes] = {}

    async def connected(self) -> Connection:
        async with asyncio.timeout(WAIT_S):
            return await self.connections.get()

    async def pair(self, request: web.Request) -> web.Response:
        told = await request.json()
        org = self.codes.pop(told["code"], None)
        if org is None:
            error = {"code": "unknown_code", "message": "No such code, or it is used or over. Ask for a new one."}
            return web.json_response({"error": error}, status=404)
        device = f"device-{len(self.devices) + 1}"
        self.devices[device] = base64.urlsafe_b64decode(told["publicKey"] + "==")
        return web.json_response({"deviceId": device, "orgId": org}, status=201)

    async def get(self, request: web.Request) -> web.Response:
        found = self.objects.get(request.match_info["key"])
        return web.Response(status=404) if found is None else web.Response(body=found)

    async def put(self, request: web.Request) -> web.Response:
        self.objects[request.match_info["key"]] = await request.read()
        return web.Response()

    async def connect(self, request: web.Request) -> web.StreamResponse:
        if self.silent:
            self.taken.set()
            await asyncio.Event().wait()
        if self.refuses is not None:
            told = {
                name: self.refuses.headers[name] for name in ("Retry-After", "Location") if name in self.refuses.headers
            }
            return web.Response(status=self.refuses.status, headers=told)
        socket = web.WebSocketResponse(protocols=["reelbolt.runner.v1"], max_msg_size=4_259_840, heartbeat=None)
        await socket.prepare(request)
        hello = json.loads((await socket.receive()).data)
        assert hello["type"] == "hello"
        self._check(hello["payload"]["auth"])
        connection = Connection(request, socket, hello)
        self.connections.put_nowait(connection)
        await connection.read()
        return socket

    def _check(self, auth: Payload) -> None:
        if auth["kind"] == "device":
            text = f"reelbolt-runner-hello-v1|{auth['deviceId']}|{auth['ts']}|{auth['nonce']}|{self.host}"
            key = Ed25519PublicKey.from_public_bytes(self.devices[auth["deviceId"]])
            key.verify(base64.urlsafe_b64decode(auth["sig"] + "=="), text.encode())
            assert len(base64.urlsafe_b64decode(auth["nonce"] + "==")) >= 16


@contextlib.asynccontextmanager
async def stand_in(*, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[StandIn]:
    """A gateway on a free port of this machine."""
    gateway = StandIn(host)
    app = web.Application(client_max_size=64 << 20)
    app.add_routes(
        [
            web.post("/v1/pair", gateway.pair), web.get("/v1/connect", gateway.connect),
            web.get("/objects/{key}", gateway.get), web.put("/objects/{key}", gateway.put),
        ]
    )  # fmt: skip
    served = web.AppRunner(app, shutdown_timeout=0.1)
    await served.setup()
    site = web.TCPSite(served, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    gateway.port = served.addresses[0][1]
    try:
        yield gateway
    finally:
        await served.cleanup()
