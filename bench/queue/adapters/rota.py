"""Rota by its public names, as a program would use it, with a typed payload."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bench.queue.meter import Meter
from rota import App, Context, Settings
from rota.io import log, migrate

LIMIT = 2000
"""Jobs at once on one server: two full claims, so that one is handled while the next is on its way."""

PENDING = """
    SELECT EXISTS (SELECT FROM rota.open_jobs WHERE state = 'leased')
        OR EXISTS (SELECT FROM rota.open_jobs WHERE state = 'queued' AND place = 'worker' AND kind = 'noop'
                   AND priority = 0 AND run_after <= now())"""
DONE = "SELECT count(*) FROM rota.ended_jobs WHERE state = 'done'"
HISTORY = {
    "finished": """
        INSERT INTO rota.ended_jobs (id, run_after, created_at, started_at, finished_at, lease_epoch, priority, tries,
                                     kind, state, place, leased_by, payload)
        SELECT (rota.uuid_v7_head(now() - interval '1 day', n) || rota.uuid_v7_tail())::uuid, at, at, at, at, 1, 0, 1,
               'noop', 'done', 'worker', 'somewhere:1:abcdef01', '{"number": 1, "sent_at": 0.0}'
        FROM generate_series(1, $1::integer) AS n
        CROSS JOIN LATERAL (SELECT now() - interval '1 day' + n * interval '1 microsecond' AS at) AS clock""",
    "future": """
        INSERT INTO rota.open_jobs (id, kind, payload, run_after)
        SELECT (rota.uuid_v7_head(now(), n) || rota.uuid_v7_tail())::uuid, 'noop', '{"number": 1, "sent_at": 0.0}',
               now() + interval '1 day' + n * interval '1 millisecond'
        FROM generate_series(1, $1::integer) AS n""",
}


@dataclass(frozen=True, slots=True)
class Noop:
    """What a job is told: its number, and when it was sent (0: nobody asks)."""

    number: int
    sent_at: float = 0.0


async def setup(dsn: str) -> None:
    """Installs Rota's schema."""
    await migrate.up(_app(dsn).target)


async def open(dsn: str) -> App:
    """A program that enqueues."""
    app = _app(dsn)
    await app.start()
    return app


async def close(app: App) -> None:
    """Ends it."""
    await app.stop()


async def enqueue_one(app: App, number: int, sent_at: float) -> None:
    """Adds one job in its own transaction."""
    await app.enqueue("noop", Noop(number, sent_at))


async def described(app: App, count: int, *, tenants: int = 0) -> Callable[[], Awaitable[None]]:
    """Payloads are there; describing and adding the jobs is timed. With tenants, each has every so manieth job."""
    payloads = [Noop(number) for number in range(count)]
    names = [f"tenant-{number % tenants}" if tenants else None for number in range(count)]

    async def add() -> None:
        described = zip(payloads, names, strict=True)
        await app.enqueue_many([app.new("noop", payload, tenant=name) for payload, name in described])

    return add


async def _prepared(app: App, count: int) -> Callable[[], Awaitable[None]]:
    jobs = [app.new("noop", Noop(number)) for number in range(count)]

    async def add() -> None:
        await app.enqueue_many(jobs)

    return add


bulks = {"described": described, "prepared": _prepared}


async def worker(dsn: str, meter: Meter, *, job_pool_size: int = 6, **limits: Any) -> None:
    """One worker process; `limits` are those of the kind."""
    app = _app(dsn, job_pool_size=job_pool_size)

    @app.job(limit=LIMIT, **limits)
    async def noop(_ctx: Context, job: Noop) -> None:
        meter.started()
        if job.sent_at:
            meter.waited(job.number, time.monotonic() - job.sent_at)

    log.setup(app.settings)
    await app.start()
    running = app.worker(ends_process=True)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.stop)
    await running.run()
    await app.stop()


def _app(dsn: str, *, job_pool_size: int = 6) -> App:
    # Said in full, so that neither a rota.toml nor the environment has a part in it.
    return App(settings=Settings(dsn=dsn, log_format="text", job_pool_size=job_pool_size))
