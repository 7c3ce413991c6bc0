"""Claiming: what a lease says, who goes first, how many, and what waits for its time."""

from random import Random

import pytest

from rota.queue.job import NewJob, Outcome, Scope, State, queued_key
from tests.conformance.queues import HOLDER, LEASE_S, OTHER, Queue, ask, plain


async def test_a_claim_writes_the_lease(queue: Queue) -> None:
    job_id = await queue.add(
        payload='{"n": 1}', tenant="org", priority=4, trace="t", dedupe=queued_key("a"), delay_s=10
    )
    queue.later(60)
    (job,) = await queue.claim(lease_s=120.0, max_tries=5)
    assert (job.id, job.lease.epoch, job.kind, job.tenant, job.priority) == (job_id, 1, "work", "org", 4)
    assert (job.tries, job.max_tries, job.dedupe_scope, job.progress, job.trace) == (1, 5, Scope.QUEUED, None, "t")
    assert (plain(job.payload), job.run_after) == ('{"n": 1}', queue.at(-50))
    row = await queue.row(job_id)
    assert (row.state, row.leased_by, row.lease_epoch, row.tries, row.max_tries) == (State.LEASED, HOLDER, 1, 1, 5)
    assert (row.started_at, row.heartbeat_at, row.lease_until) == (queue.now, queue.now, queue.at(120))
    assert row.created_at == job.created_at


async def test_the_jobs_own_tries_go_before_the_kinds(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("work", max_tries=1), NewJob("work")])
    assert [job.max_tries for job in await queue.claim(max_tries=9)] == [1, 9]


async def test_a_leased_job_is_not_claimed_again(queue: Queue) -> None:
    await queue.add()
    assert len(await queue.claim()) == 1
    queue.later(10 * LEASE_S)  # the sweep ends leases, not the claim
    assert await queue.claim(holder=OTHER) == []


async def test_each_claim_counts_a_try_and_an_epoch(queue: Queue) -> None:
    job_id = await queue.add(max_tries=10)
    for number in range(1, 5):
        (job,) = await queue.claim()
        assert (job.tries, job.lease.epoch) == (number, number)
        assert await queue.end(job.lease, Outcome.RETRY) is State.QUEUED
    assert (await queue.row(job_id)).tries == 4


async def test_progress_comes_back_at_the_next_claim(queue: Queue) -> None:
    job_id = await queue.add()
    lease = await queue.take(job_id)
    await queue.renew(lease, progress={"page": 7})
    await queue.back(lease)
    (job,) = await queue.claim()
    assert plain(job.progress) == '{"page": 7}'


async def test_order_is_priority_then_run_after_then_age(queue: Queue) -> None:
    starts = (queue.at(-200), queue.at(-100), queue.at(-1))
    places = [(priority, start) for priority in (50, 0, -7) for start in starts for _ in range(2)]
    Random(3).shuffle(places)
    for priority, run_after in places:
        await queue.add(priority=priority, run_after=run_after)
    claimed = [job for _ in places for job in await queue.claim(free=1)]
    assert len(claimed) == len(places)
    assert claimed == sorted(claimed, key=lambda job: (-job.priority, job.run_after, job.created_at))
    assert [job.order for job in claimed] == sorted(job.order for job in claimed)


async def test_a_batch_comes_in_the_same_order(queue: Queue) -> None:
    low = await queue.add(priority=1)
    early = await queue.add(priority=2, run_after=queue.at(-60))
    late = await queue.add(priority=2, run_after=queue.at(-30))
    later = await queue.add(priority=2, run_after=queue.at(-30))
    high = await queue.add(priority=3)
    assert [job.id for job in await queue.claim()] == [high, early, late, later, low]


@pytest.mark.parametrize("free", [0, 1, 3, 4, 5])
async def test_no_more_than_the_free_slots(queue: Queue, free: int) -> None:
    await queue.enqueue_many([NewJob("work", priority=number % 2) for number in range(4)])
    claimed = await queue.claim(free=free)
    assert [job.priority for job in claimed] == [1, 1, 0, 0][:free]


async def test_each_kind_has_its_own_slots_and_settings(queue: Queue) -> None:
    kinds = ["a", "b", "c"]
    await queue.enqueue_many([NewJob(kind, priority=number) for number in range(4) for kind in kinds])
    claimed = await queue.claim(ask("a", free=1, lease_s=10.0, max_tries=1), ask("c", free=3), ask("none"))
    assert [(job.kind, job.priority) for job in claimed] == [("a", 3), ("c", 3), ("c", 2), ("c", 1)]
    a, c = await queue.row(claimed[0].id), await queue.row(claimed[1].id)
    assert (a.lease_until, a.max_tries) == (queue.at(10), 1)
    assert (c.lease_until, c.max_tries) == (queue.at(LEASE_S), 3)


async def test_nothing_asked_nothing_claimed(queue: Queue) -> None:
    await queue.add()
    assert await queue.call("claim", [], holder=HOLDER, now=queue.now) == []


async def test_a_job_of_the_future_holds_nothing_up(queue: Queue) -> None:
    """S18."""
    future = await queue.add(priority=1000, run_after=queue.at(86_400))
    exact = await queue.add(run_after=queue.at(60))
    due = [await queue.add(priority=priority) for priority in range(10)]
    assert {job.id for job in await queue.claim()} == set(due)
    queue.now = (await queue.row(exact)).run_after
    assert [job.id for job in await queue.claim()] == [exact]
    assert await queue.states([future]) == [State.QUEUED]
