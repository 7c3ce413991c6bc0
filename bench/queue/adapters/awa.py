"""Awa: its queue storage, 256 jobs at once, woken or polling every 5 ms."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from bench.queue.meter import Meter

PENDING = "SELECT EXISTS (SELECT FROM awa.jobs WHERE state IN ('available', 'running', 'retryable'))"


@dataclass
class Noop:
    """The job."""

    number: int
    sent_at: float


async def setup(dsn: str) -> None:
    """Installs its schema."""
    client = await open(dsn)
    await client.migrate()
    await client.install_queue_storage()
    await close(client)


async def open(dsn: str) -> Any:
    """A producer's client."""
    from awa import AsyncClient

    parts = urlsplit(dsn)
    # It takes a socket's folder and a user as parameters only, beside a host that it does not use then.
    user = f"&user={parts.username}" if not parts.hostname else ""
    return AsyncClient(dsn if parts.hostname else f"postgresql://localhost{parts.path}?{parts.query}{user}")


async def close(client: Any) -> None:
    """Ends it."""
    await client.close()


async def enqueue_one(client: Any, number: int, sent_at: float) -> None:
    """Adds one job and commits."""
    await client.insert(Noop(number, sent_at), queue="noop")


async def _described(client: Any, count: int) -> Callable[[], Awaitable[None]]:
    async def add() -> None:
        await client.enqueue_many_copy([Noop(number, 0.0) for number in range(count)], queue="noop")

    return add


bulks = {"described": _described}


async def worker(dsn: str, meter: Meter) -> None:
    """Works until it is killed."""
    client = await open(dsn)

    @client.task(Noop, queue="noop")
    async def noop(job: Any) -> None:
        meter.handled({"number": job.args.number, "sent_at": job.args.sent_at})

    await client.start([("noop", 256)], poll_interval_ms=5)
    await asyncio.Event().wait()
