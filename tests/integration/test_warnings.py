"""The four warnings of seed 003, each made to happen: by their words, and with the fields that a search needs."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator

import asyncpg
import pytest

import rota
from rota.settings import Settings

WAIT_S = 60.0
"""Generous: only a failing test waits that long."""


class Shop:
    """A worker in this process, and what it warned of."""

    def __init__(self, app: rota.App, conn: asyncpg.Connection, caplog: pytest.LogCaptureFixture) -> None:
        self.app = app
        self.conn = conn
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self._caplog = caplog

    async def warned(self, words: str) -> dict[str, str]:
        """Waits for a warning, and gives its fields."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for record in self._caplog.records:
                    said = record.getMessage()
                    if record.levelno == logging.WARNING and said.startswith(words):
                        return dict(re.findall(r"(\w+)='?([^' ]+)", said.removeprefix(words)))
                await asyncio.sleep(0.01)


@pytest.fixture
async def shop(migrated_dsn: str, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Shop]:
    app = rota.App(settings=Settings(dsn=migrated_dsn, poll_s=0.05))
    conn = await asyncpg.connect(migrated_dsn)
    shop = Shop(app, conn, caplog)

    @app.job(lease_s=3, heartbeat_s=1)
    async def idle(ctx: rota.Context) -> None:
        shop.started.set()
        await shop.go_on.wait()

    @app.job(lease_s=3, heartbeat_s=1)
    async def busy(ctx: rota.Context) -> None:
        shop.started.set()
        while True:
            ctx.progress()
            await asyncio.sleep(0.05)

    @app.job()
    async def patient(ctx: rota.Context) -> None:
        shop.started.set()
        await shop.go_on.wait()

    worker = app.worker()
    running = asyncio.create_task(worker.run())
    try:
        yield shop
    finally:
        worker.stop(now=True)
        await asyncio.wait_for(running, WAIT_S)
        await app.stop()
        await conn.close()


async def test_a_stall(shop: Shop) -> None:
    added = await shop.app.enqueue("idle")
    fields = await shop.warned("job stalled: the worker stopped a job that made no progress")
    assert fields == {"job_id": str(added.id), "kind": "idle", "epoch": "1"}


async def test_a_lease_lost_to_another_server(shop: Shop) -> None:
    added = await shop.app.enqueue("patient")
    await asyncio.wait_for(shop.started.wait(), WAIT_S)
    await shop.conn.execute(
        "UPDATE rota.open_jobs SET lease_epoch = 7, leased_by = 'other:1:a' WHERE id = $1", added.id
    )
    shop.go_on.set()
    fields = await shop.warned("job lost its lease to another server; stopped here")
    assert fields == {"job_id": str(added.id), "kind": "patient", "epoch": "1"}


async def test_a_heartbeat_that_could_not_be_written(shop: Shop) -> None:
    added = await shop.app.enqueue("busy")
    await asyncio.wait_for(shop.started.wait(), WAIT_S)
    async with shop.conn.transaction():
        await shop.conn.execute("SELECT FROM rota.open_jobs WHERE id = $1 FOR UPDATE", added.id)
        fields = await shop.warned("job heartbeat not written for the lease time; stopped here")
    assert fields == {"job_id": str(added.id), "kind": "busy", "epoch": "1"}


async def test_a_lease_that_ran_out_on_the_last_try(shop: Shop) -> None:
    job_id = await shop.conn.fetchval("SELECT id FROM rota.enqueue('elsewhere')")
    await shop.conn.execute(
        "UPDATE rota.open_jobs SET state = 'leased', leased_by = 'gone:1:a', lease_epoch = 3, tries = 3, "
        "max_tries = 3, lease_until = now() - interval '1 s', started_at = now() - interval '9 s' WHERE id = $1",
        job_id,
    )
    fields = await shop.warned("job failed: its lease ran out on its last try")
    assert fields == {"job_id": str(job_id), "kind": "elsewhere", "epoch": "3", "holder": "gone:1:a"}
