"""A database that lost its last commits: a standby that was behind took over, or an older state was restored.

Then an epoch is given out a second time, and what a former holder says under it is not for the job of the new one (I3).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

import rota
from rota.ids import Holder, JobId
from rota.io.postgres import Database, Pooler, Target
from rota.lease import Lease, Renewal
from rota.queue.io.store import Store
from rota.queue.job import Ask, Finish, JobFilter, NewJob, Outcome, Release, State
from tests.integration.test_worker import Bench, bench, until, working

__all__ = ["bench"]

FORMER, NEW = Holder("a:1:former"), Holder("b:2:new")
LOSE = """
    UPDATE rota.open_jobs SET state = 'queued', lease_until = NULL, leased_by = NULL, started_at = NULL,
                              heartbeat_at = NULL, lease_epoch = lease_epoch - 1, tries = tries - 1
    WHERE id = $1 RETURNING id
"""
"""The commit of a claim is lost."""


@dataclass(slots=True)
class Fork:
    """One job under one lease that two holders have."""

    former: Store
    new: Store
    lease: Lease


@pytest.fixture(params=["none", "transaction"])
async def fork(any_migrated_dsn: str, request: pytest.FixtureRequest) -> AsyncIterator[Fork]:
    pooler: Pooler = request.param
    database = Database(Target(any_migrated_dsn, pooler=pooler), size=2)
    former, new = Store(database, holder=FORMER), Store(database, holder=NEW)
    job_id = (await new.enqueue(NewJob("work"))).id
    ask = Ask("work", 1, 60.0, 3)
    (first,) = await former.claim([ask], holder=FORMER)
    await database.fetch(LOSE, job_id)
    (second,) = await new.claim([ask], holder=NEW)
    assert first.lease == second.lease
    try:
        yield Fork(former, new, second.lease)
    finally:
        await database.stop()


def end(lease: Lease, **options: Any) -> Finish:
    return Finish(lease, Outcome.DONE, result='"late"', **options)


SAID: dict[str, Callable[[Store, Lease], Awaitable[Any]]] = {
    "renew": lambda store, lease: store.renew([Renewal(lease, 60.0, None)]),
    "finish": lambda store, lease: store.finish([end(lease)]),
    "finish with more": lambda store, lease: store.finish([end(lease, follow_ups=(NewJob("next"),))]),
    "retry": lambda store, lease: store.finish([Finish(lease, Outcome.RETRY, wait_s=1.0, error="late")]),
    "release": lambda store, lease: store.release([Release(lease, wait_s=1.0, reason="late")]),
    "unstart": lambda store, lease: store.unstart([lease], per_s=60.0),
}


@pytest.mark.parametrize("said", SAID)
async def test_a_former_holder_changes_nothing_under_the_same_epoch(fork: Fork, said: str) -> None:
    (before,) = await fork.new.show(fork.lease.job_id)
    assert not await SAID[said](fork.former, fork.lease)
    (after,) = await fork.new.show(fork.lease.job_id)
    assert (after.state, after.leased_by, after.lease_until) == (State.LEASED, NEW, before.lease_until)
    assert await fork.new.page(JobFilter(kinds=("next",)), limit=1) == [], "nothing follows from an end that is refused"
    assert await SAID[said](fork.new, fork.lease)


async def lose_its_claim(bench: Bench, job_id: JobId) -> None:
    await bench.conn.fetchval(LOSE, job_id)


async def test_a_run_that_is_under_way_goes_on_under_its_lease(bench: Bench) -> None:
    """Its own worker claims it anew, and does not run it a second time beside itself."""
    go = asyncio.Event()

    @bench.app.job(limit=3)
    async def work(ctx: rota.Context) -> str:
        bench.ran.append("work")
        await go.wait()
        return "once"

    async with working(bench.app):
        job = await bench.app.enqueue("work", {})
        await until(lambda: bench.ran, what="the run")
        await lose_its_claim(bench, job.id)

        async def claimed_anew() -> bool:
            return (await bench.row(job.id)).state is State.LEASED

        await until(claimed_anew, what="the second claim")
        go.set()
        row = await bench.ends(job.id)
    assert (row.state, row.result, row.lease_epoch, row.tries) == (State.DONE, '"once"', 1, 1)
    assert bench.ran == ["work"]
