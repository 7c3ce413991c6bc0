"""What people do: list, show, retry, and the retention."""

from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from rota.errors import JobNotFound
from rota.ids import JobId
from rota.queue.job import Dedupe, NewJob, Outcome, Retried, State, forever_key, open_key, queued_key
from tests.conformance.queues import FIRST_ID, LAST_ID, LEASE_S, NOBODY, Queue

# Pages


async def test_a_page_is_the_newest_first_without_the_bulk(queue: Queue) -> None:
    ids = [await queue.add(payload='{"n": 1}', trace="t") for _ in range(5)]
    await queue.end(await queue.take(ids[0]), Outcome.DONE, result="1")
    page = await queue.page()
    assert [row.id for row in page] == ids[::-1]
    assert {(row.payload, row.result, row.trace) for row in page} == {(None, None, None)}
    assert page[-1].state is State.DONE


async def test_filters(queue: Queue) -> None:
    old = await queue.add("a", tenant="org")
    queue.later(100)
    done = await queue.add("b")
    await queue.end(await queue.take(done, kind="b"))
    failed = await queue.add("b", tenant="org")
    await queue.end(await queue.take(failed, kind="b"), Outcome.FAILED)
    new = await queue.add("c", tenant="other")

    async def found(**wanted: Any) -> list[JobId]:
        return [row.id for row in await queue.page(**wanted)]

    assert await found() == [new, failed, done, old]
    assert await found(kinds=("b", "c")) == [new, failed, done]
    assert await found(kinds=()) == []
    assert await found(states=(State.FAILED,)) == [failed]
    assert await found(states=(State.QUEUED, State.DONE)) == [new, done, old]
    assert await found(tenant="org") == [failed, old]
    assert await found(tenant="org", states=(State.QUEUED,), kinds=("a",)) == [old]
    assert await found(older_s=50.0) == [old]
    assert await found(newer_s=50.0) == [new, failed, done]
    assert await found(older_s=0.0) == [new, failed, done, old]
    age = (queue.now - (await queue.row(old)).created_at).total_seconds()
    assert await found(newer_s=age) == [new, failed, done, old]


async def test_paging_while_rows_come_and_go(queue: Queue) -> None:
    """S97: no row twice, and none skipped that was there all the time."""
    staying = [await queue.add() for _ in range(20)]
    going = [await queue.add() for _ in range(5)]
    staying += [await queue.add() for _ in range(5)]
    seen: list[JobId] = []
    for number in range(100):
        rows = await queue.page(limit=4, below=seen[-1] if seen else None)
        if not rows:
            break
        seen += [row.id for row in rows]
        await queue.add()
        await queue.cancel(going[number % 5])
        if number == 2:
            await queue.claim(free=3)  # moves rows about in the table
            queue.later(60)
            await queue.prune(keep_s=1)
    assert all(newer > older for newer, older in pairwise(seen))
    assert set(staying) <= set(seen)


# Showing


async def test_show_by_id_and_by_range(queue: Queue) -> None:
    ids = [await queue.add(payload='{"n": 1}') for _ in range(5)]
    assert [row.id for row in await queue.show(ids[2])] == [ids[2]]
    assert [row.id for row in await queue.show(ids[1], ids[3])] == ids[3:0:-1]
    assert [row.id for row in await queue.show(FIRST_ID, LAST_ID, limit=2)] == ids[:-3:-1]
    assert await queue.show(NOBODY) == []
    assert (await queue.row(ids[0])).payload == '{"n": 1}'


async def test_show_by_the_first_digits(queue: Queue) -> None:
    job_id = await queue.add()
    digits = job_id.hex[:13]
    lowest, highest = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    assert [row.id for row in await queue.show(JobId(lowest), JobId(highest))] == [job_id]


# A person's retry


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELLED])
async def test_an_ended_job_is_queued_again(queue: Queue, outcome: Outcome) -> None:
    job_id = await queue.add(payload='{"n": 1}', priority=4, max_tries=2, run_after=queue.at(-60))
    lease = await queue.take(job_id)
    await queue.renew(lease, progress=3)
    await queue.end(lease, outcome, error="broken")
    before = await queue.row(job_id)
    queue.later(60)
    assert await queue.retry(job_id) == Retried(job_id, "queued")
    row = await queue.row(job_id)
    assert (row.state, row.tries, row.run_after, row.finished_at) == (State.QUEUED, 0, queue.now, None)
    kept = ("payload", "priority", "max_tries", "lease_epoch", "last_error", "created_at", "started_at", "progress")
    assert all(getattr(row, name) == getattr(before, name) for name in kept)
    (job,) = await queue.claim()
    assert (job.lease.epoch, job.tries) == (2, 1)
    assert await queue.end(lease) is None


async def test_a_job_that_is_done_stays_done(queue: Queue) -> None:
    job_id = await queue.add(dedupe=open_key("a"))
    await queue.end(await queue.take(job_id), result="1")
    await queue.add(dedupe=open_key("a"))
    before = await queue.rows()
    assert await queue.retry(job_id) == Retried(job_id, "done")
    assert await queue.rows() == before


async def test_a_leased_job_is_left_alone(queue: Queue) -> None:
    job_id = await queue.add()
    await queue.take(job_id)
    before = await queue.rows()
    assert await queue.retry(job_id) == Retried(job_id, "leased")
    assert await queue.rows() == before


async def test_a_queued_job_becomes_due(queue: Queue) -> None:
    waiting = await queue.add(run_after=queue.at(3600), max_tries=1)
    due = await queue.add()
    first = (await queue.row(due)).run_after
    queue.later(60)
    assert await queue.retry(waiting) == Retried(waiting, "queued")
    assert await queue.retry(due) == Retried(due, "queued")
    assert (await queue.row(waiting)).run_after == queue.now
    assert (await queue.row(due)).run_after == first


async def test_an_unknown_job(queue: Queue) -> None:
    with pytest.raises(JobNotFound, match=str(NOBODY)):
        await queue.retry(NOBODY)


@pytest.mark.parametrize("key", [open_key("a"), queued_key("a")], ids=lambda key: key.scope)
async def test_a_job_whose_key_is_held_stays_ended(queue: Queue, key: Dedupe) -> None:
    job_id = await queue.add(dedupe=key)
    await queue.end(await queue.take(job_id), Outcome.FAILED)
    holder = await queue.add(dedupe=key)
    before = await queue.rows()
    assert await queue.retry(job_id) == Retried(job_id, "held", holder)
    assert await queue.rows() == before
    await queue.end(await queue.take(holder))
    assert await queue.retry(job_id) == Retried(job_id, "queued")
    assert not (await queue.enqueue(NewJob("work", dedupe=key))).created


async def test_a_running_job_holds_an_open_key_but_no_queued_key(queue: Queue) -> None:
    for key, outcome in ((open_key("a"), "held"), (queued_key("b"), "queued")):
        ended = await queue.add(key.key, dedupe=key)
        await queue.end(await queue.take(ended, kind=key.key), Outcome.FAILED)
        await queue.take(await queue.add(key.key, dedupe=key), kind=key.key)
        assert (await queue.retry(ended)).outcome == outcome


async def test_a_forever_key_does_not_keep_its_own_job_out(queue: Queue) -> None:
    job_id = await queue.add(dedupe=forever_key("a"))
    await queue.end(await queue.take(job_id), Outcome.FAILED)
    assert await queue.retry(job_id) == Retried(job_id, "queued")
    assert (await queue.enqueue(NewJob("work", dedupe=forever_key("a")))).id == job_id


# Retention


async def test_prune_removes_what_ended_long_ago(queue: Queue) -> None:
    for outcome in (Outcome.DONE, Outcome.FAILED, Outcome.CANCELLED):
        await queue.end(await queue.take(await queue.add()), outcome)
    queue.later(100)
    young = await queue.add()
    await queue.end(await queue.take(young))
    running, waiting = await queue.add(), await queue.add()
    await queue.take(running)
    assert await queue.prune(keep_s=1000) == 0
    assert await queue.prune(keep_s=50) == 3
    assert {row.id for row in await queue.rows()} == {young, running, waiting}
    finished_at = (await queue.row(young)).finished_at
    assert finished_at is not None
    queue.now = finished_at + timedelta(seconds=50)
    assert await queue.prune(keep_s=50) == 0
    queue.later(0.001)
    assert await queue.prune(keep_s=50) == 1
    queue.later(1000 * LEASE_S)
    assert await queue.prune(keep_s=0) == 0


async def test_prune_goes_a_piece_at_a_time(queue: Queue) -> None:
    await queue.cancel(*[await queue.add() for _ in range(7)])
    queue.later(1)
    assert [await queue.prune(keep_s=0, limit=3) for _ in range(4)] == [3, 3, 1, 0]
