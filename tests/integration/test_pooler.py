"""Behind a real pgbouncer in transaction mode (S12): it works when told so, and says what to set when not."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import rota
from rota.queue.health import examine
from rota.queue.io.health import read_health
from rota.settings import Settings
from tests.poolers import pgbouncer

JOBS = 300


@pytest.fixture
def pooled(migrated_dsn: str, tmp_path: Path) -> Iterator[str]:
    """The address of a pgbouncer before a fresh database with Rota's schema; it lends two connections."""
    with pgbouncer(migrated_dsn, tmp_path / "pooler", connections=2) as dsn:
        yield dsn


async def test_two_workers_share_the_work(pooled: str) -> None:
    app = rota.App(settings=Settings(dsn=pooled, pooler="transaction", poll_s=0.1))
    runs: list[int] = []
    ticks: list[int] = []

    @app.job(limit=20)
    async def count(ctx: rota.Context, number: int) -> int:
        await asyncio.sleep(0.001)
        runs.append(number)
        return number

    @app.job(ends_alone=True)
    async def pay(ctx: rota.Context, number: int) -> int:
        return number

    @app.every(seconds=1, first_after_s=0)
    async def tick() -> None:
        ticks.append(1)

    await app.start()
    workers = [app.worker(), app.worker()]
    working = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        added = await app.enqueue_many([app.new(count, number) for number in range(JOBS)])
        added += await app.enqueue_many([app.new(pay, number) for number in range(20)])
        one = await app.enqueue(count, JOBS, dedupe=rota.open_key("one"))
        store = await app.store()
        ids = [job.id for job in [*added, one]]
        async with asyncio.timeout(30):
            while (
                any(row.state != "done" for row in await store.show(min(ids), max(ids), limit=2 * JOBS))
                or len(ticks) < 2
            ):
                await asyncio.sleep(0.05)
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*working)
        await app.stop()
    assert sorted(runs) == list(range(JOBS + 1))


async def test_without_the_setting_it_says_which(pooled: str) -> None:
    app = rota.App(settings=Settings(dsn=pooled))
    with pytest.raises(rota.SettingsError, match="Set ROTA_POOLER=transaction"):
        await app.start()
    await app.stop()


async def test_the_doctor_notices_the_pooler_and_whether_rota_was_told(pooled: str) -> None:
    async with rota.App(settings=Settings(dsn=pooled, pooler="transaction")) as app:
        health = await read_health(await app.database())
    assert health.shares_sessions
    assert [check.level for check in examine(health) if check.about == "pooler"] == ["ok"]
    untold = [check for check in examine(replace(health, pooler="none")) if check.about == "pooler"]
    assert untold[0].level == "problem" and "ROTA_POOLER=transaction" in (untold[0].advice or "")
