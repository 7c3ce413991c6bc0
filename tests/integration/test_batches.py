"""Batches as a program adds them, and their one follow-up however the last jobs end."""

import asyncio
import json
from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import psycopg
import pytest
from msgspec import Struct

import rota
from rota.ids import Holder
from rota.io.postgres import Database, Target, statement
from rota.queue.io import look_loop
from rota.queue.io.rows import one_end
from rota.queue.io.store import Store
from rota.queue.job import Ask, ClaimedJob, Finish, Outcome, State
from tests.integration.test_worker import Bench, made_bench, until, working

HOLDER = Holder("here:1:aa")
ROUNDS = 40


@pytest.fixture
async def bench(migrated_dsn: str) -> AsyncIterator[Bench]:
    async with made_bench(migrated_dsn, poll_s=0.05) as made:
        yield made


class Report(Struct):
    """A typed payload that takes the counts."""

    of: str
    batch: rota.BatchCounts


async def follow_ups(bench: Bench) -> int:
    count: int = await bench.value("SELECT count(*) FROM rota.jobs WHERE kind = 'report'")
    return count


async def claimed(store: Store, count: int) -> list[ClaimedJob]:
    jobs = await store.claim([Ask("work", count, 300.0, 1)], holder=HOLDER)
    assert len(jobs) == count
    return jobs


async def test_a_block_of_jobs_and_what_follows(bench: Bench) -> None:
    told: list[Report] = []

    @bench.app.job
    async def work(ctx: rota.Context, number: int) -> int:
        if number == 3:
            raise ValueError("no")
        return number

    @bench.app.job
    async def report(ctx: rota.Context, job: Report) -> None:
        told.append(job)

    async with bench.app.batch(then=(report, {"of": "films"})) as batch:
        for number in range(70):  # enough for COPY
            batch.add(work, number, max_tries=1)
        with pytest.raises(AttributeError, match="after the block"):
            _ = batch.id
    assert len(batch.jobs) == 70 and all(job.created for job in batch.jobs)
    async with working(bench.app):
        await until(lambda: told, what="the follow-up", within_s=30)
    counts = told[0].batch
    assert (told[0].of, counts.id) == ("films", batch.id)
    assert (counts.jobs, counts.done, counts.failed, counts.cancelled) == (70, 69, 1, 0)
    status = await bench.app.batch_status(batch.id)
    assert (status.open, status.done, status.then_kind) == (0, 69, "report")
    assert await follow_ups(bench) == 1


async def test_a_block_that_raises_adds_nothing(bench: Bench) -> None:
    with pytest.raises(ValueError, match="no"):
        async with bench.app.batch(then=("report", {})) as batch:
            batch.add("work", {})
            raise ValueError("no")
    assert await bench.value("SELECT count(*) FROM rota.open_jobs") == 0
    assert await bench.value("SELECT count(*) FROM rota.batches") == 0


async def test_a_batch_in_the_caller_s_transaction(bench: Bench) -> None:
    jobs = [bench.app.new("work") for _ in range(3)]
    transaction = bench.conn.transaction()
    await transaction.start()
    await bench.app.enqueue_batch(jobs, then=("report", {}), conn=bench.conn)
    await transaction.rollback()
    assert await bench.value("SELECT (SELECT count(*) FROM rota.open_jobs) + (SELECT count(*) FROM rota.batches)") == 0
    with psycopg.connect(bench.app.settings.require_dsn()) as conn:
        added = bench.app.sync.enqueue_batch(jobs, then=("report", {}), conn=conn)
    assert (await bench.app.batch_status(added.id)).open == 3


async def test_a_batch_of_jobs_that_others_hold_follows_at_once(bench: Bench) -> None:
    held = await bench.app.enqueue("work", dedupe=rota.open_key("k"))
    added = await bench.app.enqueue_batch([bench.app.new("work", dedupe=rota.open_key("k"))], then=("report", {}))
    assert added.jobs == [rota.Enqueued(held.id, created=False)]
    assert (await bench.app.batch_status(added.id)).jobs == 0
    assert await follow_ups(bench) == 1


async def test_follow_ups_that_cannot_be_are_refused(bench: Bench) -> None:
    for then in (
        bench.app.new("report", dedupe=rota.open_key("k")), bench.app.new("report", delay_s=3),
    ):  # fmt: skip
        with pytest.raises(rota.EnqueueError, match="no key and no time"):
            await bench.app.enqueue_batch([bench.app.new("work")], then=then)
    with pytest.raises(rota.BatchNotFound):
        await bench.app.batch_status(rota.BatchId(UUID(int=1)))


async def test_the_last_two_jobs_end_in_transactions_that_overlap(bench: Bench) -> None:
    """Neither sees the other's end when it ends; whoever commits last sees both."""
    added = await bench.app.enqueue_batch([bench.app.new("work")] * 2, then=("report", {}))
    first, second = await claimed(bench.store, 2)
    finish_one = statement("rota.queue.io.sql", "finish_one.sql", "rota")
    slow = bench.conn.transaction()
    await slow.start()
    await bench.conn.fetch(finish_one, *one_end(Finish(first.lease, Outcome.DONE)))
    # The second one ends, and looks, while the first one's end is not committed.
    assert await bench.store.finish([Finish(second.lease, Outcome.DONE)]) == {second.id: State.DONE}
    assert await follow_ups(bench) == 0
    await slow.commit()
    await asyncio.gather(*(bench.store.close_batches([added.id]) for _ in range(4)))
    assert await follow_ups(bench) == 1


async def test_two_last_jobs_that_end_together_add_exactly_one_follow_up(bench: Bench) -> None:
    dsn = bench.app.settings.require_dsn()
    databases = [Database(Target(dsn), size=1) for _ in range(2)]
    stores = [Store(database) for database in databases]
    try:
        for number in range(ROUNDS):
            added = await bench.app.enqueue_batch([bench.app.new("work")] * 2, then=("report", {"n": number}))
            jobs = await claimed(bench.store, 2)
            await asyncio.gather(
                *(store.finish([Finish(job.lease, Outcome.DONE)]) for store, job in zip(stores, jobs, strict=True))
            )
            assert (await bench.app.batch_status(added.id)).done == 2, "the later of the two has closed it"
            assert await follow_ups(bench) == number + 1
    finally:
        for database in databases:
            await database.stop()


async def test_a_batch_whose_last_worker_died_is_closed_by_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_loop, "BATCHES_EVERY_S", 0.05)
    await bench.app.enqueue_batch([bench.app.new("work")], then=("report", {"of": "a"}))
    (job,) = await claimed(bench.store, 1)
    # Its end is committed, and the process dies before it looks.
    finish_one = statement("rota.queue.io.sql", "finish_one.sql", "rota")
    await bench.conn.fetch(finish_one, *one_end(Finish(job.lease, Outcome.DONE)))
    seen: list[str] = []

    @bench.app.job
    async def report(ctx: rota.Context) -> None:
        seen.append(json.loads(ctx.job.payload)["of"])

    async with working(bench.app):
        await until(lambda: seen, what="the follow-up", within_s=30)
    assert seen == ["a"]


async def test_a_job_of_a_batch_that_ends_in_a_transaction_of_its_own(bench: Bench) -> None:
    dsn = bench.app.settings.require_dsn()

    @bench.app.job
    async def work(ctx: rota.Context, own: bool) -> None:
        conn = await asyncpg.connect(dsn)
        try:
            if own:
                async with conn.transaction():
                    await ctx.finish_with(conn)
            else:
                async with ctx.finish_with(conn):
                    pass
        finally:
            await conn.close()

    added = await bench.app.enqueue_batch([bench.app.new(work, own) for own in (True, False)], then=("report", {}))
    async with working(bench.app):
        await until(lambda: follow_ups(bench), what="the follow-up", within_s=30)
    assert (await bench.app.batch_status(added.id)).done == 2
