"""A program's tests over its queue in memory: what is added, what runs, and what becomes of it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import rota
from rota.errors import EnqueueError, LeaseLost, SettingsError
from rota.queue.job import JobRow
from rota.settings import Settings
from rota.testing import Answers, FakeClock, Logged, Memory, Ran, in_memory

FOUND_ELSEWHERE = object()
"""Stands for a connection of the program's: nothing of it is used."""


def program() -> rota.App:
    """An app that has no database and reads no files."""
    return rota.App(settings=Settings())


def states(queue: Memory) -> list[tuple[str, str]]:
    return [(row.kind, row.state.value) for row in queue.jobs]


def last(queue: Memory) -> JobRow:
    return queue.jobs[-1]


# The app's words


async def test_whatever_the_app_adds_is_in_memory() -> None:
    app = program()

    @app.job
    async def work(ctx: rota.Context, n: int) -> None: ...

    with in_memory(app) as queue:
        first = await app.enqueue(work, 1, dedupe=rota.open_key("one"))
        again = await app.enqueue(work, 1, conn=FOUND_ELSEWHERE, dedupe=rota.open_key("one"))
        assert (first.created, again.created, again.id) == (True, False, first.id)
        app.sync.enqueue("work", 2, conn=FOUND_ELSEWHERE)
        await app.enqueue_many([app.new(work, 3), app.new("other", 4)])
        app.sync.enqueue_many([app.new(work, 5)], conn=None)
        assert [row.payload for row in queue.jobs] == ["1", "2", "3", "4", "5"]
        assert await app.enqueue_many([]) == []
        assert await app.cancel(first.id, reason="no more") is rota.State.CANCELLED
        assert queue.job(first.id).last_error == "no more"
        assert await app.move(last(queue).id, priority=7) is rota.State.QUEUED
        assert last(queue).priority == 7
        async with app:
            pass
    with pytest.raises(SettingsError):
        await app.enqueue(work, 1)


async def test_nothing_of_an_app_reaches_its_database_meanwhile() -> None:
    app = rota.App(settings=Settings(dsn="postgresql://nobody@127.0.0.1:1/none"))

    @app.job
    async def work(ctx: rota.Context) -> None: ...

    with in_memory(app) as queue:
        await app.enqueue(work)
        with pytest.raises(SettingsError, match=r"app\.use_queue"):
            await app.store()
        with pytest.raises(SettingsError, match=r"queue\.drain"):
            app.worker()
        with pytest.raises(AssertionError, match="There is no job"):
            queue.job(rota.JobId(UUID(int=5)))


async def test_results_are_there_once_jobs_have_run() -> None:
    app = program()

    @app.job(max_tries=1)
    async def double(ctx: rota.Context, n: int) -> int:
        return n * 2 if n else 1 // n

    with in_memory(app) as queue:
        good, bad = [await app.enqueue(double, n) for n in (4, 0)]
        with pytest.raises(rota.ResultTimeout, match=r"queue\.drain"):
            await app.result(good)
        await queue.drain()
        assert (await app.result(good), app.sync.result(good.id)) == (8, 8)
        with pytest.raises(rota.JobFailed, match="ZeroDivisionError"):
            await app.result(bad)
        with pytest.raises(rota.JobNotFound):
            await app.result(rota.JobId(UUID(int=5)))


async def test_what_was_used_before_is_used_again() -> None:
    app, answers = program(), Answers()
    app.use_exec_servers(answers)
    with in_memory(app) as outer:
        with in_memory(app) as inner:
            await app.enqueue("inner")
        await app.enqueue("outer")
        assert app.exec_servers is outer.answers
    assert app.exec_servers is answers
    assert [[row.kind for row in queue.jobs] for queue in (outer, inner)] == [["outer"], ["inner"]]


# Draining


async def test_jobs_run_in_the_queues_order_over_all_kinds() -> None:
    app = program()
    ran: list[str] = []

    @app.job
    async def first(ctx: rota.Context, name: str) -> None:
        ran.append(name)

    @app.job
    def second(ctx: rota.Context, name: str) -> None:
        ran.append(name)

    with in_memory(app) as queue:
        await app.enqueue(first, "third")
        await app.enqueue(second, "fourth")
        await app.enqueue(second, "first", priority=9)
        await app.enqueue(first, "second", priority=1)
        await app.enqueue("of another program")
        await app.enqueue(first, "later", delay_s=60)
        done = await queue.drain()
        assert ran == ["first", "second", "third", "fourth"]
        assert [one.job.kind for one in done] == ["second", "first", "first", "second"]
        assert queue.ran == done
        assert ("of another program", "queued") in states(queue)
        queue.clock.advance(60)
        await queue.drain(kinds=[second])
        assert len(ran) == 4
        await queue.drain(kinds=["first"])
        assert ran[4:] == ["later"]


@pytest.mark.parametrize(
    ("returned", "state", "tries", "due_s"),
    [
        ({"ok": 1}, "done", 1, None),
        (rota.Retry(after_s=5, error="soon"), "queued", 1, 5),
        (rota.Snooze(7), "queued", 0, 7),
        (rota.Again(9), "queued", 0, 9),
        (rota.GiveBack("busy", after_s=2), "queued", 0, 2),
        (rota.Fail("never"), "failed", 1, None),
        (rota.Cancelled("withdrawn"), "cancelled", 1, None),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_outcomes_become_what_they_become_on_a_worker(
    returned: Any, state: str, tries: int, due_s: float | None
) -> None:
    app = program()

    @app.job
    async def work(ctx: rota.Context) -> Any:
        return returned

    with in_memory(app) as queue:
        await app.enqueue(work)
        (ran,) = await queue.drain()
        row = last(queue)
        assert (row.state.value, row.tries) == (state, tries)
        assert (ran.state.value, ran.returned, ran.wait_s) == (state, returned, due_s)
        if due_s is not None:
            assert row.run_after == queue.clock.now + timedelta(seconds=due_s)


async def test_an_exception_is_a_failed_try_and_time_brings_the_next() -> None:
    app = program()

    @app.job(max_tries=2, retry=rota.Fixed(30))
    async def work(ctx: rota.Context) -> None:
        raise ValueError(f"try {ctx.job.tries}")

    with in_memory(app) as queue:
        await app.enqueue(work)
        (ran,) = await queue.drain()
        assert isinstance(ran.error, ValueError) and ran.wait_s == 30
        assert ran.reason is not None and ran.reason.startswith("ValueError: try 1 (test_memory.py:")
        assert not await queue.drain(for_s=29)
        with pytest.raises(ValueError, match="try 2"):
            await queue.drain(for_s=2, reraise=True)
        assert last(queue).state is rota.State.FAILED
        assert len(queue.ran) == 2


async def test_follow_ups_come_with_the_success_and_run() -> None:
    app = program()

    @app.job
    def parent(ctx: rota.Context, fails: bool) -> None:
        ctx.enqueue(child, {"of": "parent"}, child=True)
        if fails:
            raise RuntimeError("no")

    @app.job
    def child(ctx: rota.Context, payload: dict[str, str]) -> dict[str, str]:
        return payload

    with in_memory(app) as queue:
        added = await app.enqueue(parent, True)
        (ran,) = await queue.drain()
        assert not ran.follow_ups
        queue.assert_not_enqueued(child)
        await app.cancel(added.id)
        added = await app.enqueue(parent, False)
        ran, followed = await queue.drain()
        assert [job.kind for job in ran.follow_ups] == ["child"]
        assert followed.result == {"of": "parent"}
        assert last(queue).parent_id == added.id


async def test_a_batch_has_one_follow_up() -> None:
    app = program()
    counts: list[dict[str, Any]] = []

    @app.job
    async def part(ctx: rota.Context, n: int) -> Any:
        return rota.Fail("odd") if n % 2 else None

    @app.job
    async def whole(ctx: rota.Context, payload: dict[str, Any]) -> None:
        counts.append(payload["batch"])

    with in_memory(app) as queue:
        async with app.batch(then=(whole, {"name": "a"})) as batch:
            for n in range(3):
                batch.add(part, n)
        assert (await app.batch_status(batch.id)).open == 3
        await queue.drain()
        (told,) = counts
        assert (told["jobs"], told["done"], told["failed"]) == (3, 2, 1)
        empty = await app.enqueue_batch([], then=(whole, {}))
        assert (await app.batch_status(empty.id)).then_id is not None
        app.sync.enqueue_batch([app.new(part, 0)], then=(whole, {}), conn=None)
        await queue.drain()
        assert len(counts) == 3


async def test_passes_run_by_the_clock() -> None:
    app = program()
    due: list[datetime] = []
    clock = FakeClock(datetime(2030, 6, 1, 2, 30, tzinfo=UTC))

    @app.cron("0 3 * * *")
    async def nightly(ctx: rota.Context) -> None:
        due.append(clock.now)

    @app.every(hours=6)
    async def often(ctx: rota.Context) -> None: ...

    with in_memory(app, clock=clock):
        pass
    with in_memory(app, clock=clock, passes=True) as queue:
        assert states(queue) == [("nightly", "queued"), ("often", "queued")]
        ran = await queue.drain(for_s=2 * 86_400)
        assert due == [datetime(2030, 6, day, 3, tzinfo=UTC) for day in (1, 2)]
        assert sum(one.job.kind == "often" for one in ran) == 8
        assert clock.now == datetime(2030, 6, 3, 2, 30, tzinfo=UTC)
        assert sum(state == "queued" for _, state in states(queue)) == 2


async def test_pauses_limits_and_turns_hold() -> None:
    app = program()

    @app.job(fair=True)
    async def scan(ctx: rota.Context) -> None: ...

    @app.job(rate=rota.Rate(2, per_s=60))
    async def send(ctx: rota.Context) -> None: ...

    @app.job(limit=0)
    async def off(ctx: rota.Context) -> None: ...

    with in_memory(app) as queue:
        for tenant in ("a", "a", "a", "b", "c"):
            await app.enqueue(scan, tenant=tenant)
        await app.enqueue(off)
        await app.pause(scan, for_s=600)
        assert not await queue.drain()
        assert [pause.name for pause in await app.pauses()] == ["scan"]
        assert [one.job.tenant for one in await queue.drain(for_s=600)] == ["a", "b", "c", "a", "a"]
        await app.pause(tenant="a")
        await app.enqueue(scan, tenant="a")
        assert not await queue.drain()
        assert await app.resume(tenant="a") is not None
        assert len(await queue.drain()) == 1
        for _ in range(5):
            await app.enqueue(send)
        assert len(await queue.drain()) == 2
        assert len(await queue.drain(for_s=200)) == 3
        assert ("off", "queued") in states(queue)


async def test_a_job_that_always_puts_itself_back_fails_the_test() -> None:
    app = program()

    @app.job
    async def forever(ctx: rota.Context) -> rota.Again:
        return rota.Again()

    with in_memory(app) as queue:
        await app.enqueue(forever)
        with pytest.raises(AssertionError, match="5 jobs ran, and one of kind 'forever' is still due"):
            await queue.drain(runs_max=5)
        assert last(queue).state is rota.State.QUEUED
        assert len(queue.ran) == 5


async def test_a_drain_does_not_begin_inside_a_drain() -> None:
    app = program()

    @app.job
    async def nested(ctx: rota.Context) -> None:
        await queue.drain()

    with in_memory(app) as queue:
        await app.enqueue(nested)
        (ran,) = await queue.drain()
        assert isinstance(ran.error, RuntimeError)


async def test_jobs_can_run_as_soon_as_they_are_added() -> None:
    app = program()
    seen: list[str] = []

    @app.job
    async def outer(ctx: rota.Context) -> None:
        await app.enqueue(inner, "added by the program")
        seen.append("outer ends")
        ctx.enqueue(inner, "follow-up")

    @app.job
    def inner(ctx: rota.Context, text: str) -> None:
        seen.append(text)

    with in_memory(app, runs_at_once=True):
        await app.enqueue(outer)
        assert seen == ["outer ends", "added by the program", "follow-up"]
        app.sync.enqueue(outer, conn=None)
        assert len(seen) == 6


# What a handler can do


async def test_progress_lines_and_facts_of_a_run() -> None:
    app = program()

    @app.job
    async def work(ctx: rota.Context) -> None:
        await ctx.progress(0.5, "half", position=7)
        assert queue.job(ctx.id).progress is not None
        ctx.progress(1)
        ctx.log.bind(part=3).info("stored", bytes=7)
        ctx.log.debug("for whoever looks")

    with in_memory(app) as queue:
        await app.enqueue(work)
        (ran,) = await queue.drain()
        assert ran.progress == [{"position": 7, "fraction": 0.5, "text": "half"}, {"fraction": 1.0}]
        assert last(queue).progress == '{"fraction":1.0}'
        assert ran.logs == [Logged("info", "stored", {"part": 3, "bytes": 7})]


async def test_a_handler_that_makes_no_progress_for_its_lease_is_stopped() -> None:
    app = program()

    @app.job(lease_s=10, max_tries=1)
    async def slow(ctx: rota.Context, steps: list[float]) -> None:
        for seconds in steps:
            queue.clock.advance(seconds)
            ctx.progress()

    with in_memory(app) as queue:
        await app.enqueue(slow, [9, 9, 9])
        (ran,) = await queue.drain()
        assert ran.state is rota.State.DONE
        await app.enqueue(slow, [9, 11])
        (ran,) = await queue.drain()
        assert isinstance(ran.error, LeaseLost)
        assert ran.state is rota.State.FAILED and "made no progress for the lease time (10 s)" in str(ran.reason)


async def test_a_job_that_is_cancelled_while_it_runs() -> None:
    app = program()

    @app.job
    async def looks(ctx: rota.Context) -> str:
        await app.cancel(ctx.id, reason="enough")
        return "stopped early" if ctx.should_stop else "went on"

    @app.job
    async def reports(ctx: rota.Context) -> None:
        await app.cancel(ctx.id)
        ctx.progress()

    with in_memory(app) as queue:
        await app.enqueue(looks)
        await app.enqueue(reports)
        ran = await queue.drain()
        assert [one.state for one in ran] == [rota.State.CANCELLED, rota.State.CANCELLED]
        assert isinstance(ran[1].error, LeaseLost)


@pytest.mark.parametrize("raises", [False, True])
async def test_a_success_in_the_handlers_own_transaction(raises: bool) -> None:
    app = program()

    @app.job(max_tries=1)
    async def work(ctx: rota.Context) -> str:
        ctx.enqueue("next")
        async with ctx.finish_with(FOUND_ELSEWHERE) as end:
            end.result = {"kept": 1}
        if raises:
            raise RuntimeError("the commit failed")
        return "not this"

    @app.job
    def plain(ctx: rota.Context) -> None:
        ctx.finish_with(FOUND_ELSEWHERE, result=2).write()

    with in_memory(app) as queue:
        await app.enqueue(work)
        await app.enqueue(plain)
        ran, other = await queue.drain()
        assert other.result == 2
        if raises:
            assert ran.state is rota.State.FAILED and "not committed" in str(ran.reason)
            queue.assert_not_enqueued("next")
        else:
            assert ran.state is rota.State.DONE and ran.result == {"kept": 1}
            queue.assert_enqueued("next", count=1)


# One run without the queue


def child_handler(ctx: rota.Context, payload: dict[str, int]) -> Any:
    """Stands at the top of a module, as what runs in child processes has to."""
    if ctx.should_stop:
        return rota.Cancelled("stopped")
    if ctx.should_yield:
        return rota.Yield()
    ctx.enqueue("next", {"n": payload["n"] + 1})
    return payload["n"] * 2


async def test_one_run() -> None:
    app = program()
    handler = app.job("double", isolation="process", max_tries=4)(child_handler)
    with in_memory(app) as queue:
        ran = await queue.run_one(handler, {"n": 4}, tenant="acme", priority=3, tries=2, progress={"at": 1})
        assert (ran.result, ran.state, ran.error) == (8, rota.State.DONE, None)
        assert (ran.job.tenant, ran.job.priority, ran.job.tries, ran.job.max_tries) == ("acme", 3, 2, 4)
        assert ran.job.progress == '{"at":1}'
        assert [(job.kind, job.payload) for job in ran.follow_ups] == [("next", '{"n":5}')]
        assert not queue.jobs
        ran = await queue.run_one("double", {"n": 4}, yield_asked=True)
        assert (ran.returned, ran.state, ran.wait_s) == (rota.Yield(), rota.State.QUEUED, None)
        assert (await queue.run_one("double", {"n": 4}, stop_asked=True)).state is rota.State.CANCELLED
        ran = await queue.run_one("double", {"n": "four"})
        assert ran.state is rota.State.FAILED and "n" in str(ran.reason)
        with pytest.raises(EnqueueError, match=r"no handler for the kind 'triple'\. Its kinds: double"):
            await queue.run_one("triple")
        with pytest.raises(KeyError):
            await queue.run_one("double", {}, reraise=True)


def test_tests_without_asyncio() -> None:
    app = program()
    loops: list[bool] = []

    @app.job
    def plain(ctx: rota.Context) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            loops.append(False)

    @app.job
    async def waits(ctx: rota.Context) -> str:
        await asyncio.sleep(0)
        return "waited"

    with in_memory(app) as queue:
        app.sync.enqueue(plain, conn=None)
        app.sync.enqueue(waits, conn=None, delay_s=5)
        assert [ran.job.kind for ran in queue.sync.drain()] == ["plain"]
        assert loops == [False]
        (ran,) = queue.sync.drain(for_s=5)
        assert ran.result == "waited"
        one: Ran = queue.sync.run_one(waits)
        assert one.result == "waited"


def test_a_clock_only_goes_ahead() -> None:
    clock = FakeClock()
    start = clock()
    assert clock.advance(1.5) == clock.now == start + timedelta(seconds=1.5)
    assert clock.advance_to(start) == start + timedelta(seconds=1.5)
    with pytest.raises(ValueError, match="give 0 or more"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="needs a time zone"):
        FakeClock(datetime(2030, 1, 1))  # noqa: DTZ001 - what is refused
