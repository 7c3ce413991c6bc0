"""Oban for Python: a queue of 200, its default debounce, finished jobs kept for a day."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from bench.queue.meter import Meter

PENDING = "SELECT EXISTS (SELECT FROM oban_jobs WHERE state IN ('available', 'executing', 'retryable'))"
DONE = "SELECT count(*) FROM oban_jobs WHERE state = 'completed'"


def _worker_class(meter: Meter | None = None) -> Any:
    from oban import worker as oban_worker

    @oban_worker(queue="default")
    class Noop:
        """The job."""

        async def process(self, job: Any) -> None:
            """Does nothing."""
            assert meter is not None, "a producer handles nothing"
            meter.handled(job.args)

    return Noop


async def setup(dsn: str) -> None:
    """Installs its schema."""
    import psycopg
    from oban.schema import install_sql

    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute(install_sql())


async def open(dsn: str) -> Any:
    """A producer's pool."""
    from oban import Oban

    pool = await Oban.create_pool(dsn)
    return Oban(pool=pool), pool, _worker_class()


async def close(client: Any) -> None:
    """Ends it."""
    await client[1].close()


async def enqueue_one(client: Any, number: int, sent_at: float) -> None:
    """Adds one job and commits."""
    await client[0].enqueue(client[2].new({"number": number, "sent_at": sent_at}))


async def _described(client: Any, count: int) -> Callable[[], Awaitable[None]]:
    async def add() -> None:
        await client[0].enqueue_many(client[2].new({"number": number, "sent_at": 0.0}) for number in range(count))

    return add


bulks = {"described": _described}


async def worker(dsn: str, meter: Meter) -> None:
    """Works until it is killed."""
    from oban import Oban

    _worker_class(meter)
    pool = await Oban.create_pool(dsn)
    async with Oban(pool=pool, queues={"default": 200}):
        await asyncio.Event().wait()
