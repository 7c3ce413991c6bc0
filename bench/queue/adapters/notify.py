"""No queue and no job: LISTEN and NOTIFY alone, the least that a wake-up through PostgreSQL can take."""

import asyncio
import time
from typing import Any

import asyncpg

from bench.queue.meter import Meter

CHANNEL = "bench_wake"


async def open(dsn: str) -> Any:
    """A producer's connection."""
    return await asyncpg.connect(dsn)


async def close(connection: Any) -> None:
    """Ends it."""
    await connection.close()


async def enqueue_one(connection: Any, number: int, sent_at: float) -> None:
    """Notifies."""
    await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, f"{number} {sent_at}")


async def worker(dsn: str, meter: Meter) -> None:
    """Listens until it is killed."""

    def heard(_connection: Any, _pid: int, _channel: str, said: str) -> None:
        now = time.monotonic()
        number, sent_at = said.split()
        meter.started()
        meter.waited(int(number), now - float(sent_at))

    connection = await asyncpg.connect(dsn)
    await connection.add_listener(CHANNEL, heard)
    await asyncio.Event().wait()
