"""`rota jobs`: jobs are found, shown, put back, cancelled and moved, as a person does it."""

import contextlib
import json
import os
import re
import subprocess
import termios
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from rota.ids import Holder, JobId
from rota.queue.io.store import Store
from rota.queue.job import Ask, Finish, NewJob, Outcome, open_key
from rota.queue.retention import Rule
from tests.integration.programs import (
    ROTA,
)
from tests.integration.rota_calls import Rota, at, folder, refused, rota
from tests.postgres_servers import Psql

__all__ = ["folder", "rota"]  # fixtures

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


def test_a_value_that_python_cannot_read_keeps_no_job_from_being_shown(rota: Rota, psql: Psql) -> None:
    """PostgreSQL takes it from whoever speaks SQL."""
    digits, deep = '{"n": ' + "9" * 6000 + "}", "[" * 2000 + "]" * 2000
    values = f"(1, '{digits}'::jsonb), (2, '{deep}'), (3, '3')"
    ids = psql(
        rota.dsn, f"SELECT job.id FROM (VALUES {values}) AS v(n, p), rota.enqueue('odd', p) AS job ORDER BY n"
    ).split()
    shown = rota.json("jobs", "show", *ids)
    assert [job["payload"] for job in shown] == [digits, deep, 3]
    assert len(rota.json("jobs", "list", "--kind", "odd")["jobs"]) == 3


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
