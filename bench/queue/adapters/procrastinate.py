"""Procrastinate: a pool of 4 to 20, 20 jobs at once, woken by NOTIFY; each end is a statement of its own."""

from collections.abc import Awaitable, Callable
from typing import Any

from bench.queue.meter import Meter

PENDING = """
    SELECT EXISTS (SELECT FROM procrastinate_jobs
                   WHERE status IN ('todo', 'doing') AND (scheduled_at IS NULL OR scheduled_at <= now()))"""
DONE = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"


def _program(dsn: str, meter: Meter | None = None) -> tuple[Any, Any]:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, min_size=4, max_size=20))

    @app.task(name="noop", queue="default")
    async def noop(payload: dict[str, Any]) -> None:
        assert meter is not None, "a producer handles nothing"
        meter.handled(payload)

    return app, noop


async def setup(dsn: str) -> None:
    """Installs its schema."""
    app, _ = _program(dsn)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def open(dsn: str) -> Any:
    """A producer's connection."""
    app, noop = _program(dsn)
    await app.open_async()
    return app, noop


async def close(client: Any) -> None:
    """Ends it."""
    await client[0].close_async()


async def enqueue_one(client: Any, number: int, sent_at: float) -> None:
    """Adds one job and commits."""
    await client[1].defer_async(payload={"number": number, "sent_at": sent_at})


async def _described(client: Any, count: int) -> Callable[[], Awaitable[None]]:
    async def add() -> None:
        await client[1].batch_defer_async(*({"payload": {"number": number, "sent_at": 0.0}} for number in range(count)))

    return add


bulks = {"described": _described}


async def worker(dsn: str, meter: Meter) -> None:
    """Works until it is stopped."""
    app, _ = _program(dsn, meter)
    async with app.open_async():
        await app.run_worker_async(concurrency=20)
