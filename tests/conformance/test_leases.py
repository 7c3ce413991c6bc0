"""Renew, finish and release: what each writes, and that an older epoch changes nothing (I3)."""

from collections.abc import Awaitable, Callable

import pytest

from rota.ids import JobId
from rota.lease import Lease
from rota.queue.job import ENDED, Dedupe, Finish, NewJob, Outcome, Release, State, open_key, queued_key
from tests.conformance.queues import HOLDER, LEASE_S, NOBODY, OTHER, Queue, plain

Said = Callable[[Queue, Lease], Awaitable[bool]]


async def _renewed(queue: Queue, lease: Lease) -> bool:
    return lease.job_id in await queue.renew(lease, progress="late")


async def _finished(queue: Queue, lease: Lease) -> bool:
    return await queue.end(lease, error="late") is not None


async def _retried(queue: Queue, lease: Lease) -> bool:
    return await queue.end(lease, Outcome.RETRY, error="late") is not None


async def _released(queue: Queue, lease: Lease) -> bool:
    return await queue.back(lease, wait_s=1.0, reason="late") is not None


SAID = [_renewed, _finished, _retried, _released]


# Fencing


@pytest.mark.parametrize("said", SAID)
async def test_an_old_epoch_changes_nothing(queue: Queue, said: Said) -> None:
    job_id = await queue.add()
    old = await queue.take(job_id)
    await queue.back(old)
    new = await queue.take(job_id, holder=OTHER)
    before = await queue.rows()
    assert not await said(queue, old)
    assert not await said(queue, Lease(job_id, new.epoch + 1))
    assert await queue.rows() == before
    assert await said(queue, new)


@pytest.mark.parametrize("said", SAID)
async def test_a_job_back_in_the_queue_takes_nothing(queue: Queue, said: Said) -> None:
    job_id = await queue.add()
    lease = await queue.take(job_id)
    await queue.end(lease, Outcome.RETRY, wait_s=60.0)
    before = await queue.rows()
    assert not await said(queue, lease)
    assert await queue.rows() == before


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.FAILED, Outcome.CANCELLED])
async def test_an_ended_job_takes_nothing(queue: Queue, said: Said, outcome: Outcome) -> None:
    lease = await queue.take(await queue.add())
    await queue.end(lease, outcome)
    before = await queue.rows()
    assert not await said(queue, lease)
    assert await queue.rows() == before


@pytest.mark.parametrize("said", SAID)
async def test_a_swept_job_takes_nothing(queue: Queue, said: Said) -> None:
    lease = await queue.take(await queue.add())
    queue.later(LEASE_S + 1)
    await queue.sweep()
    before = await queue.rows()
    assert not await said(queue, lease)
    assert await queue.rows() == before


@pytest.mark.parametrize("said", SAID)
async def test_an_unknown_or_queued_job_takes_nothing(queue: Queue, said: Said) -> None:
    job_id = await queue.add()
    assert not await said(queue, Lease(NOBODY, 1))
    assert not await said(queue, Lease(job_id, 0))
    assert not await said(queue, Lease(job_id, 1))


async def test_a_stale_lease_does_not_hold_up_its_batch(queue: Queue) -> None:
    ids = [await queue.add() for _ in range(6)]
    leases = [job.lease for job in await queue.claim()]
    await queue.back(leases[1], wait_s=60.0)
    await queue.end(leases[4])
    assert set(await queue.renew(*leases)) == {ids[0], ids[2], ids[3], ids[5]}
    finished = await queue.finish(*(Finish(lease, Outcome.DONE) for lease in leases[:3]))
    assert finished == {ids[0]: State.DONE, ids[2]: State.DONE}
    released = await queue.release(*(Release(lease) for lease in leases[3:]))
    assert released == {ids[3]: State.QUEUED, ids[5]: State.QUEUED}


# Renew


async def test_renew_counts_the_lease_from_now(queue: Queue) -> None:
    job_id = await queue.add()
    lease = await queue.take(job_id)
    started = queue.now
    queue.later(100)
    assert await queue.renew(lease, lease_s=50.0, progress={"done": 1}) == {job_id: False}
    row = await queue.row(job_id)
    assert (row.lease_until, row.heartbeat_at, row.started_at) == (queue.at(50), queue.now, started)
    assert (plain(row.progress), row.state, row.tries, row.leased_by) == ('{"done": 1}', State.LEASED, 1, HOLDER)
    queue.later(49)
    await queue.renew(lease, progress=None)
    assert plain((await queue.row(job_id)).progress) == '{"done": 1}'


async def test_a_lease_that_ran_out_is_not_renewed(queue: Queue) -> None:
    """I2: nobody may come back to life after another could have begun."""
    first, second = await queue.add(), await queue.add()
    leases = [job.lease for job in await queue.claim()]
    queue.later(LEASE_S - 0.001)
    assert await queue.renew(leases[0]) == {first: False}
    queue.later(0.001)
    assert await queue.renew(*leases) == {first: False}
    assert (await queue.row(second)).lease_until == queue.now


async def test_renew_says_who_is_to_stop(queue: Queue) -> None:
    first, second = await queue.add(), await queue.add()
    leases = [job.lease for job in await queue.claim()]
    await queue.cancel(second)
    assert await queue.renew(*leases) == {first: False, second: True}


async def test_renewing_nothing_is_fine(queue: Queue) -> None:
    assert await queue.renew() == {}
    assert await queue.finish() == {}
    assert await queue.release() == {}


# Finish


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.FAILED, Outcome.CANCELLED])
async def test_finish_ends_a_job(queue: Queue, outcome: Outcome) -> None:
    job_id = await queue.add(payload='{"n": 1}', tenant="org")
    lease = await queue.take(job_id)
    await queue.renew(lease, progress=50)
    queue.later(5)
    result = '{"rows": [1, 2]}' if outcome is Outcome.DONE else None
    assert await queue.end(lease, outcome, error="why", result=result) == State(outcome)
    row = await queue.row(job_id)
    assert (row.state, row.finished_at, row.last_error) == (State(outcome), queue.now, "why")
    assert (plain(row.result), plain(row.progress), plain(row.payload)) == (result, "50", '{"n": 1}')
    assert (row.lease_until, row.leased_by, row.lease_epoch, row.tries) == (None, HOLDER, 1, 1)
    assert (row.tenant, row.cancel_asked_at, row.started_at) == ("org", None, queue.at(-5))


async def test_a_job_that_is_done_keeps_the_error_of_an_earlier_try(queue: Queue) -> None:
    job_id = await queue.add()
    await queue.end(await queue.take(job_id), Outcome.RETRY, error="first try")
    await queue.end(await queue.take(job_id), Outcome.DONE)
    assert (await queue.row(job_id)).last_error == "first try"


async def test_retry_waits_and_counts_the_try(queue: Queue) -> None:
    job_id = await queue.add()
    lease = await queue.take(job_id)
    assert await queue.end(lease, Outcome.RETRY, error="no luck", wait_s=30.0) is State.QUEUED
    row = await queue.row(job_id)
    assert (row.state, row.run_after, row.tries, row.last_error) == (State.QUEUED, queue.at(30), 1, "no luck")
    assert (row.lease_until, row.leased_by, row.lease_epoch, row.finished_at) == (None, HOLDER, 1, None)
    queue.later(29.999)
    assert await queue.claim() == []
    queue.later(0.001)
    (job,) = await queue.claim()
    assert (job.tries, job.lease.epoch) == (2, 2)


async def test_the_last_progress_goes_with_a_release(queue: Queue) -> None:
    job_id = await queue.add()
    await queue.back(await queue.take(job_id), progress="7")
    (job,) = await queue.claim()
    assert job.progress == "7"
    await queue.back(job.lease)
    assert (await queue.row(job_id)).progress == "7"
    lease = await queue.take(job_id)
    await queue.cancel(job_id)
    await queue.back(lease, progress="8")
    row = await queue.row(job_id)
    assert (row.state, row.progress) == (State.CANCELLED, "8")


async def test_an_end_after_the_lease_is_taken_while_nobody_else_has_the_job(queue: Queue) -> None:
    done, back = await queue.add(), await queue.add()
    leases = [job.lease for job in await queue.claim()]
    queue.later(10 * LEASE_S)
    assert await queue.end(leases[0]) is State.DONE
    assert await queue.back(leases[1]) is State.QUEUED
    assert await queue.states([done, back]) == [State.DONE, State.QUEUED]


# Release


async def test_release_counts_no_try_and_keeps_the_place(queue: Queue) -> None:
    first = await queue.add()
    await queue.add()
    due = (await queue.row(first)).run_after
    queue.later(60)
    for epoch in (1, 2, 3):
        lease = await queue.take(first)
        assert lease.epoch == epoch
        assert await queue.back(lease) is State.QUEUED
    row = await queue.row(first)
    assert (row.run_after, row.tries, row.last_error, row.lease_until) == (due, 0, None, None)


async def test_release_may_wait_and_say_why(queue: Queue) -> None:
    job_id = await queue.add()
    await queue.end(await queue.take(job_id), Outcome.RETRY)
    lease = await queue.take(job_id)
    assert await queue.back(lease, wait_s=12.5, reason="no licence here") is State.QUEUED
    row = await queue.row(job_id)
    assert (row.run_after, row.tries, row.last_error) == (queue.at(12.5), 1, "no licence here")


async def test_tries_count_only_runs_that_count(queue: Queue) -> None:
    """However often a job is given back in between, only the claims that count are its tries."""
    job_id = await queue.add()
    for number in (1, 2, 3):
        for _ in range(3):
            await queue.back(await queue.take(job_id))
        (job,) = await queue.claim()
        assert (job.tries, job.max_tries) == (number, 3)
        await queue.end(job.lease, Outcome.RETRY)


# A job that somebody asked to cancel


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (lambda queue, lease: queue.end(lease, Outcome.RETRY, error="stopped"), State.CANCELLED),
        (lambda queue, lease: queue.back(lease, reason="stopped"), State.CANCELLED),
        (lambda queue, lease: queue.end(lease, Outcome.DONE, error="stopped"), State.DONE),
        (lambda queue, lease: queue.end(lease, Outcome.FAILED, error="stopped"), State.FAILED),
        (lambda queue, lease: queue.end(lease, Outcome.CANCELLED, error="stopped"), State.CANCELLED),
    ],
    ids=["retry", "release", "done", "failed", "cancelled"],
)
async def test_what_was_asked_to_stop_never_goes_back(
    queue: Queue, end: Callable[[Queue, Lease], Awaitable[State]], expected: State
) -> None:
    job_id = await queue.add()
    lease = await queue.take(job_id)
    await queue.cancel(job_id)
    assert await end(queue, lease) is expected
    row = await queue.row(job_id)
    assert (row.state, row.finished_at, row.last_error) == (expected, queue.now, "stopped")


async def test_without_another_reason_the_cancels_stands(queue: Queue) -> None:
    job_id = await queue.add()
    lease = await queue.take(job_id)
    await queue.cancel(job_id, reason="The customer left")
    assert await queue.back(lease) is State.CANCELLED
    row = await queue.row(job_id)
    assert (row.last_error, row.tries) == ("The customer left", 0)


# A job whose queued twin waits


async def _with_twin(queue: Queue, key: Dedupe) -> tuple[Lease, JobId]:
    lease = await queue.take(await queue.add(dedupe=key))
    return lease, await queue.add(dedupe=key)


async def test_a_retry_with_a_queued_twin_ends_done(queue: Queue) -> None:
    lease, twin = await _with_twin(queue, queued_key("a"))
    assert await queue.end(lease, Outcome.RETRY, error="no", wait_s=9.0, keyed=True) is State.DONE
    row = await queue.row(lease.job_id)
    assert (row.state, row.finished_at, row.last_error, row.tries, row.result) == (State.DONE, queue.now, "no", 1, None)
    assert await queue.states([twin]) == [State.QUEUED]


async def test_a_release_with_a_queued_twin_ends_done(queue: Queue) -> None:
    lease, twin = await _with_twin(queue, queued_key("a"))
    assert await queue.back(lease, wait_s=9.0, reason="busy", keyed=True) is State.DONE
    row = await queue.row(lease.job_id)
    assert (row.state, row.last_error, row.tries) == (State.DONE, "busy", 0)
    assert await queue.states([twin]) == [State.QUEUED]


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.FAILED, Outcome.CANCELLED])
async def test_other_ends_do_not_look_at_twins(queue: Queue, outcome: Outcome) -> None:
    lease, twin = await _with_twin(queue, queued_key("a"))
    assert await queue.end(lease, outcome, keyed=True) == State(outcome)
    assert await queue.states([twin]) == [State.QUEUED]


async def test_a_running_or_ended_twin_does_the_work_of_nobody(queue: Queue) -> None:
    lease, twin = await _with_twin(queue, queued_key("a"))
    running = await queue.take(twin)
    assert await queue.end(lease, Outcome.RETRY, keyed=True) is State.QUEUED
    assert await queue.end(running, Outcome.RETRY, keyed=True) is State.DONE


async def test_of_two_that_go_back_together_one_waits(queue: Queue) -> None:
    lease, twin = await _with_twin(queue, queued_key("a"))
    other = await queue.take(twin)
    plain_job = await queue.take(await queue.add())
    states = await queue.finish(
        *(Finish(each, Outcome.RETRY, keyed=each is not plain_job) for each in (other, lease, plain_job))
    )
    assert states == {lease.job_id: State.QUEUED, twin: State.DONE, plain_job.job_id: State.QUEUED}


async def test_an_open_key_never_has_a_twin(queue: Queue) -> None:
    lease = await queue.take(await queue.add(dedupe=open_key("a")))
    await queue.add(dedupe=queued_key("a"))
    assert await queue.end(lease, Outcome.RETRY) is State.QUEUED


async def test_many_ends_in_one_batch(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("work") for _ in range(300)])
    leases = [job.lease for job in await queue.claim(free=300)]
    outcomes = list(Outcome)
    states = await queue.finish(
        *(Finish(lease, outcomes[number % 4], error=str(number)) for number, lease in enumerate(leases))
    )
    assert len(states) == 300
    assert sum(state in ENDED for state in states.values()) == 225
    rows = {row.id: row for row in await queue.rows()}
    for number, lease in enumerate(leases):
        row = rows[lease.job_id]
        assert (row.state, row.last_error) == (states[lease.job_id], str(number))


@pytest.mark.parametrize("said", ["end", "retry", "back"])
@pytest.mark.parametrize("stored", [None, {"page": 3}])
async def test_the_last_progress_goes_with_the_end(queue: Queue, said: str, stored: dict[str, int] | None) -> None:
    """What moved since the last heartbeat is not lost; where nothing did, what is stored stays."""
    job_id = await queue.add()
    for moved, expected in ((None, stored), ({"page": 9}, {"page": 9})):
        lease = await queue.take(job_id)
        await queue.renew(lease, progress=stored)
        text = None if moved is None else '{"page": 9}'
        if said == "end" and moved is not None:
            await queue.end(lease, progress=text)
        elif said == "retry":
            await queue.end(lease, Outcome.RETRY, progress=text)
        else:
            await queue.back(lease, progress=text)
        row = await queue.row(job_id)
        assert (None if row.progress is None else plain(row.progress)) == (
            None if expected is None else f'{{"page": {expected["page"]}}}'
        )
