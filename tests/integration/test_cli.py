"""The `rota` command as a person calls it: itself, `migrate`, and each refusal in one sentence."""

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rota.version import __version__
from tests.integration.programs import (
    ROTA,
    clean_environment,
    run,
)
from tests.integration.rota_calls import Rota, folder, refused, rota
from tests.postgres_servers import Psql

__all__ = ["folder", "rota"]  # fixtures

# --- the command itself ---


def test_version_help_and_no_command(rota: Rota) -> None:
    version, help_, none, unknown, jobs = rota.each(("--version",), ("--help",), (), ("work",), ("jobs",))
    assert (version.status, version.out, version.err) == (0, f"rota {__version__}\n", "")
    for command in ("worker", "dev", "demo", "jobs", "migrate"):
        assert f"\n  {command} " in help_.out
    assert help_.status == 0
    assert none.status == jobs.status == 2
    refused(unknown, "No such command 'work'", status=2)


def test_a_terminal_that_cannot_show_a_character_is_no_reason_to_end(rota: Rota, psql: Psql) -> None:
    psql(rota.dsn, "SELECT rota.enqueue('größe', '{\"name\": \"größe\"}')")
    listed = rota("jobs", "list", environ={"PYTHONIOENCODING": "ascii"})
    assert (listed.status, listed.err) == (0, "")
    assert "gr\\xf6\\xdfe" in listed.out
    as_json = rota("jobs", "list", "--json", environ={"PYTHONIOENCODING": "ascii"})
    assert json.loads(as_json.out)["jobs"][0]["kind"] == "größe"


# --- migrate ---


def test_migrations_are_shown_applied_and_shown_again(folder: Path, dsn: str) -> None:
    rota = Rota(folder, dsn)
    missing = rota.json("migrate", "status")
    assert missing["applied"] == [] and missing["missing"][0]["name"] == "jobs"
    assert re.search(r"^0001_jobs +missing  run: rota migrate up$", rota("migrate", "status").out, flags=re.MULTILINE)
    first, again = rota("migrate", "up"), rota("migrate")
    assert first.out.startswith("applied 0001_jobs\n") and again.out == "The schema is up to date.\n"
    assert (first.status, again.status, first.err, again.err) == (0, 0, "", "")
    assert rota.json("migrate", "up") == {"applied": []}
    there = rota.json("migrate", "status")
    assert there["missing"] == [] and there["applied"][0]["by"] == __version__
    assert set(there["applied"][0]) == {"number", "name", "at", "by"}
    assert f"Rota {__version__}" in rota("migrate", "status").out


def test_the_schema_as_sql_is_the_schema(folder: Path, dsn: str, psql: Psql) -> None:
    rota = Rota(folder, dsn)
    script = rota("migrate", "--sql", environ={"ROTA_SCHEMA": "jobs_here", "ROTA_DSN": "postgresql://nowhere.invalid"})
    assert (script.status, script.err) == (0, "")
    psql(dsn, script.out)
    assert rota.json("migrate", "status", "--schema", "jobs_here")["missing"] == []
    listed = rota("jobs", "list", "--schema", "jobs_here")
    assert (listed.status, listed.out) == (0, "No jobs yet.\n")


def test_options_may_stand_before_the_subcommand(folder: Path, dsn: str) -> None:
    rota = Rota(folder, "postgresql://127.0.0.1:1/elsewhere")
    done = rota("migrate", "--dsn", dsn, "--schema", "mine", "up")
    assert (done.status, done.err) == (0, "")
    assert rota.json("migrate", "--dsn", dsn, "status", "--schema", "mine")["missing"] == []
    assert rota.json("migrate", "--dsn", dsn, "--schema", "ours", "up")["applied"][0] == {"number": 1, "name": "jobs"}


# --- refusals ---

SECRET = "hunter2"


def test_addresses_that_cannot_be_used_are_refused_and_not_shown(rota: Rota) -> None:
    base, _, query = rota.dsn.partition("?")
    database = base.rpartition("/")[2]
    cases = [
        (
            f"postgresql://app:{SECRET}@127.0.0.1:1/shop",
            1,
            "The database at postgresql://127.0.0.1:1/shop does not answer: [Errno 111] Connect call failed "
            "('127.0.0.1', 1). Is it running, and is its address (ROTA_DSN) right?",
        ),
        (f"postgresql://app:{SECRET}@nowhere.invalid/shop", 1, "does not answer"),
        (f"postgresql://rota:{SECRET}@/nothing?{query}", 1, "nothing does not exist. Create it, or correct ROTA_DSN."),
        (f"postgresql://nobody:{SECRET}@/{database}?{query}", 1, "refuses this user or password"),
        (f"postgresql://app:{SECRET}/x@db/shop", 2, "The database's address (ROTA_DSN) is no good"),
        (f"mysql://app:{SECRET}@db/shop", 2, "The database's address (ROTA_DSN) is no good"),
        (f"host=db password={SECRET}", 2, "The database's address (ROTA_DSN) is no good"),
        (" ", 2, "ROTA_DSN = (hidden) is no good: give text."),
        ("embedded:/dev/null/there", 1, "/dev/null/there"),
    ]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda case: rota("jobs", "list", environ={"ROTA_DSN": case[0]}), cases))
    for (_, status, said), done in zip(cases, answers, strict=True):
        refused(done, said, status=status)
        assert SECRET not in done.err


def test_without_a_database_each_command_says_how_to_name_one(rota: Rota) -> None:
    for command in (("jobs", "list"), ("migrate",), ("migrate", "status"), ("worker", "shop:app")):
        done = run([*ROTA, *command], folder=rota.folder)
        refused(done, "No database is set. Set ROTA_DSN=postgresql://", status=2)


def test_schemas_that_are_missing_not_ours_or_newer_are_refused(folder: Path, dsn: str, psql: Psql) -> None:
    psql(dsn, "CREATE SCHEMA theirs; CREATE TABLE theirs.migrations (version text)")
    rota = Rota(folder, dsn)
    jobs, worker, theirs, both = rota.each(
        ("jobs", "list"), ("worker", "shop:app", "--alone"), ("jobs", "list", "--schema", "theirs"),
        ("migrate", "up", "--schema", "theirs"),
    )  # fmt: skip
    for done in (jobs, worker):
        refused(done, "The schema 'rota' in postgresql://", "does not exist yet. Run: rota migrate up", status=1)
    for done in (theirs, both):
        refused(done, "The schema 'theirs' in", "holds something that is not Rota's", status=1)
    assert rota("migrate").status == 0
    psql(dsn, "INSERT INTO rota.migrations (number, name, applied_by) VALUES (9999, 'from_tomorrow', '9.9')")
    for done in rota.each(
        ("jobs", "list"), ("migrate", "up"), ("migrate", "status"), ("worker", "shop:app", "--alone")
    ):
        refused(done, "is newer than this program", "9999_from_tomorrow (by Rota 9.9)", "Run the newer Rota.", status=1)


def test_a_user_who_may_not_make_the_schema_is_told_what_to_do(folder: Path, dsn: str, psql: Psql) -> None:
    psql(dsn, "DO $$ BEGIN CREATE ROLE rota_test_guest LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
    rota = Rota(folder, dsn.replace("postgresql://rota@", "postgresql://rota_test_guest@"))
    try:
        refused(rota("migrate", "up"), "This user may not", "rota migrate --sql", status=1)
    finally:
        psql(dsn, "DROP ROLE rota_test_guest")


def test_options_that_make_no_sense_are_refused(rota: Rota) -> None:
    cases: list[tuple[tuple[str, ...], str]] = [
        (("--state", "sleeping"), "Invalid value for '--state'"),
        (("--older", "soon"), "--older: 'soon' is no age: give seconds, or a number with s, m, h or d"),
        (("--newer", "99999999999d"), "--newer: '99999999999d' is more than a hundred years"),
        (("--limit", "0"), "Invalid value for '--limit'"),
        (("--limit", "10001"), "Invalid value for '--limit'"),
        (("--limit", "few"), "Invalid value for '--limit'"),
        (("--after", "last"), "'last' is no job id"),
        (("--schema", "Rota"), "--schema = 'Rota' is no good: give lower-case letters"),
        (("--schema", "pg_x"), "--schema = 'pg_x' is no good"),
        (("--colour", "red"), "No such option: --colour"),
        (("more",), "unexpected extra argument"),
    ]
    for (_, said), done in zip(cases, rota.each(*(("jobs", "list", *options) for options, _ in cases)), strict=True):
        refused(done, said, status=2)


def test_text_that_no_job_can_have_is_refused(rota: Rota) -> None:
    for options in (("--tenant", "\udcff"), ("--kind", "\udcff")):
        refused(rota("jobs", "list", *options), f"{options[0]} cannot be stored", "lone surrogate", status=1)


def test_settings_that_make_no_sense_are_refused_by_every_command(rota: Rota) -> None:
    (rota.folder / "rota.toml").write_text("poll = 3")
    (rota.folder / "empty.toml").touch()
    cases: list[tuple[tuple[str, ...], dict[str, str], str]] = [
        (("jobs", "list"), {"ROTA_DNS": "x"}, "ROTA_DNS is no setting of Rota. Did you mean ROTA_DSN?"),
        (("migrate", "--sql"), {"ROTA_POOL_SIZE": "0"}, "ROTA_POOL_SIZE = '0' is no good: give a whole number from 1"),
        (("worker", "shop:app"), {"ROTA_LEASE_S": "soon"}, "ROTA_LEASE_S = 'soon' is no good"),
        (
            ("dev", "shop:app"),
            {"ROTA_LIMIT_NOTHING": "1"},
            "ROTA_LIMIT_NOTHING limits a kind that this program does not",
        ),
        (
            ("demo",),
            {"ROTA_LOG_LEVEL": "loud"},
            "ROTA_LOG_LEVEL = 'loud' is no good: give debug, info, warning or error",
        ),
        (
            ("migrate", "status"),
            {"ROTA_CONFIG": "gone.toml"},
            "ROTA_CONFIG names gone.toml, and there is no such file.",
        ),
    ]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda case: rota(*case[0], environ={"ROTA_CONFIG": "empty.toml", **case[1]}), cases)
        for (_, _, said), done in zip(cases, answers, strict=True):
            refused(done, said, status=2)
    refused(rota("jobs", "list"), f"{rota.folder / 'rota.toml'}: poll is no setting of Rota.", status=2)


def test_a_full_disk_is_said_in_one_sentence(rota: Rota) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*ROTA, "jobs", "list"], cwd=rota.folder, env=clean_environment({"ROTA_DSN": rota.dsn}), stdout=full,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "rota: [Errno 28] No space left on device.\n")


@pytest.mark.parametrize("args", [("jobs", "list"), ("jobs", "list", "--json"), ("migrate", "--sql")])
def test_a_reader_that_has_enough_ends_it_well(rota: Rota, psql: Psql, args: tuple[str, ...]) -> None:
    psql(rota.dsn, "SELECT count(rota.enqueue('page', '{}')) FROM generate_series(1, 3000)")
    limit = ("--limit", "3000") if args[0] == "jobs" else ()
    program = subprocess.Popen(
        [*ROTA, *args, *limit], cwd=rota.folder, env=clean_environment({"ROTA_DSN": rota.dsn}), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert program.stdout is not None and program.stderr is not None
    with program:
        first = program.stdout.read(1)
        program.stdout.close()
        said = program.stderr.read()
    assert first and (program.returncode, said) == (0, b"")
