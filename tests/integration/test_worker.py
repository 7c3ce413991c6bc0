"""The worker inside the test's own process, on a fresh database: what becomes of jobs, and what wakes it.

Faults that need a process of their own (kill, stop, cut) are in `tests/faults/`.
"""

import asyncio
import contextlib
import json
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel, field_serializer, model_validator

import rota
from rota.queue.io import pruner
from rota.queue.io import worker as worker_module
from rota.queue.io.running import FORKED_EXIT
from rota.queue.io.store import Store
from rota.queue.job import JobRow, State
from rota.settings import Settings
from tests.postgres_servers import DEFAULT_SERVER

WAIT_S = 60.0
"""Generous: only a failing test waits that long."""
SOON_S = 10.0
"""What `at once` may take on a busy machine; far less than the poll interval of the tests that use it."""
NEVER_S = 60.0
"""A poll interval that no test waits for."""


@dataclass
class Bench:
    """A program under test, and its database as seen from another connection."""

    app: rota.App
    store: Store
    conn: asyncpg.Connection
    ran: list[str] = field(default_factory=list)
    """What handlers noted, in order."""

    async def row(self, job_id: rota.JobId) -> JobRow:
        """One job as it stands now."""
        (row,) = await self.store.show(job_id)
        return row

    async def ends(self, job_id: rota.JobId, *, within_s: float = WAIT_S) -> JobRow:
        """Waits until a job has ended."""
        return await self.reaches(job_id, lambda row: row.finished_at is not None, within_s=within_s)

    async def reaches(
        self, job_id: rota.JobId, condition: Callable[[JobRow], bool], *, within_s: float = WAIT_S
    ) -> JobRow:
        """Waits until a job's row meets a condition."""
        give_up_at = time.monotonic() + within_s
        while not condition(row := await self.row(job_id)):
            assert time.monotonic() < give_up_at, f"not within {within_s:g} s; the job is {row}"
            await asyncio.sleep(0.01)
        return row

    async def value(self, sql: str, *args: Any) -> Any:
        """One value from the database."""
        return await self.conn.fetchval(sql, *args)


async def until(condition: Callable[[], Awaitable[Any] | Any], *, what: str, within_s: float = WAIT_S) -> Any:
    """Waits until a condition gives something true."""
    give_up_at = time.monotonic() + within_s
    while True:
        found = condition()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert time.monotonic() < give_up_at, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def made_bench(dsn: str, **settings: Any) -> AsyncIterator[Bench]:
    """A program with these settings."""
    app = rota.App(settings=Settings(dsn=dsn, **{"poll_s": 0.1, "stop_grace_s": 5.0, **settings}))
    conn = await asyncpg.connect(dsn)
    try:
        yield Bench(app, await app.store(), conn)
    finally:
        await conn.close()
        await app.stop()


@pytest.fixture
async def bench(migrated_dsn: str) -> AsyncIterator[Bench]:
    """A program whose worker looks ten times a second."""
    async with made_bench(migrated_dsn) as made:
        yield made


@pytest.fixture
async def sleepy(migrated_dsn: str) -> AsyncIterator[Bench]:
    """A program whose worker looks once a minute: what happens sooner, a wake-up has done."""
    async with made_bench(migrated_dsn, poll_s=NEVER_S) as made:
        yield made


@asynccontextmanager
async def working(app: rota.App) -> AsyncIterator[rota.Worker]:
    """A worker of the program that has looked for work; it is stopped at the end."""
    worker = app.worker()
    task = asyncio.create_task(worker.run())
    ready = asyncio.create_task(worker.ready.wait())
    try:
        async with asyncio.timeout(WAIT_S):
            await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        yield worker
    finally:
        ready.cancel()
        worker.stop(now=True)
        async with asyncio.timeout(WAIT_S):
            await task


async def wants_to_be_woken(bench: Bench) -> bool:
    """Whether a worker sleeps and listens."""
    waiting = await bench.value("SELECT count(*) FROM rota.waiting")
    listening = await bench.value(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ~ '^LISTEN'"
    )
    return bool(waiting and listening)


# What becomes of a job


@dataclass(frozen=True)
class Ending:
    """What a handler does in its first try, and how its job then stands."""

    does: Callable[[], Any]
    state: State
    tries: int = 1
    result: Any = None
    error: str | None = None
    waits_s: float | None = None


def raises(error: BaseException) -> Callable[[], Any]:
    def does() -> Any:
        raise error

    return does


class Unsayable(Exception):
    """An error whose own message cannot be had."""

    def __str__(self) -> str:
        raise KeyError("gone")


class Leaves(Exception):
    """An error whose message ends the process of whoever asks for it."""

    def __str__(self) -> str:
        raise SystemExit(3)


class Bare(BaseException):
    """Neither an Exception nor one that Python knows."""


ENDINGS = {
    "nothing": Ending(lambda: None, State.DONE),
    "value": Ending(lambda: {"frames": [1, 2.5, None], "name": "日本 🎬"}, State.DONE,
                    result={"frames": [1, 2.5, None], "name": "日本 🎬"}),
    "false": Ending(lambda: False, State.DONE, result=False),
    "retry": Ending(rota.Retry, State.QUEUED, error="The handler asked for a retry", waits_s=40),
    "retry later": Ending(lambda: rota.Retry(after_s=90, error="busy"), State.QUEUED, error="busy", waits_s=90),
    "snooze": Ending(lambda: rota.Snooze(70, "closed on Sundays"), State.QUEUED, tries=0, error="closed on Sundays",
                     waits_s=70),
    "give back": Ending(lambda: rota.GiveBack("no GPU here", after_s=50), State.QUEUED, tries=0, error="no GPU here",
                        waits_s=50),
    "fail": Ending(lambda: rota.Fail("no such file"), State.FAILED, error="no such file"),
    "cancelled": Ending(lambda: rota.Cancelled("nobody wants it"), State.CANCELLED, error="nobody wants it"),
    "exception": Ending(raises(ValueError("no frame")), State.QUEUED, error="ValueError: no frame (test_worker.py:",
                        waits_s=40),
    "rota's own": Ending(raises(rota.RotaError("odd")), State.QUEUED, error="RotaError: odd", waits_s=40),
    "system exit": Ending(raises(SystemExit(3)), State.QUEUED, error="SystemExit: 3", waits_s=40),
    "stop iteration": Ending(raises(StopIteration()), State.QUEUED, error="RuntimeError: ", waits_s=40),
    "keyboard interrupt": Ending(raises(KeyboardInterrupt()), State.QUEUED, error="KeyboardInterrupt", waits_s=40),
    "generator exit": Ending(raises(GeneratorExit()), State.QUEUED, error="RuntimeError: The handler raised ",
                             waits_s=40),
    "bare": Ending(raises(Bare("b")), State.QUEUED, error="Bare: b", waits_s=40),
    "group": Ending(raises(BaseExceptionGroup("g", [Bare(), KeyboardInterrupt()])), State.QUEUED,
                    error="BaseExceptionGroup: g", waits_s=40),
    "unsayable": Ending(raises(Unsayable()), State.QUEUED,
                        error="Unsayable: its message cannot be read, because that raises KeyError", waits_s=40),
    "leaves": Ending(raises(Leaves()), State.QUEUED,
                     error="Leaves: its message cannot be read, because that raises SystemExit", waits_s=40),
    "a book": Ending(raises(ValueError("word " * 1_000_000)), State.QUEUED, error="ValueError: word word", waits_s=40),
    "error with bad text": Ending(raises(OSError("bad \0 name \udcff")), State.QUEUED,
                                  error="OSError: bad \N{REPLACEMENT CHARACTER} name ?", waits_s=40),
    "no JSON": Ending(lambda: {"when": object()}, State.FAILED, error="The result cannot be stored: $.when "),
    "not a number": Ending(lambda: [float("nan")], State.FAILED, error="The result cannot be stored: $[0] is nan"),
}  # fmt: skip


@pytest.mark.parametrize("place", ["coroutine", "thread"])
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
async def test_what_a_handler_says_becomes_of_its_job(bench: Bench, ending: Ending, place: str) -> None:
    options: dict[str, Any] = {"max_tries": 3, "retry": rota.Fixed(40)}
    if place == "coroutine":

        @bench.app.job("kind", **options)
        async def handler() -> Any:
            return ending.does()
    else:

        @bench.app.job("kind", **options)
        def plain() -> Any:
            return ending.does()

    added = await bench.app.enqueue("kind")
    async with working(bench.app) as worker:
        row = await bench.reaches(added.id, lambda row: row.lease_epoch == 1 and row.state is not State.LEASED)
        assert (row.state, row.tries, row.lease_epoch) == (ending.state, ending.tries, 1)
        assert (None if row.result is None else json.loads(row.result)) == ending.result
        if ending.error is None:
            assert row.last_error is None
        else:
            assert row.last_error is not None and row.last_error.startswith(ending.error)
        if ending.waits_s is not None:
            assert row.started_at is not None
            assert abs((row.run_after - row.started_at).total_seconds() - ending.waits_s) < SOON_S / 2
        other = await bench.app.enqueue("kind")  # whatever that was, the worker goes on
        await bench.reaches(other.id, lambda row: row.lease_epoch == 1 and row.state is not State.LEASED)
    assert worker.ready.is_set()


async def test_a_yielded_job_keeps_its_place_and_counts_no_try(bench: Bench) -> None:
    @bench.app.job(limit=1)
    async def kind(ctx: rota.Context) -> rota.Yield | None:
        bench.ran.append(str(ctx.id))
        return rota.Yield() if ctx.job.lease.epoch == 1 and ctx.job.priority == 0 else None

    first = await bench.app.enqueue(kind)
    async with working(bench.app):
        row = await bench.ends(first.id)
    assert (row.state, row.tries, row.lease_epoch) == (State.DONE, 1, 2)
    assert row.run_after == row.created_at


async def test_a_failing_job_waits_and_fails_after_its_last_try(bench: Bench) -> None:
    times: list[float] = []

    @bench.app.job(max_tries=3, retry=rota.Fixed(0.3))
    async def broken(ctx: rota.Context) -> None:
        times.append(time.monotonic())
        raise ValueError(f"try {ctx.job.tries} of {ctx.job.max_tries}")

    job = await bench.app.enqueue(broken)
    async with working(bench.app):
        row = await bench.ends(job.id)
    assert (row.state, row.tries, row.lease_epoch) == (State.FAILED, 3, 3)
    assert row.last_error is not None and row.last_error.startswith("ValueError: try 3 of 3")
    assert len(times) == 3
    for earlier, later in pairwise(times):
        assert 0.3 <= later - earlier < 0.3 + SOON_S


async def test_max_tries_of_the_job_goes_first(bench: Bench) -> None:
    @bench.app.job(max_tries=3, retry=rota.Fixed(0))
    async def broken() -> None:
        raise ValueError("no")

    job = await bench.app.enqueue(broken, max_tries=1)
    async with working(bench.app):
        row = await bench.ends(job.id)
    assert (row.state, row.tries, row.max_tries) == (State.FAILED, 1, 1)


@dataclass
class Size:
    width: int


async def test_a_payload_that_does_not_fit_fails_at_once(bench: Bench) -> None:
    @bench.app.job(max_tries=5)
    async def resize(ctx: rota.Context, job: list[Size]) -> None:
        bench.ran.append("called")

    bad = await bench.app.enqueue("resize", [{"width": 1}, {"width": "wide"}])
    good = await bench.app.enqueue("resize", [{"width": 1}])
    async with working(bench.app):
        row = await bench.ends(bad.id)
        assert (row.state, row.tries, row.max_tries) == (State.FAILED, 1, 5)
        assert row.last_error == (
            "The payload does not fit the handler's type: $[1].width: Expected `int`, got `str`."
        )  # fmt: skip
        assert (await bench.ends(good.id)).state is State.DONE
    assert bench.ran == ["called"]


class Picky(BaseModel):
    """A payload whose own check raises what no library expects; so does its writing."""

    number: int

    @model_validator(mode="after")
    def known(self) -> "Picky":
        """Looks the number up."""
        if self.number not in NUMBERS:
            raise KeyError(self.number)
        return self

    @field_serializer("number")
    def written(self, number: int) -> str:
        """By name, which only some have."""
        return NUMBERS[number] or _unnamed()


NUMBERS = {1: "one", 2: ""}


def _unnamed() -> str:
    raise LookupError("no name")


async def test_what_a_programs_types_raise_ends_their_job_and_no_other(bench: Bench) -> None:
    """A worker's line of jobs goes on behind one whose payload or result breaks while it is read or written."""

    @bench.app.job(max_tries=1, limit=10)
    async def pick(ctx: rota.Context, job: Picky) -> Picky:
        return job

    added = await bench.app.enqueue_many([bench.app.new("pick", {"number": number}) for number in (9, 2, 1, 9, 1)])
    async with working(bench.app):
        rows = [await bench.ends(job.id) for job in added]
    assert [row.state for row in rows] == [State.FAILED, State.FAILED, State.DONE, State.FAILED, State.DONE]
    assert (rows[0].last_error or "").startswith("KeyError: 9 (")
    assert (rows[1].last_error or "").endswith("Error calling function `written`: LookupError: no name.")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("place", ["coroutine", "waiting coroutine", "thread"])
async def test_a_process_that_a_handler_forks_is_no_second_worker(bench: Bench, place: str) -> None:
    def fork() -> int | None:
        pid = os.fork()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else None

    if place == "thread":

        @bench.app.job("kind")
        def plain() -> Any:
            return fork()
    else:

        @bench.app.job("kind")
        async def handler() -> Any:
            found = fork()
            if place == "waiting coroutine":
                await asyncio.sleep(0)
            return found

    added = await bench.app.enqueue_many([bench.app.new("kind") for _ in range(3)])
    async with working(bench.app):
        rows = [await bench.ends(job.id) for job in added]
    assert [(row.state, row.result) for row in rows] == [(State.DONE, str(FORKED_EXIT))] * 3


# Which jobs run, and when


async def test_an_unknown_kind_stays_queued(bench: Bench) -> None:
    @bench.app.job
    async def known() -> None: ...

    unknown = await bench.app.enqueue("unknown")
    last = await bench.app.enqueue(known)
    async with working(bench.app):
        await bench.ends(last.id)
        row = await bench.row(unknown.id)
    assert (row.state, row.lease_epoch, row.tries) == (State.QUEUED, 0, 0)


@pytest.mark.parametrize("place", ["coroutine", "thread"])
async def test_a_limit_is_never_passed(bench: Bench, place: str) -> None:
    lock, now, most = threading.Lock(), 0, 0

    def step(by: int) -> None:
        nonlocal now, most
        with lock:
            now += by
            most = max(most, now)

    if place == "coroutine":

        @bench.app.job("kind", limit=3)
        async def handler() -> None:
            step(1)
            await asyncio.sleep(0.01)
            step(-1)
    else:

        @bench.app.job("kind", limit=3)
        def plain() -> None:
            step(1)
            time.sleep(0.01)
            step(-1)

    jobs = await bench.app.enqueue_many([bench.app.new("kind") for _ in range(40)])
    async with working(bench.app):
        for job in jobs:
            await bench.ends(job.id)
    assert most == 3


async def test_limit_0_keeps_a_kind_off(migrated_dsn: str) -> None:
    async with made_bench(migrated_dsn, limits={"ROTA_LIMIT_OFF": 0}) as bench:

        @bench.app.job
        async def off() -> None: ...

        @bench.app.job
        async def on() -> None: ...

        kept = await bench.app.enqueue(off, priority=100)
        runs = await bench.app.enqueue(on)
        async with working(bench.app):
            await bench.ends(runs.id)
            assert (await bench.row(kept.id)).state is State.QUEUED


async def test_order_within_a_kind(bench: Bench) -> None:
    @bench.app.job(limit=1)
    async def kind(ctx: rota.Context, name: str) -> None:
        bench.ran.append(name)

    early = await bench.value("SELECT now() - interval '1 hour'")
    earlier = early - timedelta(hours=1)
    for name, options in {
        "third, oldest job": {},
        "fourth, oldest job": {},
        "first, by priority": {"priority": 2, "run_after": early},
        "second, by run_after": {"run_after": early},
        "before all": {"priority": 2, "run_after": earlier},
        "last, by priority": {"priority": -1, "run_after": earlier},
        "not today": {"priority": 9, "delay_s": 3600.0},
    }.items():
        last = await bench.app.enqueue(kind, name, **options)
    async with working(bench.app):
        await until(lambda: len(bench.ran) == 6, what=f"six jobs run; now {bench.ran}")
    assert [name.partition(",")[0] for name in bench.ran] == [
        "before all", "first", "second", "third", "fourth", "last"
    ]  # fmt: skip
    assert (await bench.row(last.id)).state is State.QUEUED


async def test_a_job_with_a_delay_runs_when_it_is_due(bench: Bench) -> None:
    @bench.app.job
    async def kind() -> None: ...

    async with working(bench.app):
        job = await bench.app.enqueue(kind, delay_s=0.5)
        row = await bench.ends(job.id)
    assert row.started_at is not None
    assert 0 <= (row.started_at - row.run_after).total_seconds() < SOON_S


# Wake-ups


async def test_a_job_from_another_connection_wakes_a_sleeping_worker(sleepy: Bench) -> None:
    @sleepy.app.job
    async def kind() -> None: ...

    @sleepy.app.job("!odd")
    async def odd() -> None: ...

    async with working(sleepy.app):
        for statement in (
            "SELECT id FROM rota.enqueue('kind')",
            "SELECT id FROM rota.enqueue('!odd')",
            "SELECT id FROM rota.enqueue_many(ARRAY['other', 'kind'], ARRAY['{}', '{}']::jsonb[]) WHERE number = 2",
        ):
            await until(lambda: wants_to_be_woken(sleepy), what="the worker sleeps")
            await sleepy.ends(await sleepy.value(statement), within_s=SOON_S)
        many = await sleepy.app.enqueue_many([sleepy.app.new(kind) for _ in range(200)])
        for job in many:
            await sleepy.ends(job.id, within_s=SOON_S)


async def test_a_retry_by_a_person_wakes_a_sleeping_worker(sleepy: Bench) -> None:
    @sleepy.app.job
    async def kind(ctx: rota.Context) -> rota.Fail | None:
        return rota.Fail("not now") if ctx.job.lease.epoch == 1 else None

    async with working(sleepy.app):
        job = await sleepy.app.enqueue(kind)
        assert (await sleepy.ends(job.id)).state is State.FAILED
        await sleepy.store.retry(job.id)
        assert (await sleepy.ends(job.id, within_s=SOON_S)).state is State.DONE


async def test_no_job_is_missed_while_a_worker_falls_asleep(sleepy: Bench) -> None:
    """Between its last look and its wish to be woken there is no gap."""

    @sleepy.app.job
    async def kind() -> None: ...

    for number in range(12):
        worker = sleepy.app.worker()
        task = asyncio.create_task(worker.run())
        await asyncio.sleep(number * 0.004)  # the moment to hit is somewhere in here
        job = await sleepy.app.enqueue(kind)
        await sleepy.ends(job.id, within_s=SOON_S)
        worker.stop(now=True)
        async with asyncio.timeout(WAIT_S):
            await task


async def test_jobs_that_come_one_by_one_are_all_woken_for(sleepy: Bench) -> None:
    @sleepy.app.job(limit=2)
    async def kind() -> None: ...

    async with working(sleepy.app):
        for _ in range(100):
            job = await sleepy.app.enqueue(kind)
            await sleepy.ends(job.id, within_s=SOON_S)


async def test_a_broken_wake_up_connection_is_made_anew(sleepy: Bench) -> None:
    @sleepy.app.job
    async def kind() -> None: ...

    terminate = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'rota wake-up'"
    )
    async with working(sleepy.app):
        for _ in range(3):
            await until(lambda: wants_to_be_woken(sleepy), what="the worker sleeps")
            assert await sleepy.value(terminate) == 1
            job = await sleepy.app.enqueue(kind)  # nobody listens now
            await sleepy.ends(job.id, within_s=SOON_S + 1)


async def test_without_wake_ups_a_worker_looks(migrated_dsn: str) -> None:
    async with made_bench(migrated_dsn, pooler="transaction", poll_s=0.2) as bench:

        @bench.app.job
        async def kind() -> None: ...

        async with working(bench.app):
            for _ in range(5):
                job = await bench.app.enqueue(kind)
                await bench.ends(job.id, within_s=SOON_S)
            assert not await wants_to_be_woken(bench)


async def test_an_idle_worker_says_almost_nothing(migrated_dsn: str, fast_place: Path) -> None:
    """I8: one cheap query a second at most, and now and then its wish to be woken."""
    log = fast_place / "servers" / DEFAULT_SERVER / "postgres.log"
    async with made_bench(migrated_dsn, poll_s=1.0) as bench:

        @bench.app.job
        async def kind() -> None: ...

        database = await bench.value("SELECT current_database()")
        await bench.conn.execute(f"ALTER DATABASE {database} SET log_statement = 'all'")  # for sessions from now on
        async with working(bench.app):
            await bench.ends((await bench.app.enqueue(kind)).id)
            await until(lambda: wants_to_be_woken(bench), what="the worker sleeps")
            seconds, begin = 5, log.stat().st_size
            await asyncio.sleep(seconds)
            said = log.read_bytes()[begin:].decode()
    statements = re.findall(r"LOG:  (?:execute|statement).*", said)
    assert seconds - 1 <= len(statements) <= seconds / 0.9 + 2, statements


# Running jobs


async def test_a_cancelled_coroutine_stops_within_moments(sleepy: Bench) -> None:
    @sleepy.app.job
    async def kind(ctx: rota.Context) -> None:
        sleepy.ran.append("started")
        try:
            await asyncio.sleep(NEVER_S)
        finally:
            sleepy.ran.append("cleaned up")

    async with working(sleepy.app):
        job = await sleepy.app.enqueue(kind)
        await until(lambda: sleepy.ran, what="the job starts")
        assert await sleepy.app.cancel(job.id, reason="not needed") is State.LEASED
        row = await sleepy.ends(job.id, within_s=SOON_S)
    assert (row.state, row.last_error, row.result) == (State.CANCELLED, "not needed", None)
    assert sleepy.ran == ["started", "cleaned up"]


async def test_a_cancelled_thread_is_told(sleepy: Bench) -> None:
    @sleepy.app.job
    def kind(ctx: rota.Context) -> str:
        sleepy.ran.append("started")
        give_up_at = time.monotonic() + WAIT_S
        while not ctx.should_stop and time.monotonic() < give_up_at:
            time.sleep(0.01)
        with pytest.raises(rota.LeaseLost):
            ctx.progress(0.5)
        sleepy.ran.append("stopped")
        return "half"

    async with working(sleepy.app):
        job = await sleepy.app.enqueue(kind)
        await until(lambda: sleepy.ran, what="the job starts")
        await sleepy.app.cancel(job.id)
        row = await sleepy.ends(job.id, within_s=SOON_S)
    assert row.state is State.CANCELLED
    assert sleepy.ran == ["started", "stopped"]


async def test_a_queued_job_that_is_cancelled_never_runs(bench: Bench) -> None:
    @bench.app.job
    async def kind() -> None:
        bench.ran.append("ran")

    job = await bench.app.enqueue(kind)
    assert await bench.app.cancel(job.id) is State.CANCELLED
    async with working(bench.app):
        await bench.ends((await bench.app.enqueue(kind)).id)
    assert bench.ran == ["ran"]
    assert (await bench.row(job.id)).lease_epoch == 0


async def test_threads_leave_the_event_loop_alone(bench: Bench) -> None:
    done = threading.Event()

    @bench.app.job
    def thread(ctx: rota.Context) -> str:
        assert done.wait(WAIT_S), "the coroutine never ran"
        return threading.current_thread().name

    @bench.app.job
    async def coroutine() -> str:
        done.set()
        return threading.current_thread().name

    first = await bench.app.enqueue(thread, priority=1)
    second = await bench.app.enqueue(coroutine)
    async with working(bench.app):
        rows = [await bench.ends(job.id) for job in (first, second)]
    names = [json.loads(row.result or "null") for row in rows]
    assert names[0].startswith("rota-job")
    assert names[1] == threading.current_thread().name


@pytest.mark.parametrize("place", ["coroutine", "thread"])
async def test_progress_is_stored_and_moves_the_lease(bench: Bench, place: str) -> None:
    go_on = threading.Event()
    text = "🎬" * 2000
    options: dict[str, Any] = {"lease_s": 2.0, "heartbeat_s": 0.2}

    if place == "coroutine":

        @bench.app.job("kind", **options)
        async def handler(ctx: rota.Context) -> None:
            while not go_on.is_set():
                await ctx.progress(0.25, text=text, page=3)
                await asyncio.sleep(0.02)
    else:

        @bench.app.job("kind", **options)
        def plain(ctx: rota.Context) -> None:
            while not go_on.wait(0.02):
                ctx.progress(0.25, text=text, page=3)

    job = await bench.app.enqueue("kind")
    try:
        async with working(bench.app):
            first = await bench.reaches(job.id, lambda row: row.progress is not None)
            assert first.started_at is not None and first.lease_until is not None
            later = await bench.reaches(job.id, lambda row: row.heartbeat_at > first.heartbeat_at)
            assert later.lease_until is not None and later.heartbeat_at is not None
            assert later.lease_until - later.heartbeat_at == timedelta(seconds=2)
            # Its first lease would be over by now, but for a heartbeat.
            row = await bench.reaches(job.id, lambda row: row.now - row.started_at > timedelta(seconds=2.2))
            assert (row.state, row.lease_epoch) == (State.LEASED, 1)
            go_on.set()
            row = await bench.ends(job.id)
    finally:
        go_on.set()
    assert (row.state, row.tries) == (State.DONE, 1)
    stored = json.loads(row.progress or "null")
    assert (stored["fraction"], stored["page"]) == (0.25, 3)
    assert len(stored["text"].encode()) <= 2000, "S10: cut by bytes, at a code-point border"
    assert stored["text"].rstrip("…") == "🎬" * (len(stored["text"]) - 1)


async def test_the_next_try_sees_how_far_the_last_one_came(bench: Bench) -> None:
    @bench.app.job(retry=rota.Fixed(0))
    async def kind(ctx: rota.Context) -> Any:
        if ctx.job.tries == 1:
            ctx.progress(page=7)
            raise ValueError("lost the thread")
        return json.loads(ctx.job.progress or "null")

    job = await bench.app.enqueue(kind)
    async with working(bench.app):
        row = await bench.ends(job.id)
    assert json.loads(row.result or "null") == {"page": 7}


async def test_a_lease_without_progress_ends_the_try(bench: Bench) -> None:
    @bench.app.job(lease_s=1.0, heartbeat_s=0.3, max_tries=1)
    async def idle(ctx: rota.Context) -> None:
        try:
            await asyncio.sleep(NEVER_S)
        finally:
            bench.ran.append(str((await bench.row(ctx.id)).lease_until > (await bench.row(ctx.id)).now))

    job = await bench.app.enqueue(idle)
    async with working(bench.app):
        row = await bench.ends(job.id)
    assert (row.state, row.tries) == (State.FAILED, 1)
    assert row.last_error == "The job made no progress for the lease time (1 s); its worker stopped it"
    assert row.finished_at is not None and row.started_at is not None
    assert row.finished_at - row.started_at < timedelta(seconds=1)


# The life of a worker


async def test_ended_jobs_are_removed_after_their_retention(migrated_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruner, "EVERY_S", 0.1)
    # A job that is made old by hand lies where all was removed before.
    monkeypatch.setattr(pruner, "AFRESH_S", 0.0)
    async with made_bench(migrated_dsn, keep_days=1) as bench:

        @bench.app.job
        async def kind() -> None: ...

        old, young = [await bench.app.enqueue(kind) for _ in range(2)]
        async with working(bench.app):
            await bench.ends(old.id)
            await bench.ends(young.id)
            await bench.value("UPDATE rota.ended_jobs SET finished_at = now() - interval '25 h' WHERE id = $1", old.id)
            gone = "SELECT NOT EXISTS (SELECT FROM rota.jobs WHERE id = $1)"
            await until(lambda: bench.value(gone, old.id), what="the old job is removed")
            assert (await bench.row(young.id)).state is State.DONE


async def _hangs(*_args: Any, **_more: Any) -> None:
    await asyncio.Event().wait()


async def _fails(*_args: Any, **_more: Any) -> None:
    raise asyncpg.PostgresError("odd")


@pytest.mark.parametrize("warm", [_hangs, _fails])
async def test_a_worker_starts_although_its_connections_stay_cold(
    bench: Bench, warm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "warm", warm)
    monkeypatch.setattr(worker_module, "WARM_S", 0.01)

    @bench.app.job
    async def kind() -> None: ...

    added = await bench.app.enqueue("kind")
    async with working(bench.app):
        await bench.ends(added.id)


async def test_stop_may_come_at_any_time(bench: Bench) -> None:
    @bench.app.job
    async def kind() -> None: ...

    before = bench.app.worker()
    before.stop()
    async with asyncio.timeout(WAIT_S):
        await before.run()
    async with working(bench.app) as worker:
        await bench.ends((await bench.app.enqueue(kind)).id)
        worker.stop()
        worker.stop()
    worker.stop()
    assert await bench.value("SELECT count(*) FROM rota.waiting") == 0


async def test_a_stop_waits_for_jobs_and_then_gives_them_back(migrated_dsn: str) -> None:
    async with made_bench(migrated_dsn, stop_grace_s=0.5) as bench:
        short_may_end = asyncio.Event()

        @bench.app.job
        async def short() -> None:
            bench.ran.append("short")
            await short_may_end.wait()

        @bench.app.job
        async def long() -> None:
            bench.ran.append("long")
            await asyncio.sleep(NEVER_S)

        jobs = [(await bench.app.enqueue(kind)).id for kind in (short, long)]
        worker = bench.app.worker()
        task = asyncio.create_task(worker.run())
        await until(lambda: len(bench.ran) == 2, what="both jobs start")
        worker.stop()
        late = await bench.app.enqueue(short)
        short_may_end.set()
        async with asyncio.timeout(WAIT_S):
            await task
        rows = [await bench.row(job) for job in (*jobs, late.id)]
    assert [(row.state, row.tries) for row in rows] == [(State.DONE, 1), (State.QUEUED, 0), (State.QUEUED, 0)]
    assert rows[1].run_after == rows[1].created_at


async def test_a_cancelled_run_gives_its_jobs_back(bench: Bench) -> None:
    @bench.app.job
    async def kind() -> None:
        bench.ran.append("started")
        await asyncio.sleep(NEVER_S)

    job = await bench.app.enqueue(kind)
    task = asyncio.create_task(bench.app.worker().run())
    await until(lambda: bench.ran, what="the job starts")
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
    row = await bench.row(job.id)
    assert (row.state, row.tries) == (State.QUEUED, 0)


async def test_a_run_that_is_cancelled_while_it_starts_leaves_no_connection(bench: Bench) -> None:
    @bench.app.job
    async def kind() -> None:
        pass

    connections = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    before = await bench.value(connections)
    for turns in range(60):
        task = asyncio.create_task(bench.app.worker().run())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def as_before() -> bool:
        return bool(await bench.value(connections) <= before)

    await until(as_before, what="all connections are closed", within_s=SOON_S)


async def test_two_workers_share_the_work(bench: Bench) -> None:
    @bench.app.job(limit=5)
    async def kind(ctx: rota.Context) -> None:
        bench.ran.append(str(ctx.id))
        await asyncio.sleep(0.005)

    jobs = await bench.app.enqueue_many([bench.app.new(kind) for _ in range(300)])
    async with working(bench.app), working(bench.app):
        for job in jobs:
            assert (await bench.ends(job.id)).tries == 1
    assert sorted(bench.ran) == sorted(str(job.id) for job in jobs)
    assert await bench.value("SELECT count(DISTINCT leased_by) FROM rota.jobs") == 2
