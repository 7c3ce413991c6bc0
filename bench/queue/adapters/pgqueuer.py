"""PgQueuer: a pool of ten, batches of 500, durable, with its own advice for autovacuum."""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from bench.queue.meter import Meter

PENDING = "SELECT EXISTS (SELECT FROM pgqueuer WHERE execute_after <= now())"
HISTORY = {
    "finished": """
        INSERT INTO pgqueuer_log (job_id, status, priority, entrypoint, aggregated)
        SELECT -n, 'successful', 0, 'noop', true FROM generate_series(1, $1::integer) n""",
    "future": """
        INSERT INTO pgqueuer (priority, status, entrypoint, payload, execute_after)
        SELECT 0, 'queued', 'noop', '\\x7b7d', now() + interval '1 day' FROM generate_series(1, $1::integer) n""",
}


async def setup(dsn: str) -> None:
    """Installs its schema."""
    queries = await open(dsn)
    await queries.install()
    await queries.optimize_autovacuum()
    await close(queries)


async def open(dsn: str) -> Any:
    """A producer's connection."""
    import asyncpg
    from pgqueuer import AsyncpgDriver, Queries

    return Queries(AsyncpgDriver(await asyncpg.connect(dsn)))


async def close(client: Any) -> None:
    """Ends it."""
    await client.driver._connection.close()


async def enqueue_one(client: Any, number: int, sent_at: float) -> None:
    """Adds one job and commits."""
    await client.enqueue("noop", _payload(number, sent_at))


async def _described(client: Any, count: int) -> Callable[[], Awaitable[None]]:
    async def add() -> None:
        await client.enqueue(["noop"] * count, [_payload(number, 0.0) for number in range(count)], [0] * count)

    return add


bulks = {"described": _described}


async def worker(dsn: str, meter: Meter) -> None:
    """Works until it is killed."""
    import asyncpg
    from pgqueuer import AsyncpgPoolDriver, PgQueuer

    async with asyncpg.create_pool(dsn, min_size=10, max_size=10) as pool:
        queue = PgQueuer(AsyncpgPoolDriver(pool))

        @queue.entrypoint("noop")
        async def noop(job: Any) -> None:
            meter.handled(json.loads(job.payload))

        await queue.run(batch_size=500, dequeue_timeout=timedelta(seconds=5))


def _payload(number: int, sent_at: float) -> bytes:
    return json.dumps({"number": number, "sent_at": sent_at}).encode()
