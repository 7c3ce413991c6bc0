"""The gateway while its database does not answer, and when a replica ends without a word."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rota.errors import DatabaseAway
from rota.runners.io.replica import Replica
from tests.integration.gateways import KEY, TOKEN, Engine, connected, dialled, gateway, pair


class Away:
    """Lets calls of the store fail for as long as the database is away."""

    def __init__(self, replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away = False
        self.refused = asyncio.Event()
        store, devices = replica.exchange.store, replica.exchange.devices
        for thing, names in (
            (store, ("accept", "end", "renew", "claim", "resume")),
            (devices, ("find", "good_credentials")),
        ):
            for name in names:
                monkeypatch.setattr(thing, name, self._perhaps(getattr(thing, name)))

    def _perhaps(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def called(*args: Any, **options: Any) -> Any:
            if self.away:
                self.refused.set()
                raise DatabaseAway("The database does not answer.")
            return await call(*args, **options)

        return called


async def test_what_was_said_while_the_database_was_away_is_written_later(
    migrated_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(migrated_dsn) as replica, Engine(replica) as engine:
        device = await pair(replica, engine)
        database = Away(replica, monkeypatch)
        job = await engine.create()
        async with connected(replica, device.auth()) as runner:
            await runner.say("ready", {"freeSlots": 1})
            assign = await runner.hear("assign")
            database.away = True
            await runner.of_job("accept", assign)
            held = [{"jobId": assign["jobId"], "leaseEpoch": assign["payload"]["leaseEpoch"]}]
            await runner.say("heartbeat", {"freeSlots": 0, "running": held})
            # Nobody knows whether the lease holds, so the runner hears nothing about it.
            assert (await runner.hear("heartbeat"))["payload"]["leases"] == []
            await runner.of_job("complete", assign, outcome="succeeded")
            async with dialled(replica) as late:
                await late.hello(device.auth())
                code, _ = await late.closed()
                assert code == 1001
                assert late.seen[0]["payload"]["retryAfterSec"] > 0
            await asyncio.wait_for(database.refused.wait(), 30)
            database.away = False
            assert (await engine.job(job, wait="60s"))["state"] == "Succeeded"


async def test_the_runner_of_a_replica_that_was_killed_keeps_its_job_at_another(
    migrated_dsn: str, tmp_path: Path
) -> None:
    where = tmp_path / "address"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    doomed = subprocess.Popen(
        [sys.executable, "-m", "rota.cli.main", "gateway", "--port", "0", "--address-file", str(where)],
        env={**kept, "ROTA_DSN": migrated_dsn, "ROTA_GATEWAY_KEY": KEY, "ROTA_GATEWAY_TOKEN": TOKEN},
    )
    try:
        async with gateway(migrated_dsn) as replica, Engine(replica) as engine:
            device = await pair(replica, engine)
            give_up_at = time.monotonic() + 60
            while not where.exists() or not where.read_text().endswith("\n"):
                assert doomed.poll() is None and time.monotonic() < give_up_at
                await asyncio.sleep(0.05)
            port = int(where.read_text().strip().rpartition(":")[2])
            job = await engine.create()
            async with dialled(replica, port=port) as runner:
                await runner.hello(device.auth())
                await runner.hear("welcome")
                assign = await runner.take()
                session = (await engine.until(job, "Running"))["sessionId"]
                # Asked here, the op goes to the process that holds the socket.
                asked = asyncio.create_task(engine.op(session, "stat", {"path": "a"}))
                await runner.answer(assign, {"exists": False, "bytes": 0})
                assert (await asked)[0] == 200
                doomed.send_signal(signal.SIGKILL)
            held = [{"jobId": assign["jobId"], "leaseEpoch": assign["payload"]["leaseEpoch"]}]
            async with connected(replica, device.auth(), running=held) as back:
                assert back.seen[0]["payload"]["resumed"] == held
                asked = asyncio.create_task(engine.op(session, "stat", {"path": "b"}))
                await back.answer(assign, {"exists": True, "bytes": 1})
                assert (await asked)[0] == 200
                await back.of_job("complete", assign, outcome="succeeded")
                done = await engine.job(job, wait="60s")
                assert (done["state"], done["attempt"]) == ("Succeeded", 1)
    finally:
        doomed.kill()
        doomed.wait()
