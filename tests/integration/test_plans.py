"""The plans of the hot statements, where statistics lie: each row is reached by an index, and few pages are read.

They are looked at on a connection of Rota's own, with its settings (`rota.io.postgres`): plans that are kept (generic)
and plans for the values at hand (custom), made while the table was empty, and made from old numbers.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rota.io.migrate import up
from rota.io.postgres import Connection, Database, Target, statement
from tests.postgres_servers import Server

BATCHES = (1, 50, 1000)
FUTURE = 200_000
ID = "'00000000-0000-7000-8000-%012d'"

ARGUMENTS = {
    "claim": "ARRAY['k', 'l'], ARRAY[{n}, 1], ARRAY[300.0, 300.0], ARRAY[3, 3], ARRAY[NULL, 1], {marks}, 'h', NULL",
    "renew": "{ids}, {ones}, {floats}, {nulls}::jsonb[], NULL, 'nobody'",
    "finish": "{ids}, {ones}, NULL, {nulls}::text[], {nulls}::jsonb[], NULL, NULL, NULL, 'nobody'",
    "finish_one": f"{ID % 1}, 1, 'done', NULL, NULL, NULL, false, NULL, NULL, 'nobody'",
    "hold": "{ids}, {ones}, 'nobody'",
    "held_rows": "{ids}",
    "release": "{ids}, {ones}, NULL, {floats}, {nulls}::text[], NULL, NULL, NULL, NULL, 100, 'nobody'",
    "cancel": "{ids}, 'reason', NULL",
    "disown": "'h', {ids}, now(), NULL",
    "sweep": "{n}, 30.0, NULL, NULL",
    "poll": "ARRAY['k', 'l'], 'h', 30.0, ARRAY['k'], ARRAY[-1], ARRAY[10], {marks}, NULL, NULL",
    "set_back": "5.0, NULL",
    "unstart": "{ids}, {ones}, 60.0, 'nobody'",
    "move": "{ids}, 1, NULL, NULL, NULL",
    "close_batches": "NULL, {n}, NULL",
    "descendants": "{ids}",
    "retry": f"{ID % 1}, NULL",
    "show": f"{ID % 1}, {ID % 2}, 10",
    "tries": "{ids}, NULL",
    "stopped": "{ids}, {ones}, 'h', {floats}, NULL",
    "results": "{ids}",
    "retry_many": "{ids}, NULL",
    "log": "{ids}, {ones}, {ones}::integer[], {floats}, {nulls}, {nulls}, NULL, 3, NULL",
    "logs": "{ids}, 100",
    "orphan_kinds": "60.0, NULL",
    "passes": "NULL, NULL",
    "put_pass": "'p', 'every 60 s', 0, now(), false, NULL, NULL, NULL",
    "run_pass": "'p', NULL",
}
TABLES = ("open_jobs", "tries", "job_logs")
NO_MARKS = "'{}', '{}', '{}', '{}', '{}'"
KEYS = {"open_jobs_pkey", "open_jobs_queued_key", "open_jobs_open_key"}
INDEXES = {
    "claim": {"open_jobs_next", "open_jobs_pkey"},
    "renew": {"open_jobs_pkey"},
    "finish": {"open_jobs_pkey", "open_jobs_queued_key"},
    "finish_one": {"open_jobs_pkey"},
    "hold": {"open_jobs_pkey"},
    "held_rows": {"open_jobs_pkey"},
    "release": {"open_jobs_pkey", "open_jobs_queued_key", "tries_pkey"},
    "move": {"open_jobs_pkey"},
    "close_batches": {"open_jobs_batch"},
    "descendants": {"open_jobs_parent"},
    "cancel": {"open_jobs_pkey"},
    "disown": {"open_jobs_lease", "open_jobs_pkey"},
    "sweep": {"open_jobs_lease", "open_jobs_cancel", "open_jobs_pkey", "open_jobs_queued_key"},
    "poll": {"open_jobs_next", "open_jobs_lease", "open_jobs_cancel"},
    "retry": KEYS,
    "show": {"open_jobs_pkey"},
    "tries": {"open_jobs_pkey", "tries_pkey"},
    "stopped": {"open_jobs_pkey", "tries_pkey"},
    "results": {"open_jobs_pkey", "ended_jobs_pkey"},
    "retry_many": {"open_jobs_pkey", "ended_jobs_pkey"},
    "log": {"open_jobs_pkey", "ended_jobs_pkey", "job_logs_pkey"},
    "logs": {"job_logs_pkey"},
    "unstart": {"open_jobs_pkey"},
    "set_back": {"open_jobs_lease", "open_jobs_pkey"},
    "orphan_kinds": {"open_jobs_next"},
    "passes": {"open_jobs_open_key"},
    "put_pass": {"open_jobs_open_key"},
    "run_pass": {"open_jobs_open_key", "open_jobs_pkey"},
}
"""The indexes that the headers name: reaching one row by another's would read them all."""


@pytest.fixture(scope="module")
def target(server: Server) -> Iterator[Target]:
    with server.database() as dsn:
        asyncio.run(up(Target(dsn)))
        yield Target(dsn)


@pytest.fixture
async def conn(target: Target) -> AsyncIterator[Connection]:
    """One connection as Rota makes them, to an empty table that nobody analyses meanwhile."""
    database = Database(target, size=1)
    await database.start()
    try:
        async with database.acquire() as conn:
            await conn.execute("ALTER TABLE rota.open_jobs SET (autovacuum_enabled = false)")
            await conn.execute("TRUNCATE rota.open_jobs, rota.ended_jobs")
            await conn.execute("VACUUM ANALYZE rota.open_jobs, rota.ended_jobs")
            yield conn
    finally:
        await database.stop()


async def fill(conn: Connection, count: int, *, first: int = 1, priority: int = 0, due: str = "-1 day") -> None:
    await conn.execute(
        "INSERT INTO rota.open_jobs (id, kind, payload, priority, run_after) "
        "SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 'k', '{}', $3, "
        "       now() + $4::text::interval "
        "FROM generate_series($1::integer, $2::integer) AS n",
        first, first + count - 1, priority, due,
    )  # fmt: skip


async def prepare(conn: Connection, mode: str) -> None:
    await conn.execute(f"SET plan_cache_mode = force_{mode}_plan")
    for name in ARGUMENTS:
        await conn.execute(f"PREPARE {name}_{mode} AS " + statement("rota.queue.io.sql", f"{name}.sql", "rota"))


def call(name: str, mode: str, count: int, *, marks: str = NO_MARKS) -> str:
    def all_of(value: str) -> str:
        return f"array_fill({value}, ARRAY[{count}])"

    ids = ", ".join(ID % number for number in range(1, count + 1))
    arguments = ARGUMENTS[name].format(
        n=count, ids=f"ARRAY[{ids}]::uuid[]", ones=all_of("1::bigint"), floats=all_of("1.0::float8"),
        nulls=all_of("NULL::text"), marks=marks,
    )  # fmt: skip
    return f"EXECUTE {name}_{mode} ({arguments})"


@asynccontextmanager
async def undone(conn: Connection) -> AsyncIterator[None]:
    transaction = conn.transaction()
    await transaction.start()
    try:
        yield
    finally:
        await transaction.rollback()


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


async def faults(conn: Connection, mode: str, count: int) -> list[str]:
    """What is wrong with the plans of all statements."""
    found = []
    for name in ARGUMENTS:
        (plan,) = json.loads(await conn.fetchval(f"EXPLAIN (FORMAT JSON) {call(name, mode, count)}"))
        for node in nodes(plan["Plan"]):
            kind, index = node["Node Type"], node.get("Index Name", "")
            if node.get("Relation Name") in TABLES and kind == "Seq Scan":
                found.append(f"{name} reads {node['Relation Name']} whole")
            elif index.startswith(("open_jobs_", "tries_", "job_logs_")) and index not in INDEXES[name]:
                found.append(f"{name} reads by {index}")
            elif index in ("open_jobs_pkey", "tries_pkey", "job_logs_pkey") and "Index Cond" not in node:
                found.append(f"{name} walks all of {index}")
    return found


async def pages(conn: Connection, command: str) -> int:
    """The pages that a statement touches; it is undone."""
    async with undone(conn):
        (plan,) = json.loads(await conn.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {command}"))
    return int(plan["Plan"]["Shared Hit Blocks"]) + int(plan["Plan"]["Shared Read Blocks"])


@pytest.mark.parametrize("mode", ["generic", "custom"])
async def test_plans_from_an_empty_table_that_filled(conn: Connection, mode: str) -> None:
    await prepare(conn, mode)
    for count in BATCHES:
        for name in ARGUMENTS:
            async with undone(conn):
                await conn.execute(call(name, mode, count))
        assert await faults(conn, mode, count) == []
    await fill(conn, 50_000)
    for count in BATCHES:
        assert await faults(conn, mode, count) == []
    for name in ARGUMENTS:
        await conn.execute(f"DEALLOCATE {name}_{mode}")
    await prepare(conn, mode)
    for count in BATCHES:
        assert await faults(conn, mode, count) == []


async def test_plans_from_a_table_of_the_future_or_of_leases(conn: Connection) -> None:
    """S18, and the cost of a claim: what is not due yet is not read."""
    await fill(conn, FUTURE // 2, first=1_000_001, due="1 day")
    await fill(conn, FUTURE // 2, first=2_000_001, priority=5, due="1 day")
    await conn.execute("ANALYZE rota.open_jobs")
    for mode in ("generic", "custom"):
        await prepare(conn, mode)
        for count in BATCHES:
            assert await faults(conn, mode, count) == []
        assert await pages(conn, call("claim", mode, 100)) < 40
        assert await pages(conn, call("poll", mode, 1)) < 60
        assert await pages(conn, call("orphan_kinds", mode, 1)) < 40
    await fill(conn, 1000)
    for mode in ("generic", "custom"):
        for count in BATCHES:
            assert await faults(conn, mode, count) == []
        # Each claimed row is a page or so to find and lock, and to write in the table and its indexes.
        assert await pages(conn, call("claim", mode, 1)) < 50
        assert await pages(conn, call("claim", mode, 100)) < 100 * 25
    await conn.execute(
        "UPDATE rota.open_jobs SET state = 'leased', lease_epoch = 1, leased_by = 'h', tries = 1, "
        "started_at = now(), lease_until = now() + interval '1 hour'"
    )
    await conn.execute("VACUUM rota.open_jobs")  # what the test has left behind is not what a plan costs
    for analysed in (False, True):
        if analysed:
            await conn.execute("ANALYZE rota.open_jobs")
        for mode in ("generic", "custom"):
            for count in BATCHES:
                assert await faults(conn, mode, count) == []
            for name in ("renew", "finish", "release", "cancel"):
                assert await pages(conn, call(name, mode, 10)) < 10 * 40, name
            assert await pages(conn, call("poll", mode, 1)) < 60
            assert await pages(conn, call("sweep", mode, 100)) < 40


async def test_what_a_job_is_asked_costs_no_call(conn: Connection) -> None:
    """The planner writes `job_ok` out, in a fraction of the time of a call, only while no part of it is less sure than
    the function says to be; the question stands on the way of every job that is not copied in."""
    plan = await conn.fetch(
        "EXPLAIN (VERBOSE) SELECT rota.job_ok(kind, payload, dedupe_key, dedupe_scope, run_after, 0, max_tries, place, "
        "NULL) FROM rota.open_jobs"
    )
    shown = "\n".join(row[0] for row in plan)
    assert "pg_column_size(payload)" in shown and "job_ok" not in shown
