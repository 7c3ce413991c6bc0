"""Jobs in child processes: what they answer, what they survive, and that nothing of them is left."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import rota
from rota.queue.io.store import Store
from rota.queue.job import JobRow
from rota.settings import Settings
from rota.slots.messages import Cancel, EndedBy, Receipt, Want
from tests.integration.exec_stand_in import StandIn, Streams, cat, fail, hang
from tests.integration.isolation_program import Order, calls, obey

WAIT_S = 60.0
"""How long what must come is awaited."""


@contextlib.asynccontextmanager
async def working(dsn: str, **options: object) -> AsyncIterator[tuple[rota.App, Store]]:
    """An app with the handler `obey` in child processes, and a worker on it."""
    app = rota.App(settings=Settings(dsn=dsn, poll_s=0.1, stop_grace_s=0))
    app.job("obey", isolation="process", retry=rota.Fixed(0.1), **options)(obey)  # type: ignore[call-overload]
    worker = app.worker()
    run = asyncio.create_task(worker.run())
    try:
        yield app, await app.store()
    finally:
        worker.stop()
        await asyncio.wait_for(run, WAIT_S)
        await app.stop()


async def until(
    store: Store, job: rota.Enqueued, check: Callable[[JobRow], bool], *, seconds: float = WAIT_S
) -> JobRow:
    deadline = time.monotonic() + seconds
    while True:
        row = (await store.show(job.id))[0]
        if check(row):
            return row
        assert time.monotonic() < deadline, f"the job stays {row.state}, {row.last_error}"
        await asyncio.sleep(0.02)


def ended(row: JobRow) -> bool:
    return row.finished_at is not None


def children() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "rota.queue.io.child" in process.cmdline():
                found.append(process)
    return found


def is_gone(pid: int) -> bool:
    """Whether a process has ended; whether its new parent has taken note of that is not the worker's to say."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def wait_for_file(path: Path) -> str:
    deadline = time.monotonic() + WAIT_S
    while not path.is_file() or not path.read_text():
        assert time.monotonic() < deadline, "the handler did not begin"
        await asyncio.sleep(0.02)
    return path.read_text()


async def test_a_child_answers_and_serves_again(migrated_dsn: str) -> None:
    async with working(migrated_dsn, limit=1) as (app, store):
        answers = []
        for _ in range(2):
            row = await until(store, await app.enqueue("obey", Order("answer")), ended)
            assert row.state == "done"
            answers.append(json.loads(row.result or "null"))
        assert answers[0] == answers[1] == {"pid": answers[0]["pid"], "tries": 1}
        assert answers[0]["pid"] != os.getpid()
    assert children() == []


@pytest.mark.parametrize(
    ("do", "state", "tries", "error"),
    [
        ("raise plain", "failed", 2, "ValueError: as it was told (isolation_program.py:"),
        ("raise book", "failed", 2, "ValueError: word word"),
        ("raise leaves", "failed", 2, "Leaves: its message cannot be read, because that raises SystemExit"),
        ("raise bare", "failed", 2, "Bare: b"),
        ("raise badly", "failed", 2, "OSError: for ? good (isolation_program.py:"),
        ("fail plain", "failed", 1, "for good"),
        ("fail badly", "failed", 1, "for ? good"),
        ("fail at length", "failed", 1, "for good for good"),
        ("fail by a wait without end", "failed", 1, "What the handler returned cannot be handed to its worker"),
        ("fail garbling", "failed", 2, "The child process could not be understood and was killed: a frame of"),
        ("fail by too much", "failed", 1, "bytes, with the jobs that follow it; at most"),
        ("not-json", "failed", 1, "The result cannot be stored: $ is a object"),
        ("die", "failed", 2, "The child process ended in the middle of the job (exit status 9)"),
    ],
)
async def test_how_a_job_in_a_child_can_fail(migrated_dsn: str, do: str, state: str, tries: int, error: str) -> None:
    async with working(migrated_dsn, max_tries=2) as (app, store):
        row = await until(store, await app.enqueue("obey", Order(*do.split(maxsplit=1))), ended)
        assert (row.state, row.tries) == (state, tries)
        assert error in (row.last_error or "")
        # The worker lives, and the next job finds a child.
        assert (await until(store, await app.enqueue("obey", Order("answer")), ended)).state == "done"


async def test_a_payload_that_does_not_fit_fails_at_once(migrated_dsn: str) -> None:
    async with working(migrated_dsn) as (app, store):
        row = await until(store, await app.enqueue("obey", {"do": 5}), ended)
        assert (row.state, row.tries) == ("failed", 1)
        assert "$.do" in (row.last_error or "")


async def test_an_outcome_comes_through(migrated_dsn: str) -> None:
    async with working(migrated_dsn) as (app, store):
        row = await until(store, await app.enqueue("obey", Order("snooze")), lambda row: row.last_error == "later")
        assert (row.state, row.tries) == ("queued", 0)
        assert (row.run_after - row.now).total_seconds() > 500


async def test_a_program_may_take_longer_to_load_than_a_lease_lasts(
    migrated_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose handler has not been called yet has not stalled."""
    (tmp_path / "slow_to_load.py").write_text(
        "import time\ntime.sleep(2.5)\ndef handle(ctx): return ctx.job.tries\nhandle.__module__ = __name__\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    async with working(migrated_dsn) as (app, store):
        namespace: dict[str, Any] = {"__name__": "slow_to_load"}
        exec("def handle(ctx): return None", namespace)  # as the worker has loaded it, and its children have not
        app.job("slow", isolation="process", lease_s=1.5, heartbeat_s=0.2, max_tries=1)(namespace["handle"])
        worker = app.worker()
        run = asyncio.create_task(worker.run())
        row = await until(store, await app.enqueue("slow"), ended)
        worker.stop()
        await asyncio.wait_for(run, WAIT_S)
    assert (row.state, row.result, row.last_error) == ("done", "1", None)


async def test_progress_of_a_child_moves_the_lease(migrated_dsn: str) -> None:
    async with working(migrated_dsn, lease_s=6, heartbeat_s=0.3) as (app, store):
        job = await app.enqueue("obey", Order("progress"))
        await until(store, job, lambda row: bool(row.progress) and json.loads(row.progress)["fraction"] > 0.1)
        row = await until(store, job, ended)
        assert (row.state, row.tries, row.result) == ("done", 1, '"long"')


async def test_cancel_asks_first(migrated_dsn: str, tmp_path: Path) -> None:
    async with working(migrated_dsn) as (app, store):
        job = await app.enqueue("obey", Order("wait-until-stopped", str(tmp_path / "begun")))
        await wait_for_file(tmp_path / "begun")
        assert await app.cancel(job.id) == "leased"
        row = await until(store, job, ended, seconds=8)  # of ten that it has before its end
        assert (row.state, row.result) == ("cancelled", None), "what it returned once it knew is no result"


async def test_a_stalled_tree_is_killed_whole(migrated_dsn: str, tmp_path: Path) -> None:
    """The grandchild has left the process group and does not hear SIGTERM."""
    async with working(migrated_dsn, lease_s=6, heartbeat_s=0.5, max_tries=1) as (app, store):
        job = await app.enqueue("obey", Order("stubborn", str(tmp_path / "pid")))
        grandchild = int(await wait_for_file(tmp_path / "pid"))
        row = await until(store, job, ended)
        assert row.state == "failed"
        assert "made no progress" in (row.last_error or "")
        assert is_gone(grandchild)
        assert (await until(store, await app.enqueue("obey", Order("answer")), ended)).state == "done"


async def test_a_stopping_worker_gives_the_job_back(migrated_dsn: str, tmp_path: Path) -> None:
    async with working(migrated_dsn) as (app, _):
        job = await app.enqueue("obey", Order("stubborn", str(tmp_path / "pid")))
        grandchild = int(await wait_for_file(tmp_path / "pid"))
    async with rota.App(settings=Settings(dsn=migrated_dsn)) as app:
        row = (await (await app.store()).show(job.id))[0]
    assert (row.state, row.tries) == ("queued", 0)
    assert is_gone(grandchild)
    assert children() == []


def test_a_handler_that_no_child_can_import_is_refused() -> None:
    app = rota.App(settings=Settings(dsn="postgresql:///none"))

    @app.job(isolation="process")
    def local(ctx: rota.Context) -> None: ...

    with pytest.raises(rota.SettingsError, match="'local' has isolation='process', but its handler stands inside"):
        _ = app.handlers


@contextlib.asynccontextmanager
async def calling(dsn: str, server: StandIn, **options: object) -> AsyncIterator[tuple[rota.App, Store]]:
    """An app with the handler `calls` in child processes, an exec server, and a worker."""
    addresses = f"127.0.0.1:{server.port}"
    app = rota.App(settings=Settings(dsn=dsn, poll_s=0.1, stop_grace_s=0, exec_addresses=addresses))
    app.job("calls", isolation="process", exec="cat", retry=rota.Fixed(0.1), max_tries=1, **options)(calls)  # type: ignore[call-overload]
    worker = app.worker()
    run = asyncio.create_task(worker.run())
    try:
        yield app, await app.store()
    finally:
        worker.stop()
        await asyncio.wait_for(run, WAIT_S)
        await app.stop()


async def test_a_child_process_runs_commands_through_its_worker(migrated_dsn: str, tmp_path: Path) -> None:
    async def refused(_streams: Streams, _args: object) -> Receipt:
        return Receipt(ended_by=EndedBy.REFUSED, error="There is no argument 'width'.")

    commands = {"cat": cat, "fail": fail, "refused": refused}
    (tmp_path / "page").write_text("of a file")
    async with StandIn(commands) as server, calling(migrated_dsn, server) as (app, store):
        jobs = {
            do: await app.enqueue("calls", Order(do, str(tmp_path / "page")), priority=3, tenant="acme")
            for do in ("many", "large", "file", "caught", "refused", "fail")
        }
        rows = {do: await until(store, job, ended) for do, job in jobs.items()}
        results = {do: None if row.result is None else json.loads(row.result) for do, row in rows.items()}
        assert results["many"] == "a" + "b" * 3000 + "c"
        assert results["large"] == 3 << 20
        assert results["file"] == "of a file"
        assert results["caught"][:2] == [3, "no such codec"]
        assert (rows["refused"].state, rows["refused"].tries) == ("failed", 1)
        assert "There is no argument 'width'." in (rows["refused"].last_error or "")
        assert "fail did not go well" in (rows["fail"].last_error or "")
        wants = [message for message in server.heard if isinstance(message, Want)]
        assert {(want.priority, want.tenant) for want in wants} == {(3, "acme")}
        assert {want.job_id.partition(".")[0] for want in wants} == {str(job.id) for job in jobs.values()}


async def test_a_child_process_without_a_slot_sends_its_job_back_and_counts_no_try(migrated_dsn: str) -> None:
    async with StandIn({"cat": cat}, slots=0) as server, calling(migrated_dsn, server) as (app, store):
        # No slot is dealt, but the share has its headroom only where there are slots: two are said to be there.
        server.slots, server.offering = 2, False
        await server.crash()
        await server.listen()
        job = await app.enqueue("calls", Order("no-slot"))
        row = await until(store, job, lambda row: row.last_error is not None)
        assert (row.state, row.tries) == ("queued", 0)
        assert 50 < (row.run_after - row.now).total_seconds() <= 60


async def test_a_cancelled_job_in_a_child_process_ends_its_command_and_its_wait(
    migrated_dsn: str, tmp_path: Path
) -> None:
    async with StandIn({"cat": cat, "hang": hang}) as server, calling(migrated_dsn, server) as (app, store):
        job = await app.enqueue("calls", Order("hang", str(tmp_path / "told")))
        await server.until(lambda: server.running)
        assert await app.cancel(job.id) == "leased"
        row = await until(store, job, ended)
        assert row.state == "cancelled"
        assert (tmp_path / "told").read_text() == "told", "the handler was not killed: its wait ended"
        await server.until(lambda: server.count(Cancel) == 1 and not server.running)
        # The child goes on with the next job.
        again = await app.enqueue("calls", Order("many"))
        assert (await until(store, again, ended)).state == "done"


async def test_a_child_that_dies_takes_its_command_along(migrated_dsn: str, tmp_path: Path) -> None:
    async with StandIn({"cat": cat, "hang": hang}) as server, calling(migrated_dsn, server) as (app, store):
        job = await app.enqueue("calls", Order("hang", str(tmp_path / "told")))
        await server.until(lambda: server.running)
        (child,) = children()
        child.kill()
        assert (await until(store, job, ended)).state == "failed"
        await server.until(lambda: server.count(Cancel) == 1 and not server.running)
