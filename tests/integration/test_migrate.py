"""Migrations on a real PostgreSQL: many processes at once, other versions, other schemas, other means."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from rota.errors import DatabaseAway, DatabaseError, SchemaError, SettingsError
from rota.ids import Holder
from rota.io.migrate import Migration, migrations, require_current, script, status, up
from rota.io.postgres import Database, Target, channel
from rota.queue.io.store import Store
from rota.queue.job import Ask, Finish, NewJob, Outcome, State
from tests.postgres_servers import Server, run_psql

HOLDER = Holder("here:1:aa")

# Everything that a schema holds, with what it is made of.
CONTENT = """
    SELECT 'relation ' || c.relname || ' ' || c.relkind::text || c.relpersistence::text
           || coalesce(' ' || c.reloptions::text, '')
    FROM pg_class AS c WHERE c.relnamespace = $1::text::regnamespace
    UNION ALL
    SELECT 'column ' || c.relname || ' ' || a.attnum || ' ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
           || a.attnotnull::text || coalesce(' ' || pg_get_expr(d.adbin, d.adrelid), '')
    FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
    LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = $1::text::regnamespace AND a.attnum > 0
    UNION ALL
    SELECT 'index ' || pg_get_indexdef(i.indexrelid)
    FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid WHERE c.relnamespace = $1::text::regnamespace
    UNION ALL
    SELECT 'constraint ' || conname || ' ' || pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = $1::text::regnamespace AND contype <> 'n'
    UNION ALL
    SELECT 'function ' || pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = $1::text::regnamespace
    UNION ALL
    SELECT 'view ' || viewname || ' ' || definition FROM pg_views WHERE schemaname = $1::text
    UNION ALL
    SELECT 'sequence ' || sequencename FROM pg_sequences WHERE schemaname = $1::text
    ORDER BY 1
"""


async def content(target: Target) -> list[str]:
    conn = await asyncpg.connect(target.dsn, server_settings={"search_path": ""})  # names come with their schema
    try:
        return [row[0] for row in await conn.fetch(CONTENT, target.schema)]
    finally:
        await conn.close()


async def execute(target: Target, command: str) -> None:
    conn = await asyncpg.connect(target.dsn)
    try:
        await conn.execute(command)
    finally:
        await conn.close()


async def test_many_processes_migrate_at_once(any_dsn: str) -> None:
    target = Target(any_dsn)
    done = await asyncio.gather(*(up(target) for _ in range(6)))
    all_steps = [step.number for step in migrations("rota")]
    assert sorted([step.number for step in steps] for steps in done) == [[]] * 5 + [all_steps]
    applied, missing = await status(target)
    assert ([step.number for step in applied], missing) == (all_steps, [])
    await require_current(target)
    assert await up(target) == []


async def test_status_before_anything(dsn: str) -> None:
    applied, missing = await status(Target(dsn))
    assert (applied, [step.number for step in missing]) == ([], [step.number for step in migrations("rota")])


async def test_steps_are_numbered_without_a_gap() -> None:
    assert [step.number for step in migrations("rota")] == list(range(1, len(migrations("rota")) + 1))


async def test_an_older_program_stops_at_a_newer_schema(dsn: str) -> None:
    target = Target(dsn)
    await up(target)
    await execute(target, "INSERT INTO rota.migrations (number, name, applied_by) VALUES (9999, 'moons', '99.0')")
    for act in (up, status, require_current):
        with pytest.raises(SchemaError, match=r"newer than this program: it has 9999_moons \(by Rota 99\.0\)"):
            await act(target)


async def test_an_older_schema_is_refused_with_the_way_out(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await up(Target(dsn))
    steps = migrations("rota")
    monkeypatch.setattr("rota.io.migrate.migrations", lambda _schema: [*steps, Migration(9998, "moons", "SELECT 1")])
    with pytest.raises(SchemaError, match=r"lacks 9998_moons. Run: rota migrate up"):
        await require_current(Target(dsn))
    assert [step.name for step in await up(Target(dsn))] == ["moons"]
    await require_current(Target(dsn))


async def test_the_script_makes_what_up_makes(any_dsn: str, server: Server, tmp_path: Path) -> None:
    await up(Target(any_dsn))
    by_up = await content(Target(any_dsn))
    with server.database() as other:
        run_psql(server.binaries, other, script("rota"))
        by_script = await content(Target(other))
        await require_current(Target(other))
        assert await up(Target(other)) == []
    assert by_script == by_up
    assert len(by_up) > 50


async def test_another_schema_holds_the_same_and_works_beside(any_dsn: str) -> None:
    first, second = Target(any_dsn), Target(any_dsn, schema="jobs_2")
    await up(first)
    await up(second)
    assert {line.replace("jobs_2", "rota") for line in await content(second)} == set(await content(first))
    assert channel("jobs_2") == "jobs_2_wake"
    databases = [Database(first), Database(second)]
    try:
        stores = [Store(database) for database in databases]
        added = await stores[1].enqueue(NewJob("work"))
        assert (await stores[0].poll(["work"], holder=HOLDER)).next_due_s is None
        assert await stores[0].claim([Ask("work", 9, 60.0, 3)], holder=HOLDER) == []
        (job,) = await stores[1].claim([Ask("work", 9, 60.0, 3)], holder=HOLDER)
        assert await stores[1].finish([Finish(job.lease, Outcome.DONE)]) == {added.id: State.DONE}
    finally:
        for database in databases:
            await database.stop()


async def test_schemas_migrate_at_the_same_time(dsn: str) -> None:
    targets = [Target(dsn, schema=f"s{number}") for number in range(3)]
    done = await asyncio.gather(*(up(target) for target in targets for _ in range(2)))
    assert sum(bool(steps) for steps in done) == 3


@pytest.mark.parametrize("schema", ["Rota", "pg_rota", "1st", "a-b", 'a"b', "", "x" * 42])
async def test_a_schema_name_that_needs_thought_is_refused(schema: str) -> None:
    with pytest.raises(SettingsError):
        migrations(schema)


async def test_a_missing_schema_is_named(dsn: str) -> None:
    database = Database(Target(dsn))
    try:
        store = Store(database)
        for act in (
            store.enqueue(NewJob("work")),
            store.claim([Ask("work", 1, 60.0, 3)], holder=HOLDER),
            store.poll(["work"], holder=HOLDER),
        ):
            with pytest.raises(
                SchemaError, match=r"The schema 'rota' in .* is missing or incomplete. Run: rota migrate up"
            ):
                await act
        with pytest.raises(SchemaError, match=r"does not exist yet. Run: rota migrate up"):
            await require_current(database.target)
    finally:
        await database.stop()


async def test_who_may_not_create_is_told_what_to_do(dsn: str, psql: Callable[[str, str], str]) -> None:
    psql(dsn, "CREATE ROLE test_poor")
    try:
        poor = Target(f"{dsn}{'&' if '?' in dsn else '?'}options=-c%20role%3Dtest_poor")
        with pytest.raises(DatabaseError, match=r"may not .* the schema 'rota'.*rota migrate --sql") as caught:
            await up(poor)
        assert not isinstance(caught.value, DatabaseAway | SchemaError)
    finally:
        psql(dsn, "DROP ROLE test_poor")


async def test_a_failed_step_leaves_nothing(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = migrations("rota")
    broken = Migration(len(steps) + 1, "broken", "CREATE TABLE rota.half (id integer); SELECT 1 / 0;")
    with monkeypatch.context() as patch:
        patch.setattr("rota.io.migrate.migrations", lambda _schema: [*steps, broken])
        with pytest.raises(asyncpg.DivisionByZeroError):
            await up(Target(dsn))
    applied, _ = await status(Target(dsn))
    assert applied == []
    await up(Target(dsn))


async def test_a_database_that_cannot_hold_every_text_is_refused(default_server: Server) -> None:
    """In LATIN1 the error of a job may not be written, and the job would run again for ever."""
    name = "latin"
    default_server.psql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        for ask in (up, status, require_current):
            with pytest.raises(DatabaseError, match=r"has the encoding LATIN1.* created with ENCODING 'UTF8'"):
                await ask(Target(default_server.dsn_of(name)))
    finally:
        default_server.psql(f"DROP DATABASE {name} WITH (FORCE)")
