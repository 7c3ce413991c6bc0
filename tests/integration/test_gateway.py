"""The gateway over real sockets and a real database: a runner and an engine, each written from the protocol alone."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from rota.errors import SettingsError
from rota.runners import gateway_ops
from rota.runners.io import internal_api
from rota.runners.io.replica import Pace, Replica
from tests.integration.gateways import TOKEN, WAIT_S, Device, Engine, LateReplica, connected, dialled, gateway, pair


@pytest.fixture
async def replica(migrated_dsn: str) -> AsyncIterator[Replica]:
    async with gateway(migrated_dsn) as started:
        yield started


@pytest.fixture
async def engine(replica: Replica) -> AsyncIterator[Engine]:
    async with Engine(replica) as made:
        yield made


@pytest.fixture
async def device(replica: Replica, engine: Engine) -> Device:
    return await pair(replica, engine)


async def test_a_job_from_its_creation_to_its_end(replica: Replica, engine: Engine, device: Device) -> None:
    async with connected(replica, device.auth()) as runner:
        welcome = runner.seen[0]["payload"]
        assert (welcome["kind"], welcome["orgId"], welcome["resumed"]) == ("Desktop", "acme", [])
        await runner.say("ready", {"freeSlots": 1})
        job = await engine.create()
        assert job["state"] in ("Queued", "Assigned")  # a runner waits for it
        assign = await runner.accept()
        assert assign["jobId"] == job["jobId"] and assign["payload"]["spec"] == {"mode": "Reencode"}
        running = await engine.until(job, "Running")
        asked = asyncio.create_task(engine.op(running["sessionId"], "stat", {"path": "a"}))
        request = await runner.answer(assign, {"exists": True, "bytes": 3})
        assert request["payload"]["args"] == {"path": "a"}
        status, answer = await asked
        assert (status, answer["ok"], answer["result"]) == (200, True, {"exists": True, "bytes": 3})
        await runner.of_job("progress", assign, stage="encode", percent=40)
        await runner.of_job("complete", assign, outcome="succeeded", result={"claims": 1})
        done = await engine.job(job, wait="30s")
        assert (done["state"], done["result"], done["fromRunner"]) == ("Succeeded", {"claims": 1}, True)
        status, lost = await engine.op(running["sessionId"], "stat", {"path": "a"})
        assert (status, lost["code"]) == (410, "session_lost") and lost["reason"]


async def test_an_op_that_fails_is_a_round_trip_that_went_well(
    replica: Replica, engine: Engine, device: Device
) -> None:
    job = await engine.create()
    async with connected(replica, device.auth()) as runner:
        assign = await runner.take()
        session = (await engine.until(job, "Running"))["sessionId"]
        asked = asyncio.create_task(engine.op(session, "ffmpeg", {"argv": ["-i", "http://x"]}, opId="op-1"))
        request = await runner.hear("op.request")
        status, busy = await engine.op(session, "stat", {"path": "a"})
        assert (status, busy["code"]) == (409, "op_in_flight")
        error = {"code": "argv_not_allowed", "message": "a URL", "retryable": False}
        await runner.of_job("op.response", assign, request["sessionId"], opId="op-1", ok=False, error=error)
        assert await asked == (200, {"opId": "op-1", "ok": False, "error": error})
        closing = asyncio.create_task(engine.op(session, "close"))
        await runner.answer(assign, {})
        assert (await closing)[0] == 200
        assert (await engine.job(job, wait="30"))["state"] == "Succeeded"


async def test_a_reject_costs_no_try_and_the_job_goes_elsewhere(
    replica: Replica, engine: Engine, device: Device
) -> None:
    other = await pair(replica, engine)
    job = await engine.create()
    async with connected(replica, device.auth()) as first:
        await first.say("ready", {"freeSlots": 1})
        assign = await first.hear("assign")
        await first.of_job("reject", assign, reason="busy")
        async with connected(replica, other.auth()) as second:
            again = await second.take()
            assert (again["jobId"], again["payload"]["attempt"]) == (job["jobId"], 1)
            assert again["payload"]["leaseEpoch"] == 2
            # What the first one says late changes nothing, and it is told to stop (S54).
            await first.of_job("complete", assign, outcome="succeeded")
            # S54: nor does the second one's token, shown on another connection.
            await first.of_job("complete", again, outcome="succeeded")
            assert (await first.hear("cancel"))["payload"]["reason"] == "lease_lost"
            assert (await engine.until(job, "Running"))["attempt"] == 1


async def test_cancelling_releases_the_op_at_once_and_waits_for_the_runner(
    replica: Replica, engine: Engine, device: Device
) -> None:
    job = await engine.create()
    async with connected(replica, device.auth()) as runner:
        assign = await runner.take()
        session = (await engine.until(job, "Running"))["sessionId"]
        asked = asyncio.create_task(engine.op(session, "ffmpeg", {"argv": []}))
        await runner.hear("op.request")
        status, _ = await engine.ask("DELETE", f"/internal/v1/jobs/{job['jobId']}")
        assert status == 202
        status, answer = await asked
        assert (status, answer["code"]) == (409, "op_cancelled")
        cancel = await runner.hear("cancel")
        assert cancel["payload"] == {"reason": "user", "graceSec": 10}
        await runner.of_job("complete", assign, outcome="cancelled")
        assert (await engine.job(job, wait="30s"))["state"] == "Cancelled"
    status, again = await engine.ask("DELETE", f"/internal/v1/jobs/{job['jobId']}")
    assert (status, again["state"]) == (200, "Cancelled")


@pytest.mark.parametrize("moment", ["claim", "resume"])
async def test_a_cancel_that_is_seen_before_its_job_is_here_is_not_forgotten(
    migrated_dsn: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    # Only the look tells of a cancel here: the reaper does not come to end the job.
    pace = Pace(look_s=0.1, reap_s=3600, tidy_s=3600, barred_s=3600)
    async with AsyncExitStack() as stack:
        replica = await stack.enter_async_context(gateway(migrated_dsn, pace=pace))
        engine = await stack.enter_async_context(Engine(replica))
        device, store = await pair(replica, engine), replica.exchange.store
        busy = await stack.enter_async_context(connected(replica, (await pair(replica, engine)).auth()))
        await engine.create()
        await busy.take()  # a replica without jobs does not look for cancels
        job = await engine.create()
        original = getattr(store, moment)

        async def cancelled_meanwhile(*args: Any, **options: Any) -> Any:
            found = await original(*args, **options)
            await store.cancel([UUID(job["jobId"])])
            await replica._look()
            return found

        if moment == "claim":
            monkeypatch.setattr(store, moment, cancelled_meanwhile)
            runner = await stack.enter_async_context(connected(replica, device.auth()))
            await runner.take()
        else:
            first = await stack.enter_async_context(gateway(migrated_dsn, pace=pace))
            left = await stack.enter_async_context(connected(first, device.auth()))
            assign = await left.take()
            await engine.until(job, "Running")
            monkeypatch.setattr(store, moment, cancelled_meanwhile)
            held = [{"jobId": assign["jobId"], "leaseEpoch": assign["payload"]["leaseEpoch"]}]
            runner = await stack.enter_async_context(connected(replica, device.auth(), running=held))
        assert (await runner.hear("cancel"))["payload"]["reason"] == "user"


async def test_a_failure_has_the_platforms_class(replica: Replica, engine: Engine, device: Device) -> None:
    job = await engine.create()
    async with connected(replica, device.auth()) as runner:
        assign = await runner.take()
        failure = {"class": "platform", "code": "disk_full", "message": "full", "retryable": True}
        await runner.of_job("fail", assign, **failure)
        failed = await engine.job(job, wait="30s")
    assert failed["state"] == "Failed"
    assert (failed["error"]["class"], failed["error"]["claimedClass"]) == ("runner", "platform")


async def test_heartbeats_renew_and_say_what_is_lost(replica: Replica, engine: Engine, device: Device) -> None:
    await engine.create()
    async with connected(replica, device.auth()) as runner:
        assign = await runner.take()
        held = {"jobId": assign["jobId"], "leaseEpoch": assign["payload"]["leaseEpoch"]}
        foreign = {"jobId": "00000000-0000-7000-8000-000000000001", "leaseEpoch": 1}
        await runner.say("heartbeat", {"freeSlots": 0, "running": [held, foreign]})
        leases = (await runner.hear("heartbeat"))["payload"]["leases"]
        assert {one["jobId"]: one["ok"] for one in leases} == {held["jobId"]: True, foreign["jobId"]: False}


async def test_s57_a_runner_that_comes_back_at_another_replica_is_served_there(
    migrated_dsn: str, replica: Replica, engine: Engine, device: Device
) -> None:
    job = await engine.create()
    async with (
        gateway(migrated_dsn) as other,
        Engine(other) as their_engine,
        connected(replica, device.auth()) as runner,
    ):
        assign = await runner.take()
        session = (await engine.until(job, "Running"))["sessionId"]
        # Asked at the other replica, the op is forwarded once to the one that holds the socket.
        asked = asyncio.create_task(their_engine.op(session, "stat", {"path": "a"}))
        await runner.answer(assign, {"exists": False, "bytes": 0})
        assert (await asked)[0] == 200
        pending = asyncio.create_task(engine.op(session, "stat", {"path": "b"}, opId="op-b"))
        await runner.hear("op.request")
        held = [{"jobId": assign["jobId"], "leaseEpoch": assign["payload"]["leaseEpoch"]}]
        async with connected(other, device.auth(), running=held) as back:
            assert back.seen[0]["payload"]["resumed"] == held
            assert (await runner.closed())[0] == 4409  # the newest connection wins, on all replicas
            request = await back.answer(assign, {"exists": True, "bytes": 1})
            assert request["payload"]["opId"] == "op-b"
            assert (await pending)[0] == 200
            here = asyncio.create_task(their_engine.op(session, "stat", {"path": "c"}))
            await back.answer(assign, {"exists": True, "bytes": 2})
            assert (await here)[0] == 200


@pytest.mark.parametrize(("address", "count"), [(None, 1), ("http://10.0.0.5:8760", 0)])
async def test_a_gateway_that_others_cannot_reach_says_so(
    migrated_dsn: str, address: str | None, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever passes an op on to `http://0.0.0.0` asks itself."""
    told = {"gateway_host": "0.0.0.0", "gateway_names": "localhost", "gateway_address": address}
    async with gateway(migrated_dsn, **told):
        assert caplog.text.count("other gateways cannot reach this one: set gateway_address") == count


@pytest.mark.parametrize("moment", ["claim", "resume"])
async def test_an_op_that_is_faster_than_its_session_waits_for_it(
    migrated_dsn: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Who reads in the database where a session is may be there before the answer of the statement that says so."""
    async with AsyncExitStack() as stack:
        replica = await stack.enter_async_context(gateway(migrated_dsn))
        there = await stack.enter_async_context(gateway(migrated_dsn))
        engine = await stack.enter_async_context(Engine(replica))
        device, job = await pair(replica, engine), await engine.create()
        store, exchange, asked = there.exchange.store, there.exchange, asyncio.Event()
        original, run_op, held = getattr(store, moment), exchange.op, list[dict[str, Any]]()

        async def slow(*args: Any, **options: Any) -> Any:
            found = await original(*args, **options)
            await asked.wait()
            return found

        async def op(*args: Any, **options: Any) -> Any:
            asking = asyncio.ensure_future(run_op(*args, **options))
            await asyncio.wait({asking}, timeout=0)
            asked.set()
            return await asking

        if moment == "resume":
            assign = await (await stack.enter_async_context(connected(replica, device.auth()))).take()
            await engine.until(job, "Running")
            held = [{"jobId": assign["jobId"], "leaseEpoch": assign["payload"]["leaseEpoch"]}]
        monkeypatch.setattr(store, moment, slow)
        monkeypatch.setattr(exchange, "op", op)
        runner = await stack.enter_async_context(dialled(there))
        await runner.hello(device.auth(), running=held)
        if moment == "claim":
            await runner.hear("welcome")
            await runner.say("ready", {"freeSlots": 1})
        name = exchange.gateway.rules.instance
        async with asyncio.timeout(WAIT_S):
            while (found := await engine.job(job)).get("gatewayInstance") != name:
                await asyncio.sleep(0.01)
        asking = asyncio.create_task(engine.op(found["sessionId"], "stat", {"path": "a"}))
        if moment == "claim":
            assign = await runner.accept()
        await runner.answer(assign, {"exists": False, "bytes": 0})
        assert (await asking)[0] == 200


async def test_the_newest_connection_wins_also_where_the_word_of_an_older_one_is_late(
    migrated_dsn: str, replica: Replica, device: Device
) -> None:
    async with gateway(migrated_dsn, of=LateReplica) as late, connected(replica, device.auth()) as first:
        assert isinstance(late, LateReplica)
        async with connected(late, device.auth()) as second:
            assert (await first.closed())[0] == 4409
            await late.told_by(replica)
            late.hear()
            await second.say("heartbeat", {"freeSlots": 0, "running": []})
            await second.hear("heartbeat")


async def test_a_hello_whose_sender_has_gone_replaces_no_connection_elsewhere(
    migrated_dsn: str, replica: Replica, engine: Engine, device: Device
) -> None:
    """As of a replica that stood still while a runner lost patience with it, and reads its hello afterwards."""
    async with gateway(migrated_dsn, of=LateReplica) as there, connected(there, device.auth()) as runner:
        assert isinstance(there, LateReplica)
        there.unheard.clear()
        async with dialled(replica) as impatient:
            await impatient.hello(device.auth())
            impatient.socket.transport.abort()
        # Hellos are looked at in turn: once this one is welcome, nothing more comes of the other.
        async with connected(replica, (await pair(replica, engine)).auth()):
            await there.told_by(replica)
            there.hear()
            await runner.say("heartbeat", {"freeSlots": 0, "running": []})
            await runner.hear("heartbeat")


async def test_a_replica_that_was_deaf_finds_out_who_has_gone_elsewhere(
    migrated_dsn: str, replica: Replica, device: Device
) -> None:
    async with gateway(migrated_dsn, of=LateReplica) as deaf, connected(deaf, device.auth()) as first:
        assert isinstance(deaf, LateReplica)
        async with connected(replica, device.auth()) as second:
            await deaf.told_by(replica)
            deaf.listen_anew()
            await deaf.told_by(replica)
            deaf.hear()
            assert (await first.closed())[0] == 4409
            await second.say("heartbeat", {"freeSlots": 0, "running": []})
            await second.hear("heartbeat")


async def test_an_owner_that_is_not_reached_is_a_502(replica: Replica, engine: Engine, device: Device) -> None:
    job = await engine.create()
    async with connected(replica, device.auth()) as runner:
        await runner.take()
        session = (await engine.until(job, "Running"))["sessionId"]
    store = replica.exchange.store
    await store.database.fetch("UPDATE rota.runner_sessions SET gateway_instance = 'gone'")
    await store.see_gateway("gone", "http://127.0.0.1:9")
    async with asyncio.timeout(30):
        while replica.exchange.gateway.registry.links:
            await asyncio.sleep(0.01)
    status, answer = await engine.op(session, "stat", {"path": "a"})
    assert (status, answer["code"]) == (502, "session_owner_unreachable")
    # S58: a request that was forwarded is never forwarded again, whatever the row says.
    status, answer = await engine.ask(
        "POST", f"/internal/v1/sessions/{session}/ops", json={"op": "stat"}, headers={"x-rota-forwarded": "somebody"}
    )
    assert (status, answer["code"]) == (502, "session_owner_unreachable")


async def test_an_op_that_was_passed_on_to_a_gateway_that_stands_still_follows_its_runner(
    replica: Replica, engine: Engine, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internal_api, "FORWARD_LOOK_S", 0.05)
    monkeypatch.setattr(gateway_ops, "AWAY_S", 0.0)
    taken = asyncio.Event()

    async def stands_still(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.set()
        await reader.read()  # until who asks gives up
        writer.close()

    job = await engine.create()
    async with connected(replica, device.auth()) as runner:
        assign = await runner.take()
        session = (await engine.until(job, "Running"))["sessionId"]
    async with await asyncio.start_server(stands_still, "127.0.0.1", 0) as still, asyncio.timeout(60):
        while replica.exchange.gateway.registry.links:
            await asyncio.sleep(0.01)
        store = replica.exchange.store
        await store.see_gateway("still", f"http://127.0.0.1:{still.sockets[0].getsockname()[1]}")
        await store.database.fetch("UPDATE rota.runner_sessions SET gateway_instance = 'still'")
        asked = asyncio.create_task(engine.op(session, "stat", {"path": "a"}, opId="op-a"))
        await taken.wait()
        held = [{"jobId": assign["jobId"], "leaseEpoch": assign["payload"]["leaseEpoch"]}]
        async with connected(replica, device.auth(), running=held) as back:
            request = await back.answer(assign, {"exists": False, "bytes": 0})
            assert request["payload"]["opId"] == "op-a"
            assert (await asked)[0] == 200


async def test_revocation_ends_connection_and_jobs_at_once(replica: Replica, engine: Engine, device: Device) -> None:
    job = await engine.create()
    async with connected(replica, device.auth()) as runner:
        await runner.take()
        await engine.until(job, "Running")
        await replica.exchange.devices.revoke(device.device_id)
        assert (await runner.closed())[0] == 4401
        assert [m["payload"]["reason"] for m in runner.seen if m["type"] == "cancel"] == ["revoked"]
    assert (await engine.until(job, "Expired"))["error"]["code"] == "session_lost"
    async with dialled(replica) as again:
        await again.hello(device.auth())
        assert (await again.closed())[0] == 4401


async def test_a_pool_worker_takes_jobs_of_any_organisation_and_no_desktops(replica: Replica, engine: Engine) -> None:
    credential = await replica.exchange.devices.new_credential()
    desk = await engine.create()
    job = await engine.create(target="CloudPool", orgId="other")
    auth = {"kind": "pool", "credential": credential, "workerName": "w1"}
    async with connected(replica, auth) as runner:
        assert (runner.seen[0]["payload"]["kind"], runner.seen[0]["payload"]["orgId"]) == ("CloudPool", None)
        assert (await runner.take(free=2))["jobId"] == job["jobId"]
        status, scaling = await engine.ask("GET", "/internal/v1/scaling")
        assert status == 200 and (scaling["running"], scaling["connectedCloudPool"]) == (1, 1)
        status, runners = await engine.ask("GET", "/internal/v1/runners", params={"caps": "video.compile"})
        assert [one["runnerId"] for one in runners["runners"]] == ["pool:w1"]
        status, text = await engine.ask("GET", "/metrics")
        assert 'reelbolt_runner_connected{kind="CloudPool"} 1.0' in text
        assert 'reelbolt_runner_free_slots{target="OrgRunner"} 0.0' in text and TOKEN not in text
    assert (await engine.job(desk))["state"] == "Queued"
    async with dialled(replica) as wrong:
        await wrong.hello(auth | {"credential": "rpool_wrong"})
        assert (await wrong.closed())[0] == 4401


async def test_a_gateway_that_cannot_listen_leaves_no_connection(migrated_dsn: str) -> None:
    conn = await asyncpg.connect(migrated_dsn)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(SettingsError, match="another program has this port"),
    ):
        async with gateway(migrated_dsn, gateway_port=taken.getsockname()[1]):
            raise AssertionError("it listens")
    async with asyncio.timeout(10):
        while await conn.fetchval("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()") > 1:
            await asyncio.sleep(0.02)
    await conn.close()
