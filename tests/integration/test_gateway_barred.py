"""Who may not be connected any more is cut off at once by event, and by the look of the clock where one is lost."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from rota.io.postgres import Database, Target
from rota.runners.io.replica import BARRED_S, Replica
from tests.integration.gateways import ACME, STILL, Device, Engine, Runner, connected, dialled, gateway, pair

WAIT_S = 60.0


@pytest.fixture
async def replica(migrated_dsn: str) -> AsyncIterator[Replica]:
    async with gateway(migrated_dsn, pace=STILL) as one:
        yield one


@pytest.fixture
async def engine(replica: Replica) -> AsyncIterator[Engine]:
    async with Engine(replica) as one:
        yield one


async def refused(replica: Replica, device: Device) -> int:
    async with dialled(replica) as runner:
        await runner.hello(device.auth())
        return (await runner.closed())[0]


async def taken(engine: Engine, runner: Runner, **job: object) -> dict[str, object]:
    """A job that this runner has accepted."""
    made = await engine.create(**job)
    await runner.take()
    return await engine.until(made, "Running")


async def test_a_disabled_organisation_is_cut_off_at_once_and_comes_back(replica: Replica, engine: Engine) -> None:
    ours, other = await pair(replica, engine), await pair(replica, engine, org="other")
    async with connected(replica, ours.auth()) as runner, connected(replica, other.auth()) as stranger:
        job = await taken(engine, runner)
        queued = await engine.create()
        op = asyncio.create_task(engine.op(str(job["sessionId"]), "stat", {"path": "a"}))
        await runner.hear("op.request")
        status, told = await engine.ask(
            "PUT", f"/internal/v1/organisations/{ACME}", json={"disabled": True, "reason": "unpaid"}
        )
        assert (status, told["disabled"], told["reason"]) == (200, True, "unpaid")
        assert await runner.closed() == (4403, "this organisation may not use runners now")
        assert [(one["type"], one["payload"]["reason"]) for one in runner.seen[-2:]] == [
            ("cancel", "revoked"), ("bye", "this organisation may not use runners now"),
        ]  # fmt: skip
        status, problem = await asyncio.wait_for(op, WAIT_S)
        assert (status, problem["code"]) == (410, "session_lost")
        assert (await engine.until(job, "Expired"))["error"]["class"] == "platform"
        # What waits, waits; nothing new is taken; what is there already is still answered.
        assert (await engine.job(queued))["state"] == "Queued"
        body = {"target": "OrgRunner", "orgId": ACME, "jobType": "video.compile", "executionId": "new"}
        status, problem = await engine.ask("POST", "/internal/v1/jobs", json=body)
        assert (status, problem["code"]) == (403, "organisation_disabled")
        again = {"idempotencyKey": queued["idempotencyKey"]} | body
        assert (await engine.ask("POST", "/internal/v1/jobs", json=again))[0] == 200
        assert await refused(replica, ours) == 4403
        await stranger.say("heartbeat", {"freeSlots": 0, "running": []})
        await stranger.hear("heartbeat")
    status, told = await engine.ask("PUT", f"/internal/v1/organisations/{ACME}", json={"disabled": False})
    assert (status, told) == (200, {"orgId": ACME, "disabled": False})
    async with connected(replica, ours.auth()) as runner:
        assign = await runner.take()
        assert assign["jobId"] == queued["jobId"]
    events = [row.event for row in await replica.exchange.devices.audit(ACME)]
    assert events.count("organisation disabled") == events.count("organisation enabled") == 1


async def test_the_pool_does_nothing_new_for_a_disabled_organisation(replica: Replica, engine: Engine) -> None:
    credential = await replica.exchange.devices.new_credential()
    auth = {"kind": "pool", "credential": credential, "workerName": "vm-1"}
    waits = await engine.create(target="CloudPool")
    await replica.exchange.devices.disable_org(ACME)
    theirs = await engine.create(target="CloudPool", orgId="other")
    async with connected(replica, auth) as runner:
        assert (await runner.take(free=2))["jobId"] == theirs["jobId"]
        assert (await engine.job(waits))["state"] == "Queued"
        await replica.exchange.devices.enable_org(ACME)
        assert (await runner.accept())["jobId"] == waits["jobId"]


async def test_the_look_of_the_clock_finds_what_no_event_told(replica: Replica, engine: Engine) -> None:
    assert BARRED_S <= 60
    device, other = await pair(replica, engine), await pair(replica, engine, org="other")
    credential = await replica.exchange.devices.new_credential()
    auth = {"kind": "pool", "credential": credential, "workerName": "vm-1"}
    async with (
        connected(replica, device.auth()) as disabled,
        connected(replica, other.auth()) as revoked,
        connected(replica, auth) as pooled,
    ):
        await replica.exchange.look_for_barred()
        fetch = replica.exchange.devices.database.fetch
        await fetch("INSERT INTO rota.disabled_organisations VALUES ($1, now(), NULL)", ACME)
        await fetch("UPDATE rota.runner_devices SET revoked_at = now() WHERE device_id = $1", other.device_id)
        await fetch("UPDATE rota.pool_credentials SET expires_at = now()")
        await replica.exchange.look_for_barred()
        assert (await disabled.closed())[0] == 4403
        assert (await revoked.closed())[0] == 4401
        assert await pooled.closed() == (4401, "the pool's secret was replaced")


async def test_a_gateway_that_listens_again_looks_at_once(replica: Replica, engine: Engine) -> None:
    device = await pair(replica, engine)
    async with connected(replica, device.auth()) as runner:
        fetch = replica.exchange.devices.database.fetch
        await fetch("UPDATE rota.runner_devices SET revoked_at = now() WHERE device_id = $1", device.device_id)
        async with asyncio.timeout(WAIT_S):
            while not await fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'rota wake-up' AND datname = current_database() AND query ILIKE 'LISTEN%'"
            ):
                await asyncio.sleep(0.05)
        assert (await runner.closed())[0] == 4401


async def test_a_replaced_secret_cuts_off_who_came_with_it_at_once(replica: Replica) -> None:
    devices = replica.exchange.devices
    old, new = await devices.new_credential(), await devices.new_credential()
    auths = [
        {"kind": "pool", "credential": one, "workerName": name} for one, name in ((old, "vm-1"), (new, "vm-2"))
    ]  # fmt: skip
    async with connected(replica, auths[0]) as first, connected(replica, auths[1]) as second:
        await devices.new_credential(overlap_s=3600)  # both are good for another hour
        newest = await devices.new_credential(overlap_s=0)
        assert (await first.closed())[0] == (await second.closed())[0] == 4401
    async with connected(replica, {"kind": "pool", "credential": newest, "workerName": "vm-1"}):
        assert [row.event for row in await devices.audit(None)].count("pool credential made") == 4


async def test_a_revoked_device_is_cut_off_on_the_replica_that_has_it(migrated_dsn: str) -> None:
    async with gateway(migrated_dsn, pace=STILL) as one, Engine(one) as engine:
        device = await pair(one, engine)
        async with connected(one, device.auth()) as runner:
            job = await taken(engine, runner)
            database = Database(Target(migrated_dsn))  # as rota runner revoke does, in a process of its own
            try:
                await type(one.exchange.devices)(database).revoke(device.device_id)
            finally:
                await database.stop()
            assert (await runner.closed())[0] == 4401
            assert (await engine.until(job, "Expired"))["error"]["code"] == "session_lost"
