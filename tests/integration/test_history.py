"""What a worker leaves of its jobs: how tries ended, when runs really stopped, what handlers said; and results."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg
import pytest

import rota
from rota.lease import LeaseBook
from rota.queue.history import DROPPED, FULL, LOG_LINES_MAX, KeptLine, Try
from rota.queue.io import pruner
from rota.queue.io.results import Results
from rota.queue.io.store import Store
from rota.queue.job import JobRow, NewJob, State
from rota.settings import Settings
from tests.integration.history_program import Order, talk

WAIT_S = 60.0
"""Generous: only a failing test waits that long."""


@dataclass
class Bench:
    """A program under test, and its store."""

    app: rota.App
    store: Store

    async def tries(self, job: rota.Enqueued) -> list[Try]:
        return await self.store.tries([job.id])

    async def lines(self, job: rota.Enqueued) -> list[KeptLine]:
        return await self.store.logs([job.id])

    async def row(self, job: rota.Enqueued) -> JobRow:
        (row,) = await self.store.show(job.id)
        return row

    async def until(self, job: rota.Enqueued, check: Callable[[JobRow], bool]) -> JobRow:
        """Waits until a job's row meets a condition."""
        async with asyncio.timeout(WAIT_S):
            while not check(row := await self.row(job)):
                await asyncio.sleep(0.01)
        return row

    async def ends(self, job: rota.Enqueued) -> JobRow:
        return await self.until(job, lambda row: row.finished_at is not None)


@pytest.fixture
async def bench(migrated_dsn: str) -> AsyncIterator[Bench]:
    app = rota.App(settings=Settings(dsn=migrated_dsn, poll_s=0.05, stop_grace_s=0))
    yield Bench(app, await app.store())
    await app.stop()


@contextlib.asynccontextmanager
async def working(app: rota.App) -> AsyncIterator[rota.Worker]:
    """A worker that has looked for work; it is stopped at the end."""
    worker = app.worker()
    task = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(WAIT_S):
            await worker.ready.wait()
        yield worker
    finally:
        worker.stop(now=True)
        async with asyncio.timeout(WAIT_S):
            await task


async def until(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not check():
            await asyncio.sleep(0.01)


# How tries end


async def test_a_worker_tells_how_each_try_ended(bench: Bench) -> None:
    calls: list[str] = []

    @bench.app.job(retry=rota.Fixed(0.0), max_tries=4)
    async def moody(ctx: rota.Context) -> Any:
        calls.append("call")
        match len(calls):
            case 1:
                return rota.Snooze(0.0, "not now")
            case 2:
                return rota.Yield()
            case 3:
                raise ValueError("no luck")
        return {"call": len(calls)}

    job, simple = await bench.app.enqueue(moody), None
    async with working(bench.app) as worker:
        await bench.ends(job)
        simple = await bench.app.enqueue(moody)
        await bench.ends(simple)
        assert [(one.epoch, one.ended, one.holder) for one in await bench.tries(job)] == [
            (1, "snoozed", worker.holder), (2, "yielded", worker.holder), (3, "retry", worker.holder),
            (4, "done", worker.holder),
        ]  # fmt: skip
        assert ((await bench.tries(job))[2].error or "").startswith("ValueError: no luck (test_history.py:")
        assert dict(worker.ends) == {"snoozed": 1, "yielded": 1}
    assert await bench.tries(simple) == []
    assert await bench.store.overlap_s() == 0


async def test_a_coroutine_that_stalls_is_stopped(bench: Bench) -> None:
    @bench.app.job(lease_s=1.0, heartbeat_s=0.3, max_tries=1)
    async def idler() -> None:
        await asyncio.Event().wait()

    job = await bench.app.enqueue(idler)
    async with working(bench.app) as worker:
        assert (await bench.ends(job)).state is State.FAILED
        (one,) = await bench.tries(job)
        assert (one.ended, worker.ends["stopped"]) == ("stopped", 1)
        assert "made no progress" in (one.error or "")


async def test_a_child_that_does_not_listen_is_killed_and_one_that_does_is_stopped(migrated_dsn: str) -> None:
    app = rota.App(settings=Settings(dsn=migrated_dsn, poll_s=0.05, stop_grace_s=0, cancel_grace_s=3))
    app.job("talk", isolation="process", lease_s=60.0)(talk)
    bench = Bench(app, await app.store())
    async with working(app) as worker:
        deaf, listening = await app.enqueue("talk", Order("deaf")), await app.enqueue("talk", Order("listen"))
        for job in (deaf, listening):
            async with asyncio.timeout(WAIT_S):
                while not await bench.lines(job):
                    await asyncio.sleep(0.01)
            await app.cancel(job.id)
        for job in (deaf, listening):
            assert (await bench.ends(job)).state is State.CANCELLED
        assert [one.ended for one in await bench.tries(deaf)] == ["killed"]
        assert [one.ended for one in await bench.tries(listening)] == ["stopped"]
        assert dict(worker.ends) == {"killed": 1, "stopped": 1}
    await app.stop()


# When runs really stopped


@contextlib.asynccontextmanager
async def taken_over(
    bench: Bench, dsn: str, *, lease_s: float
) -> AsyncIterator[tuple[rota.Enqueued, list[rota.Worker]]]:
    """A job that is taken over by a second worker while the handler of the first has not been told to go."""
    began, go = asyncio.Event(), asyncio.Event()
    second_app = rota.App(settings=Settings(dsn=dsn, poll_s=0.05, stop_grace_s=0))
    second_began = asyncio.Event()

    @bench.app.job("shared", limit=1, lease_s=lease_s, heartbeat_s=lease_s / 4)
    async def first() -> None:
        began.set()
        with contextlib.suppress(asyncio.CancelledError):
            await go.wait()

    @second_app.job("shared", lease_s=60.0)
    async def second() -> None:
        second_began.set()
        await go.wait()

    job = await bench.app.enqueue("shared")
    try:
        async with working(bench.app) as one:
            await asyncio.wait_for(began.wait(), WAIT_S)
            async with working(second_app) as two:
                await asyncio.wait_for(second_began.wait(), WAIT_S)
                yield job, [one, two]
                go.set()
                await bench.ends(job)
                await until(lambda: not one.stops.waiting)
    finally:
        await second_app.stop()


async def test_overlap_is_seen_when_the_rule_is_broken(
    bench: Bench, migrated_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2 broken on purpose: a holder that knows no deadline runs on beside the next one, and the figure moves."""
    grant = LeaseBook.grant

    def without_deadline(book: LeaseBook, lease: Any, **options: Any) -> Any:
        held = grant(book, lease, **options)
        held.deadline = float("inf")
        return held

    monkeypatch.setattr(LeaseBook, "grant", without_deadline)
    async with taken_over(bench, migrated_dsn, lease_s=1.0) as (job, workers):
        started = (await bench.row(job)).started_at
        assert await bench.store.overlap_s() == 0, "the first holder has not spoken yet"
    assert workers[0].stops.overlap_seconds_total > 0
    assert workers[1].stops.overlap_seconds_total == 0
    lost, done = await bench.tries(job)
    assert (lost.ended, done.ended) == ("lost", "done")
    assert started is not None and lost.stopped_at is not None and lost.stopped_at > started
    assert await bench.store.overlap_s() == pytest.approx(workers[0].stops.overlap_seconds_total, abs=0.001)


async def test_a_holder_that_keeps_the_rule_says_when_it_stopped(
    bench: Bench, migrated_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is taken away early, so that the holder learns of it while it runs; it stops, and says so."""
    app = rota.App(settings=Settings(dsn=migrated_dsn, poll_s=0.05, stop_grace_s=0))
    began = asyncio.Event()

    @app.job(lease_s=60.0, heartbeat_s=0.1)
    async def moving(ctx: rota.Context) -> None:
        began.set()
        while True:
            ctx.progress()
            await asyncio.sleep(0.01)

    job = await app.enqueue(moving)
    conn = await asyncpg.connect(migrated_dsn)
    try:
        async with working(app) as worker:
            await asyncio.wait_for(began.wait(), WAIT_S)
            await conn.execute("UPDATE rota.open_jobs SET lease_until = now() - interval '1 s', max_tries = 1")
            assert (await bench.ends(job)).last_error == "The lease ran out on the last try"
            await until(lambda: worker.stops.told)
            (one,) = await bench.tries(job)
            assert one.ended == "lost" and one.stopped_at is not None
            assert worker.stops.overlap_seconds_total == await bench.store.overlap_s() == 0
    finally:
        await conn.close()
        await app.stop()


# What handlers say


async def test_lines_of_a_handler_stay_with_its_job(bench: Bench) -> None:
    release = threading.Event()

    @bench.app.job
    async def coroutine(ctx: rota.Context) -> None:
        log = ctx.log.bind(file="a.mp4")
        log.info("began", size=7)
        log.debug("not kept")
        log.warning("at https://host/path?sig=secret")
        try:
            raise ValueError("no frame")
        except ValueError:
            ctx.log.exception("it failed", odd=object)

    @bench.app.job
    def thread(ctx: rota.Context) -> None:
        ctx.log.info("from a thread", thread=threading.current_thread().name)
        release.wait(WAIT_S)

    bench.app.job("talk", isolation="process")(talk)
    jobs = [await bench.app.enqueue(kind) for kind in (coroutine, thread)]
    jobs.append(await bench.app.enqueue("talk", Order("say")))
    async with working(bench.app):
        await bench.ends(jobs[0])
        async with asyncio.timeout(WAIT_S):
            while not await bench.lines(jobs[1]):
                await asyncio.sleep(0.01)
        assert (await bench.row(jobs[1])).state is State.LEASED, "lines are kept while the job runs"
        release.set()
        await bench.ends(jobs[1])
        await bench.ends(jobs[2])
    lines = await bench.lines(jobs[0])
    assert [(line.number, line.level, line.event) for line in lines] == [
        (1, "info", "began"), (2, "warning", "at https://host/path?…"), (3, "error", "it failed")
    ]  # fmt: skip
    assert json.loads(lines[0].fields or "") == {"file": "a.mp4", "size": 7}
    failed = json.loads(lines[2].fields or "")
    assert failed["odd"] == "<class 'object'>" and failed["traceback"].endswith("ValueError: no frame\n")
    (line,) = await bench.lines(jobs[1])
    assert "rota-job" in json.loads(line.fields or "")["thread"]
    assert [(line.event, line.fields) for line in await bench.lines(jobs[2])] == [
        ("from a child", '{"n": 1}'), ("from its thread", None)
    ]  # fmt: skip


@pytest.mark.parametrize("isolation", ["async", "process"])
async def test_a_log_is_bounded_and_says_what_it_dropped(bench: Bench, isolation: str) -> None:
    @bench.app.job
    async def chatty(ctx: rota.Context) -> None:
        for number in range(LOG_LINES_MAX + 50):
            ctx.log.info("line", number=number)

    bench.app.job("talk", isolation="process")(talk)
    job = await (bench.app.enqueue(chatty) if isolation == "async" else bench.app.enqueue("talk", Order("chat")))
    async with working(bench.app):
        await bench.ends(job)
    lines = await bench.lines(job)
    assert len(lines) == LOG_LINES_MAX
    assert [line.event for line in lines[-3:]] == ["line", FULL, DROPPED]
    assert json.loads(lines[-1].fields or "") == {"dropped": 52}


async def test_what_a_handler_left_behind_says_nothing(bench: Bench) -> None:
    said, go = asyncio.Event(), asyncio.Event()

    @bench.app.job
    async def leaves(ctx: rota.Context) -> None:
        async def late() -> None:
            await go.wait()
            ctx.log.info("late")
            said.set()

        ctx.log.info("in time")
        left.append(asyncio.create_task(late()))

    left: list[asyncio.Task[None]] = []
    job = await bench.app.enqueue(leaves)
    async with working(bench.app):
        await bench.ends(job)
        go.set()
        await asyncio.wait_for(said.wait(), WAIT_S)
    assert [line.event for line in await bench.lines(job)] == ["in time"]


# Retention


async def test_each_kind_stays_as_long_as_it_says(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a worker of another program, which knows nothing of the kind."""
    monkeypatch.setattr(pruner, "EVERY_S", 0.05)

    @bench.app.job(keep_s=0.0, max_tries=1)
    async def short(ctx: rota.Context, fails: Any) -> Any:
        return rota.Fail("no") if fails is True else None

    @bench.app.job(keep_s=0.0, keep_failed_s=0.0)
    async def shortest() -> Any:
        return rota.Fail("no")

    @bench.app.job
    async def usual() -> None: ...

    async with working(bench.app):
        stays = await bench.app.enqueue(usual)
        dead = await bench.app.enqueue(short, True)
        await bench.ends(stays)
        await bench.ends(dead)
        gone = [await bench.app.enqueue(kind) for kind in (short, shortest)]
        for job in gone:
            async with asyncio.timeout(WAIT_S):
                while await bench.store.show(job.id):
                    await asyncio.sleep(0.01)
            assert await bench.tries(job) == []
    assert (await bench.row(stays)).state is State.DONE
    assert (await bench.row(dead)).state is State.FAILED, "a dead letter stays visible"
    assert len(await bench.tries(dead)) == 1


# Results


async def test_a_program_waits_for_results(bench: Bench) -> None:
    go = asyncio.Event()

    @bench.app.job(max_tries=1)
    async def add(ctx: rota.Context, numbers: list[int]) -> Any:
        if not numbers:
            raise ValueError("nothing to add")
        await go.wait()
        return {"sum": sum(numbers)}

    async with working(bench.app):
        good, bad = await bench.app.enqueue(add, [1, 2]), await bench.app.enqueue(add, [])
        waits = [asyncio.create_task(bench.app.result(job)) for job in (good, good.id, bad)]
        with pytest.raises(rota.ResultTimeout, match=r"has not ended within 0\.05 s"):
            await bench.app.result(good, timeout_s=0.05)
        with pytest.raises(TimeoutError):
            await bench.app.result(good, timeout_s=0)
        go.set()
        async with asyncio.timeout(WAIT_S):
            assert await waits[0] == await waits[1] == {"sum": 3}
            with pytest.raises(rota.JobFailed, match=r"ValueError: nothing to add \(test_history.py:") as failed:
                await waits[2]
        assert failed.value.job_id == bad.id
        assert await bench.app.result(good, timeout_s=0) == {"sum": 3}, "a job that has ended answers at once"
        assert await asyncio.to_thread(bench.app.sync.result, good, timeout_s=WAIT_S) == {"sum": 3}
        with pytest.raises(rota.ResultTimeout):
            later = await bench.app.enqueue(add, [1], delay_s=60)
            await asyncio.to_thread(bench.app.sync.result, later.id, timeout_s=0.1)
        await bench.app.cancel(later.id, reason="nobody wants it")
        with pytest.raises(rota.JobCancelled, match="was cancelled: nobody wants it"):
            await bench.app.result(later)
    with pytest.raises(rota.RotaError, match=r"use `await app\.result"):
        bench.app.sync.result(good)
    with pytest.raises(rota.JobNotFound, match="Its enqueue has not committed"):
        await bench.app.result(rota.JobId(UUID(int=7)))


async def test_waiting_ends_with_the_program(bench: Bench) -> None:
    job = await bench.app.enqueue("nobody")
    waiting = asyncio.create_task(bench.app.result(job))
    await asyncio.sleep(0)
    desk = bench.app._own_desk
    await until(lambda: desk._results is not None and desk._results.waiting == 1)
    await bench.app.stop()
    with pytest.raises(rota.DatabaseAway, match="The program is stopping"):
        await waiting


async def test_a_thousand_waits_are_one_question(bench: Bench) -> None:
    asked: list[int] = []
    store = bench.store

    async def ask(ids: Any) -> Any:
        wanted = list(ids)
        asked.append(len(wanted))
        return await store.results(wanted)

    results = Results(ask)
    added = await bench.app.enqueue_many([NewJob("nobody")] * 300)
    waits = [asyncio.create_task(results.wait(job.id, timeout_s=WAIT_S)) for job in added]
    await until(lambda: asked)
    await store.cancel([job.id for job in added])
    async with asyncio.timeout(WAIT_S):
        ended = await asyncio.gather(*waits, return_exceptions=True)
    assert {type(one) for one in ended} == {rota.JobCancelled}
    assert max(asked) == 300
    assert results.waiting == 0
    await results.stop()
