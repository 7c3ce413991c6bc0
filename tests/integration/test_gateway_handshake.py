"""How connections begin, and what is refused: each close code as the protocol gives it."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from websockets.exceptions import InvalidStatus

from rota.runners.io import gateway_server
from rota.runners.io.replica import Replica
from tests.integration.gateways import Device, Engine, Runner, b64, connected, dialled, gateway, pair

JOB = "00000000-0000-7000-8000-000000000001"


@pytest.fixture
async def replica(migrated_dsn: str) -> AsyncIterator[Replica]:
    async with gateway(migrated_dsn) as started:
        yield started


@pytest.fixture
async def device(replica: Replica) -> Device:
    async with Engine(replica) as engine:
        return await pair(replica, engine)


async def refusal(replica: Replica, auth: dict[str, Any], **hello: Any) -> tuple[int, str, dict[str, Any]]:
    """Code and reason of the close, and the bye before it."""
    async with dialled(replica) as runner:
        await runner.hello(auth, **hello)
        code, reason = await runner.closed()
        return code, reason, next((m["payload"] for m in runner.seen if m["type"] == "bye"), {})


async def test_s51_clocks_may_differ_by_two_minutes(replica: Replica, device: Device) -> None:
    for ahead_s in (315_360_000, 121.5, -121.5):
        code, _, bye = await refusal(replica, device.auth(ahead_s=ahead_s))
        assert code == 4401 and "clock" in bye["reason"] and bye["serverTime"]  # S52: it says why, and the time
    for ts in ("2026-01-02T03:04:05", "2026-01-02T03:04:05+02:00", "yesterday", ""):
        assert (await refusal(replica, device.auth(ts=ts)))[0] == 4400
    async with connected(replica, device.auth(ahead_s=118)):
        pass


async def test_a_hello_is_good_once_also_at_another_replica(
    migrated_dsn: str, replica: Replica, device: Device
) -> None:
    auth = device.auth()
    async with connected(replica, auth):
        pass
    async with gateway(migrated_dsn) as other:
        assert (await refusal(other, auth))[0] == 4401


async def test_what_a_device_cannot_prove(replica: Replica, device: Device) -> None:
    for changes, code in (
        ({"deviceId": "00000000-0000-4000-8000-000000000000"}, 4401), ({"sig": b64(bytes(64))}, 4401),
        ({"sig": "short"}, 4400), ({"nonce": b64(b"short")}, 4400), ({"kind": "letter"}, 4400),
        ({"deviceId": ""}, 4400),
    ):  # fmt: skip
        assert (await refusal(replica, device.auth(**changes)))[0] == code, changes
    assert (await refusal(replica, device.auth(host="elsewhere.example")))[0] == 4401


async def test_a_rotated_key_overlaps_with_the_one_before(replica: Replica, device: Device) -> None:
    old = device.key
    next_device = Device(device.device_id, Ed25519PrivateKey.generate())
    public = next_device.key.public_key().public_bytes_raw()
    await replica.exchange.devices.rotate_key(device.device_id, public, overlap_s=3600)
    for good in (device, next_device):
        async with connected(replica, good.auth()):
            pass
    await replica.exchange.devices.rotate_key(device.device_id, old.public_key().public_bytes_raw(), overlap_s=0)
    assert (await refusal(replica, next_device.auth()))[0] == 4401


async def test_versions(replica: Replica, device: Device) -> None:
    code, _, bye = await refusal(replica, device.auth(), protocolVersion="2.0")
    assert code == 4400 and "1.0" in bye["reason"]
    async with connected(replica, device.auth(), protocolVersion="1.7") as runner:
        assert runner.seen[0]["payload"]["protocolVersion"] == "1.0"


async def test_an_old_agent_is_told_and_gets_no_jobs(migrated_dsn: str) -> None:
    async with gateway(migrated_dsn, gateway_min_agent="1.1") as replica, Engine(replica) as engine:
        device = await pair(replica, engine)
        async with connected(replica, device.auth()) as runner:
            assert runner.seen[0]["payload"]["minAgentVersion"] == "1.1"
            await runner.say("ready", {"freeSlots": 1})
            job = await engine.create()
            await runner.say("heartbeat", {"freeSlots": 1, "running": []})
            await runner.hear("heartbeat")
            assert (await engine.job(job))["state"] == "Queued"
        async with connected(replica, device.auth(), capabilities={"agentVersion": "1.1.0"}) as runner:
            assert (await runner.take())["jobId"] == job["jobId"]


async def test_s55_nothing_but_a_hello_may_come_first(replica: Replica) -> None:
    frames: tuple[str | bytes, ...] = (
        json.dumps({"v": 1, "type": "ready", "id": "1", "payload": {"freeSlots": 1}}),
        json.dumps({"v": 2, "type": "hello", "id": "1", "payload": {}}),
        json.dumps({"v": 1, "type": "hello", "id": "1", "payload": {}}),
        json.dumps({"v": 1, "type": "novelty", "id": "1", "payload": {}}),
        "no JSON", "[]", b"\x00\x01",
    )  # fmt: skip
    for frame in frames:
        async with dialled(replica) as runner:
            await runner.socket.send(frame)
            assert (await runner.closed())[0] == 4400, frame


async def test_s55_after_the_welcome_what_is_unknown_is_ignored(replica: Replica, device: Device) -> None:
    async with connected(replica, device.auth()) as runner:
        await runner.say("novelty", {"x": 1})
        await runner.socket.send(b"\x00")
        await runner.say("ready", {"freeSlots": -1})
        await runner.say("heartbeat", {"freeSlots": 1, "running": [], "later": True}, extra=1)
        assert (await runner.hear("heartbeat"))["payload"]["leases"] == []
        await runner.say("hello", {})  # no good: ignored, as a hello that is good is not
        await runner.hello(device.auth())
        assert (await runner.closed())[0] == 4400


async def test_s54_what_proves_nothing_is_answered_with_a_cancel(replica: Replica, device: Device) -> None:
    async with connected(replica, device.auth()) as runner:
        payload = {"leaseEpoch": 1, "jobToken": "FIXTURE.job.token", "outcome": "succeeded"}
        await runner.say("complete", payload, jobId=JOB)
        cancel = await runner.hear("cancel")
        assert (cancel["jobId"], cancel["payload"]["reason"]) == (JOB, "lease_lost")


async def test_s48_sizes(replica: Replica, device: Device) -> None:
    async with connected(replica, device.auth()) as runner:
        base = {"freeSlots": 1, "running": [], "pad": ""}
        pad = 4 * 1024 * 1024 - len(json.dumps(base, separators=(",", ":")))

        async def send(size: int) -> None:
            payload = json.dumps(base | {"pad": "x" * size}, separators=(",", ":"))
            await runner.socket.send(f'{{"v":1,"type":"heartbeat","id":"1","payload":{payload}}}')

        await send(pad + 1)  # refused, and nothing else happens
        await send(pad)
        await runner.hear("heartbeat")
        await runner.socket.send(["x" * 1024 * 1024] * 5)  # also in many frames
        assert (await runner.closed())[0] == 1009


async def test_the_newest_connection_wins(replica: Replica, device: Device) -> None:
    async with connected(replica, device.auth()) as first, connected(replica, device.auth()):
        assert (await first.closed())[0] == 4409


async def test_who_does_not_offer_the_subprotocol_or_dials_another_name_gets_no_socket(replica: Replica) -> None:
    for options, status in (({"subprotocols": None}, 400), ({"name": "evil.example"}, 421)):
        with pytest.raises(InvalidStatus) as caught:
            async with dialled(replica, **options):
                pass
        assert caught.value.response.status_code == status


async def test_no_more_are_let_in_than_files_may_be_open(migrated_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_server, "limit", lambda: 2)  # half of them are for others
    async with gateway(migrated_dsn) as replica, dialled(replica) as first:
        with pytest.raises(InvalidStatus) as caught:
            async with dialled(replica):
                pass
        assert caught.value.response.status_code == 503
        await first.hello({"kind": "pool", "credential": "anything", "workerName": "w"})
        assert (await first.closed())[0] == 4401


async def test_a_storm_is_let_in_by_and_by(migrated_dsn: str) -> None:
    async with gateway(migrated_dsn, gateway_hellos_per_s=1) as replica, Engine(replica) as engine:
        device = await pair(replica, engine)
        async with connected(replica, device.auth()):
            hints: list[int] = []
            for _ in range(3):
                async with dialled(replica) as runner:
                    await runner.hello({"kind": "pool", "credential": "anything", "workerName": "w"})
                    code, _ = await runner.closed()  # before what its hello shows is looked at
                    assert code == 4429
                    hints += [m["payload"]["retryAfterSec"] for m in runner.seen if m["type"] == "bye"]
            assert len(hints) == 3 and hints[0] >= 1 and hints == sorted(hints)


async def test_goodbye_of_a_gateway_that_ends(migrated_dsn: str) -> None:
    async with gateway(migrated_dsn) as replica:
        async with Engine(replica) as engine:
            device = await pair(replica, engine)
        async with connected(replica, device.auth()) as runner:
            replica.drain()
            assert (await runner.hear("drain"))["payload"]["reason"]
            stopping = asyncio.create_task(replica.stop())
            assert (await runner.closed())[0] == 1001
            await stopping


async def test_i10_no_secret_is_logged(
    migrated_dsn: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    async with gateway(migrated_dsn) as replica, Engine(replica) as engine:
        device = await pair(replica, engine)
        credential = await replica.exchange.devices.new_credential()
        auth = device.auth()
        await engine.create(spec={"title": "canary"})
        async with connected(replica, auth) as runner:
            assign = await runner.take()
            await _garbage(runner, assign)
        async with dialled(replica) as pool:
            await pool.hello({"kind": "pool", "credential": credential + "x", "workerName": "w"})
            await pool.closed()
    said = caplog.text + "".join(capsys.readouterr())
    assert "runner connected" in said and "runner refused" in said
    for secret in (auth["sig"], auth["nonce"], assign["payload"]["jobToken"], credential, "canary"):
        assert secret not in said


async def _garbage(runner: Runner, assign: dict[str, Any]) -> None:
    token = assign["payload"]["jobToken"]
    await runner.say("op.response", {"leaseEpoch": "x", "jobToken": token}, jobId=assign["jobId"])
    await runner.say("complete", {"leaseEpoch": 99, "jobToken": token, "outcome": "x"}, jobId=assign["jobId"])
    await runner.hear("cancel")
