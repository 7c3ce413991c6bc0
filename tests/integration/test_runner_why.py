"""`rota jobs why` and `rota doctor` about runner jobs, beside a gateway that is asked who is connected."""

import asyncio
import json
import os
from typing import Any

from typer.testing import CliRunner

from rota.cli.main import app
from rota.runners.io.replica import Replica
from tests.integration.gateways import ACME, TOKEN, WAIT_S, Engine, connected, gateway, pair


async def told(dsn: str, *words: str, token: str | None = TOKEN) -> Any:
    """What a command says, in a thread of its own: the gateway that it asks is in this loop."""
    kept = {name: None for name in os.environ if name.startswith("ROTA_")}
    env = kept | {"ROTA_DSN": dsn, "ROTA_GATEWAY_TOKEN": token, "ROTA_GATEWAY_ORG_SLOTS": "1"}
    ran = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--json"], env=env)
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran
    return json.loads(ran.stdout)


async def gates(dsn: str, job: dict[str, Any], **options: Any) -> list[str]:
    return [gate["code"] for gate in (await told(dsn, "jobs", "why", job["jobId"], **options))["gates"]]


async def come_to(dsn: str, job: dict[str, Any], *codes: str) -> None:
    """Waits for these gates: while a gateway claims for a runner, its slots do not count as free."""
    async with asyncio.timeout(WAIT_S):
        while (found := await gates(dsn, job)) != list(codes):
            assert set(found) <= {*codes, "slots_full"}


async def seen(replica: Replica) -> None:
    await replica.exchange.store.see_gateway(replica._rules.instance, replica._address)


async def checks(dsn: str, about: str, **options: Any) -> list[tuple[str, str]]:
    found = (await told(dsn, "doctor", **options))["checks"]
    return [(one["level"], one["words"]) for one in found if one["about"] == about]


async def test_why_and_doctor_know_runners(migrated_dsn: str) -> None:
    assert await checks(migrated_dsn, "gateways") == []
    async with gateway(migrated_dsn, gateway_org_slots=1) as replica, Engine(replica) as engine:
        await seen(replica)
        device = await pair(replica, engine)
        job = await engine.create()
        assert await gates(migrated_dsn, job) == ["no_runner"]
        assert await gates(migrated_dsn, job, token=None) == ["unknown", "not_asked"]
        assert await gates(migrated_dsn, job, token="another") == ["unknown", "gateway_silent"]
        ((level, words),) = [one for one in await checks(migrated_dsn, "runners") if one[0] != "ok"]
        assert level == "warning" and "1 video.compile jobs wait for devices of acme" in words
        async with connected(replica, device.auth()) as runner:
            await runner.say("heartbeat", {"freeSlots": 0, "running": []})
            await runner.hear("heartbeat")
            assert await gates(migrated_dsn, job) == ["slots_full"]
            await runner.take()
            await engine.until(job, "Running")
            running = await told(migrated_dsn, "jobs", "why", job["jobId"])
            assert running["gates"][0]["code"] == "running" and device.device_id in running["gates"][0]["words"]
            credential = await replica.exchange.devices.new_credential()
            auth = {"kind": "pool", "credential": credential, "workerName": "vm-1"}
            async with connected(replica, auth) as pooled:
                first, second = await engine.create(target="CloudPool"), await engine.create(target="CloudPool")
                await pooled.take(free=2)
                await engine.until(first, "Running")
                await come_to(migrated_dsn, second, "org_cap")
                assert [words for _, words in await checks(migrated_dsn, "organisations")] == [
                    "acme uses all its 1 slots of the pool, and more waits"
                ]
                await replica.exchange.devices.disable_org(ACME, reason="unpaid")
                await come_to(migrated_dsn, second, "organisation_disabled", "org_cap")
                assert any("acme is disabled" in words for _, words in await checks(migrated_dsn, "organisations"))
    await engine_is_gone(migrated_dsn, second)


async def engine_is_gone(dsn: str, job: dict[str, Any]) -> None:
    """A gateway that has ended is asked in vain for a minute, and then it is known to be gone."""
    assert "gateway_silent" in await gates(dsn, job)
