"""`rota doctor` on real databases: what it reads is what is there, and its status tells."""

import json
from pathlib import Path

import asyncpg
import pytest

from rota.io.postgres import Database, Target
from rota.queue.health import Health
from rota.queue.io.health import read_health
from tests.integration.programs import ROTA, Done, run
from tests.postgres_servers import Psql


async def health_of(dsn: str) -> Health:
    database = Database(Target(dsn), size=2)
    try:
        return await read_health(database)
    finally:
        await database.stop()


def doctor(folder: Path, dsn: str, *args: str) -> Done:
    return run([*ROTA, "doctor", *args], folder=folder, environ={"ROTA_DSN": dsn})


async def test_a_fresh_database_is_well(any_migrated_dsn: str) -> None:
    health = await health_of(any_migrated_dsn)
    assert health.version_num >= 140_000 and str(health.version_num // 10_000) in health.version
    assert (health.in_recovery, health.shares_sessions, list(health.missing)) == (False, False, [])
    assert (health.statement_timeout, health.lock_timeout, health.idle_timeout) == ("30s", "5s", "1min")
    assert abs(health.ahead_s) <= health.round_trip_s + 0.5, "one machine, one clock"
    assert 1 <= health.connections < health.connections_max
    assert health.notify_usage == 0
    assert {"open_jobs", "ended_jobs"} <= {table.name for table in health.tables}


async def test_a_session_with_an_open_snapshot_is_named(migrated_dsn: str) -> None:
    reader = await asyncpg.connect(migrated_dsn, server_settings={"application_name": "report of the year"})
    try:
        async with reader.transaction(isolation="repeatable_read"):
            pid = await reader.fetchval("SELECT pg_backend_pid()")
            holds = (await health_of(migrated_dsn)).holds
            (hold,) = [hold for hold in holds if hold.name == str(pid)]
            assert hold.what == "session" and hold.open_s is not None and hold.open_s >= 0
            assert hold.detail.startswith("user rota, report of the year, idle in transaction, SELECT pg_backend_pid()")
    finally:
        await reader.close()


async def test_what_a_database_sets_for_itself_is_seen(migrated_dsn: str, psql: Psql) -> None:
    name = migrated_dsn.partition("?")[0].rpartition("/")[2]
    psql(migrated_dsn, f'ALTER DATABASE "{name}" SET synchronous_commit = on')
    assert (await health_of(migrated_dsn)).synchronous_commit == "on"


async def test_rows_that_row_level_security_hides_are_seen(any_migrated_dsn: str) -> None:
    database = Database(Target(any_migrated_dsn), size=1)
    user = "blind_" + any_migrated_dsn.partition("?")[0].rpartition("/")[2]
    for command in (
        f"CREATE ROLE {user} LOGIN",
        f"GRANT USAGE ON SCHEMA rota TO {user}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA rota TO {user}",
        "ALTER TABLE rota.open_jobs ENABLE ROW LEVEL SECURITY",
    ):
        await database.fetch(command)
    try:
        assert list((await health_of(any_migrated_dsn)).hidden) == [], "the owner sees all"
        assert list((await health_of(any_migrated_dsn.replace("rota@", f"{user}@"))).hidden) == ["open_jobs"]
    finally:
        await database.fetch(f"DROP OWNED BY {user}")
        await database.fetch(f"DROP ROLE {user}")
        await database.stop()


def test_the_command_gives_a_line_for_each_thing(tmp_path: Path, migrated_dsn: str) -> None:
    done = doctor(tmp_path, migrated_dsn)
    assert done.err == ""
    said = json.loads(doctor(tmp_path, migrated_dsn, "--json").out)
    assert {"about", "level", "words", "advice"} == set(said["checks"][0])
    # The servers of the tests run without fsync, which the doctor does not overlook.
    found = {check["words"].partition(":")[0] for check in said["checks"] if check["level"] not in ("ok", "note")}
    assert {"fsync is off", "synchronous_commit is off"} <= found
    assert (done.status, said["ok"]) == (1, False)
    assert [line.split()[1] for line in done.out.splitlines() if line.startswith("ok ")][:3] == [
        "database", "schema", "pooler"
    ]  # fmt: skip


def test_a_finding_says_what_to_do_and_the_status_is_1(tmp_path: Path, migrated_dsn: str, psql: Psql) -> None:
    psql(migrated_dsn, "DELETE FROM rota.migrations WHERE number = (SELECT max(number) FROM rota.migrations)")
    done = doctor(tmp_path, migrated_dsn)
    assert (done.status, done.err) == (1, "")
    lines = done.out.splitlines()
    (number,) = [place for place, line in enumerate(lines) if line.startswith("problem  schema")]
    assert "lacks 00" in lines[number] and lines[number + 1].strip() == "→ Run: rota migrate up"
    assert json.loads(doctor(tmp_path, migrated_dsn, "--json").out)["ok"] is False


@pytest.mark.parametrize("before", ["", "CREATE SCHEMA rota"])
def test_a_database_without_the_schema_is_no_traceback(tmp_path: Path, dsn: str, psql: Psql, before: str) -> None:
    if before:
        psql(dsn, before)
    done = doctor(tmp_path, dsn)
    assert (done.status, done.err) == (1, "") and "lacks 0001_jobs" in done.out


def test_a_database_that_is_away_is_one_sentence(tmp_path: Path) -> None:
    done = doctor(tmp_path, "postgresql://127.0.0.1:1/shop")
    assert (done.status, done.out) == (1, "") and len(done.err.splitlines()) == 1
