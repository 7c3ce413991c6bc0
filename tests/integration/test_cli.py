"""The `rota` command as a person calls it: real processes on a real database, and each refusal in one sentence."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import termios
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest

from rota.ids import Holder, JobId
from rota.io.postgres import Database, Target
from rota.queue.io.store import Store
from rota.queue.job import Ask, Finish, NewJob, Outcome, State, open_key
from rota.queue.retention import Rule
from rota.version import __version__
from tests.integration.programs import (
    ROTA,
    Done,
    Program,
    clean_environment,
    lives,
    nothing_runs,
    run,
    running,
    until,
)
from tests.postgres_servers import Psql

Answer = TypeVar("Answer")

SHOP = """
import os
import time
import rota

app = rota.App()

@app.job()
async def hello(ctx, payload):
    return {"hello": payload["name"], "pid": os.getpid()}

@app.job()
def forever(ctx):
    while not ctx.should_stop:
        time.sleep(0.01)
"""


@dataclass(frozen=True, slots=True)
class Rota:
    """The command in a folder, with a database in its environment."""

    folder: Path
    dsn: str

    def __call__(self, *args: str, environ: Mapping[str, str] | None = None) -> Done:
        """Runs it to its end."""
        return run([*ROTA, *args], folder=self.folder, environ={"ROTA_DSN": self.dsn, **(environ or {})})

    def each(self, *calls: tuple[str, ...]) -> list[Done]:
        """Runs several at once."""
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda args: self(*args), calls))

    def json(self, *args: str) -> Any:
        """What it prints with `--json`."""
        done = self(*args, "--json")
        assert done.err == ""
        return json.loads(done.out)

    def start(self, *args: str, environ: Mapping[str, str] | None = None, name: str = "rota") -> Any:
        """Runs it until the block ends."""
        environ = {"ROTA_DSN": self.dsn, **(environ or {})}
        return running([*ROTA, *args], folder=self.folder, environ=environ, name=name)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A working folder with a program in it; the test fails if anything runs there at its end."""
    place = tmp_path / "shop"
    place.mkdir()
    (place / "shop.py").write_text(SHOP)
    yield place
    nothing_runs(place)


@pytest.fixture
def rota(folder: Path, migrated_dsn: str) -> Rota:
    return Rota(folder, migrated_dsn)


def at(dsn: str, work: Callable[[Store], Awaitable[Answer]]) -> Answer:
    """Works on the queue in this process."""

    async def go() -> Answer:
        database = Database(Target(dsn))
        try:
            return await work(Store(database))
        finally:
            await database.stop()

    return asyncio.run(go())


def refused(done: Done, *words: str, status: int) -> None:
    """Holds for a refusal: one sentence or two on standard error, nothing else."""
    assert (done.status, done.out) == (status, ""), done
    assert "Traceback" not in done.err
    lines = done.err.splitlines()
    said = lines[0].removeprefix("rota: ") if lines and lines[0].startswith("rota: ") else done.err
    assert len(lines) == 1 or lines[0].startswith("Usage: "), done.err
    for word in words:
        assert word in said, f"{word!r} in {said!r}"


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


# --- jobs list ---

HOLDER = Holder("there:7:ab12")


@dataclass(frozen=True, slots=True)
class Six:
    """One job in each state, oldest first."""

    queued: JobId
    leased: JobId
    done: JobId
    failed: JobId
    cancelled: JobId
    waiting: JobId


async def six(store: Store) -> Six:
    """Adds them, hours apart, with kinds and tenants of their own."""
    now = datetime.now(UTC)

    async def add(kind: str, hours: float, **values: Any) -> JobId:
        added = await store.enqueue(NewJob(kind, **values), now=now - timedelta(hours=hours))
        return added.id

    ids = Six(
        await add("resize", 50, tenant="acme", priority=3, payload='{"path": "a.mp4"}'),
        await add("build", 40, tenant="acme"),
        await add("mail", 30, tenant="globex"),
        await add("scan", 20, dedupe=open_key("scan:1")),
        await add("report", 10),
        await add("later", 1, delay_s=4 * 3600.0),
    )
    (leased,) = await store.claim([Ask("build", 1, 300, 3)], holder=HOLDER)
    assert leased.id == ids.leased
    (mail,) = await store.claim([Ask("mail", 1, 300, 3)], holder=HOLDER)
    (scan,) = await store.claim([Ask("scan", 1, 300, 3)], holder=HOLDER)
    await store.finish(
        [
            Finish(mail.lease, Outcome.DONE, result='{"sent": [1, 2.5, null]}'),
            Finish(scan.lease, Outcome.FAILED, error="disk \x1b[31mfull\x1b[0m <b>&[red]\nsecond line"),
        ]
    )
    await store.cancel([ids.cancelled], reason="not wanted")
    return ids


def shown_ids(answer: Any) -> list[JobId]:
    return [JobId(UUID(job["id"])) for job in answer["jobs"]]


def test_jobs_are_found_by_kind_state_tenant_and_age(rota: Rota) -> None:
    ids = at(rota.dsn, six)
    newest_first = [ids.waiting, ids.cancelled, ids.failed, ids.done, ids.leased, ids.queued]
    expected: dict[tuple[str, ...], list[JobId]] = {
        (): newest_first,
        ("--kind", "mail"): [ids.done],
        ("--kind", "mail", "--kind", "later"): [ids.waiting, ids.done],
        ("--kind", "nothing"): [],
        ("--state", "failed"): [ids.failed],
        ("--state", "queued", "--state", "leased"): [ids.waiting, ids.leased, ids.queued],
        ("--state", "done", "--state", "cancelled", "--state", "expired"): [ids.cancelled, ids.done],
        ("--tenant", "acme"): [ids.leased, ids.queued],
        ("--tenant", "acme", "--state", "leased"): [ids.leased],
        ("--tenant", "ACME"): [],
        ("--older", "35h"): [ids.leased, ids.queued],
        ("--newer", "35h"): [ids.waiting, ids.cancelled, ids.failed, ids.done],
        ("--older", "15h", "--newer", "2d", "--kind", "scan"): [ids.failed],
        ("--since", "35h"): [ids.waiting, ids.cancelled, ids.failed, ids.done],
        ("--newer", "0"): [],
        ("--limit", "2"): newest_first[:2],
    }
    answers = rota.each(*(("jobs", "list", "--json", *options) for options in expected))
    for (options, wanted), done in zip(expected.items(), answers, strict=True):
        assert (done.status, done.err) == (0, ""), options
        assert shown_ids(json.loads(done.out)) == wanted, options


def test_a_list_is_a_table_of_one_line_each(rota: Rota) -> None:
    ids = at(rota.dsn, six)
    done = rota("jobs", "list")
    assert (done.status, done.err) == (0, "")
    head, *lines = done.out.splitlines()
    assert head.split() == ["id", "kind", "state", "tries", "added", "about"]
    cells = [line.split(maxsplit=4) for line in lines]
    assert [cell[:4] for cell in cells] == [
        [str(ids.waiting)[:18], "later", "queued", "0/–"],
        [str(ids.cancelled)[:18], "report", "cancelled", "0/–"],
        [str(ids.failed)[:18], "scan", "failed", "1/3"],
        [str(ids.done)[:18], "mail", "done", "1/3"],
        [str(ids.leased)[:18], "build", "leased", "1/3"],
        [str(ids.queued)[:18], "resize", "queued", "0/–"],
    ]
    about = [cell[4] for cell in cells]
    assert about[0] == "60 min ago  due in 3 h"
    assert about[1] == "10 h ago    not wanted"
    assert about[2] == "20 h ago    disk \\x1b[31mfull\\x1b[0m <b>&[red] second line"
    assert about[3].startswith("30 h ago    took ")
    assert about[4].startswith(f"40 h ago    on {HOLDER}, last progress ")
    assert about[5] == "2 d ago"
    empty, none = rota.each(("jobs", "list", "--kind", "nothing"), ("jobs", "list", "--schema", "rota", "--tenant", ""))
    assert (empty.out, none.out) == ("No jobs like that.\n", "No jobs like that.\n")


def test_the_json_of_a_list_and_of_one_job(rota: Rota) -> None:
    ids = at(rota.dsn, six)
    listed = rota.json("jobs", "list", "--state", "done")
    assert set(listed) == {"jobs", "next"} and listed["next"] is None
    (short,) = listed["jobs"]
    (whole,) = rota.json("jobs", "show", str(ids.done))
    assert set(short) == {
        "id", "kind", "tenant", "priority", "state", "place", "tries", "max_tries", "run_after", "created_at",
        "started_at", "finished_at", "heartbeat_at", "lease_until", "lease_epoch", "leased_by", "dedupe_key",
        "dedupe_scope", "last_error", "progress", "cancel_asked_at", "now", "parent_id", "batch_id",
    }  # fmt: skip
    assert set(whole) - set(short) == {"payload", "result", "trace", "execution_id", "tries_kept"}
    assert {**short, "now": 0} == {**{name: whole[name] for name in short}, "now": 0}
    assert (whole["id"], whole["kind"], whole["state"], whole["tries"]) == (str(ids.done), "mail", "done", 1)
    assert (whole["payload"], whole["result"]) == ({}, {"sent": [1, 2.5, None]})
    for name in ("run_after", "created_at", "started_at", "finished_at", "now"):
        assert datetime.fromisoformat(whole[name]).tzinfo is not None
    (failed,) = rota.json("jobs", "show", str(ids.failed))
    assert failed["last_error"] == "disk \x1b[31mfull\x1b[0m <b>&[red]\nsecond line"
    assert (failed["dedupe_key"], failed["dedupe_scope"]) == ("scan:1", "open")


def test_pages_follow_each_other_while_jobs_come_and_go(rota: Rota) -> None:
    async def add(store: Store) -> list[JobId]:
        return [new.id for new in await store.enqueue_many([NewJob("page") for _ in range(9)])]

    def gone(*ids: JobId) -> Callable[[Store], Awaitable[Any]]:
        async def go(store: Store) -> None:
            await store.cancel(ids)
            await store.prune(Rule(None, False, 0))

        return go

    old = at(rota.dsn, add)[::-1]
    first = rota.json("jobs", "list", "--limit", "3")
    assert shown_ids(first) == old[:3] and first["next"] == str(old[2])
    new = at(rota.dsn, add)
    at(rota.dsn, gone(old[2], old[4], new[0]))
    second = rota.json("jobs", "list", "--limit", "3", "--after", first["next"])
    assert shown_ids(second) == [old[3], old[5], old[6]], "the job it goes on from is gone, and one of the page"
    third = rota.json("jobs", "list", "--limit", "3", "--after", second["next"])
    assert shown_ids(third) == old[7:] and third["next"] is None
    digits = rota.json("jobs", "list", "--limit", "3", "--after", str(old[3])[:18])
    assert shown_ids(digits) == [old[5], old[6], old[7]], "the first digits are enough"
    last = rota.json("jobs", "list", "--limit", "3", "--after", str(old[8]))
    assert last == {"jobs": [], "next": None}


def test_the_table_says_how_to_see_more(rota: Rota, psql: Psql) -> None:
    psql(rota.dsn, "SELECT count(rota.enqueue('page')) FROM generate_series(1, 25)")
    lines = rota("jobs", "list").out.splitlines()
    assert len(lines) == 22 and lines[-1].startswith("More: --after ")
    rest = rota("jobs", "list", *lines[-1].removeprefix("More: ").split()).out.splitlines()
    assert len(rest) == 6 and not rest[-1].startswith("More")


def test_what_a_person_copies_stays_whole_on_a_narrow_terminal(rota: Rota, psql: Psql) -> None:
    psql(rota.dsn, "SELECT count(rota.enqueue('page')) FROM generate_series(1, 2)")
    listed = on_terminal([*ROTA, "jobs", "list", "--limit", "1"], rota, columns=30).splitlines()
    more = next(line for line in listed if "--after" in line)
    (job_id,) = re.findall(r"--after ([0-9a-f-]{36})", more)
    assert job_id in on_terminal([*ROTA, "jobs", "show", job_id], rota, columns=30)


def on_terminal(argv: list[str | Path], rota: Rota, *, columns: int) -> str:
    """What a command shows on a terminal of this width."""
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        termios.tcsetwinsize(theirs, (24, columns))
        environ = {"PATH": os.environ["PATH"], "TERM": "xterm", "ROTA_DSN": rota.dsn}
        with subprocess.Popen(argv, cwd=rota.folder, env=environ, stdout=theirs, stderr=theirs) as program:
            os.close(theirs)
            shown = b""
            with contextlib.suppress(OSError):  # Linux says that the last one has closed the terminal
                while part := screen.read(65_536):
                    shown += part
        assert program.returncode == 0, shown
    return shown.decode()


# --- jobs show ---


def test_a_job_is_shown_by_its_id_or_its_first_digits(rota: Rota) -> None:
    ids = at(rota.dsn, six)
    text = str(ids.failed)
    forms = [text, text[:18], text[:13], text.replace("-", "").upper(), f" {text[:20]}"]
    shown = rota.each(*(("jobs", "show", form) for form in forms))
    assert [done.out.splitlines()[0] for done in shown] == [text] * len(forms)
    facts = {line[:15].strip(): line[15:].strip() for line in shown[0].out.splitlines()[1:]}
    assert facts["kind"] == "scan" and facts["state"] == "failed" and facts["tries"] == "1 of 3"
    assert facts["key"] == "scan:1 (open)"
    assert facts["error"] == "disk \\x1b[31mfull\\x1b[0m <b>&[red] second line"
    assert facts["added"].endswith(" UTC (20 h ago)")
    assert "due" not in facts and "result" not in facts
    both = rota("jobs", "show", str(ids.queued), str(ids.done)).out.split("\n\n")
    assert [part.split()[0] for part in both] == [str(ids.queued), str(ids.done)]


def test_digits_of_more_than_one_job_and_of_none_are_refused(rota: Rota, psql: Psql) -> None:
    psql(
        rota.dsn,
        "SELECT rota.enqueue('twin', at => ('2026-01-01 00:00:00.00000' || n)::timestamptz) "
        "FROM generate_series(1, 2) AS n",
    )
    (one, other) = rota.json("jobs", "list")["jobs"]
    prefix = one["id"][:13]
    assert other["id"].startswith(prefix), "added in one millisecond"
    ambiguous, none, whole, short, long, letters = rota.each(
        ("jobs", "show", prefix), ("jobs", "show", "00000000"), ("jobs", "show", one["id"][:-8] + "0" * 8),
        ("jobs", "show", "0123456"), ("jobs", "retry", "0" * 33), ("jobs", "cancel", "not-an-id"),
    )  # fmt: skip
    both = f"{one['id'][:18]} and {other['id'][:18]}"
    refused(ambiguous, f"More than one job begins with {prefix}, such as {both}: give more digits.", status=2)
    refused(none, "There is no job 00000000.", status=1)
    refused(whole, "There is no job", status=1)
    refused(short, "'0123456' is no job id: give the id, or at least its first 8 digits.", status=2)
    refused(long, "is no job id", status=2)
    refused(letters, "'not-an-id' is no job id", status=2)


# --- jobs retry and cancel ---


def test_retry_puts_back_what_can_be_put_back_and_says_so_by_its_status(rota: Rota) -> None:
    ids = at(rota.dsn, six)
    for name, status, words in (
        ("failed", 0, "is queued"), ("failed", 0, "is queued"), ("cancelled", 0, "is queued"),
        ("waiting", 0, "is queued"), ("done", 1, "is done; enqueue a new job to do it again"),
        ("leased", 1, "runs now; it was left alone"),
    ):  # fmt: skip
        done = rota("jobs", "retry", str(getattr(ids, name)))
        assert (done.status, done.out, done.err) == (status, f"{getattr(ids, name)} {words}\n", ""), name
    (again,) = rota.json("jobs", "show", str(ids.failed))
    assert (again["state"], again["tries"]) == ("queued", 0)
    both = rota("jobs", "retry", str(ids.failed), str(ids.done), "--json")
    assert both.status == 1
    assert json.loads(both.out) == [
        {"id": str(ids.failed), "outcome": "queued", "holder": None},
        {"id": str(ids.done), "outcome": "done", "holder": None},
    ]


def test_a_job_whose_key_another_holds_is_not_put_back(rota: Rota) -> None:
    ids = at(rota.dsn, six)
    holder = at(rota.dsn, lambda store: store.enqueue(NewJob("scan", dedupe=open_key("scan:1")))).id
    done = rota("jobs", "retry", str(ids.failed))
    assert (done.status, done.out) == (1, f"{ids.failed} was left as it is: job {holder} holds its key\n")
    assert rota.json("jobs", "retry", str(ids.failed))[0]["holder"] == str(holder)


def test_cancel_ends_a_queued_job_asks_a_running_one_and_finds_others_ended(rota: Rota) -> None:
    ids = at(rota.dsn, six)
    queued, leased, ended = rota.each(
        ("jobs", "cancel", str(ids.queued), "--reason", "no longer"), ("jobs", "cancel", str(ids.leased)),
        ("jobs", "cancel", str(ids.done)),
    )  # fmt: skip
    assert (queued.status, queued.out) == (0, f"{ids.queued} is cancelled\n")
    assert (leased.status, leased.out) == (0, f"{ids.leased} runs on {HOLDER}, which was asked to stop it\n")
    assert (ended.status, ended.out) == (1, f"{ids.done} has ended before: done\n")
    (shown, asked) = rota.json("jobs", "show", str(ids.queued), str(ids.leased))
    assert (shown["state"], shown["last_error"]) == ("cancelled", "no longer")
    assert asked["state"] == "leased" and asked["cancel_asked_at"] is not None
    mixed = rota("jobs", "cancel", str(ids.waiting), str(ids.queued), "--json")
    assert (mixed.status, json.loads(mixed.out)) == (
        1, [{"id": str(ids.waiting), "state": "cancelled"}, {"id": str(ids.queued), "state": "cancelled"}],
    )  # fmt: skip


def test_cancel_with_children_counts_them(rota: Rota) -> None:
    ids = at(rota.dsn, six)

    async def add_children(store: Store) -> JobId:
        await store.enqueue(NewJob("child", parent_id=ids.done))
        return (await store.enqueue(NewJob("child", parent_id=ids.done))).id

    child = at(rota.dsn, add_children)
    only_parent, family = rota("jobs", "cancel", str(ids.done)), rota("jobs", "cancel", str(ids.done), "--children")
    assert (only_parent.status, family.status) == (1, 0)
    assert family.out.splitlines()[1] == "Their children: 2 cancelled, 0 running and asked to stop"
    (shown,) = rota.json("jobs", "show", str(child))
    assert (shown["state"], shown["parent_id"]) == ("cancelled", str(ids.done))
    assert re.search(rf"^parent +{ids.done}$", rota("jobs", "show", str(child)).out, re.MULTILINE)


def test_move_changes_what_is_queued_and_says_so_by_its_status(rota: Rota) -> None:
    ids = at(rota.dsn, six)
    moved, later, leased, ended, nothing, no_age = rota.each(
        ("jobs", "move", str(ids.queued), "--priority", "50"), ("jobs", "move", str(ids.waiting), "--after", "0s"),
        ("jobs", "move", str(ids.leased), "--priority", "1"), ("jobs", "move", str(ids.done), "--priority", "1"),
        ("jobs", "move", str(ids.queued)), ("jobs", "move", str(ids.queued), "--after", "soon"),
    )  # fmt: skip
    assert (moved.status, moved.out) == (0, f"{ids.queued} is moved\n")
    assert (later.status, later.out) == (0, f"{ids.waiting} is moved\n")
    assert (leased.status, leased.out) == (1, f"{ids.leased} runs on {HOLDER}; it was left alone\n")
    assert (ended.status, ended.out) == (1, f"{ids.done} has ended before: done\n")
    refused(nothing, "Nothing to change: give --priority, --after, or both.", status=2)
    refused(no_age, "--after: 'soon' is no age", status=2)
    (queued, waiting) = rota.json("jobs", "show", str(ids.queued), str(ids.waiting))
    assert queued["priority"] == 50
    assert datetime.fromisoformat(waiting["run_after"]) <= datetime.fromisoformat(waiting["now"])


def test_one_bad_id_among_good_ones_changes_nothing(rota: Rota) -> None:
    ids = at(rota.dsn, six)
    refused(rota("jobs", "cancel", str(ids.queued), "00000000"), "There is no job 00000000", status=1)
    assert rota.json("jobs", "show", str(ids.queued))[0]["state"] == "queued"


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


# --- worker ---


def test_programs_that_cannot_be_run_are_refused(rota: Rota) -> None:
    folder = rota.folder
    (folder / "broken.py").write_text("import nothing_of_this_name")
    (folder / "raises.py").write_text("raise RuntimeError('at import')")
    (folder / "syntax.py").write_text("def (")
    (folder / "empty.py").write_text("import rota\napp = rota.App()")
    (folder / "twice.py").write_text(
        "import rota\napp = rota.App()\napp.job('a')(lambda ctx: 1)\napp.job('a')(lambda ctx: 2)"
    )
    (folder / "shape.py").write_text("import rota\napp = rota.App()\n@app.job()\ndef f(a, b, c): ...")
    cases = [
        ("shop", "'shop' names no program: give module:attribute, such as shop:app."),
        (":app", "names no program"), ("shop:", "names no program"),
        ("nowhere:app", "There is no module 'nowhere' here. Run this in the folder that holds it, or set PYTHONPATH."),
        ("shop.more:app", "There is no module 'shop.more' here."),
        ("shop:other", "shop:other is no rota.App. shop:app is one."),
        ("shop:hello", "shop:hello is no rota.App but a function."),
        ("shop:app.job", "shop:app.job is no rota.App but a method."),
        ("broken:app", "broken cannot be imported: it needs the module 'nothing_of_this_name'."),
        ("raises:app", "raises cannot be imported: RuntimeError: at import."),
        ("syntax:app", "syntax cannot be imported: SyntaxError"),
        ("twice:app", "Two handlers want the kind 'a'."),
        ("shape:app", "The handler of kind 'f' takes (a, b, c); it may take (ctx, payload), (ctx) or nothing."),
        ("empty:app", "This app has no handlers"),
    ]  # fmt: skip
    for (_, said), done in zip(cases, rota.each(*(("worker", name) for name, _ in cases)), strict=True):
        refused(done, said, status=2)
    refused(rota("worker", "shop:app", "--processes", "0"), "Invalid value for '--processes'", status=2)
    refused(rota("dev", "shop:other"), "shop:other is no rota.App.", status=2)


def job_of(rota: Rota, job_id: Any) -> Any:
    return at(rota.dsn, lambda store: store.show(JobId(UUID(str(job_id)))))[0]


def test_a_worker_runs_jobs_until_a_signal_ends_it_well(rota: Rota, psql: Psql) -> None:
    first = psql(rota.dsn, "SELECT id FROM rota.enqueue('hello', '{\"name\": \"first\"}')")
    with rota.start("worker", "shop:app") as worker:
        until(lambda: job_of(rota, first).state is State.DONE, "the job that was there")
        second = psql(rota.dsn, "SELECT id FROM rota.enqueue('hello', '{\"name\": \"second\"}')")
        until(lambda: job_of(rota, second).state is State.DONE, "the job that came")
        assert json.loads(job_of(rota, second).result)["hello"] == "second"
        assert json.loads(job_of(rota, second).result)["pid"] != worker.pid, "in a process of its own"
        worker.signal(signal.SIGTERM)
        assert worker.status() == 0
        events = [json.loads(line)["event"] for line in worker.err.splitlines()]
        assert events[0] == "worker started" and events[-1] == "worker stopped"
        assert worker.out == ""


def test_several_workers_share_the_work_and_end_together(rota: Rota, psql: Psql) -> None:
    with rota.start("worker", "shop:app", "--processes", "3", environ={"ROTA_LIMIT": "1"}) as worker:
        worker.says("worker started", count=3)
        psql(rota.dsn, "SELECT count(rota.enqueue('hello', '{\"name\": \"x\"}')) FROM generate_series(1, 300)")
        until(lambda: psql(rota.dsn, "SELECT count(*) FROM rota.jobs WHERE state <> 'done'") == "0", "all jobs")
        pids = psql(rota.dsn, "SELECT DISTINCT result->>'pid' FROM rota.jobs").split()
        assert len(pids) == 3
        worker.signal(signal.SIGINT)
        assert worker.status() == 0
    assert not any(lives(int(pid)) for pid in pids)


def test_a_job_that_does_not_end_is_given_back_after_the_grace(rota: Rota, psql: Psql) -> None:
    job_id = psql(rota.dsn, "SELECT id FROM rota.enqueue('forever')")
    with rota.start("worker", "shop:app", "--alone", environ={"ROTA_STOP_GRACE_S": "0.2"}) as worker:
        until(lambda: job_of(rota, job_id).state is State.LEASED, "the job runs")
        worker.signal(signal.SIGTERM)
        assert worker.status() == 0
    assert (job_of(rota, job_id).state, job_of(rota, job_id).tries) == (State.QUEUED, 0)


def test_the_database_that_is_named_goes_before_the_programs_own(rota: Rota, psql: Psql) -> None:
    (rota.folder / "shop.py").write_text(SHOP.replace("rota.App()", "rota.App(dsn='postgresql://127.0.0.1:1/own')"))
    job_id = psql(rota.dsn, "SELECT id FROM rota.enqueue('hello', '{\"name\": \"x\"}')")
    with rota.start("worker", "shop:app", "--dsn", rota.dsn) as worker:
        until(lambda: job_of(rota, job_id).state is State.DONE, "the job in the database of --dsn")
        worker.signal(signal.SIGTERM)
        assert worker.status() == 0


def test_a_worker_waits_for_a_database_that_is_away(folder: Path) -> None:
    rota = Rota(folder, f"postgresql://app:{SECRET}@127.0.0.1:1/shop")
    with rota.start("worker", "shop:app") as worker:
        said = worker.says("does not answer", count=2)
        assert "rota: The database at postgresql://127.0.0.1:1/shop does not answer" in said
        worker.signal(signal.SIGTERM)
        assert worker.status() == 0
        assert "Traceback" not in worker.err and SECRET not in worker.err


# --- dev ---


def dsn_said_by(program: Program) -> str:
    """The address that `rota dev` prints."""
    program.says("ROTA_DSN='")
    until(lambda: program.out.endswith("'\n"), "the whole line")
    return program.out.partition("ROTA_DSN='")[2].partition("'")[0]


def dev(folder: Path, *args: str, name: str = "dev") -> Any:
    return running([*ROTA, "dev", *args], folder=folder, name=name)


def test_dev_runs_a_database_and_a_program_until_ctrl_c(folder: Path, psql: Psql) -> None:
    (folder / "shop.py").write_text(SHOP.replace("rota.App()", "rota.App(dsn='postgresql://127.0.0.1:1/own')"))
    with dev(folder, "shop:app") as program:
        dsn = dsn_said_by(program)
        job_id = psql(dsn, "SELECT id FROM rota.enqueue('hello', '{\"name\": \"x\"}')")
        until(lambda: psql(dsn, f"SELECT state FROM rota.jobs WHERE id = '{job_id}'") == "done", "the job")
        program.signal(signal.SIGINT)
        assert program.status() == 0
        assert program.out.startswith("applied 0001_jobs\n")
    nothing_runs(folder)
    assert (folder / ".rota" / "data").is_dir(), "in the default folder"

    listed = run([*ROTA, "jobs", "list", "--dsn", f"embedded:{folder / '.rota'}"], folder=folder)
    assert listed.status == 0 and job_id[:18] in listed.out
    nothing_runs(folder)

    with dev(folder, name="alone") as alone, running([*ROTA, "jobs", "list"], folder=folder) as unnamed:
        assert psql(dsn_said_by(alone), "SELECT count(*) FROM rota.jobs") == "1", "what was there is there again"
        assert unnamed.status() == 2
        with dev(folder, name="second") as second:
            assert second.status() == 0
            assert dsn_said_by(second) == dsn_said_by(alone)
            assert "was started by another program, and ends with it" in second.out
        with dev(folder, "shop:app", name="third") as third:
            job_id = psql(dsn_said_by(third), "SELECT id FROM rota.enqueue('hello', '{\"name\": \"x\"}')")
            until(lambda: psql(dsn, f"SELECT state FROM rota.jobs WHERE id = '{job_id}'") == "done", "the job")
            third.signal(signal.SIGTERM)
            assert third.status() == 0
        alone.signal(signal.SIGTERM)
        assert alone.status() == 0
    nothing_runs(folder)


def test_dev_leaves_nothing_even_when_it_is_killed(folder: Path, psql: Psql) -> None:
    with dev(folder, "shop:app", "--processes", "2") as program:
        program.says("worker started", count=2)
        program.signal(signal.SIGKILL)
        program.status()
        nothing_runs(folder)


def test_dev_on_a_database_that_is_named_starts_none(rota: Rota) -> None:
    with running([*ROTA, "dev", "shop:app", "--dsn", rota.dsn], folder=rota.folder) as program:
        program.says("worker started")
        assert dsn_said_by(program) == rota.dsn
        program.signal(signal.SIGINT)
        assert program.status() == 0
    assert not (rota.folder / ".rota").exists()


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", "2>/dev/full"], ids=["closed", "full"])
async def test_a_worker_works_without_its_streams(migrated_dsn: str, tmp_path: Path, streams: str) -> None:
    """A supervisor may close them, and the disk of the log may be full: sockets must not take their numbers, and a
    line that cannot be written ends no worker."""
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    database = Database(Target(migrated_dsn), size=1)
    store = Store(database)
    environ = {"ROTA_DSN": migrated_dsn, "ROTA_POLL_S": "0.1"}
    command = f"exec {shlex.join(map(str, ROTA))} worker shop:app {streams}"
    with running(["sh", "-c", command], folder=tmp_path, environ=environ, name="mute") as worker:
        job = await store.enqueue(NewJob("hello", payload='{"name": "Ann"}'))
        async with asyncio.timeout(30):
            while (await store.show(job.id))[0].state is not State.DONE:
                await asyncio.sleep(0.05)
        worker.popen.send_signal(signal.SIGTERM)
        # Python itself says 120 where it cannot write the rest of a stream at its end.
        assert await asyncio.to_thread(worker.popen.wait, 30) in {0, 120}
    await database.stop()
