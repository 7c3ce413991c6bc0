"""Gateway, engine and runners as they meet: our runner and one in another language, against a real gateway."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from rota.io.clock import lease_clock
from rota.io.scratch import Scratch
from rota.runners.agent import Agent
from rota.runners.dial import Gateway, parse_gateway
from rota.runners.io import proof
from rota.runners.io.agent_client import Runner
from rota.runners.io.disk import Room
from rota.runners.io.pairing import pair
from rota.runners.io.replica import Replica
from rota.runners.io.ringlog import RingLog
from rota.runners.io.trust import trusted
from rota.runners.messages import Capabilities
from tests.integration.gateways import ACME, Engine, gateway
from tests.integration.minimal_runner import minimal_runner
from tests.integration.stand_in_gateway import WAIT_S, stand_in
from tests.runner_media import Made

CAPABILITIES = Capabilities(
    protocol_version="1.0", agent_version="1.0", os="linux", arch="amd64", slots=1, container="none",
    runtime_image_digest=None, ffmpeg_version="8.0", fontset_version="1", job_types=("video.compile",),
    max_output_bytes=1 << 40,
)  # fmt: skip


def at(replica: Replica) -> Gateway:
    return parse_gateway(replica.server.serving.address)


class Silent:
    def saw(self, what: object) -> None:
        pass


@asynccontextmanager
async def our_runner(
    replica: Replica, folder: Path, *, port: int | None = None, clock: Callable[[], float] = lease_clock
) -> AsyncIterator[tuple[Runner, Made, "asyncio.Task[int]"]]:
    """Pairs with a code, and runs; `port`: of what stands in between."""
    there = at(replica) if port is None else parse_gateway(f"ws://127.0.0.1:{port}")
    code = await replica.exchange.devices.new_code(ACME, "a desktop")
    kept = folder.with_name(f"{folder.name}-state")
    identity = await pair(at(replica), str(code).lower(), kept, name="n", os="linux", arch="amd64", tls=trusted(None))
    scratch, made = Scratch(folder, prefix="runner-"), Made()
    runner = Runner(
        agent=Agent(CAPABILITIES, Random(1)), gateway=there, tls=trusted(None),
        prove=proof.of_device(lambda: identity, there), capabilities=CAPABILITIES, scratch=scratch, make_media=made,
        room=Room(0, 1 << 40), ring=RingLog(None), shown=Silent(), clock=clock,
    )  # fmt: skip
    task = asyncio.create_task(runner.run())
    try:
        yield runner, made, task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def session_of(engine: Engine, job: dict[str, object]) -> str:
    return str((await engine.until(job, "Running"))["sessionId"])


async def test_our_runner_carries_a_session_and_drains(migrated_dsn: str, tmp_path: Path) -> None:
    async with (
        gateway(migrated_dsn) as replica,
        Engine(replica) as engine,
        our_runner(replica, tmp_path) as (runner, made, task),
    ):
        job = await engine.create()
        session = await session_of(engine, job)
        status, staged = await engine.op(session, "stage", {"url": "https://s.invalid/a", "path": "a", "maxBytes": 99})
        assert (status, staged["ok"]) == (200, True), staged
        status, stat = await engine.op(session, "stat", {"path": "a"}, opId="op-1")
        assert stat["result"] == {"exists": True, "bytes": 19}
        assert (await engine.op(session, "stat", {"path": "a"}, opId="op-1"))[1]["result"] == stat["result"]
        assert made.sessions[0].ran == ["stage", "stat"]
        assert (await engine.op(session, "close"))[0] == 200
        await engine.until(job, "Succeeded")
        runner.drain("the test is over", deadline_s=0.0)
        async with asyncio.timeout(WAIT_S):
            assert await task == 0
        assert not list(tmp_path.iterdir())


async def test_cancel_reaches_the_op_that_runs(migrated_dsn: str, tmp_path: Path) -> None:
    async with (
        gateway(migrated_dsn) as replica,
        Engine(replica) as engine,
        our_runner(replica, tmp_path) as (_, made, _task),
    ):
        job = await engine.create()
        session = await session_of(engine, job)
        waiting = asyncio.create_task(engine.op(session, "ffmpeg", {"argv": ["wait"], "timeoutSec": 60}))
        while not made.sessions:
            await asyncio.sleep(0.01)
        await made.sessions[0].began.wait()
        await engine.ask("DELETE", f"/internal/v1/jobs/{job['jobId']}")
        status, answer = await waiting
        assert status == 409, answer
        await engine.until(job, "Cancelled")
        assert made.sessions[0].closed


async def test_a_runner_written_from_the_page_alone_works_with_our_gateway(migrated_dsn: str) -> None:
    async with stand_in() as store, gateway(migrated_dsn) as replica, Engine(replica) as engine:
        store.objects["a.mp4"] = b"not really a film"
        code = await replica.exchange.devices.new_code(ACME, "a desktop")
        async with minimal_runner(replica.server.serving.address, str(code)) as process:
            job = await engine.create()
            session = await session_of(engine, job)
            args = {"url": f"http://127.0.0.1:{store.port}/objects/a.mp4", "path": "in/a.mp4", "maxBytes": 100}
            status, staged = await engine.op(session, "stage", args)
            digest = hashlib.sha256(b"not really a film").hexdigest()
            assert (status, staged["result"]) == (200, {"bytes": 17, "sha256": digest})
            status, unknown = await engine.op(session, "invented")
            assert unknown["error"]["code"] == "unsupported_op"
            assert (await engine.op(session, "close"))[1]["ok"]
            await engine.until(job, "Succeeded")
            async with asyncio.timeout(WAIT_S):
                said, _ = await process.communicate()
            # The gateway answers a bye with a close of its own; which of the two closes is first is open.
            assert (process.returncode, said.decode().split()[:2]) == (0, ["closed", "1000"])
