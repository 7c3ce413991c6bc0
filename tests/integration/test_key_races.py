"""Keys that change their twin, or outlive it, while several transactions are open at once."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from rota.ids import Holder
from rota.io.postgres import statement
from rota.queue.io.rows import one_job
from rota.queue.job import Dedupe, NewJob, debounce_key, merge_key, replace_key, throttle_key

ENQUEUE = statement("rota.queue.io.sql", "enqueue.sql", "rota")
CLAIM = statement("rota.queue.io.sql", "claim.sql", "rota")
CALLERS = 5
MODES = {
    "replace": replace_key("k"),
    "merge": merge_key("k"),
    "debounce": debounce_key("k", wait_s=5),
    "throttle": throttle_key("k", window_s=60),
}


@pytest.fixture
async def conns(migrated_dsn: str) -> AsyncIterator[list[asyncpg.Connection]]:
    """Callers, each with a connection."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(CALLERS):
            conn = await asyncpg.connect(migrated_dsn)
            stack.push_async_callback(conn.close)
            made.append(conn)
        yield made


async def add(conn: asyncpg.Connection, dedupe: Dedupe, number: int) -> Any:
    job = NewJob("work", payload=json.dumps([number]), dedupe=dedupe)
    return (await conn.fetch(ENQUEUE, *one_job(job)))[0]


async def waiting(conn: asyncpg.Connection, count: int) -> None:
    """Until so many sessions of this database wait for a lock."""
    async with asyncio.timeout(30):
        while (
            await conn.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            < count
        ):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("dedupe", MODES.values(), ids=MODES.keys())
async def test_callers_wait_for_the_fate_of_an_uncommitted_twin(
    conns: list[asyncpg.Connection], dedupe: Dedupe, migrated_dsn: str
) -> None:
    """S4: the first to get there rolls back; exactly one job is there at the end, and nothing of the others is lost."""
    first, *others = conns
    watcher = await asyncpg.connect(migrated_dsn)
    transaction = first.transaction()
    await transaction.start()
    lost = await add(first, dedupe, 0)
    adding = [asyncio.create_task(add(conn, dedupe, number)) for number, conn in enumerate(others, 1)]
    await waiting(watcher, len(others))
    await transaction.rollback()
    added = await gathered(adding)
    rows = await watcher.fetch("SELECT id, payload FROM rota.open_jobs")
    await watcher.close()
    assert len(rows) == 1 and rows[0]["id"] != lost["id"]
    assert {row["id"] for row in added} == {rows[0]["id"]}
    assert sorted(row["created"] for row in added) == [False, False, False, True]
    if dedupe.word == "merge":
        assert sorted(json.loads(rows[0]["payload"])) == [1, 2, 3, 4]


async def gathered(tasks: list["asyncio.Task[Any]"]) -> list[Any]:
    async with asyncio.timeout(30):
        return list(await asyncio.gather(*tasks))


async def within(work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(30):
        return await work


@pytest.mark.parametrize("word", ["replace", "merge", "debounce"])
async def test_a_twin_that_is_being_claimed_keeps_its_payload(conns: list[asyncpg.Connection], word: str) -> None:
    """S20: what a claim has taken is not changed behind its back; one more job waits."""
    claimer, caller, watcher, *_ = conns
    first = await add(caller, MODES[word], 1)
    await caller.execute("UPDATE rota.open_jobs SET run_after = now()")
    transaction = claimer.transaction()
    await transaction.start()
    no_marks: list[list[Any]] = [[], [], [], [], []]
    (taken,) = await claimer.fetch(CLAIM, ["work"], [1], [300.0], [3], [None], *no_marks, Holder("here:1:aa"), None)
    adding = asyncio.create_task(add(caller, MODES[word], 2))
    await waiting(watcher, 1)
    await transaction.commit()
    second = await within(adding)
    assert taken["id"] == first["id"] != second["id"] and second["created"]
    rows = await caller.fetch("SELECT state, payload FROM rota.open_jobs ORDER BY id")
    assert [(row["state"], json.loads(row["payload"])) for row in rows] == [("leased", [1]), ("queued", [2])]


async def test_batches_with_the_same_keys_do_not_deadlock(conns: list[asyncpg.Connection]) -> None:
    """S3: keys are taken in the order of their text, whatever the order of the jobs."""
    many = statement("rota.queue.io.sql", "enqueue_many.sql", "rota")
    keys = [f"k{number}" for number in range(20)]

    async def add_all(conn: asyncpg.Connection, turn: int) -> None:
        order = keys if turn % 2 else keys[::-1]
        words = ["merge"] * len(keys)
        for _ in range(10):
            await conn.fetch(
                many, ["work"] * len(keys), [f"[{turn}]"] * len(keys), None, None, order, words, None, None, None, None,
                None, None, None, None,
            )  # fmt: skip

    await within(asyncio.gather(*(add_all(conn, turn) for turn, conn in enumerate(conns))))
    rows = await conns[0].fetch("SELECT jsonb_array_length(payload) AS parts FROM rota.open_jobs")
    assert [row["parts"] for row in rows] == [10 * CALLERS] * len(keys)
