"""A small gateway for tests of the engine: it serves the internal API as the protocol's page has it, has a runner that
does ops with functions, and can be made to behave badly."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

from aiohttp import web

Answer = dict[str, Any]
Do = Callable[[dict[str, Any]], Awaitable[Answer] | Answer]
TOKEN = "engine-token"


def ok(**result: Any) -> Answer:
    return {"ok": True, "result": result}


def no(code: str, *, retryable: bool = False) -> Answer:
    return {"ok": False, "error": {"code": code, "message": f"it is {code}", "retryable": retryable}}


class GatewayStandIn:
    """Jobs, one runner that takes each of them at once, and its ops."""

    def __init__(self, **ops: Do) -> None:
        self.ops: dict[str, Do] = {"close": lambda _args: ok(), **ops}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, str] = {}
        self.bodies: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[str, Answer] = {}
        self.runner = True
        self.token: str | None = TOKEN
        self.lose = 0
        """So many answers get lost, after what was asked was done."""
        self.refuse: list[tuple[int, dict[str, Any]]] = []
        """What the next ops are answered with, in place of being run."""
        self.refuses_after_s = 0.0
        self.changed = asyncio.Condition()
        self.verdicts: list[str] = []
        self.url = ""
        self.numbers = -1

    def states(self) -> list[str]:
        return [job["state"] for job in self.jobs.values()]

    async def set(self, job_id: str, **values: Any) -> None:
        async with self.changed:
            self.jobs[job_id].update(values)
            self.changed.notify_all()

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(30), self.changed:
            await self.changed.wait_for(condition)

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._around])
        app.add_routes(
            [
                web.post("/internal/v1/jobs", self._create),
                web.get("/internal/v1/jobs/{id}", self._read),
                web.post("/internal/v1/jobs/{id}/staging", self._staging),
                web.post("/internal/v1/jobs/{id}/verdict", self._verdict),
                web.delete("/internal/v1/jobs/{id}", self._cancel),
                web.post("/internal/v1/sessions/{id}/ops", self._op),
            ]
        )
        return app

    @web.middleware
    async def _around(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        if self.token is None:
            return _answer(503, code="internal_api_disabled", message="no token is set")
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return _answer(401, code="unauthorized", message="the token is not the one")
        response: web.StreamResponse = await handler(request)
        if self.lose > 0:
            self.lose -= 1
            assert request.transport is not None
            request.transport.abort()
        return response

    async def _create(self, request: web.Request) -> web.Response:
        body = json.loads(await request.text())
        self.bodies.append(body)
        key = body["idempotencyKey"]
        if key in self.keys:
            return web.json_response(self._shown(self.keys[key]), status=200)
        job_id = self.keys[key] = str(uuid4())
        taken = {"state": "Running", "sessionId": str(uuid4())} if self.runner else {"state": "Queued"}
        async with self.changed:
            self.jobs[job_id] = {**taken, "body": body}
            self.changed.notify_all()
        return web.json_response(self._shown(job_id), status=201)

    async def _read(self, request: web.Request) -> web.Response:
        job_id = request.match_info["id"]
        if job_id not in self.jobs:
            return _answer(404, code="job_not_found", message="there is none")
        wait_s = float(request.query.get("wait", "0s").removesuffix("s"))
        async with self.changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait_for(lambda: self._over(job_id, request)), wait_s)
        return web.json_response(self._shown(job_id))

    async def _verdict(self, request: web.Request) -> web.Response:
        job_id = request.match_info["id"]
        self.verdicts.append(json.loads(await request.text())["message"])
        await self.set(job_id, state="Failed")
        return web.json_response(self._shown(job_id))

    def _over(self, job_id: str, request: web.Request) -> bool:
        accepted = request.query.get("until") == "running" and self.jobs[job_id]["state"] == "Running"
        return accepted or self._ended(job_id)

    def _ended(self, job_id: str) -> bool:
        return self.jobs[job_id]["state"] in ("Succeeded", "Failed", "Cancelled", "Expired")

    async def _staging(self, _request: web.Request) -> web.Response:
        self.numbers += 1
        return web.json_response({"n": self.numbers})

    async def _cancel(self, request: web.Request) -> web.Response:
        job_id = request.match_info["id"]
        if not self._ended(job_id):
            await self.set(job_id, state="Cancelled")
        return web.json_response(self._shown(job_id))

    async def _op(self, request: web.Request) -> web.Response:
        body = json.loads(await request.text())
        self.asked.append(body)
        if self.refuse:
            status, answer = self.refuse.pop(0)
            await asyncio.sleep(self.refuses_after_s)
            return web.json_response(answer, status=status)
        session_id = request.match_info["id"]
        job_id = next((key for key, job in self.jobs.items() if job.get("sessionId") == session_id), None)
        if job_id is None:
            return _answer(404, code="session_not_found", message="never opened")
        if self._ended(job_id):
            return _answer(410, code="session_lost", message="it is closed", reason=self.jobs[job_id]["state"])
        if body["opId"] not in self.answers:
            done = self.ops[body["op"]](body["args"])
            doing = asyncio.ensure_future(done) if not isinstance(done, dict) else None
            if doing is not None:
                ending = asyncio.ensure_future(self.until(lambda: self._ended(job_id)))
                await asyncio.wait({doing, ending}, return_when=asyncio.FIRST_COMPLETED)
                ending.cancel()
                if not doing.done():
                    doing.cancel()
                    return _answer(409, code="op_cancelled", message="the job was cancelled")
                done = doing.result()
            self.answers[body["opId"]] = done  # type: ignore[assignment]
            if body["op"] == "close":
                await self.set(job_id, state="Succeeded")
        return web.json_response(self.answers[body["opId"]])

    def _shown(self, job_id: str) -> dict[str, Any]:
        job = self.jobs[job_id]
        return {
            "jobId": job_id, "state": job["state"], "sessionId": job.get("sessionId"), "progress": job.get("progress"),
            "somethingNew": 1,
        }  # fmt: skip


def _answer(status: int, **body: Any) -> web.Response:
    return web.json_response(body, status=status)


@asynccontextmanager
async def serving(gateway: GatewayStandIn) -> AsyncIterator[GatewayStandIn]:
    """Serves it on a free port."""
    runner = web.AppRunner(gateway.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    gateway.url = f"http://{host}:{port}"
    try:
        yield gateway
    finally:
        await runner.cleanup()
