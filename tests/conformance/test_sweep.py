"""The sweep: what becomes of a job whose lease ran out, or whose holder does not answer a cancel."""

import pytest

from rota.lease import Lease
from rota.queue.job import NewJob, Outcome, State, Swept, open_key, queued_key
from tests.conformance.queues import HOLDER, LEASE_S, OTHER, Queue, ask

GRACE_S = 30.0


async def test_a_lease_that_ran_out_sends_the_job_back(queue: Queue) -> None:
    """S1, S2: by the row alone, whoever the holder was; the try counts."""
    job_id = await queue.add()
    due = (await queue.row(job_id)).run_after
    lease = await queue.take(job_id)
    end = queue.at(LEASE_S)
    queue.later(LEASE_S)
    assert await queue.sweep() == []
    queue.later(0.001)
    assert await queue.sweep() == [Swept(Lease(job_id, 1), "work", HOLDER, State.QUEUED, 1)]
    row = await queue.row(job_id)
    assert (row.state, row.tries, row.run_after, row.lease_epoch) == (State.QUEUED, 1, due, 1)
    assert (row.lease_until, row.leased_by, row.finished_at) == (None, HOLDER, None)
    assert row.last_error == f"The lease ran out: {HOLDER} wrote nothing until {end:%Y-%m-%d %H:%M:%S} UTC"
    assert await queue.sweep() == []
    assert await queue.end(lease) is None
    assert (await queue.take(job_id, holder=OTHER)).epoch == 2


async def test_a_renewed_lease_is_not_swept(queue: Queue) -> None:
    lost, kept = await queue.add(), await queue.add()
    leases = [job.lease for job in await queue.claim()]
    queue.later(LEASE_S - 1)
    await queue.renew(leases[1])
    queue.later(2)
    assert [swept.lease.job_id for swept in await queue.sweep()] == [lost]
    assert await queue.states([lost, kept]) == [State.QUEUED, State.LEASED]


@pytest.mark.parametrize(("own", "of_kind", "tries"), [(None, 3, 3), (2, 3, 2), (5, 3, 5), (1, 3, 1)])
async def test_the_last_try_fails(queue: Queue, own: int | None, of_kind: int, tries: int) -> None:
    """S6, as far as the queue goes: it starts that often, and no more."""
    job_id = await queue.add(max_tries=own)
    started = 0
    while await queue.claim(max_tries=of_kind):
        started += 1
        queue.later(LEASE_S + 1)
        (swept,) = await queue.sweep()
    assert started == tries
    assert (swept.state, swept.tries, swept.lease) == (State.FAILED, tries, Lease(job_id, tries))
    row = await queue.row(job_id)
    assert (row.state, row.last_error, row.tries) == (State.FAILED, "The lease ran out on the last try", tries)
    assert (row.finished_at, row.lease_until) == (queue.now, None)


async def test_what_was_asked_to_stop_is_cancelled_when_its_lease_ends(queue: Queue) -> None:
    """S30: asking does not move the lease, and the earlier of lease and grace ends the job."""
    job_id = await queue.add()
    await queue.take(job_id)
    until = (await queue.row(job_id)).lease_until
    queue.later(LEASE_S - 1)
    await queue.cancel(job_id, reason="Not wanted")
    assert (await queue.row(job_id)).lease_until == until
    queue.later(2)
    (swept,) = await queue.sweep(grace_s=GRACE_S)
    assert swept.state is State.CANCELLED
    row = await queue.row(job_id)
    assert (row.state, row.last_error, row.tries, row.finished_at) == (State.CANCELLED, "Not wanted", 1, queue.now)


async def test_a_cancel_without_an_answer_ends_after_its_grace(queue: Queue) -> None:
    job_id, other = await queue.add(), await queue.add()
    lease, _ = [job.lease for job in await queue.claim()]
    await queue.cancel(job_id)
    queue.later(GRACE_S)
    assert await queue.sweep(grace_s=GRACE_S) == []
    await queue.renew(lease)
    queue.later(0.001)
    (swept,) = await queue.sweep(grace_s=GRACE_S)
    assert (swept.lease, swept.state) == (lease, State.CANCELLED)
    assert await queue.states([job_id, other]) == [State.CANCELLED, State.LEASED]
    assert await queue.end(lease) is None


async def test_a_queued_twin_does_the_work(queue: Queue) -> None:
    job_id = await queue.add(dedupe=queued_key("a"))
    await queue.take(job_id)
    twin = await queue.add(dedupe=queued_key("a"))
    queue.later(LEASE_S + 1)
    (swept,) = await queue.sweep()
    assert (swept.lease.job_id, swept.state) == (job_id, State.DONE)
    assert await queue.states([job_id, twin]) == [State.DONE, State.QUEUED]
    assert ((await queue.row(job_id)).last_error or "").startswith("The lease ran out: here:1:aa wrote nothing")


async def test_cancel_goes_before_the_last_try_and_that_before_a_twin(queue: Queue) -> None:
    cancelled = await queue.add(dedupe=queued_key("a"), max_tries=1)
    failed = await queue.add(dedupe=queued_key("b"), max_tries=1)
    await queue.claim()
    await queue.add(dedupe=queued_key("a"))
    await queue.add(dedupe=queued_key("b"))
    await queue.cancel(cancelled)
    queue.later(LEASE_S + 1)
    assert {swept.lease.job_id: swept.state for swept in await queue.sweep()} == {
        cancelled: State.CANCELLED,
        failed: State.FAILED,
    }


async def test_of_two_running_twins_the_older_waits_and_the_other_is_done(queue: Queue) -> None:
    first = await queue.add(dedupe=queued_key("a"))
    await queue.take(first)
    second = await queue.add(dedupe=queued_key("a"))
    await queue.take(second)
    queue.later(LEASE_S + 1)
    swept = await queue.sweep()
    assert [(each.lease.job_id, each.state) for each in swept] == [(first, State.QUEUED), (second, State.DONE)]


async def test_other_keys_are_kept_on_the_way_back(queue: Queue) -> None:
    job_id = await queue.add(dedupe=open_key("a"))
    await queue.take(job_id)
    queue.later(LEASE_S + 1)
    (swept,) = await queue.sweep()
    assert swept.state is State.QUEUED
    assert (await queue.enqueue(NewJob("work", dedupe=open_key("a")))).id == job_id


async def test_the_limit_takes_the_oldest_ends_first(queue: Queue) -> None:
    early, late = await queue.add("early"), await queue.add("late")
    await queue.claim(ask("late", lease_s=20.0), ask("early", lease_s=10.0))
    queue.later(60)
    assert [swept.lease.job_id for swept in await queue.sweep(limit=1)] == [early]
    assert [swept.lease.job_id for swept in await queue.sweep(limit=1)] == [late]


async def test_all_fates_in_one_sweep(queue: Queue) -> None:
    ids = [await queue.add(max_tries=1 if number % 3 == 0 else None) for number in range(9)]
    await queue.claim()
    await queue.cancel(ids[0], ids[1])
    queue.later(LEASE_S + 1)
    swept = await queue.sweep()
    assert [each.lease.job_id for each in swept] == ids
    expected = [State.FAILED if number % 3 == 0 else State.QUEUED for number in range(9)]
    expected[:2] = [State.CANCELLED, State.CANCELLED]
    assert [each.state for each in swept] == expected == await queue.states(ids)


async def test_a_swept_job_may_be_asked_for_at_once(queue: Queue) -> None:
    """S19: what dead holders held counts against nothing."""
    await queue.enqueue_many([NewJob("work") for _ in range(5)])
    await queue.claim(holder=OTHER)
    queue.later(LEASE_S + 1)
    await queue.sweep()
    assert len(await queue.claim()) == 5


async def test_a_claim_whose_answer_was_lost_takes_no_try(queue: Queue) -> None:
    known = await queue.add()
    lease = await queue.take(known)
    lost = await queue.add(max_tries=1)
    lost_lease = await queue.take(lost)
    others = await queue.add()
    await queue.take(others, holder=OTHER)
    assert await queue.disown(known) == 1
    assert await queue.states([known, lost, others]) == [State.LEASED] * 3
    assert await queue.renew(lease, lost_lease) == {known: False}
    assert await queue.sweep() == [Swept(lost_lease, "work", HOLDER, State.QUEUED, 0)]
    assert (await queue.row(lost)).tries == 0


async def test_a_disowning_that_comes_late_leaves_what_was_claimed_since(queue: Queue) -> None:
    asked = queue.now
    queue.later(1)
    job_id = await queue.add()
    lease = await queue.take(job_id)
    assert await queue.disown(before=asked) == 0
    assert await queue.renew(lease) == {job_id: False}


async def test_disowning_again_takes_no_second_try(queue: Queue) -> None:
    job_id = await queue.add()
    await queue.end(await queue.take(job_id), Outcome.RETRY)
    await queue.take(job_id)
    assert [await queue.disown(), await queue.disown()] == [1, 0]
    assert (await queue.row(job_id)).tries == 1


async def test_a_released_last_try_is_no_last_try(queue: Queue) -> None:
    job_id = await queue.add(max_tries=1)
    await queue.back(await queue.take(job_id))
    lease = await queue.take(job_id)
    assert await queue.end(lease, Outcome.DONE) is State.DONE
