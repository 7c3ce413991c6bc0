"""The pool of connections: one that is at hand is lent again without the pool, and nobody waits in vain."""

import asyncio
import shutil
from pathlib import Path

import pytest

from rota.errors import DatabaseAway, SettingsError
from rota.io import migrate
from rota.io.embedded import EmbeddedPostgres
from rota.io.postgres import Database, Pooler, Target
from rota.queue.io.health import read_health
from rota.queue.io.store import Store
from rota.queue.job import NewJob, open_key
from tests.integration.programs import ROTA, run
from tests.postgres_servers import Psql

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


async def test_a_connection_that_the_server_ended_while_at_hand_costs_no_error(dsn: str) -> None:
    """As after a restart of the database, or with an idle limit: the pool has taken it back without a word."""
    database = Database(Target(dsn, application="ended"), size=2)
    await database.start()
    first = await pid(database)
    watch = Database(Target(dsn), size=1)
    await watch.fetch("SELECT pg_terminate_backend($1)", first)
    lent = database._at_hand[0]
    async with asyncio.timeout(30):
        while lent._con is not None:
            await asyncio.sleep(0.01)
    assert await pid(database) != first
    await database.stop()
    await watch.stop()


@pytest.mark.parametrize("pooler", ["none", "transaction"])
async def test_what_somebody_set_for_the_role_or_the_database_changes_nothing(dsn: str, pooler: Pooler) -> None:
    """Under a stricter isolation two enqueues with one key would not wait for each other, and one would be refused."""
    name = dsn.partition("?")[0].rpartition("/")[2]
    target = Target(dsn, pooler=pooler)
    database = Database(target, size=3)
    await database.fetch(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    await database.fetch(f"ALTER DATABASE {name} SET idle_session_timeout = '1h'")
    await database.fetch(f"ALTER DATABASE {name} SET transaction_timeout = '1h'")
    await database.stop()
    level = "SELECT current_setting('transaction_isolation') AS level"
    assert (await database.fetch(level))[0]["level"] == "read committed"
    async with database.transaction() as conn:
        assert (await database.fetch(level, conn=conn))[0]["level"] == "read committed"
    (row,) = await database.fetch("SELECT current_setting('transaction_timeout') AS limit")
    assert row["limit"] == "0"
    if pooler == "none":
        (row,) = await database.fetch("SELECT current_setting('idle_session_timeout') AS limit")
        assert row["limit"] == "0"
    await migrate.up(target)
    store = Store(database)
    jobs = await asyncio.gather(*(store.enqueue(NewJob("one", dedupe=open_key("k"))) for _ in range(12)))
    assert len({job.id for job in jobs}) == 1
    await database.stop()


@pytest.mark.parametrize(
    ("whose", "words"),
    [
        ("ROLE {user}", "for this user (ALTER ROLE)"),
        ("DATABASE {name}", "for this database (ALTER DATABASE)"),
        ("ROLE {user} IN DATABASE {name}", "for this user in this database"),
    ],
)
async def test_a_user_who_may_not_write_is_no_failover(dsn: str, psql: Psql, whose: str, words: str) -> None:
    name = dsn.partition("?")[0].rpartition("/")[2]
    user = f"reader_of_{name}"
    psql(dsn, f"CREATE ROLE {user} LOGIN; GRANT CREATE ON DATABASE {name} TO {user}")
    psql(dsn, f"ALTER {whose.format(user=user, name=name)} SET default_transaction_read_only = on")
    target = Target(dsn.replace("rota@", f"{user}@"))
    database = Database(target)
    try:
        for work in (migrate.up(target), database.fetch("CREATE TABLE mine (id integer)")):
            with pytest.raises(DatabaseAway) as raised:
                await work
            assert f"is read-only for the user '{user}'" in str(raised.value) and words in str(raised.value)
    finally:
        await database.stop()
        reset = f"ALTER {whose.format(user=user, name=name)} RESET default_transaction_read_only"
        psql(dsn, f"BEGIN READ WRITE; {reset}; COMMIT")
        psql(dsn, f"DROP OWNED BY {user}; DROP ROLE {user}")


def test_a_standby_is_said_to_be_one(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "pg", fsync=False) as server:
        asyncio.run(migrate.up(Target(server.dsn)))
    (signal,) = [path.with_name("standby.signal") for path in (tmp_path / "pg").rglob("PG_VERSION") if _is_top(path)]
    signal.touch()
    shutil.chown(signal, *_owner(signal.parent))

    async def write_and_read(dsn: str) -> None:
        database = Database(Target(dsn))
        try:
            for work in (database.fetch("CREATE TABLE mine (id integer)"), Store(database).servers()):
                with pytest.raises(DatabaseAway, match="is read-only: it is a standby now"):
                    await work
            health = await read_health(database)
            assert health.in_recovery and not health.missing
        finally:
            await database.stop()

    with EmbeddedPostgres(tmp_path / "pg", fsync=False) as server:
        asyncio.run(write_and_read(server.dsn))
        done = run([*ROTA, "doctor"], folder=tmp_path, environ={"ROTA_DSN": server.dsn})
        assert done.status == 1 and "is a standby: it takes no writes" in done.out and not done.err


def _is_top(path: Path) -> bool:
    return path.with_name("postgresql.conf").exists()


def _owner(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_uid, about.st_gid


@pytest.mark.parametrize(
    ("query", "named"), [("connect_timeout=3", "connect_timeout"), ("timezone=Mars/Olympus", "Mars/Olympus")]
)
async def test_a_parameter_that_the_database_refuses_is_said_to_be_of_the_address(
    dsn: str, query: str, named: str
) -> None:
    database = Database(Target(dsn + ("&" if "?" in dsn else "?") + query))
    with pytest.raises(SettingsError, match=r"refuses a parameter of its address \(ROTA_DSN\): .*" + named):
        await database.start()
