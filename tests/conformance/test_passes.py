"""Passes: one open run for each, and its end writes the next (put_pass, mark_pass, run_pass, finish)."""

from datetime import datetime, timedelta

import pytest

from rota.lease import Lease
from rota.queue.job import Finish, JobRow, NewJob, Outcome, State
from rota.queue.pause import PauseScope
from rota.queue.periodic import Declared, Mark, PassRow, Put, key_of
from tests.conformance.queues import HOLDER, LEASE_S, Queue, ask, plain

NAME = "hourly"
HOUR = 3600.0
HOURLY = Declared("every 3600 s", 10)
TWO_HOURLY = Declared("every 7200 s", 20)


async def the_pass(queue: Queue, name: str = NAME) -> PassRow:
    (row,) = await queue.call("passes", name, now=queue.now)
    assert isinstance(row, PassRow)
    return row


async def put(queue: Queue, due_at: datetime, declared: Declared = HOURLY, *, seen: PassRow | None = None) -> bool:
    done: bool = await queue.call("put_pass", Put(NAME, declared, due_at, seen), now=queue.now)
    return done


async def runs(queue: Queue) -> list[JobRow]:
    """The open runs."""
    return [row for row in await queue.rows() if row.dedupe_key == key_of(NAME) and row.finished_at is None]


async def take(queue: Queue, *, free: int = 1) -> Lease:
    (job,) = await queue.claim(ask(NAME, free=free))
    return job.lease


async def end(queue: Queue, lease: Lease, outcome: Outcome = Outcome.DONE, **options: object) -> State | None:
    finish = Finish(lease, outcome, follows=NAME, keyed=True, **options)  # type: ignore[arg-type]
    return (await queue.finish(finish)).get(lease.job_id)


async def test_a_new_pass_has_one_open_run(queue: Queue) -> None:
    due_at = queue.at(HOUR)
    assert await put(queue, due_at)
    row = await the_pass(queue)
    assert (row.schedule, row.priority, row.due_at, row.extra) == (HOURLY.schedule, 10, due_at, False)
    assert (row.missing_since, row.removed_at, row.paused, row.now) == (None, None, False, queue.now)
    (run,) = await runs(queue)
    assert (row.open_id, row.open_state, row.open_run_after, row.open_tries) == (run.id, "queued", due_at, 0)
    assert (run.kind, run.priority, run.run_after, run.state) == (NAME, 10, due_at, State.QUEUED)
    assert run.payload == f'{{"due_at": "{due_at:%Y-%m-%dT%H:%M:%S}.000000Z"}}'
    assert await queue.claim(ask(NAME)) == []


async def test_two_servers_add_one_pass(queue: Queue) -> None:
    assert await put(queue, queue.at(HOUR))
    assert not await put(queue, queue.at(2 * HOUR))
    assert [run.run_after for run in await runs(queue)] == [queue.at(HOUR)]


async def test_the_end_of_a_run_writes_the_next(queue: Queue) -> None:
    due_at = queue.at(HOUR)
    await put(queue, due_at)
    queue.later(HOUR + 60)
    lease = await take(queue)
    queue.later(60)
    assert await end(queue, lease, result="1") is State.DONE
    (run,) = await runs(queue)
    # Due from when this run was due, not from when it ran.
    assert run.run_after == due_at + timedelta(hours=1)
    assert (run.state, run.tries, run.priority) == (State.QUEUED, 0, 10)
    row = await the_pass(queue)
    assert (row.due_at, row.open_id) == (run.run_after, run.id)
    done = await queue.row(lease.job_id)
    assert (done.state, plain(done.result)) == (State.DONE, "1")


async def test_missed_runs_collapse_into_one(queue: Queue) -> None:
    """Also for a run that took longer than its interval."""
    due_at = queue.at(HOUR)
    await put(queue, due_at)
    queue.later(5.5 * HOUR)
    lease = await take(queue, free=5)
    queue.later(HOUR)
    await end(queue, lease)
    (run,) = await runs(queue)
    assert run.run_after == queue.at(0.5 * HOUR)
    assert await queue.claim(ask(NAME)) == []


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELLED])
async def test_a_run_that_fails_has_a_next_one(queue: Queue, outcome: Outcome) -> None:
    await put(queue, queue.at(HOUR))
    queue.later(HOUR)
    await end(queue, await take(queue), outcome, error="why")
    (run,) = await runs(queue)
    assert (run.run_after, run.state, run.last_error) == (queue.at(HOUR), State.QUEUED, None)


async def test_a_failed_try_is_the_same_run_later(queue: Queue) -> None:
    due_at = queue.at(HOUR)
    await put(queue, due_at)
    queue.later(HOUR)
    lease = await take(queue)
    assert await end(queue, lease, Outcome.RETRY, error="why", wait_s=30.0) is State.QUEUED
    (run,) = await runs(queue)
    assert (run.id, run.run_after, run.tries) == (lease.job_id, queue.at(30), 1)
    assert (await the_pass(queue)).due_at == due_at
    queue.later(30)
    await end(queue, await take(queue))
    (run,) = await runs(queue)
    assert run.run_after == queue.at(HOUR - 30)


async def test_an_end_under_an_old_epoch_writes_nothing(queue: Queue) -> None:
    await put(queue, queue.at(0))
    lease = await take(queue)
    queue.later(LEASE_S + 1)
    await queue.sweep()
    newer = await take(queue)
    assert await end(queue, lease) is None
    (run,) = await runs(queue)
    assert (run.id, run.state, run.lease_epoch) == (lease.job_id, State.LEASED, newer.epoch)
    assert await end(queue, newer) is State.DONE
    assert len(await runs(queue)) == 1


async def test_the_run_of_a_pass_that_was_removed_is_the_last(queue: Queue) -> None:
    await put(queue, queue.at(0))
    lease = await take(queue)
    await queue.call("mark_pass", Mark(NAME, missing=True, removed=True), now=queue.now)
    assert await end(queue, lease) is State.DONE
    assert await runs(queue) == []
    assert (await the_pass(queue)).removed_at == queue.now


async def test_runs_beside_other_jobs(queue: Queue) -> None:
    await put(queue, queue.at(0))
    other = await queue.add("work")
    lease, plain_lease = await take(queue), await queue.take(other)
    states = await queue.finish(
        Finish(lease, Outcome.DONE, follows=NAME, keyed=True), Finish(plain_lease, Outcome.DONE)
    )
    assert states == {lease.job_id: State.DONE, other: State.DONE}
    assert len(await runs(queue)) == 1


async def test_a_job_of_its_kind_that_somebody_added_is_no_run(queue: Queue) -> None:
    due_at = queue.at(HOUR)
    await put(queue, due_at)
    (run,) = await runs(queue)
    added = await queue.add(NAME)
    lease = await take(queue)
    assert lease.job_id == added
    assert await end(queue, lease) is State.DONE
    assert [(row.id, row.run_after) for row in await runs(queue)] == [(run.id, due_at)]
    assert (await the_pass(queue)).due_at == due_at


async def test_a_run_may_add_jobs_with_its_success(queue: Queue) -> None:
    await put(queue, queue.at(0))
    lease = await take(queue)
    assert await end(queue, lease, follow_ups=(NewJob("work"),)) is State.DONE
    assert [row.kind for row in await queue.rows() if row.finished_at is None and row.kind == "work"] == ["work"]
    assert [run.run_after for run in await runs(queue)] == [queue.at(HOUR)]


async def test_a_run_that_runs_again_is_the_same_row(queue: Queue) -> None:
    """Seed: a pass that looks every few seconds keeps one row; its tries begin anew."""
    due_at = queue.at(0)
    await put(queue, due_at)
    lease = await take(queue)
    assert await end(queue, lease, Outcome.AGAIN, wait_s=30.0) is State.QUEUED
    (run,) = await runs(queue)
    assert (run.id, run.tries, run.run_after) == (lease.job_id, 0, queue.at(30))
    assert (await the_pass(queue)).due_at == due_at


# Changes of the code


async def test_a_change_moves_a_run_that_waits(queue: Queue) -> None:
    await put(queue, queue.at(HOUR))
    (before,) = await runs(queue)
    seen = await the_pass(queue)
    assert await put(queue, queue.at(2 * HOUR), TWO_HOURLY, seen=seen)
    (run,) = await runs(queue)
    assert (run.id, run.run_after, run.priority) == (before.id, queue.at(2 * HOUR), 20)
    row = await the_pass(queue)
    assert (row.schedule, row.priority, row.due_at) == (TWO_HOURLY.schedule, 20, queue.at(2 * HOUR))
    # What was decided on the row as it was before is not written.
    assert not await put(queue, queue.at(HOUR), HOURLY, seen=seen)


async def test_a_change_leaves_a_run_that_is_due_or_begun(queue: Queue) -> None:
    due_at = queue.at(0)
    await put(queue, due_at)
    assert await put(queue, due_at, TWO_HOURLY, seen=await the_pass(queue))
    (run,) = await runs(queue)
    assert (run.run_after, run.priority) == (due_at, 10)
    lease = await take(queue)
    assert await put(queue, due_at, HOURLY, seen=await the_pass(queue))
    assert (await queue.row(lease.job_id)).state is State.LEASED
    await end(queue, lease)
    (run,) = await runs(queue)
    assert run.run_after == queue.at(HOUR)


@pytest.mark.parametrize("counted", [True, False])
async def test_a_change_leaves_a_run_that_waits_for_something_else(queue: Queue, counted: bool) -> None:
    """For its next try, or because it asked to."""
    due_at = queue.at(0)
    await put(queue, due_at)
    lease = await take(queue)
    if counted:
        await end(queue, lease, Outcome.RETRY, wait_s=600.0)
    else:
        await queue.back(lease, wait_s=600.0)
    assert await put(queue, due_at, TWO_HOURLY, seen=await the_pass(queue))
    (run,) = await runs(queue)
    assert (run.id, run.run_after, run.priority) == (lease.job_id, queue.at(600), 10)


async def test_a_pass_without_a_run_gets_one(queue: Queue) -> None:
    await put(queue, queue.at(HOUR))
    (run,) = await runs(queue)
    await queue.cancel(run.id)
    row = await the_pass(queue)
    assert (row.open_id, row.open_state, row.open_run_after, row.open_tries) == (None, None, None, None)
    assert await put(queue, queue.at(2 * HOUR), seen=row)
    assert [run.run_after for run in await runs(queue)] == [queue.at(2 * HOUR)]


async def test_missing_found_and_removed(queue: Queue) -> None:
    await put(queue, queue.at(HOUR))
    since = queue.now
    await queue.call("mark_pass", Mark(NAME, missing=True), now=queue.now)
    queue.later(60)
    await queue.call("mark_pass", Mark(NAME, missing=True), now=queue.now)
    row = await the_pass(queue)
    assert (row.missing_since, row.removed_at) == (since, None)
    await queue.call("mark_pass", Mark(NAME, missing=False), now=queue.now)
    assert (await the_pass(queue)).missing_since is None
    await queue.call("mark_pass", Mark(NAME, missing=True, removed=True), now=queue.now)
    row = await the_pass(queue)
    assert (row.missing_since, row.removed_at) == (queue.now, queue.now)
    assert await put(queue, queue.at(HOUR), seen=row)
    row = await the_pass(queue)
    assert (row.missing_since, row.removed_at) == (None, None)
    await queue.call("mark_pass", Mark("unknown", missing=True), now=queue.now)


# Runs that a person asks for


async def test_a_run_now_leaves_the_one_that_is_to_come(queue: Queue) -> None:
    await queue.listen()
    await queue.wait(HOLDER, kinds=[NAME], seconds=3600)
    due_at = queue.at(HOUR)
    await put(queue, due_at)
    (run,) = await runs(queue)
    queue.later(60)
    assert await queue.call("run_pass", NAME, now=queue.now) == (run.id, State.QUEUED)
    assert await queue.heard() == [NAME]
    row = await the_pass(queue)
    assert (row.due_at, row.extra, row.open_run_after) == (due_at, True, queue.now)
    lease = await take(queue)
    assert await queue.call("run_pass", NAME, now=queue.now) == (run.id, State.LEASED)
    await end(queue, lease)
    (following,) = await runs(queue)
    assert following.run_after == due_at
    row = await the_pass(queue)
    assert (row.due_at, row.extra) == (due_at, False)


async def test_a_run_now_of_one_that_is_due_is_that_one(queue: Queue) -> None:
    await put(queue, queue.at(0))
    (run,) = await runs(queue)
    queue.later(1)
    assert await queue.call("run_pass", NAME, now=queue.now) == (run.id, State.QUEUED)
    row = await the_pass(queue)
    assert not row.extra and row.open_run_after == queue.at(-1)


async def test_a_run_now_where_none_is_open(queue: Queue) -> None:
    await put(queue, queue.at(HOUR))
    (run,) = await runs(queue)
    await queue.cancel(run.id)
    new_id, state = await queue.call("run_pass", NAME, now=queue.now)
    assert new_id != run.id and state is State.QUEUED
    await end(queue, await take(queue))
    assert [run.run_after for run in await runs(queue)] == [queue.at(HOUR)]


async def test_no_run_of_what_is_no_pass(queue: Queue) -> None:
    assert await queue.call("run_pass", NAME, now=queue.now) is None
    await put(queue, queue.at(HOUR))
    await queue.call("mark_pass", Mark(NAME, missing=True, removed=True), now=queue.now)
    assert await queue.call("run_pass", NAME, now=queue.now) is None


async def test_a_paused_pass_says_so(queue: Queue) -> None:
    await put(queue, queue.at(HOUR))
    await queue.call("pause", PauseScope.KIND, NAME, paused_by="me", now=queue.now)
    assert (await the_pass(queue)).paused
    await queue.call("resume", PauseScope.KIND, NAME, now=queue.now)
    assert not (await the_pass(queue)).paused
    await queue.call("pause", PauseScope.ALL, paused_by="me", now=queue.now)
    assert (await the_pass(queue)).paused


async def test_a_future_run_holds_up_nothing(queue: Queue) -> None:
    """S18: with the highest priority and a key, due tomorrow, beside ten jobs of its kind that are due now."""
    await put(queue, queue.at(86_400))
    ids = [await queue.add(NAME) for _ in range(10)]
    assert [job.id for job in await queue.claim(ask(NAME, free=10))] == ids
