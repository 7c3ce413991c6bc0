"""Whoever waits for a runner job is woken by what happens, on whatever replica it happens, and not by a look."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rota.runners.io import waiters
from rota.runners.io.replica import Replica
from rota.runners.io.usage import UsageBook
from tests.integration.gateways import STILL, WAIT_S, Engine, connected, gateway, pair


@pytest.fixture(autouse=True)
def _no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "LOOK_S", 3600.0)


@pytest.fixture
async def replicas(migrated_dsn: str) -> AsyncIterator[tuple[Replica, Replica]]:
    async with gateway(migrated_dsn, pace=STILL) as one, gateway(migrated_dsn, pace=STILL) as two:
        yield one, two


async def waiting(replica: Replica, engine: Engine, job: dict[str, Any], **query: str) -> "asyncio.Task[Any]":
    """A read that waits for a minute, and does so when this returns."""
    path = f"/internal/v1/jobs/{job['jobId']}"
    task = asyncio.create_task(engine.ask("GET", path, params={"wait": "60s"} | query))
    async with asyncio.timeout(WAIT_S):
        while not replica._waiters._waiting:
            await asyncio.sleep(0.01)
    return task


async def test_an_end_on_another_replica_ends_a_wait(replicas: tuple[Replica, Replica]) -> None:
    one, two = replicas
    async with Engine(one) as engine, Engine(two) as other:
        device = await pair(one, engine)
        job = await engine.create()
        async with connected(one, device.auth()) as runner:
            accepted = await waiting(two, other, job, until="running")
            assign = await runner.take()
            status, found = await asyncio.wait_for(accepted, WAIT_S)
            assert (status, found["state"]) == (200, "Running") and found["sessionId"]
            ended = await waiting(two, other, job)
            await runner.of_job("complete", assign, outcome="succeeded")
            assert (await asyncio.wait_for(ended, WAIT_S))[1]["state"] == "Succeeded"
        # What has happened already is not waited for, and neither is a start that cannot come any more.
        for query in ({}, {"until": "running"}):
            path, params = f"/internal/v1/jobs/{job['jobId']}", {"wait": "60s"} | query
            assert (await asyncio.wait_for(other.ask("GET", path, params=params), WAIT_S))[1]["state"] == "Succeeded"


async def test_a_cancel_ends_a_wait_for_a_runner(replicas: tuple[Replica, Replica]) -> None:
    one, two = replicas
    async with Engine(one) as engine, Engine(two) as other:
        job = await engine.create()
        asked = await waiting(one, engine, job, until="running")
        assert (await other.ask("DELETE", f"/internal/v1/jobs/{job['jobId']}"))[0] == 200
        assert (await asyncio.wait_for(asked, WAIT_S))[1]["state"] == "Cancelled"


async def test_a_window_that_ends_is_a_normal_answer_and_words_are_checked(replicas: tuple[Replica, Replica]) -> None:
    one, _ = replicas
    async with Engine(one) as engine:
        job = await engine.create()
        began = time.monotonic()
        path = f"/internal/v1/jobs/{job['jobId']}"
        status, found = await engine.ask("GET", path, params={"wait": "1", "until": "running"})
        assert (status, found["state"]) == (200, "Queued") and time.monotonic() - began >= 0.9
        assert (await engine.ask("GET", path, params={"until": "soon"}))[1]["code"] == "invalid_until"


async def test_a_refused_output_fails_the_job_with_class_runner(replicas: tuple[Replica, Replica]) -> None:
    one, two = replicas
    async with Engine(one) as engine, Engine(two) as other:
        device = await pair(one, engine)
        job = await engine.create(spec={"requested": {"durationSec": 60}})
        verdict = f"/internal/v1/jobs/{job['jobId']}/verdict"
        assert (await engine.ask("POST", verdict, json={}))[0] == 409  # nobody has worked on it yet
        async with connected(one, device.auth()) as runner:
            await runner.take()
            running = await engine.until(job, "Running")
            op = asyncio.create_task(engine.op(running["sessionId"], "stat", {"path": "a"}))
            await runner.hear("op.request")
            # On the other replica, as a balancer has it: the one with the runner hears of it.
            status, failed = await other.ask(
                "POST", verdict, json={"message": "The output lasts 3 s, and 60 were asked."}
            )
            assert (status, failed["state"]) == (200, "Failed")
            assert failed["error"] == {
                "class": "runner", "code": "verification_failed", "retryable": True,
                "message": "The output lasts 3 s, and 60 were asked.",
            }  # fmt: skip
            assert (await runner.hear("cancel"))["payload"]["reason"] == "execution_ended"
            assert (await asyncio.wait_for(op, WAIT_S))[0] == 410
            assert (await engine.op(running["sessionId"], "close"))[0] == 410  # it can succeed no more
            # Said again, because its answer was lost.
            assert (await engine.ask("POST", verdict, json={}))[0] == 200
        fetch = one.exchange.store.database.fetch
        await UsageBook(one.exchange.store.database).record()
        (record,) = await fetch("SELECT outcome, failure_class, credits FROM rota.usage_records")
        assert (record["outcome"], record["failure_class"]) == ("failed", "runner")
        (row,) = await fetch("SELECT state, last_error FROM rota.jobs")
        assert (row["state"], row["last_error"]) == ("failed", failed["error"]["message"])
        done = await engine.create(execution="another")
        async with connected(one, device.auth()) as runner:
            assign = await runner.take()
            await runner.of_job("complete", assign, outcome="succeeded")
            await engine.until(done, "Succeeded")
        status, problem = await engine.ask("POST", f"/internal/v1/jobs/{done['jobId']}/verdict", json={})
        assert (status, problem["code"]) == (409, "job_not_running")
