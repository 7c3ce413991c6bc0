"""What engines and runners may say that is odd, though nearly well formed: it is answered at once, or is taken as it
was meant; nothing waits for what can never come."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from yarl import URL

from rota.runners.io.replica import Replica
from tests.integration.gateways import TOKEN, WAIT_S, Device, Engine, Runner, connected, gateway, pair


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


def asked(**changes: Any) -> dict[str, Any]:
    return {
        "target": "OrgRunner", "orgId": "acme", "jobType": "video.compile", "executionId": str(uuid4()), "spec": {},
    } | changes  # fmt: skip


def deep(frame: Any, levels: int) -> bytes:
    """The frame, or the body, with so many lists within each other in place of `@`."""
    return json.dumps(frame).replace('"@"', "[" * levels + "]" * levels).encode()


async def session_of(engine: Engine, runner: Runner) -> tuple[dict[str, Any], str]:
    job = await engine.create()
    assign = await runner.take()
    return assign, str((await engine.until(job, "Running"))["sessionId"])


async def test_who_asks_is_told_that_a_body_is_too_deep(engine: Engine) -> None:
    path = "/internal/v1/jobs"
    for levels, status in ((150, 201), (250, 400), (900, 400), (100_000, 400)):
        found, answer = await engine.ask("POST", path, data=io.BytesIO(deep(asked(spec={"a": "@"}), levels)))
        assert found == status, answer
    found, answer = await engine.ask(
        "POST", f"/internal/v1/sessions/{uuid4()}/ops", data=deep({"op": "stat", "args": {"a": "@"}}, 250)
    )
    assert (found, answer["code"]) == (400, "invalid_request")


async def test_a_result_that_is_too_deep_to_be_told_is_not_kept(
    engine: Engine, replica: Replica, device: Device
) -> None:
    async with connected(replica, device.auth()) as runner:
        job = await engine.create()
        assign = await runner.take()
        proof = {"leaseEpoch": assign["payload"]["leaseEpoch"], "jobToken": assign["payload"]["jobToken"]}
        frame = {"v": 1, "type": "complete", "id": "1", "jobId": assign["jobId"]}
        for levels in (935, 250, 150):  # of the first the gateway could read what it could not write again
            payload = proof | {"outcome": "succeeded", "result": {"a": "@"}}
            await runner.socket.send(deep(frame | {"payload": payload}, levels).decode())
        found = await engine.until(job, "Succeeded")
        assert json.dumps(found["result"]).count("[") == 150


@pytest.mark.parametrize("broken", [{"ok": True, "opId": 7}, {"ok": True}, {"ok": "yes"}, {"huge": "x" * 4_194_304}])
async def test_an_answer_that_nobody_can_read_ends_the_wait_for_it(
    engine: Engine, replica: Replica, device: Device, broken: dict[str, Any]
) -> None:
    async with connected(replica, device.auth()) as runner:
        assign, session = await session_of(engine, runner)
        asking = asyncio.create_task(engine.op(session, "stat", {"path": "a"}, opId="op-1"))
        await runner.hear("op.request")
        await runner.of_job("progress", assign, stage=5)  # no good either, and no answer
        await runner.of_job("op.response", assign, session, **{"opId": "op-1", **broken})
        status, answer = await asyncio.wait_for(asking, WAIT_S)
        code = "message_too_large" if "huge" in broken else "bad_message"
        assert (status, answer["ok"], answer["error"]["code"], answer["error"]["retryable"]) == (
            200,
            False,
            code,
            False,
        )
        # The session goes on, and so does the connection.
        asking = asyncio.create_task(engine.op(session, "stat", {"path": "a"}, opId="op-2"))
        await runner.answer(assign, {"exists": False, "bytes": 0})
        assert (await asking)[1]["ok"]


async def test_names_that_no_runner_would_read_are_refused(engine: Engine, replica: Replica, device: Device) -> None:
    for field in ("orgId", "jobType", "executionId"):
        status, answer = await engine.ask("POST", "/internal/v1/jobs", json=asked(**{field: "a\nb"}))
        assert (status, answer["code"]) == (400, "invalid_request"), field
    async with connected(replica, device.auth()) as runner:
        assign, session = await session_of(engine, runner)
        for changes in ({"opId": "a\nb"}, {"opId": "a\x7f"}, {"opId": "x" * 10_000}, {"op": "st\tat"}):
            status, answer = await engine.op(session, **({"op": "stat"} | changes))  # type: ignore[arg-type]
            assert (status, answer["code"]) == (400, "invalid_request"), changes
        op = asyncio.create_task(engine.op(session, "stat", {"path": "a"}, opId="ü💥"))
        await runner.answer(assign, {"exists": False, "bytes": 0})
        assert (await op)[1]["opId"] == "ü💥"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_names_in_paths_too(engine: Engine, method: str) -> None:
    what = "executions" if method == "DELETE" else "organisations"
    address = URL(f"{engine.base}/internal/v1/{what}/a%00b", encoded=True)
    path = str(address)[len(engine.base) :]
    status, answer = await engine.ask(method, path, json={"disabled": True} if method == "PUT" else None)
    assert (status, answer["code"]) == (400, f"invalid_{what[:-1]}")


async def test_what_fits_into_no_frame_is_not_waited_for(engine: Engine, replica: Replica, device: Device) -> None:
    text = "x" * (4 * 1024 * 1024 - 300)
    body = io.BytesIO(json.dumps(asked(spec={"text": text})).encode())
    status, job = await engine.ask("POST", "/internal/v1/jobs", data=body)
    assert status == 201
    async with connected(replica, device.auth()) as runner:
        await runner.say("ready", {"freeSlots": 1})
        error = (await engine.until(job, "Failed"))["error"]
        assert (error["class"], error["code"], error["retryable"]) == ("input", "message_too_large", False)
        job = await engine.create()
        assign = await runner.accept()  # its slot is free still
        session = (await engine.until(job, "Running"))["sessionId"]
        content = {"op": "write", "args": {"path": "a", "content": text + "x" * 400}}
        path = f"/internal/v1/sessions/{session}/ops"
        status, answer = await engine.ask("POST", path, data=io.BytesIO(json.dumps(content).encode()))
        assert (status, answer["code"]) == (413, "too_large")
        op = asyncio.create_task(engine.op(session, "stat", {"path": "a"}))
        await runner.answer(assign, {"exists": False, "bytes": 0})
        assert (await op)[0] == 200


async def test_a_runner_may_write_ids_in_upper_case(engine: Engine, replica: Replica, device: Device) -> None:
    async with connected(replica, device.auth()) as runner:
        assign, session = await session_of(engine, runner)
        assign["jobId"] = assign["jobId"].upper()
        held = [{"jobId": assign["jobId"], "leaseEpoch": assign["payload"]["leaseEpoch"]}]
        await runner.say("heartbeat", {"freeSlots": 0, "running": held})
        assert [one["ok"] for one in (await runner.hear("heartbeat"))["payload"]["leases"]] == [True]
        op = asyncio.create_task(engine.op(session, "stat", {"path": "a"}))
        request = await runner.hear("op.request")
        await runner.of_job(
            "op.response", assign, request["sessionId"].upper(), opId=request["payload"]["opId"], ok=True, result={}
        )
        assert (await op)[0] == 200
    async with connected(replica, device.auth(), running=held) as runner:
        assert len(runner.seen[0]["payload"]["resumed"]) == 1
        await runner.of_job("complete", assign, outcome="succeeded")
        await engine.until({"jobId": assign["jobId"]}, "Succeeded")


async def test_the_scheme_of_a_token_has_no_case_and_has_to_be_there(engine: Engine) -> None:
    for said, status in (
        (f"bearer {TOKEN}", 200), (f"BEARER  {TOKEN}", 200), (TOKEN, 401), (f"Basic {TOKEN}", 401), ("Bearer", 401),
    ):  # fmt: skip
        found, _ = await engine.ask("GET", "/internal/v1/runners", headers={"Authorization": said})
        assert found == status, said
