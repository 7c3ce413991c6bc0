"""Follow-ups, rows that run again, ends of one job alone, families, moves, and what is more urgent than what runs."""

import json

import pytest

from rota.lease import Lease
from rota.queue.job import Finish, Full, NewJob, Outcome, Retried, State, open_key, queued_key
from tests.conformance.queues import LEASE_S, NOBODY, OTHER, Queue, ask

# Follow-ups


async def test_follow_ups_come_with_the_success(queue: Queue) -> None:
    job_id = await queue.add()
    follow_ups = (NewJob("next", payload='{"n": 1}', parent_id=job_id), NewJob("next", priority=5, delay_s=10.0))
    state = await queue.end(await queue.take(job_id), result="1", follow_ups=follow_ups)
    assert state is State.DONE
    later, first, done = await queue.rows()
    assert (done.id, done.state, done.result) == (job_id, State.DONE, "1")
    assert (first.kind, first.parent_id, json.loads(first.payload or "")) == ("next", job_id, {"n": 1})
    assert (later.priority, later.run_after) == (5, queue.at(10))


async def test_no_follow_up_of_a_lost_lease(queue: Queue) -> None:
    """I3: nothing said under an older epoch changes anything, nor adds anything."""
    job_id = await queue.add()
    old = await queue.take(job_id)
    queue.later(LEASE_S + 1)
    await queue.sweep()
    new = await queue.take(job_id, holder=OTHER)
    follow_ups = (NewJob("next"),)
    assert await queue.end(old, follow_ups=follow_ups) is None
    assert [row.kind for row in await queue.rows()] == ["work"]
    assert await queue.end(new, follow_ups=follow_ups) is State.DONE
    assert [row.kind for row in await queue.rows()] == ["next", "work"]


async def test_ends_with_and_without_follow_ups_in_one_batch(queue: Queue) -> None:
    ids = [await queue.add() for _ in range(4)]
    leases = {job.id: job.lease for job in await queue.claim()}
    states = await queue.finish(
        Finish(leases[ids[0]], Outcome.DONE),
        Finish(leases[ids[1]], Outcome.DONE, follow_ups=(NewJob("next"),)),
        Finish(leases[ids[2]], Outcome.RETRY, error="no"),
        Finish(leases[ids[3]], Outcome.AGAIN, follow_ups=(NewJob("next"), NewJob("next"))),
        Finish(Lease(NOBODY, 1), Outcome.DONE, follow_ups=(NewJob("nobody's"),)),
    )
    assert states == dict(zip(ids, [State.DONE, State.DONE, State.QUEUED, State.QUEUED], strict=True))
    assert sorted(row.kind for row in await queue.rows()) == ["next"] * 3 + ["work"] * 4


async def test_a_job_may_be_followed_by_one_with_its_own_key(queue: Queue) -> None:
    job_id = await queue.add(dedupe=open_key("k"))
    queue.later(1)
    await queue.end(await queue.take(job_id), follow_ups=(NewJob("work", dedupe=open_key("k")),))
    assert [row.state for row in await queue.rows()] == [State.QUEUED, State.DONE]


async def test_what_was_cancelled_before_its_end_was_written_has_no_follow_ups(queue: Queue) -> None:
    job_id = await queue.add()
    lease = await queue.take(job_id)
    await queue.cancel(job_id)
    assert await queue.end(lease, result="1", follow_ups=(NewJob("next"),)) is State.CANCELLED
    (row,) = await queue.rows()
    assert (row.state, row.result, row.last_error) == (State.CANCELLED, None, "Not wanted")


# The row that requeues itself


async def test_the_same_row_runs_again_with_its_tries_at_0(queue: Queue) -> None:
    job_id = await queue.add()
    await queue.end(await queue.take(job_id), Outcome.RETRY, error="no", wait_s=0.0)
    lease = await queue.take(job_id)
    assert await queue.end(lease, Outcome.AGAIN, wait_s=60.0, progress='{"page": 3}') is State.QUEUED
    row = await queue.row(job_id)
    assert (row.tries, row.last_error, row.run_after, row.lease_epoch) == (0, None, queue.at(60), 2)
    assert json.loads(row.progress or "") == {"page": 3}
    assert len(await queue.rows()) == 1
    queue.later(60)
    (job,) = await queue.claim()
    assert (job.tries, job.lease.epoch) == (1, 3)


async def test_a_full_page_runs_again_at_once(queue: Queue) -> None:
    job_id = await queue.add(dedupe=open_key("one row"))
    for _ in range(3):
        assert await queue.end(await queue.take(job_id), Outcome.AGAIN) is State.QUEUED
    assert (await queue.row(job_id)).run_after == queue.now


async def test_a_row_that_somebody_cancelled_does_not_run_again(queue: Queue) -> None:
    job_id = await queue.add()
    lease = await queue.take(job_id)
    await queue.cancel(job_id)
    assert await queue.end(lease, Outcome.AGAIN) is State.CANCELLED


async def test_a_row_whose_twin_waits_does_not_run_again(queue: Queue) -> None:
    job_id = await queue.add(dedupe=queued_key("k"))
    lease = await queue.take(job_id)
    await queue.add(dedupe=queued_key("k"))
    assert await queue.end(lease, Outcome.AGAIN, keyed=True) is State.DONE


# One end alone


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.FAILED, Outcome.CANCELLED])
async def test_one_end_alone_is_as_the_end_of_many(queue: Queue, outcome: Outcome) -> None:
    alone, among = await queue.add(tenant="t", priority=2), await queue.add(tenant="t", priority=2)
    options = {"error": "so", "result": '{"a": [1]}' if outcome is Outcome.DONE else None, "progress": '{"p": 1}'}
    lease = await queue.take(alone)
    assert await queue.end_alone(lease, outcome=outcome, **options) == {alone: State(outcome)}
    await queue.end(await queue.take(among), outcome, **options)
    first, second = [await queue.row(job_id) for job_id in (alone, among)]
    blank = {name: None for name in ("id", "created_at", "run_after", "started_at", "heartbeat_at")}
    plain = [structs_of(row) | blank for row in (first, second)]
    assert plain[0] == plain[1]
    assert await queue.end_alone(lease, outcome=outcome) == {}


def structs_of(row: object) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__slots__}  # type: ignore[attr-defined]


async def test_one_end_alone_is_fenced(queue: Queue) -> None:
    job_id = await queue.add()
    old = await queue.take(job_id)
    queue.later(LEASE_S + 1)
    await queue.sweep()
    new = await queue.take(job_id)
    assert await queue.end_alone(old) == {}
    other = await queue.take(await queue.add())
    # What is refused takes nothing from its neighbours, and leaves nothing of theirs with it.
    assert await queue.end_alone(other, old, new) == {other.job_id: State.DONE, job_id: State.DONE}
    assert await queue.end_alone() == {}


async def test_tries_of_ends_alone_are_kept_as_those_of_many(queue: Queue) -> None:
    jobs = [await queue.add() for _ in range(2)]
    first = [await queue.take(job_id) for job_id in jobs]
    queue.later(LEASE_S + 1)
    await queue.sweep()
    again = await queue.claim(ask(free=2))
    await queue.end_alone(next(job.lease for job in again if job.id == jobs[0]))
    await queue.end(next(job.lease for job in again if job.id == jobs[1]))
    kept = await queue.tries(*jobs)
    told = {job_id: [(one.epoch, one.ended) for one in kept if one.job_id == job_id] for job_id in jobs}
    assert told[jobs[0]] == told[jobs[1]] and len(told[jobs[0]]) == len(first)


# Families


async def test_cancelling_a_parent_cancels_what_it_added_only_when_asked(queue: Queue) -> None:
    parent = await queue.add()
    child = await queue.add(parent_id=parent)
    assert await queue.cancel(parent) == {parent: State.CANCELLED}
    assert (await queue.row(child)).state is State.QUEUED
    assert await queue.cancel(parent, children=True) == {child: State.CANCELLED}


async def test_descendants_are_cancelled_through_jobs_that_have_ended(queue: Queue) -> None:
    parent = await queue.add()
    done = await queue.add("other", parent_id=parent)
    await queue.end(await queue.take(done, kind="other"))
    queued = await queue.add("other", parent_id=done)
    running = await queue.add("run", parent_id=queued)
    await queue.take(running, kind="run")
    stranger = await queue.add()
    await queue.listen()
    states = await queue.cancel(parent, children=True)
    assert states == {parent: State.CANCELLED, queued: State.CANCELLED, running: State.LEASED}
    assert await queue.heard() == ["!here:1:aa"]
    assert (await queue.row(stranger)).state is State.QUEUED
    assert (await queue.row(running)).cancel_asked_at == queue.now


# Cancelled, but not known to have stopped


async def test_asking_to_cancel_never_moves_the_lease(queue: Queue) -> None:
    """S30: the job ends by the grace, and what may still run is not started again before its lease would have ended."""
    job_id = await queue.add()
    lease = await queue.take(job_id)
    until = (await queue.row(job_id)).lease_until
    queue.later(10)
    await queue.cancel(job_id)
    assert (await queue.row(job_id)).lease_until == until
    queue.later(16)
    (swept,) = await queue.sweep(grace_s=15.0)
    assert (swept.lease, swept.state) == (lease, State.CANCELLED)
    assert await queue.retry(job_id) == Retried(job_id, "queued")
    assert (await queue.row(job_id)).run_after == until, "I2: its silent holder may run it until then"
    assert await queue.claim() == []


async def test_what_its_holder_cancelled_may_start_at_once(queue: Queue) -> None:
    job_id = await queue.add()
    lease = await queue.take(job_id)
    await queue.cancel(job_id)
    assert await queue.end(lease, Outcome.CANCELLED) is State.CANCELLED
    await queue.retry(job_id)
    assert len(await queue.claim()) == 1


# Moves


async def test_move(queue: Queue) -> None:
    first, second = await queue.add(), await queue.add()
    assert await queue.move(second, priority=9) == {second: State.QUEUED}
    assert [job.id for job in await queue.claim(free=1)] == [second]
    assert await queue.move(first, delay_s=60.0) == {first: State.QUEUED}
    assert (await queue.row(first)).run_after == queue.at(60)
    await queue.move(first, run_after=queue.at(30), priority=-1)
    row = await queue.row(first)
    assert (row.run_after, row.priority) == (queue.at(30), -1)
    assert await queue.claim() == []


async def test_move_leaves_alone_what_runs_or_has_ended(queue: Queue) -> None:
    running, ended = await queue.add(), await queue.add()
    await queue.cancel(ended)
    await queue.take(running)
    assert await queue.move(running, ended, NOBODY, priority=9) == {running: State.LEASED}
    assert (await queue.row(running)).priority == 0


async def test_a_move_to_now_wakes_who_waits(queue: Queue) -> None:
    job_id = await queue.add(delay_s=60.0)
    await queue.wait(OTHER, kinds=["work"], seconds=60)
    await queue.listen()
    await queue.move(job_id, priority=3)
    assert await queue.heard() == []
    await queue.move(job_id, delay_s=0.0)
    assert await queue.heard() == ["work"]


# What is more urgent


async def test_a_look_tells_what_is_more_urgent_than_what_fills_the_slots(queue: Queue) -> None:
    for priority in (1, 5, 5, 9):
        await queue.add(priority=priority)
    await queue.add(priority=20, delay_s=60.0)
    await queue.add("other", priority=7)

    async def urgent(*full: Full) -> dict[str, list[int]]:
        return (await queue.poll("other", full=full)).urgent

    assert await urgent() == {}
    assert await urgent(Full("work", running=2, lowest=1)) == {"work": [9, 5]}
    assert await urgent(Full("work", running=9, lowest=1)) == {"work": [9, 5, 5]}
    assert await urgent(Full("work", running=2, lowest=5)) == {"work": [9]}
    assert await urgent(Full("work", running=2, lowest=9)) == {}
    assert await urgent(Full("work", 1, 8), Full("other", 1, 0), Full("none", 1, 0)) == {"work": [9], "other": [7]}


# Batches


async def test_a_batch_has_one_follow_up_when_all_have_ended(queue: Queue) -> None:
    then = NewJob("sum", payload='{"of": "a"}', priority=4, tenant="t", max_tries=7)
    batch_id, ids = await queue.add_batch(*[NewJob("work", max_tries=1)] * 5, then=then)
    leases = {job.id: job.lease for job in await queue.claim()}
    await queue.end(leases[ids[0]])
    await queue.end(leases[ids[1]], Outcome.FAILED, error="no")
    await queue.end(leases[ids[2]], Outcome.RETRY, wait_s=0.0)
    assert (await queue.batch(batch_id)).open == 3
    await queue.cancel(ids[2], ids[3])
    queue.later(20)
    await queue.sweep(grace_s=15.0)
    assert await queue.close_batches() == {}
    queue.later(LEASE_S)
    await queue.sweep()
    status = await queue.batch(batch_id)
    assert (status.jobs, status.open, status.done, status.failed, status.cancelled) == (5, 0, 1, 2, 2)
    assert status.ended_at == queue.now and status.then_id is not None
    follow_up = await queue.row(status.then_id)
    assert (follow_up.kind, follow_up.priority, follow_up.tenant, follow_up.max_tries) == ("sum", 4, "t", 7)
    assert json.loads(follow_up.payload or "") == {
        "of": "a",
        "batch": {"id": str(batch_id), "jobs": 5, "done": 1, "failed": 2, "cancelled": 2, "expired": 0},
    }
    # Whatever happens to its jobs now, there is no second one.
    await queue.retry(ids[1])
    await queue.end(await queue.take(ids[1]))
    assert await queue.close_batches() == {}
    assert (await queue.batch(batch_id)).done == 1
    assert [row.kind for row in await queue.rows()].count("sum") == 1


@pytest.mark.parametrize("way", ["finish", "one", "follow", "twin", "cancel", "sweep"])
async def test_whatever_ends_the_last_job_closes_the_batch(queue: Queue, way: str) -> None:
    key = queued_key("k") if way == "twin" else None
    batch_id, (job_id,) = await queue.add_batch(NewJob("work", dedupe=key, max_tries=1), then=NewJob("sum"))
    lease = await queue.take(job_id)
    match way:
        case "finish":
            await queue.end(lease)
        case "one":
            await queue.end_alone(lease)
        case "follow":
            await queue.end(lease, follow_ups=(NewJob("next"),))
        case "twin":
            await queue.add(dedupe=key)
            await queue.back(lease, keyed=True)
        case "cancel":
            await queue.back(lease)
            await queue.cancel(job_id)
        case "sweep":
            queue.later(LEASE_S + 1)
            await queue.sweep()
    assert (await queue.batch(batch_id)).then_id is not None


async def test_a_batch_without_a_follow_up_or_without_jobs(queue: Queue) -> None:
    silent, (job_id,) = await queue.add_batch(NewJob("work"))
    await queue.end(await queue.take(job_id))
    status = await queue.batch(silent)
    assert (status.ended_at, status.then_id) == (queue.now, None)
    empty, _ = await queue.add_batch(then=NewJob("sum", payload="[1]"))
    closed = await queue.close_batches(empty)
    assert list(closed) == [empty]
    (row,) = await queue.show(closed[empty])  # type: ignore[arg-type]
    assert json.loads(row.payload or "") == [1], "only an object can take the counts"


async def test_jobs_of_an_open_batch_outlive_their_retention(queue: Queue) -> None:
    batch_id, _ = await queue.add_batch(NewJob("work"), NewJob("work"), then=NewJob("sum"))
    first, second = await queue.claim()
    await queue.end(first.lease)
    queue.later(100)
    assert await queue.prune(keep_s=50) == 0
    await queue.end(second.lease)
    assert (await queue.batch(batch_id)).done == 2
    assert await queue.prune(keep_s=50) == 1
    queue.later(100)
    assert await queue.prune(keep_s=50) == 1
    assert await queue.call("prune_batches", keep_s=50, now=queue.now) == 1
    assert await queue.call("prune_batches", keep_s=50, now=queue.now) == 0
