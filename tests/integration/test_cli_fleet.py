"""`rota passes`, `rota pause`, `rota resume` and roles, as a person calls them."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rota.queue.periodic import Declared, Put
from tests.integration.programs import until
from tests.integration.rota_calls import Rota, at, refused, rota, shop_in
from tests.postgres_servers import Psql

__all__ = ["rota"]  # a fixture

SHOP = """
import os
import sys
import time
import rota

app = rota.App()

@app.job()
async def mail(ctx):
    return "mailed"

@app.job(role="builds")
async def build(ctx):
    return "built"

@app.every(hours=24, role="builds", priority=10)
async def sweep(ctx, run: rota.PassRun):
    return f"swept {run.due_at:%Y}"

@app.cron("0 3 * * *", tz="Europe/Berlin")
async def nightly(ctx):
    pass

if "--supervised" in sys.argv and os.path.exists("hang"):
    os.remove("hang")
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with shop_in(tmp_path, SHOP) as place:
        yield place


def state_of(rota: Rota, psql: Psql, job: str) -> str:
    return psql(rota.dsn, f"SELECT state FROM rota.jobs WHERE id = '{job}'")


@contextmanager
def builder(rota: Rota, psql: Psql) -> Iterator[None]:
    """A worker of one role, once the passes of the code are known."""
    with rota.start("worker", "shop:app", "--role", "builds"):
        until(lambda: psql(rota.dsn, "SELECT count(*) FROM rota.passes") == "2", "both passes of the code")
        yield


def test_passes_are_listed_and_run(rota: Rota, psql: Psql) -> None:
    assert rota("passes", "list").out.startswith("No passes.")
    with builder(rota, psql):
        nightly, sweep = rota.json("passes", "list")
        assert (nightly["name"], nightly["schedule"], nightly["taken"]) == (
            "nightly", "cron 0 3 * * * Europe/Berlin", False,
        )  # fmt: skip
        assert (sweep["name"], sweep["priority"], sweep["taken"], sweep["paused"]) == ("sweep", 10, True, False)
        assert sweep["open"]["state"] == "queued" and sweep["open"]["run_after"] == sweep["due_at"]

        (answer,) = rota.json("passes", "run", "sweep")
        until(lambda: state_of(rota, psql, answer["id"]) == "done", "the extra run")
        after = rota.json("passes", "list")[1]
        assert after["due_at"] == after["open"]["run_after"] == sweep["due_at"], "the run by the schedule still comes"
    refused(rota("passes", "run", "sweep", "weep"), "There is no pass 'weep'.", status=1)


def test_passes_are_held_back_and_go_on(rota: Rota, psql: Psql) -> None:
    with builder(rota, psql):
        paused = rota("passes", "pause", "sweep", "nightly", "--note", "Moving house", "--for", "2h")
        assert (paused.status, paused.out) == (0, "sweep is paused.\nnightly is paused.\n")
        listed = rota("passes", "list").out.splitlines()
        assert "paused, no live server takes it" in listed[1] and listed[2].endswith("paused")
        (held,) = rota.json("passes", "pause", "sweep", "--note", "Moving house again")
        assert (held["scope"], held["name"], held["note"], held["until"]) == (
            "kind", "sweep", "Moving house again", None,
        )  # fmt: skip
        assert rota.json("passes", "resume", "sweep") == [{"pass": "sweep", "was_paused": True}]
        again = rota("passes", "resume", "sweep", "nightly")
        assert (again.status, again.out) == (1, "sweep was not paused.\nnightly goes on.\n")
    refused(rota("passes", "pause", "sweep", "--for", "soon"), "--for: 'soon' is no age", status=2)


def test_passes_of_a_database_are_shown_without_their_program(rota: Rota) -> None:
    due_at = datetime.now(UTC) + timedelta(hours=1)
    at(rota.dsn, lambda store: store.put_pass(Put("hourly", Declared("every 3600 s"), due_at, None)))
    (row,) = rota.json("passes", "list")
    assert (row["name"], row["taken"], row["open"]["state"]) == ("hourly", False, "queued")
    assert "no live server takes it" in rota("passes", "list").out


def test_pausing_and_resuming(rota: Rota, psql: Psql) -> None:
    assert rota("pause").out == "Nothing is paused.\n"
    done = rota("pause", "mail", "--note", "Provider is down", "--for", "2h")
    assert done.status == 0 and "kind mail" in done.out and "Provider is down" in done.out
    rota("pause", "--tenant", "acme")
    everything = rota.json("pause", "--all")
    assert [(pause["scope"], pause["name"]) for pause in everything] == [
        ("all", ""), ("kind", "mail"), ("tenant", "acme"),
    ]  # fmt: skip
    assert everything[1]["until"] is not None and everything[2]["until"] is None and "@" in everything[1]["paused_by"]
    assert rota("resume", "--all").out.startswith("all work goes on; it was paused by ")
    assert rota("resume", "--tenant", "acme").status == 0
    job = psql(rota.dsn, "SELECT id FROM rota.enqueue('mail')")
    with rota.start("worker", "shop:app") as worker:
        worker.says("worker started")
        until(lambda: psql(rota.dsn, "SELECT count(*) FROM rota.servers") == "1", "a worker that has looked")
        assert state_of(rota, psql, job) == "queued"
        assert rota.json("resume", "mail")["note"] == "Provider is down"
        until(lambda: state_of(rota, psql, job) == "done", "the job")
    nothing = rota("resume", "mail")
    assert (nothing.status, nothing.out) == (1, "That was not paused. `rota pause` lists what is.\n")
    for wrong in (("pause", "mail", "--all"), ("pause", "--note", "why"), ("resume",), ("resume", "mail", "--all")):
        refused(rota(*wrong), "Name one thing: a kind, --tenant T, or --all.", status=2)


def test_servers_by_role(rota: Rota, psql: Psql) -> None:
    refused(rota("worker", "shop:app", "--role", "bulids"), "'bulids'. Its roles: all, builds, default.", status=2)
    jobs = {kind: psql(rota.dsn, f"SELECT id FROM rota.enqueue('{kind}')") for kind in ("mail", "build")}
    with rota.start("worker", "shop:app", environ={"ROTA_ROLE": "builds"}):
        until(lambda: state_of(rota, psql, jobs["build"]) == "done", "the build")
        assert state_of(rota, psql, jobs["mail"]) == "queued"
        assert psql(rota.dsn, "SELECT role || kinds FROM rota.servers") == 'builds{"build": 10, "sweep": 1}'
        with rota.start("worker", "shop:app", "--role", "default", name="other"):
            until(lambda: state_of(rota, psql, jobs["mail"]) == "done", "the mail")


def test_a_worker_that_hangs_at_its_start_is_replaced(rota: Rota, psql: Psql) -> None:
    """S23."""
    (rota.folder / "hang").touch()
    job = psql(rota.dsn, "SELECT id FROM rota.enqueue('mail')")
    # One that is well starts in less, on a busy machine too.
    with rota.start("worker", "shop:app", environ={"ROTA_START_S": "12"}) as worker:
        worker.says("a process was not ready in time and is replaced")
        until(lambda: state_of(rota, psql, job) == "done", "the job")
