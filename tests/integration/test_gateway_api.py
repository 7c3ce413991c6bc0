"""The internal API over HTTP: codes, bodies, waits, and what an engine may do wrong."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from rota.runners import api
from rota.runners.io.replica import Replica
from rota.runners.records import idempotency_key
from tests.integration.gateways import Engine, connected, gateway, pair

ROUTES = (
    ("POST", "/jobs"), ("GET", f"/jobs/{uuid4()}"), ("DELETE", f"/jobs/{uuid4()}"), ("GET", "/runners"),
    ("POST", f"/sessions/{uuid4()}/ops"), ("GET", "/scaling"), ("POST", f"/jobs/{uuid4()}/staging"),
    ("DELETE", "/executions/e"), ("POST", f"/jobs/{uuid4()}/verdict"), ("GET", "/organisations/e"),
    ("PUT", "/organisations/e"),
)  # fmt: skip


@pytest.fixture
async def replica(migrated_dsn: str) -> AsyncIterator[Replica]:
    async with gateway(migrated_dsn) as started:
        yield started


@pytest.fixture
async def engine(replica: Replica) -> AsyncIterator[Engine]:
    async with Engine(replica) as made:
        yield made


async def test_without_a_token_all_routes_are_off_and_with_a_wrong_one_closed(
    migrated_dsn: str, replica: Replica
) -> None:
    async with gateway(migrated_dsn, gateway_token=None) as off, Engine(off) as asks:
        for method, path in ROUTES:
            status, answer = await asks.ask(method, "/internal/v1" + path)
            assert (status, answer["code"]) == (503, "internal_api_disabled")
        assert (await asks.ask("GET", "/metrics"))[0] == 503
        assert (await asks.ask("GET", "/healthz"))[0] == 200
    for token in (None, "wrong", "ängström"):
        async with Engine(replica, token=token) as asks:
            for method, path in ROUTES:
                assert (await asks.ask(method, "/internal/v1" + path))[0] == 401


async def test_s91_twenty_creates_at_two_replicas_make_one_job(
    migrated_dsn: str, replica: Replica, engine: Engine
) -> None:
    body = {
        "target": "CloudPool", "orgId": "acme", "jobType": "video.compile", "executionId": "e", "stepId": "s",
        "iteration": 3, "purpose": "compile", "idempotencyKey": idempotency_key("e", "s", "3", "compile"), "spec": {},
    }  # fmt: skip
    async with gateway(migrated_dsn) as other, Engine(other) as theirs:
        answers = await asyncio.gather(
            *((engine, theirs)[n % 2].ask("POST", "/internal/v1/jobs", json=body) for n in range(20))
        )
    assert sorted(status for status, _ in answers) == [200] * 19 + [201]
    assert len({job["jobId"] for _, job in answers}) == 1
    # S92: the same key with another spec: the first job, unchanged. Without a key the gateway makes the same one.
    del body["idempotencyKey"]
    status, job = await engine.ask("POST", "/internal/v1/jobs", json=body | {"spec": {"other": 1}, "priority": 9})
    assert (status, job["jobId"], job["priority"]) == (200, answers[0][1]["jobId"], 0)


async def test_s96_waits(replica: Replica, engine: Engine) -> None:
    job = await engine.create()
    path = f"/internal/v1/jobs/{job['jobId']}"
    for wait in ("0", "0s", "1"):
        status, found = await engine.ask("GET", path, params={"wait": wait})
        assert (status, found["state"]) == (200, "Queued")
    for wait in ("-1", "abc", "1.5", "30m", "", "1e3", "9999999999"):
        status, answer = await engine.ask("GET", path, params={"wait": wait})
        assert (status, answer["code"]) == (400, "invalid_wait")
    long = asyncio.create_task(engine.ask("GET", path, params={"wait": "999999"}))
    gone = asyncio.create_task(engine.ask("GET", path, params={"wait": "30s"}))
    waiting = replica._waiters._waiting
    async with asyncio.timeout(30):
        while sum(map(len, waiting.values())) < 2:
            await asyncio.sleep(0.01)
        gone.cancel()
        while sum(map(len, waiting.values())) > 1:  # who went away is not waited for
            await asyncio.sleep(0.01)
    await engine.ask("DELETE", path)
    assert (await long)[1]["state"] == "Cancelled" and not waiting


async def test_bad_bodies(engine: Engine) -> None:
    bodies = (b"", b"{", b"[]", b"null", b'{"target": "CloudPool"}', b'"\xff"', b"[" * 100_000)
    for path in ("/internal/v1/jobs", f"/internal/v1/sessions/{uuid4()}/ops", "/v1/pair"):
        found, answer = await engine.ask("POST", path, data=io.BytesIO(b" " * (5 * 1024 * 1024)))
        assert (found, answer["code"]) == (413, "too_large")
    for path in ("/internal/v1/jobs", f"/internal/v1/sessions/{uuid4()}/ops"):
        for body in bodies:
            found, answer = await engine.ask("POST", path, data=body)
            assert found == 400 and answer["code"] and answer["message"], (path, body[:40])


async def test_bad_values(engine: Engine) -> None:
    good = {"target": "CloudPool", "orgId": "a", "jobType": "video.compile", "executionId": "e"}
    changes: tuple[dict[str, Any], ...] = (
        {"target": "Moon"}, {"orgId": ""}, {"orgId": 5}, {"jobType": None}, {"executionId": "x" * 201},
        {"timeoutSec": 0}, {"timeoutSec": 14_401}, {"timeoutSec": "5"}, {"priority": 2**31}, {"spec": []},
        {"limits": {"maxOutputBytes": -1}}, {"spec": {"a": "\0"}}, {"orgId": "a\0"},
        {"requires": {"fontsetVersion": 1}},
    )  # fmt: skip
    for change in changes:
        status, answer = await engine.ask("POST", "/internal/v1/jobs", json=good | change)
        assert (status, answer["code"]) == (400, "invalid_request"), change


async def test_what_may_be_left_out_may_be_null(engine: Engine) -> None:
    must = {"target": "CloudPool", "orgId": "a", "jobType": "video.compile", "executionId": "e"}
    optional = set(api.CreateJob.__struct_encode_fields__) - set(must)
    status, job = await engine.ask("POST", "/internal/v1/jobs", json=must | dict.fromkeys(optional))
    assert status == 201, job
    assert (await engine.ask("POST", "/internal/v1/jobs", json=must))[1]["jobId"] == job["jobId"]
    nulls = {"limits": {"maxOutputBytes": None}, "requires": {"fontsetVersion": None}, "purpose": "another"}
    assert (await engine.ask("POST", "/internal/v1/jobs", json=must | nulls))[0] == 201
    # A null within a spec is the engine's own.
    spec = {"spec": {"a": None}, "iteration": None, "purpose": "a third"}
    assert (await engine.ask("POST", "/internal/v1/jobs", json=must | spec))[0] == 201
    nothing = {"op": "stat", "args": None, "opId": None, "timeoutSec": None}
    status, answer = await engine.ask("POST", f"/internal/v1/sessions/{uuid4()}/ops", json=nothing)
    assert (status, answer["code"]) == (404, "session_not_found")
    for name in must:
        assert (await engine.ask("POST", "/internal/v1/jobs", json=must | {name: None}))[0] == 400


async def test_unknown_ids(engine: Engine) -> None:
    for job_id in (str(uuid4()), "x", "1"):
        for method in ("GET", "DELETE"):
            status, answer = await engine.ask(method, f"/internal/v1/jobs/{job_id}")
            assert (status, answer["code"]) == (404, "job_not_found")
    for session_id in (str(uuid4()), "x"):
        status, answer = await engine.op(session_id, "stat")
        assert (status, answer["code"]) == (404, "session_not_found")


async def test_a_queued_job_is_cancelled_at_once_and_an_execution_ends_all_of_its_jobs(engine: Engine) -> None:
    first, second = await engine.create("theirs"), await engine.create("theirs", stepId="t")
    status, answer = await engine.ask("DELETE", f"/internal/v1/jobs/{first['jobId']}")
    assert (status, answer["state"]) == (200, "Cancelled")
    assert await engine.ask("DELETE", "/internal/v1/executions/theirs") == (200, {"jobs": 1})
    assert (await engine.job(second))["state"] == "Cancelled"


async def test_staging_numbers(engine: Engine) -> None:
    job = await engine.create()
    path = f"/internal/v1/jobs/{job['jobId']}/staging"
    assert [(await engine.ask("POST", path))[1] for _ in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert (await engine.ask("POST", f"/internal/v1/jobs/{uuid4()}/staging"))[0] == 404


async def test_scaling_tells_who_could_work(migrated_dsn: str) -> None:
    async with gateway(migrated_dsn, gateway_buffer_slots=3) as replica, Engine(replica) as engine:
        credential = await replica.exchange.devices.new_credential()
        await engine.create(target="CloudPool", jobType="remotion.workspace-session")
        auth = {"kind": "pool", "credential": credential}
        async with (
            connected(replica, auth | {"workerName": "works"}) as works,
            connected(replica, auth | {"workerName": "idle"}, capabilities={"jobTypes": []}) as idle,
            connected(replica, auth | {"workerName": "drains"}) as drains,
        ):
            for runner in (works, idle, drains):
                await runner.say("ready", {"freeSlots": 2})
            await drains.say("drain", {"reason": "spot"})
            for runner in (works, idle, drains):  # what was said before is known when this is answered
                await runner.say("heartbeat", {"freeSlots": 2, "running": []})
                await runner.hear("heartbeat")
            async with asyncio.timeout(30):  # a claim that finds nothing may be under way
                while (scaling := (await engine.ask("GET", "/internal/v1/scaling"))[1])["freeSlotsCloudPool"] != 2:
                    await asyncio.sleep(0.02)
        assert scaling == {
            "desiredCloudPoolSlots": 4, "queued": 1, "running": 0, "buffer": 3, "connectedCloudPool": 3,
            "availableCloudPool": 1, "freeSlotsCloudPool": 2, "freeSlotsOrgRunner": 0, "runnersWithoutJobTypes": 1,
            "drainingRunners": 1,
        }  # fmt: skip
        async with asyncio.timeout(30):
            wanted = 'queue_depth{job_type="remotion.workspace-session",target="CloudPool"} 1.0'
            while wanted not in (await engine.ask("GET", "/metrics"))[1]:
                await asyncio.sleep(0.02)


async def test_who_is_online(replica: Replica, engine: Engine) -> None:
    device = await pair(replica, engine)
    async with connected(replica, device.auth()):
        for query, count in (
            ({}, 1), ({"org": "acme"}, 1), ({"org": "other"}, 0), ({"caps": "video.compile,video.analyze.extract"}, 1),
            ({"caps": "remotion.workspace-session"}, 0),
        ):  # fmt: skip
            status, answer = await engine.ask("GET", "/internal/v1/runners", params=query)
            assert status == 200 and len(answer["runners"]) == count and answer["gatewayInstance"], query


async def test_pairing_over_http(replica: Replica, engine: Engine) -> None:
    code = str(await replica.exchange.devices.new_code("acme", "d"))
    for body, status, word in (
        ({"code": code, "publicKey": "AAAA"}, 400, "invalid_key"),
        ({"code": "nonsense", "publicKey": "A" * 43}, 400, "invalid_code"),
        ({"code": code[:5] + "ZZZZ-ZZZZ", "publicKey": "A" * 43}, 403, "wrong"),
        ({"code": code, "publicKey": "A" * 43, "name": "mine", "os": "linux"}, 201, None),
    ):
        found, answer = await engine.ask("POST", "/v1/pair", json=body)
        assert (found, answer.get("code")) == (status, word), body
        assert code not in json.dumps(answer)
    assert (answer["orgId"], answer["name"]) == ("acme", "mine")
    other = {"code": code, "publicKey": "E" * 42 + "A"}
    statuses = [(await engine.ask("POST", "/v1/pair", json=other))[0] for _ in range(8)]
    assert statuses[0] in (403, 429) and statuses[-1] == 429  # nobody can try codes in a hurry


async def test_the_document_names_every_route(engine: Engine) -> None:
    status, found = await engine.ask("GET", "/openapi.json")
    assert status == 200 and found["openapi"].startswith("3.1")
    for method, path in ROUTES:
        template = "/internal/v1" + "/".join(
            "{id}" if len(part) == 36 or part == "e" else part for part in path.split("/")
        )
        assert method.lower() in found["paths"][template], (method, template)
    text = json.dumps(found)
    for ref in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert ref in found["components"]["schemas"]
