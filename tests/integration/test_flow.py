"""Jobs that lead to others, seen from a program: follow-ups, own transactions, room, families, cancels."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import rota
from rota.ids import Holder
from rota.queue.io import crew as crew_module
from rota.queue.io.store import Store
from rota.queue.job import Ask, JobRow, State
from tests.integration import flow_program
from tests.integration.test_worker import NEVER_S, Bench, made_bench, until, working

WAIT_S = 60.0


@pytest.fixture
async def bench(migrated_dsn: str) -> AsyncIterator[Bench]:
    """A program whose worker looks twenty times a second, on a database with a table of the program's own."""
    async with made_bench(migrated_dsn, poll_s=0.05, cancel_grace_s=0.5, stop_grace_s=0) as made:
        await made.conn.execute("CREATE TABLE data (what text)")
        yield made


async def kinds(bench: Bench) -> list[str]:
    return [row["kind"] for row in await bench.conn.fetch("SELECT kind FROM rota.jobs ORDER BY id")]


async def data(bench: Bench) -> list[str]:
    return [row["what"] for row in await bench.conn.fetch("SELECT what FROM data ORDER BY what")]


# Follow-ups


def handler_of(place: str, does: Callable[[rota.Context], Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    if place == "coroutine":

        async def handler(ctx: rota.Context) -> Any:
            return does(ctx)

        return handler, {}
    return does, {}


@pytest.mark.parametrize("place", ["coroutine", "thread", "process"])
async def test_follow_ups_are_there_with_the_success(bench: Bench, place: str) -> None:
    if place == "process":
        bench.app.job("work", isolation="process")(flow_program.follow)
    else:
        handler, options = handler_of(place, flow_program.follow)
        bench.app.job("work", **options)(handler)
    job = await bench.app.enqueue("work")
    async with working(bench.app):
        assert (await bench.ends(job.id, within_s=WAIT_S)).state is State.DONE
    follow_up = await bench.conn.fetchrow("SELECT kind, parent_id, payload FROM rota.jobs WHERE kind = 'next'")
    assert tuple(follow_up) == ("next", job.id, '{"n": 1}')
    assert await bench.value("SELECT count(DISTINCT xmin::text) FROM rota.ended_jobs") == 1


@pytest.mark.parametrize(
    "returned",
    [ValueError("no"), rota.Retry(60), rota.Snooze(60), rota.GiveBack(after_s=60), rota.Fail("no"), rota.Cancelled()],
    ids=lambda value: type(value).__name__,
)
async def test_what_is_no_success_has_no_follow_ups(bench: Bench, returned: Any) -> None:
    @bench.app.job(retry=rota.Fixed(60))
    async def work(ctx: rota.Context) -> Any:
        await ctx.enqueue("next")
        if isinstance(returned, Exception):
            raise returned
        return returned

    job = await bench.app.enqueue(work)
    async with working(bench.app):
        await bench.reaches(job.id, lambda row: row.lease_epoch == 1 and row.state is not State.LEASED)
    assert await kinds(bench) == ["work"]


async def test_follow_ups_that_cannot_be_added_fail_their_job_alone(bench: Bench) -> None:
    await bench.conn.execute(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not today'; END$$;"
        "CREATE TRIGGER no BEFORE INSERT ON rota.open_jobs FOR EACH ROW WHEN (NEW.kind = 'bad') EXECUTE FUNCTION no()"
    )

    @bench.app.job
    async def work(ctx: rota.Context, follow_up: str) -> int:
        ctx.enqueue(follow_up)
        return 1

    jobs = [await bench.app.enqueue(work, kind) for kind in ("good", "bad", "good")]
    async with working(bench.app):
        rows = [await bench.ends(job.id) for job in jobs]
    assert [row.state for row in rows] == [State.DONE, State.FAILED, State.DONE]
    assert (rows[1].last_error or "").startswith("The jobs that follow cannot be added: not today")
    assert sorted(await kinds(bench)) == ["good", "good", "work", "work", "work"]


async def test_what_a_handler_may_not_enqueue(bench: Bench) -> None:
    said: list[str] = []

    def stranger() -> None: ...

    @bench.app.job
    async def work(ctx: rota.Context) -> None:
        for kind, payload, options in (
            (stranger, None, {}), ("x" * 201, None, {}), ("next", {"a": float("nan")}, {}),
            ("next", None, {"priority": 1.5}),
        ):  # fmt: skip
            with pytest.raises((rota.EnqueueError, rota.PayloadError)) as refused:
                ctx.enqueue(kind, payload, **options)
            said.append(str(refused.value))

    job = await bench.app.enqueue(work)
    async with working(bench.app):
        row = await bench.ends(job.id)
    assert row.state is State.DONE, row.last_error
    assert [words.split(":")[0] for words in said] == [
        "stranger is no handler. Decorate it with @app.job, or give the kind's name.",
        f"{'x' * 50!r} is no kind",
        "The payload cannot be stored",
        "priority=1.5 is no good",
    ]


async def test_the_same_row_runs_again(bench: Bench) -> None:
    """A full page runs again at once, the last one after a while; no row is added, and its tries begin anew."""

    @bench.app.job
    async def refresh(ctx: rota.Context) -> rota.Again:
        bench.ran.append(f"{ctx.job.tries}/{ctx.job.lease.epoch}")
        return rota.Again() if ctx.job.lease.epoch < 4 else rota.Again(after_s=600)

    job = await bench.app.enqueue(refresh)
    async with working(bench.app):
        row = await bench.reaches(job.id, lambda row: row.lease_epoch == 4 and row.state is State.QUEUED)
    assert bench.ran == ["1/1", "1/2", "1/3", "1/4"]
    assert row.tries == 0 and (row.run_after - row.now).total_seconds() > 500
    assert await kinds(bench) == ["refresh"]


# The success in a transaction of one's own


async def by_asyncpg(ctx: rota.Context, dsn: str, what: str, own: bool) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        async with contextlib.AsyncExitStack() as stack:
            if own:
                await stack.enter_async_context(conn.transaction())
            async with ctx.finish_with(conn, result=what):
                await conn.execute("INSERT INTO data VALUES ($1)", what)
            if what == "raises":
                raise ValueError("no")
    finally:
        await conn.close()


async def by_psycopg(ctx: rota.Context, dsn: str, what: str, own: bool) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=not own) as conn:
        if own:
            await conn.execute("SELECT 1")
        async with ctx.finish_with(conn, result=what):
            await conn.execute("INSERT INTO data VALUES (%s)", (what,))
        if what == "raises":
            raise ValueError("no")


async def by_sqlalchemy(ctx: rota.Context, dsn: str, what: str, own: bool) -> None:
    engine = create_async_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
    try:
        async with AsyncSession(engine) as session:
            if own:
                await session.begin()
            async with ctx.finish_with(session, result=what):
                await session.execute(sqlalchemy.text("INSERT INTO data VALUES (:what)"), {"what": what})
            if what == "raises":
                raise ValueError("no")
            if own:
                await session.commit()
    finally:
        await engine.dispose()


def by_psycopg_sync(ctx: rota.Context, dsn: str, what: str, own: bool) -> None:
    with psycopg.connect(dsn, autocommit=not own) as conn:
        if own:
            conn.execute("SELECT 1")
        with ctx.finish_with(conn, result=what):
            conn.execute("INSERT INTO data VALUES (%s)", (what,))
        if what == "raises":
            raise ValueError("no")


def by_psycopg2(ctx: rota.Context, dsn: str, what: str, own: bool) -> None:
    psycopg2 = pytest.importorskip("psycopg2")
    conn = psycopg2.connect(dsn)
    try:
        with ctx.finish_with(conn, result=what), conn.cursor() as cursor:
            cursor.execute("INSERT INTO data VALUES (%s)", (what,))
            if own and what == "raises":
                raise ValueError("no")
        if what == "raises":
            raise ValueError("no")
    finally:
        conn.close()


def by_session_sync(ctx: rota.Context, dsn: str, what: str, own: bool) -> None:
    engine = sqlalchemy.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with Session(engine) as session:
            if own:
                session.begin()
            with ctx.finish_with(session, result=what):
                session.execute(sqlalchemy.text("INSERT INTO data VALUES (:what)"), {"what": what})
            if what == "raises":
                raise ValueError("no")
            if own:
                session.commit()
    finally:
        engine.dispose()


WAYS = [by_asyncpg, by_psycopg, by_sqlalchemy, by_psycopg_sync, by_psycopg2, by_session_sync]


@pytest.mark.parametrize("own", [False, True], ids=["block", "own transaction"])
@pytest.mark.parametrize("way", WAYS)
async def test_success_and_data_commit_together(bench: Bench, way: Callable[..., Any], own: bool) -> None:
    dsn = bench.app.settings.require_dsn()
    if asyncio.iscoroutinefunction(way):

        @bench.app.job("work")
        async def work(ctx: rota.Context, what: str) -> str:
            ctx.enqueue("next")
            await way(ctx, dsn, what, own)
            return "not used"
    else:

        @bench.app.job("work")
        def plain(ctx: rota.Context, what: str) -> str:
            ctx.enqueue("next")
            way(ctx, dsn, what, own)
            return "not used"

    job = await bench.app.enqueue("work", "well")
    failing = await bench.app.enqueue("work", "raises", max_tries=1)
    async with working(bench.app):
        row = await bench.ends(job.id, within_s=WAIT_S)
        failed = await bench.ends(failing.id, within_s=WAIT_S)
    assert (row.state, row.result) == (State.DONE, '"well"')
    together = await bench.value(
        "SELECT count(*) FROM data JOIN rota.ended_jobs AS e ON e.xmin = data.xmin "
        "JOIN rota.open_jobs AS o ON o.xmin = data.xmin WHERE what = 'well' AND o.kind = 'next'"
    )
    assert together == 1
    if own:
        # Raised before their commit: the transaction is undone, and the try has failed.
        assert (failed.state, await data(bench)) == (State.FAILED, ["well"])
        assert (failed.last_error or "").startswith("ValueError: no")
    else:
        # Raised after the block had committed: the job is done.
        assert (failed.state, await data(bench)) == (State.DONE, ["raises", "well"])


async def test_in_a_child_process(bench: Bench) -> None:
    bench.app.job("own", isolation="process")(flow_program.write_own)
    job = await bench.app.enqueue("own", bench.app.settings.require_dsn())
    async with working(bench.app):
        row = await bench.ends(job.id, within_s=WAIT_S)
    assert (row.state, row.result, await data(bench)) == (State.DONE, '"own"', ["child"])
    assert await kinds(bench) == ["own", "next"]


async def test_a_transaction_that_is_never_committed_is_a_failed_try(bench: Bench) -> None:
    dsn = bench.app.settings.require_dsn()

    @bench.app.job(max_tries=1)
    async def work(ctx: rota.Context) -> None:
        conn = await asyncpg.connect(dsn)
        transaction = conn.transaction()
        await transaction.start()
        await ctx.finish_with(conn)
        await transaction.rollback()
        await conn.close()

    job = await bench.app.enqueue(work)
    async with working(bench.app):
        row = await bench.ends(job.id)
    assert (row.state, row.last_error) == (State.FAILED, "The transaction of ctx.finish_with was not committed")


@pytest.mark.parametrize("why", ["cancelled", "taken"])
async def test_a_success_that_may_not_be_is_refused_with_its_data(migrated_dsn: str, why: str) -> None:
    # The worker does not look meanwhile: it would end a handler that is cancelled, before that has come to its end.
    async with made_bench(migrated_dsn, poll_s=NEVER_S, cancel_grace_s=0.5, stop_grace_s=0) as bench:
        await bench.conn.execute("CREATE TABLE data (what text)")
        await a_success_is_refused(bench, why)


async def a_success_is_refused(bench: Bench, why: str) -> None:
    dsn, said = bench.app.settings.require_dsn(), []

    @bench.app.job
    async def work(ctx: rota.Context) -> None:
        conn = await asyncpg.connect(dsn)
        try:
            async with ctx.finish_with(conn):
                await conn.execute("INSERT INTO data VALUES ('no')")
                column = "cancel_asked_at = now()" if why == "cancelled" else "lease_epoch = lease_epoch + 1"
                await bench.conn.execute(f"UPDATE rota.open_jobs SET {column}")
        except rota.LeaseLost as error:
            said.append(str(error))
            raise
        finally:
            await conn.close()

    job = await bench.app.enqueue(work)
    async with working(bench.app):
        await until(lambda: said, what="the handler")
        if why == "cancelled":
            assert (await bench.ends(job.id)).state is State.CANCELLED
    assert await data(bench) == []
    assert said[0].startswith(f"Job {job.id} cannot end in this transaction")
    assert "no" not in await data(bench)


async def test_an_open_end_does_not_hold_up_the_heartbeats_of_others(bench: Bench) -> None:
    """The row belongs to the handler's transaction: a renewal of it would wait, and with it all others."""
    dsn, go_on = bench.app.settings.require_dsn(), asyncio.Event()

    @bench.app.job(lease_s=30, heartbeat_s=0.2)
    async def work(ctx: rota.Context, role: str) -> None:
        if role == "other":
            while not go_on.is_set():
                ctx.progress()
                await asyncio.sleep(0.02)
            return
        conn = await asyncpg.connect(dsn)
        async with conn.transaction():
            ctx.progress(0.5)
            await ctx.finish_with(conn)
            ctx.progress(0.9)
            bench.ran.append("written")
            await go_on.wait()
        await conn.close()

    jobs = [await bench.app.enqueue(work, role) for role in ("ends", "other")]
    async with working(bench.app):
        await until(lambda: bench.ran, what="the end is written, not committed")
        first = (await bench.row(jobs[1].id)).heartbeat_at
        for _ in range(3):
            before = (await bench.row(jobs[1].id)).heartbeat_at
            await bench.reaches(jobs[1].id, lambda row, before=before: row.heartbeat_at != before)  # type: ignore[misc]
        blocked = await bench.value(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        go_on.set()
        assert [(await bench.ends(job.id)).state for job in jobs] == [State.DONE] * 2
    assert first is not None and blocked == 0


# Room for the more urgent


@pytest.mark.parametrize("place", ["coroutine", "thread", "process"])
async def test_a_job_makes_room_for_a_more_urgent_one(bench: Bench, place: str, tmp_path: Path) -> None:
    """Seed: a first build gives its slot to an update that waits. It stops at a good place, and no try counts."""
    path = tmp_path / "begun"
    if place == "coroutine":

        @bench.app.job("build", limit=1)
        async def build(ctx: rota.Context, path: str) -> str:
            Path(path).write_text("begun")
            while ctx.job.priority == 0 and ctx.job.lease.epoch == 1:
                await asyncio.sleep(0.01)
                if ctx.should_yield:
                    await ctx.yield_if_waiting()
            return "done"
    else:
        options: dict[str, Any] = {"isolation": "process"} if place == "process" else {}
        bench.app.job("build", limit=1, **options)(flow_program.make_room)
    first = await bench.app.enqueue("build", str(path))
    async with working(bench.app):
        await until(path.exists, what="the first build", within_s=WAIT_S)
        same = await bench.app.enqueue("build", str(path))
        await asyncio.sleep(0.2)  # several looks
        assert (await bench.row(first.id)).lease_epoch == 1, "an equal one is no reason"
        await bench.app.cancel(same.id)
        urgent = await bench.app.enqueue("build", str(path), priority=40)
        rows = [await bench.ends(job.id, within_s=WAIT_S) for job in (first, urgent)]
    assert [row.state for row in rows] == [State.DONE] * 2
    assert (rows[0].tries, rows[0].lease_epoch, rows[0].run_after) == (1, 2, rows[0].created_at)
    assert rows[1].finished_at < rows[0].finished_at  # type: ignore[operator]


async def test_only_as_many_make_room_as_wait(bench: Bench) -> None:
    asked: dict[int, bool] = {}

    @bench.app.job(limit=3)
    async def build(ctx: rota.Context) -> None:
        while ctx.job.priority < 5:
            asked[ctx.job.priority] = ctx.should_yield
            await asyncio.sleep(0.01)
            if True in asked.values() and bench.ran:
                return

    for priority in (1, 2, 3):
        await bench.app.enqueue(build, priority=priority)
    async with working(bench.app):
        await until(lambda: len(asked) == 3, what="all slots are full")
        urgent = await bench.app.enqueue(build, priority=9)
        await until(lambda: any(asked.values()), what="one is asked")
        assert asked == {1: True, 2: False, 3: False}
        await bench.app.cancel(urgent.id)
        await until(lambda: not any(asked.values()), what="nobody waits any more")
        asked[1] = True
        bench.ran.append("go on")


# Families and cancels


async def test_cancelling_a_family(bench: Bench) -> None:
    """Queued descendants end at once, running ones when they are told."""
    begun = asyncio.Event()

    @bench.app.job(limit=1)
    async def long(ctx: rota.Context) -> None:
        begun.set()
        await asyncio.sleep(600)

    @bench.app.job
    async def parent(ctx: rota.Context) -> None:
        ctx.enqueue(long, child=True)
        ctx.enqueue(long, child=True)
        ctx.enqueue(long)

    job = await bench.app.enqueue(parent)
    async with working(bench.app):
        await bench.ends(job.id)
        await asyncio.wait_for(begun.wait(), WAIT_S)
        assert await bench.app.cancel(job.id, children=True) is None, "it has ended itself"
        children = await bench.conn.fetch("SELECT id FROM rota.jobs WHERE parent_id = $1", job.id)
        rows = [await bench.ends(child["id"]) for child in children]
        assert [row.state for row in rows] == [State.CANCELLED] * 2
    assert await bench.value("SELECT count(*) FROM rota.open_jobs WHERE kind = 'long'") == 1


async def test_a_job_that_cancels_itself_with_its_children_cancels_all_of_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    @bench.app.job
    async def order(ctx: rota.Context) -> None:
        for _ in range(3):
            await bench.app.enqueue("parcel", parent=ctx.id)
        await bench.app.cancel(ctx.id, children=True)
        await asyncio.sleep(600)

    job = await bench.app.enqueue(order)
    cancels = Store._cancel

    async def late(self: Store, ids: Any, **options: Any) -> Any:
        states = await cancels(self, ids, **options)
        if job.id in ids:
            await asyncio.sleep(0.3)  # several looks of the worker, which cancels the handler meanwhile
        return states

    monkeypatch.setattr(Store, "_cancel", late)
    async with working(bench.app):
        assert (await bench.ends(job.id)).state is State.CANCELLED
        children = await bench.conn.fetch("SELECT id FROM rota.jobs WHERE parent_id = $1", job.id)
        assert [(await bench.ends(child["id"])).state for child in children] == [State.CANCELLED] * 3


async def test_a_cancelled_job_has_its_grace_and_no_more(bench: Bench) -> None:
    ends: list[str] = []

    @bench.app.job
    async def tidy(ctx: rota.Context) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.2)  # several looks of the worker, each of which sees the cancel
            ends.append("tidied")

    @bench.app.job
    async def deaf(ctx: rota.Context) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(600)

    jobs = [await bench.app.enqueue(tidy), await bench.app.enqueue(deaf)]
    async with working(bench.app):
        for job in jobs:
            await bench.reaches(job.id, lambda row: row.state is State.LEASED)
            assert await bench.app.cancel(job.id) is State.LEASED
        rows = [await bench.ends(job.id, within_s=WAIT_S) for job in jobs]
    assert [(row.state, row.last_error) for row in rows] == [(State.CANCELLED, "Cancelled by the program")] * 2
    assert ends == ["tidied"]


async def test_a_cancelled_command_is_killed_with_all_that_it_started(bench: Bench, tmp_path: Path) -> None:
    """S28: children that started children, deaf to SIGTERM, are gone within the grace, and reaped."""
    path = tmp_path / "pids"
    bench.app.job("stubborn", isolation="process")(flow_program.stubborn)
    job = await bench.app.enqueue("stubborn", str(path))
    async with working(bench.app):
        await until(lambda: path.exists() and path.read_text().count("\n") == 3, what="the tree", within_s=WAIT_S)
        pids = [int(line) for line in path.read_text().split()]
        await bench.app.cancel(job.id)
        row = await bench.ends(job.id, within_s=WAIT_S)
        assert row.state is State.CANCELLED
        await until(lambda: not any(map(runs, pids)), what="all of them are gone", within_s=WAIT_S)
    own = [child.pid for child in psutil.Process().children() if child.pid in pids]
    assert own == [], "no zombie is left under the worker"


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_cancelled_thread_is_told_and_its_lease_runs_out(bench: Bench) -> None:
    """Nothing stops a thread but the end of its process: that is for the end of its lease, not for the grace."""
    go_on = threading.Event()

    @bench.app.job(lease_s=60)
    def slow(ctx: rota.Context) -> str:
        bench.ran.append("begun")
        go_on.wait(WAIT_S)
        return "seen" if ctx.should_stop else "not seen"

    job = await bench.app.enqueue(slow)
    async with working(bench.app) as worker:
        await until(lambda: bench.ran, what="the thread")
        await bench.app.cancel(job.id)
        crew = worker._crew
        await until(lambda: crew._running[job.id].cancel_asked, what="the cancel is heard")
        assert crew._running[job.id].held.closing, "it is renewed no more"
        go_on.set()
        assert (await bench.ends(job.id)).state is State.CANCELLED


async def test_a_cancel_that_nobody_answers_ends_the_job_by_itself(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S30: its worker no longer talks to anyone, another one sweeps. It may start again when its lease is over."""
    store = bench.store
    job = await bench.app.enqueue("work")
    monkeypatch.setattr("rota.queue.io.look_loop.CANCEL_MARGIN_S", 0.2)
    (claimed,) = await store.claim([Ask("work", 1, 300.0, 3)], holder=Holder("silent:1:aa"))
    until_then = (await bench.row(job.id)).lease_until
    await bench.app.cancel(job.id)
    assert (await bench.row(job.id)).lease_until == until_then

    @bench.app.job
    async def other() -> None: ...

    async with working(bench.app):
        row: JobRow = await bench.ends(job.id, within_s=WAIT_S)
    assert row.state is State.CANCELLED and row.finished_at < until_then  # type: ignore[operator]
    await store.retry(job.id)
    assert (await bench.row(job.id)).run_after == until_then
    assert claimed.id == job.id


# Ends alone


async def test_each_end_is_a_commit_of_its_own(bench: Bench) -> None:
    @bench.app.job(ends_alone=True, limit=50)
    async def pay(ctx: rota.Context, number: int) -> int:
        if number == 7:
            raise ValueError("no")
        return number

    @bench.app.job(limit=50)
    async def plain(ctx: rota.Context) -> None: ...

    jobs = [bench.app.new(pay, number, max_tries=1) for number in range(60)]
    added = await bench.app.enqueue_many(jobs + [bench.app.new(plain) for _ in range(60)])
    async with working(bench.app):
        rows = [await bench.ends(job.id) for job in added]
    assert [row.state for row in rows[:60]].count(State.DONE) == 59 and rows[7].state is State.FAILED
    commits = await bench.conn.fetch("SELECT kind, count(DISTINCT xmin::text) FROM rota.ended_jobs GROUP BY kind")
    assert dict(map(tuple, commits))["pay"] == 60
    assert dict(map(tuple, commits))["plain"] < 60


async def test_ends_alone_are_written_when_the_database_is_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([OSError("away")] * 3)
    real = crew_module.Store.finish_each

    async def flaky(self: Any, *args: Any, **options: Any) -> Any:
        for failure in failures:
            raise failure
        return await real(self, *args, **options)

    monkeypatch.setattr(crew_module.Store, "finish_each", flaky)

    @bench.app.job(ends_alone=True)
    async def pay() -> None: ...

    added = await bench.app.enqueue_many([bench.app.new(pay) for _ in range(20)])
    began = time.monotonic()
    async with working(bench.app):
        assert {(await bench.ends(job.id, within_s=WAIT_S)).state for job in added} == {State.DONE}
    assert time.monotonic() - began < WAIT_S
