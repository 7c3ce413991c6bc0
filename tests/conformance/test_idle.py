"""What an idle server asks (poll), and how it is woken (wait, awake)."""

import pytest

from rota.queue.job import NewJob, Outcome, Poll, open_key
from tests.conformance.queues import HOLDER, LEASE_S, OTHER, Queue

NOTHING = Poll(None, expired=False, cancels=())


async def test_an_empty_queue(queue: Queue) -> None:
    assert await queue.poll() == NOTHING
    assert await queue.call("poll", [], holder=HOLDER, now=queue.now) == NOTHING


async def test_the_next_due_job_of_the_kinds_asked_for(queue: Queue) -> None:
    await queue.add("a", priority=9, run_after=queue.at(60))
    await queue.add("a", priority=-9, run_after=queue.at(30))
    await queue.add("a", priority=0, run_after=queue.at(90))
    await queue.add("b", run_after=queue.at(-45))
    first = {kind: min(row.run_after for row in await queue.rows() if row.kind == kind) for kind in ("a", "b")}
    queue.later(1)
    assert (await queue.poll("a")).next_due_s == pytest.approx((first["a"] - queue.now).total_seconds())
    assert (await queue.poll("a", "b", "c")).next_due_s == pytest.approx((first["b"] - queue.now).total_seconds())
    assert (await queue.poll("c")).next_due_s is None


async def test_a_job_that_is_due_now(queue: Queue) -> None:
    await queue.add()
    assert (await queue.poll()).next_due_s == 0.0


async def test_leased_and_ended_jobs_are_not_waited_for(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("work")] * 2)
    first, _ = await queue.claim()
    await queue.end(first.lease)
    assert await queue.poll() == NOTHING


async def test_a_lease_that_ran_out_is_seen(queue: Queue) -> None:
    await queue.add("other")
    await queue.claim(kind="other", holder=OTHER)
    queue.later(LEASE_S)
    assert not (await queue.poll()).expired
    queue.later(0.001)
    assert (await queue.poll()).expired
    await queue.sweep()
    assert not (await queue.poll()).expired


async def test_each_holder_sees_its_own_cancels(queue: Queue) -> None:
    ids = sorted([await queue.add() for _ in range(5)])
    mine = [job.lease for job in await queue.claim(free=2)]
    await queue.claim(free=2, holder=OTHER)
    await queue.cancel(*ids)
    assert (await queue.poll()).cancels == tuple(ids[:2])
    assert (await queue.poll(holder=OTHER)).cancels == tuple(ids[2:4])
    await queue.end(mine[0], Outcome.CANCELLED)
    assert (await queue.poll()).cancels == (ids[1],)


async def test_a_cancel_past_its_grace_is_seen_by_all(queue: Queue) -> None:
    job_id = await queue.add()
    await queue.take(job_id, holder=OTHER)
    await queue.cancel(job_id)
    queue.later(30)
    assert not (await queue.poll(grace_s=30.0)).expired
    queue.later(0.001)
    assert (await queue.poll(grace_s=30.0)).expired
    await queue.sweep(grace_s=30.0)
    assert await queue.poll(grace_s=30.0) == NOTHING


async def test_polling_writes_nothing(queue: Queue) -> None:
    job_id = await queue.add()
    await queue.take(job_id)
    await queue.cancel(job_id)
    queue.later(10 * LEASE_S)
    before = await queue.rows()
    await queue.poll()
    assert await queue.rows() == before


# Waking


async def test_nobody_waits_nobody_is_told(queue: Queue) -> None:
    await queue.listen()
    await queue.add()
    await queue.enqueue_many([NewJob("work")] * 3)
    assert await queue.heard() == []


async def test_a_waiting_holder_is_told_of_its_kinds(queue: Queue) -> None:
    await queue.listen()
    await queue.wait(HOLDER, kinds=["work", "more"], seconds=3600)
    await queue.add()
    assert await queue.heard() == ["work"]
    await queue.add("other")
    assert await queue.heard() == []
    await queue.enqueue_many([NewJob("work"), NewJob("other"), NewJob("work")])
    assert await queue.heard() == ["other", "work"]


async def test_a_job_of_the_future_wakes_nobody(queue: Queue) -> None:
    await queue.listen()
    await queue.wait(HOLDER, kinds=["work"], seconds=3600)
    await queue.add(delay_s=5)
    await queue.add(run_after=queue.at(5))
    await queue.enqueue_many([NewJob("work", delay_s=5.0)] * 2)
    assert await queue.heard() == []
    await queue.add(run_after=queue.at(-5))
    assert await queue.heard() == ["work"]


async def test_a_keyed_job_wakes_too(queue: Queue) -> None:
    await queue.listen()
    await queue.wait(HOLDER, kinds=["work"], seconds=3600)
    await queue.add(dedupe=open_key("a"))
    assert await queue.heard() == ["work"]


async def test_who_is_awake_or_away_is_not_told(queue: Queue) -> None:
    await queue.listen()
    await queue.wait(HOLDER, kinds=["work"], seconds=3600)
    await queue.wait(OTHER, kinds=["work"], seconds=-3600)
    await queue.awake(HOLDER)
    await queue.awake(HOLDER)
    await queue.add()
    assert await queue.heard() == []


async def test_waiting_again_says_new_kinds(queue: Queue) -> None:
    await queue.listen()
    await queue.wait(HOLDER, kinds=["a"], seconds=3600)
    await queue.wait(HOLDER, kinds=["b"], seconds=3600)
    await queue.add("a")
    await queue.add("b")
    assert await queue.heard() == ["b"]


async def test_a_persons_retry_wakes(queue: Queue) -> None:
    await queue.listen()
    ended, later = await queue.add(), await queue.add(delay_s=3600.0)
    await queue.end(await queue.take(ended), Outcome.FAILED)
    await queue.wait(HOLDER, kinds=["work"], seconds=3600)
    await queue.retry(ended)
    assert await queue.heard() == ["work"]
    await queue.retry(later)
    assert await queue.heard() == ["work"]
