"""The pool of connections: one that is at hand is lent again without the pool, and nobody waits in vain."""

import asyncio

import pytest

from rota.errors import DatabaseAway
from rota.io.postgres import Database, Target

PID = "SELECT pg_backend_pid() AS pid"


async def pid(database: Database) -> int:
    return int((await database.fetch(PID))[0]["pid"])


async def test_the_connection_at_hand_is_used_again(dsn: str) -> None:
    database = Database(Target(dsn), size=3)
    await database.start()
    assert len({await pid(database) for _ in range(10)}) == 1
    await database.stop()


async def test_who_has_to_wait_gets_the_next_connection(dsn: str) -> None:
    database = Database(Target(dsn), size=1)
    await database.start()
    async with asyncio.timeout(30):
        assert len(set(await asyncio.gather(*(pid(database) for _ in range(20))))) == 1
    await database.stop()


async def test_a_cancelled_statement_leaves_a_connection_that_works(dsn: str) -> None:
    database = Database(Target(dsn), size=1)
    await database.start()
    slow = asyncio.create_task(database.fetch("SELECT pg_sleep(60)"))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.shield(slow)
    slow.cancel()
    async with asyncio.timeout(30):
        assert await pid(database)
    await database.stop()


async def test_a_connection_that_broke_is_not_lent_for_long(dsn: str) -> None:
    database = Database(Target(dsn), size=2)
    await database.start()
    first = await pid(database)
    async with database.acquire() as one, database.acquire() as other:
        assert await one.fetchval(PID) == first
        await other.execute("SELECT pg_terminate_backend($1)", first)
    seen = []
    async with asyncio.timeout(30):
        while len(seen) < 5:
            try:
                seen.append(await pid(database))
            except DatabaseAway:
                await asyncio.sleep(0.01)
    assert first not in seen
    await database.stop()


async def test_a_stop_closes_those_at_hand(dsn: str) -> None:
    database = Database(Target(dsn, application="at hand"), size=2)
    await database.start()
    await asyncio.gather(pid(database), pid(database))
    await database.stop()
    watch = Database(Target(dsn), size=1)
    async with asyncio.timeout(30):
        while await watch.fetch("SELECT FROM pg_stat_activity WHERE application_name = 'at hand'"):
            await asyncio.sleep(0.01)
    await watch.stop()
