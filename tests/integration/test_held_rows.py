"""Rows of jobs that somebody's open transaction holds: a person's at a terminal, or a program's. Only they wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

import rota
from rota.ids import JobId
from rota.io import postgres
from rota.queue.job import State
from tests.integration.test_worker import Bench, made_bench, until, working


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
