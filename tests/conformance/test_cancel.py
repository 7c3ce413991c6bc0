"""Cancelling: at once what is queued; what runs is asked to stop, and its holder is told."""

from rota.queue.job import NewJob, Outcome, State, open_key, queued_key
from tests.conformance.queues import HOLDER, LEASE_S, NOBODY, OTHER, Queue


async def test_a_queued_job_is_cancelled_at_once(queue: Queue) -> None:
    job_id = await queue.add(payload='{"n": 1}', run_after=queue.at(3600))
    assert await queue.cancel(job_id, reason="Not wanted") == {job_id: State.CANCELLED}
    row = await queue.row(job_id)
    assert (row.state, row.last_error, row.finished_at) == (State.CANCELLED, "Not wanted", queue.now)
    assert (row.payload, row.tries, row.lease_epoch, row.cancel_asked_at) == ('{"n": 1}', 0, 0, None)
    queue.later(7200)
    assert await queue.claim() == []


async def test_a_leased_job_is_asked_and_keeps_its_lease(queue: Queue) -> None:
    job_id = await queue.add()
    lease = await queue.take(job_id)
    queue.later(10)
    assert await queue.cancel(job_id, reason="Not wanted") == {job_id: State.LEASED}
    row = await queue.row(job_id)
    assert (row.state, row.cancel_asked_at, row.last_error) == (State.LEASED, queue.now, "Not wanted")
    assert (row.lease_until, row.heartbeat_at) == (queue.at(LEASE_S - 10), queue.at(-10))
    assert await queue.renew(lease) == {job_id: True}


async def test_asking_again_changes_nothing(queue: Queue) -> None:
    job_id = await queue.add()
    await queue.take(job_id)
    await queue.cancel(job_id, reason="First")
    before = await queue.row(job_id)
    queue.later(10)
    assert await queue.cancel(job_id, reason="Second") == {job_id: State.LEASED}
    row = await queue.row(job_id)
    assert (row.cancel_asked_at, row.last_error) == (before.cancel_asked_at, "First")


async def test_ended_and_unknown_jobs_are_left_alone(queue: Queue) -> None:
    done = await queue.add()
    await queue.end(await queue.take(done))
    cancelled = await queue.add()
    await queue.cancel(cancelled)
    before = await queue.rows()
    assert await queue.cancel(done, cancelled, NOBODY) == {}
    assert await queue.rows() == before


async def test_many_at_once_in_any_order(queue: Queue) -> None:
    ids = [await queue.add() for _ in range(6)]
    await queue.claim(free=3)
    states = await queue.cancel(*reversed(ids), ids[0], NOBODY)
    assert states == dict(zip(ids, [State.LEASED] * 3 + [State.CANCELLED] * 3, strict=True))


async def test_a_cancelled_job_frees_its_key(queue: Queue) -> None:
    for key in (open_key("a"), queued_key("b")):
        await queue.cancel(await queue.add(dedupe=key))
        assert (await queue.enqueue(NewJob("work", dedupe=key))).created


async def test_a_job_that_is_asked_to_stop_keeps_its_open_key(queue: Queue) -> None:
    job_id = await queue.add(dedupe=open_key("a"))
    lease = await queue.take(job_id)
    await queue.cancel(job_id)
    assert (await queue.enqueue(NewJob("work", dedupe=open_key("a")))).id == job_id
    await queue.end(lease, Outcome.CANCELLED)
    assert (await queue.enqueue(NewJob("work", dedupe=open_key("a")))).created


async def test_each_holder_is_told_once(queue: Queue) -> None:
    await queue.listen()
    ids = [await queue.add() for _ in range(5)]
    await queue.claim(free=2)
    await queue.claim(free=2, holder=OTHER)
    await queue.cancel(*ids)
    assert await queue.heard() == [f"!{HOLDER}", f"!{OTHER}"]
    await queue.cancel(ids[0])
    assert await queue.heard() == [f"!{HOLDER}"]
    await queue.cancel(ids[4])
    assert await queue.heard() == []
