"""`rota worker` and `rota dev`: real processes on a real database."""

import asyncio
import json
import shlex
import signal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from rota.ids import JobId
from rota.io.postgres import Database, Target
from rota.queue.io.store import Store
from rota.queue.job import NewJob, State
from tests.integration.programs import (
    ROTA,
    Program,
    lives,
    nothing_runs,
    run,
    running,
    until,
)
from tests.integration.rota_calls import SHOP, Rota, at, folder, refused, rota
from tests.postgres_servers import Psql

__all__ = ["folder", "rota"]  # fixtures

SECRET = "hunter2"

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
