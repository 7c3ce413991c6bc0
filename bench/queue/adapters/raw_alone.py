"""The limit where each end is a commit of its own: the raw loop with a statement for each job, on eight connections."""

import asyncio
from collections import deque
from typing import Any

import asyncpg
import msgspec

from bench.queue.adapters import raw
from bench.queue.adapters.raw import DONE, PENDING, bulks, close, enqueue_one, open, setup
from bench.queue.meter import Meter

__all__ = ["DONE", "PENDING", "bulks", "close", "enqueue_one", "open", "setup", "worker"]

WRITERS = 8
FINISH = "UPDATE raw_jobs SET state = 'done', finished_at = now() WHERE id = $1"


async def worker(dsn: str, meter: Meter) -> None:
    """Claims, handles and finishes until it is killed."""
    claims = await asyncpg.connect(dsn)
    finishes = [await asyncpg.connect(dsn) for _ in range(WRITERS)]
    decode = msgspec.json.Decoder(raw.Noop).decode
    claim, ended = await claims.prepare(raw.CLAIM), deque[int]()
    writing: list[asyncio.Task[None]] = []
    while True:
        rows = await claim.fetch()
        for row in rows:
            await raw.noop(decode(row["payload"]), meter)
            ended.append(row["id"])
        await asyncio.gather(*writing)
        writing = [asyncio.create_task(_write(connection, ended)) for connection in finishes] if rows else []
        if not rows:
            await asyncio.sleep(raw.LOOK_S)


async def _write(connection: Any, ended: deque[int]) -> None:
    finish = await connection.prepare(FINISH)
    while ended:
        await finish.fetch(ended.popleft())
