"""Rows and keys of jobs that somebody's open transaction holds, a person's or a program's. Only these jobs wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

import rota
from rota.ids import Holder, JobId
from rota.io import postgres
from rota.queue.io.completer import KEYED_AT_ONCE
from rota.queue.io.ends import SWEEP_WAITS_MAX
from rota.queue.job import Ask, NewJob, State
from tests.integration.test_worker import Bench, made_bench, until, working

SOON_S = 3.0
"""Less than what one wait for each of them would take, with room for a slow machine."""
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
async def bench(any_migrated_dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """A program whose connections wait for a lock no longer than a moment."""
    monkeypatch.setitem(postgres._SESSION, "lock_timeout", "300")
    async with made_bench(any_migrated_dsn, poll_s=0.05, stop_grace_s=0) as made:
        yield made


@asynccontextmanager
async def holding(bench: Bench, *ids: JobId) -> AsyncIterator[None]:
    """Somebody's transaction that changed these jobs, and goes on."""
    conn = await asyncpg.connect(bench.app.settings.require_dsn())
    try:
        async with conn.transaction():
            await conn.execute("UPDATE rota.open_jobs SET priority = 7 WHERE id = ANY ($1)", list(ids))
            yield
    finally:
        await conn.close()


async def test_it_keeps_no_heartbeat_of_others(bench: Bench) -> None:
    ends = asyncio.Event()

    @bench.app.job(limit=5, lease_s=60, heartbeat_s=0.2)
    async def work(ctx: rota.Context) -> None:
        while not ends.is_set():
            ctx.progress()
            await asyncio.sleep(0.02)

    async def beats(job_id: JobId) -> None:
        before = (await bench.row(job_id)).heartbeat_at
        await bench.reaches(job_id, lambda row: row.heartbeat_at != before)

    held, *others = [(await bench.app.enqueue(work)).id for _ in range(3)]
    async with working(bench.app):
        for job_id in (held, *others):
            await bench.reaches(job_id, lambda row: row.state is State.LEASED)
        async with holding(bench, held):
            before = (await bench.row(held)).heartbeat_at
            for _ in range(3):
                for job_id in others:
                    await beats(job_id)
            assert (await bench.row(held)).heartbeat_at == before
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            assert await bench.value(f"{waits} AND datname = current_database()") == 0
        await beats(held)
        ends.set()
        for job_id in (held, *others):
            row = await bench.ends(job_id)
            assert (row.state, row.lease_epoch) == (State.DONE, 1)


@pytest.mark.parametrize("alone", [False, True])
async def test_it_keeps_no_end_of_others(bench: Bench, alone: bool) -> None:
    go_on = asyncio.Event()

    @bench.app.job(limit=10, lease_s=60, ends_alone=alone)
    async def work(ctx: rota.Context, waits: bool) -> str:
        if waits:
            await go_on.wait()
        return "went well"

    first = [(await bench.app.enqueue(work, True)).id for _ in range(4)]
    async with working(bench.app):
        for job_id in first:
            await bench.reaches(job_id, lambda row: row.state is State.LEASED)
        async with holding(bench, *first[:2]):
            go_on.set()
            later = [(await bench.app.enqueue(work, False)).id for _ in range(20)]
            for job_id in (*first[2:], *later):
                assert (await bench.ends(job_id)).state is State.DONE
            assert [(await bench.row(job_id)).state for job_id in first[:2]] == [State.LEASED] * 2
        for job_id in first[:2]:
            row = await bench.ends(job_id)
            assert (row.state, row.lease_epoch, row.result, row.priority) == (State.DONE, 1, '"went well"', 7)


async def test_an_end_whose_row_is_removed_meanwhile_is_no_longer_waited_for(bench: Bench) -> None:
    go_on = asyncio.Event()

    @bench.app.job(lease_s=60)
    async def work() -> None:
        await go_on.wait()

    job_id = (await bench.app.enqueue(work)).id
    async with working(bench.app) as worker:
        await bench.reaches(job_id, lambda row: row.state is State.LEASED)
        async with bench.conn.transaction():
            await bench.conn.execute("DELETE FROM rota.open_jobs WHERE id = $1", job_id)
            go_on.set()
            assert await until(lambda: worker._completer.waiting, what="the end waits for the transaction")
        await until(lambda: not worker._completer.waiting, what="nothing waits to be written")


# Keys that somebody's transaction holds


@asynccontextmanager
async def adding(bench: Bench, kind: str, count: int) -> AsyncIterator[None]:
    """Somebody's transaction that adds as many jobs with keys, and is rolled back at the end."""
    conn = await asyncpg.connect(bench.app.settings.require_dsn())
    transaction = conn.transaction()
    await transaction.start()
    try:
        await conn.execute(
            "SELECT rota.enqueue($1, '{}', dedupe_key => 'k' || n, dedupe_scope => 'queued')"
            " FROM generate_series(1, $2) AS n",
            kind,
            count,
        )
        yield
    finally:
        await transaction.rollback()
        await conn.close()


async def test_ends_that_wait_for_twins_leave_connections_to_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more of them than connections."""
    monkeypatch.setitem(postgres._SESSION, "lock_timeout", "5000")
    go_on = asyncio.Event()

    @bench.app.job(limit=40, lease_s=60, retry=rota.Fixed(0))
    async def keyed(ctx: rota.Context) -> rota.Retry | None:
        await go_on.wait()
        return rota.Retry(after_s=0, error="again") if ctx.job.tries == 1 else None

    @bench.app.job
    async def quick() -> None: ...

    ids = [(await bench.app.enqueue(keyed, dedupe=rota.queued_key(f"k{n}"))).id for n in range(1, 31)]
    async with working(bench.app) as worker:
        await bench.reaches(ids[-1], lambda row: row.state is State.LEASED)
        async with adding(bench, "keyed", 30):
            go_on.set()
            await until(lambda: worker._completer.waiting == 30, what="all of them wait")
            for _ in range(5):
                began = asyncio.get_running_loop().time()
                await bench.ends((await bench.app.enqueue(quick)).id)
                assert await bench.value(WAITING) <= KEYED_AT_ONCE
                assert asyncio.get_running_loop().time() - began < SOON_S
            assert worker._completer.waiting == 30
        for job_id in ids:
            row = await bench.ends(job_id)
            assert (row.state, row.tries) == (State.DONE, 2)


async def test_a_sweep_that_met_nobody_begins_with_the_first_the_next_time(bench: Bench) -> None:
    """Of twins the first in the order of the ids runs, whatever was swept before."""
    for count in (2, 3):
        await bench.store.enqueue_many(
            [NewJob("keyed", dedupe=rota.queued_key(f"k{n}")) for n in range(1 if count == 2 else 3, count + 1)]
        )
        leased = await bench.store.claim([Ask("keyed", 9, 0.001, 9)], holder=Holder("gone:1:aa"))
        swept = [one.lease.job_id for one in await bench.store.sweep(now=datetime.now(UTC) + timedelta(hours=1))]
        assert swept == sorted(job.lease.job_id for job in leased)
        assert len(swept) == count


async def test_a_sweep_that_meets_twins_leaves_time_for_others(bench: Bench) -> None:
    """And comes in turn to those of its jobs that need not wait."""
    holder = Holder("gone:1:aa")
    for n in range(1, 32):
        await bench.store.enqueue(NewJob("keyed", dedupe=rota.queued_key(f"k{n}")))
    leased = await bench.store.claim([Ask("keyed", 40, 0.001, 3)], holder=holder)
    assert len(leased) == 31
    free = max(job.lease.job_id for job in leased)
    async with adding(bench, "keyed", 30):
        for _ in range(30 // SWEEP_WAITS_MAX + 1):
            began = asyncio.get_running_loop().time()
            swept = await bench.store.sweep()
            assert asyncio.get_running_loop().time() - began < SOON_S
            if swept:
                break
        assert [one.lease.job_id for one in swept] == [free]
    swept_ids: set[JobId] = set()
    while len(swept_ids) < 30:
        swept_ids |= {one.lease.job_id for one in await bench.store.sweep()}
    assert await bench.value("SELECT count(*) FROM rota.open_jobs WHERE state = 'queued'") == 31
