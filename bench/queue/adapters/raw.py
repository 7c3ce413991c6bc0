"""No queue, but its limit: the least SQL that still adds, leases and finishes jobs durably, from hand-written asyncpg.

It has one kind, no tries to give up after, no fence, no recovery, no clean-up. Two connections: the next batch is
claimed while the last one is finished.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from bench.queue.meter import Meter

BATCH = 1000
LOOK_S = 0.01

SCHEMA = """
    CREATE TABLE raw_jobs (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        kind text NOT NULL,
        payload jsonb NOT NULL,
        priority integer NOT NULL DEFAULT 0,
        run_after timestamptz NOT NULL DEFAULT now(),
        state text NOT NULL DEFAULT 'queued',
        tries integer NOT NULL DEFAULT 0,
        lease_until timestamptz,
        finished_at timestamptz);
    CREATE INDEX raw_jobs_next ON raw_jobs (priority DESC, run_after, id) WHERE state = 'queued'"""
INSERT = "INSERT INTO raw_jobs (kind, payload) VALUES ($1, $2)"
CLAIM = f"""
    UPDATE raw_jobs SET state = 'leased', tries = tries + 1, lease_until = now() + interval '300 s'
    WHERE id = ANY (ARRAY(SELECT id FROM raw_jobs WHERE state = 'queued' AND run_after <= now()
                          ORDER BY priority DESC, run_after, id LIMIT {BATCH} FOR UPDATE SKIP LOCKED))
    RETURNING id, payload"""
FINISH = "UPDATE raw_jobs SET state = 'done', finished_at = now() WHERE id = ANY ($1::bigint[])"
PENDING = "SELECT EXISTS (SELECT FROM raw_jobs WHERE state IN ('queued', 'leased'))"
DONE = "SELECT count(*) FROM raw_jobs WHERE state = 'done'"

Add = Callable[[], Awaitable[None]]


class Noop(msgspec.Struct):
    """What a job is told."""

    number: int
    sent_at: float = 0.0


async def setup(dsn: str) -> None:
    """Makes the one table."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(SCHEMA)
    await connection.close()


async def open(dsn: str) -> Any:
    """A producer's connection."""
    return await asyncpg.connect(dsn)


async def close(connection: Any) -> None:
    """Ends it."""
    await connection.close()


async def enqueue_one(connection: Any, number: int, sent_at: float) -> None:
    """Adds one job in its own transaction."""
    await connection.execute(INSERT, "noop", _payload(number, sent_at))


async def _into_own_table(connection: Any, count: int) -> Add:
    rows = [("noop", _payload(number)) for number in range(count)]
    return _copy(connection, "raw_jobs", None, ["kind", "payload"], rows)


async def _into_rotas_table(connection: Any, count: int) -> Add:
    rows = [
        (UUID(bytes=os.urandom(8) + number.to_bytes(8, "big")), "noop", _payload(number)) for number in range(count)
    ]
    rows.sort()  # ids in the order of the rows, as Rota makes them
    return _copy(connection, "open_jobs", "rota", ["id", "kind", "payload"], rows)


def _copy(connection: Any, table: str, schema: str | None, columns: list[str], rows: list[Any]) -> Add:
    async def add() -> None:
        await connection.copy_records_to_table(table, schema_name=schema, columns=columns, records=rows)

    return add


bulks = {"own": _into_own_table, "rota": _into_rotas_table}


async def worker(dsn: str, meter: Meter) -> None:
    """Claims, handles and finishes until it is killed."""
    claims, finishes = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    decode = msgspec.json.Decoder(Noop).decode
    claim, finish = await claims.prepare(CLAIM), await finishes.prepare(FINISH)
    finishing: asyncio.Task[Any] | None = None
    while True:
        rows = await claim.fetch()
        for row in rows:
            await noop(decode(row["payload"]), meter)
        if finishing is not None:
            await finishing
            finishing = None
        if rows:
            finishing = asyncio.create_task(finish.fetch([row["id"] for row in rows]))
        else:
            await asyncio.sleep(LOOK_S)


async def noop(_job: Noop, meter: Meter) -> None:
    """What each job does."""
    meter.started()


def _payload(number: int, sent_at: float = 0.0) -> str:
    return msgspec.json.encode(Noop(number, sent_at)).decode()
