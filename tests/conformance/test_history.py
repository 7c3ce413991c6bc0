"""What is kept of a job beside its row: tries, overlap, log lines, retention by kind; results, and retries in bulk."""

from dataclasses import replace
from datetime import timedelta

import pytest

from rota.lease import Lease
from rota.queue.history import LOG_RUNS_KEPT, TRIES_KEPT, LogLine, Stopped, Try, TryEnd
from rota.queue.job import Answer, Finish, Outcome, Release, State, forever_key, open_key, queued_key
from rota.queue.retention import Keep, Rule
from tests.conformance.queues import HOLDER, LEASE_S, NOBODY, OTHER, Queue, plain

# Tries


async def test_a_job_that_succeeds_at_first_leaves_no_try(queue: Queue) -> None:
    job_id = await queue.add()
    await queue.end(await queue.take(job_id))
    assert await queue.tries(job_id) == []


@pytest.mark.parametrize(
    ("outcome", "how", "ended"),
    [
        (Outcome.FAILED, None, TryEnd.FAILED),
        (Outcome.CANCELLED, None, TryEnd.CANCELLED),
        (Outcome.RETRY, None, TryEnd.RETRY),
        (Outcome.RETRY, TryEnd.STOPPED, TryEnd.STOPPED),
        (Outcome.FAILED, TryEnd.FENCED, TryEnd.FENCED),
        (Outcome.CANCELLED, TryEnd.KILLED, TryEnd.KILLED),
    ],
)
async def test_another_end_is_kept(queue: Queue, outcome: Outcome, how: TryEnd | None, ended: TryEnd) -> None:
    job_id = await queue.add()
    lease, started_at = await queue.take(job_id), queue.now
    queue.later(20)
    await queue.renew(lease)
    queue.later(5)
    await queue.end(lease, outcome, error="why", how=how)
    assert await queue.tries(job_id) == [
        Try(job_id, 1, HOLDER, started_at, queue.at(-5), queue.now, None, ended, "why", 0.0)
    ]


async def test_all_runs_are_kept_of_a_job_that_succeeds_later(queue: Queue) -> None:
    job_id = await queue.add()
    await queue.back(await queue.take(job_id))
    await queue.back(await queue.take(job_id), how=TryEnd.SNOOZED, reason="closed")
    await queue.back(await queue.take(job_id), how=TryEnd.YIELDED)
    await queue.end(await queue.take(job_id), Outcome.RETRY, error="no")
    await queue.end(await queue.take(job_id, holder=OTHER))
    kept = await queue.tries(job_id)
    assert [(one.epoch, one.ended, one.error) for one in kept] == [
        (1, TryEnd.GIVEN_BACK, None), (2, TryEnd.SNOOZED, "closed"), (3, TryEnd.YIELDED, None), (4, TryEnd.RETRY, "no"),
        (5, TryEnd.DONE, None),
    ]  # fmt: skip
    assert [one.holder for one in kept] == [HOLDER] * 4 + [OTHER]


async def test_a_batch_keeps_the_tries_of_those_that_need_it(queue: Queue) -> None:
    ids = [await queue.add() for _ in range(5)]
    leases = [job.lease for job in await queue.claim()]
    await queue.finish(
        Finish(leases[0], Outcome.DONE),
        Finish(leases[1], Outcome.FAILED, how=TryEnd.KILLED),
        Finish(leases[2], Outcome.RETRY, how=TryEnd.STOPPED),
        Finish(leases[3], Outcome.DONE),
    )
    await queue.release(Release(leases[4], how=TryEnd.YIELDED))
    kept = await queue.tries(*ids)
    assert [(one.job_id, one.ended) for one in kept] == [
        (ids[1], TryEnd.KILLED), (ids[2], TryEnd.STOPPED), (ids[4], TryEnd.YIELDED)
    ]  # fmt: skip


async def test_a_lease_that_ran_out_is_a_try_that_was_lost(queue: Queue) -> None:
    """S6: a job that kills its worker is counted when it is claimed, and fails with the reason."""
    job_id = await queue.add(max_tries=2)
    for _ in range(2):
        await queue.take(job_id)
        queue.later(LEASE_S + 10)
        await queue.sweep()
    first, second = await queue.tries(job_id)
    assert (first.ended, second.ended) == (TryEnd.LOST, TryEnd.LOST)
    assert (second.ended_at, second.stopped_at) == (queue.at(-10), None), "it ended when its lease did"
    assert (first.error or "").startswith("The lease ran out: here:1:aa wrote nothing until ")
    assert second.error == (await queue.row(job_id)).last_error == "The lease ran out on the last try"


async def test_a_cancel_without_an_answer_ends_a_try_before_its_lease_does(queue: Queue) -> None:
    job_id = await queue.add()
    await queue.take(job_id)
    await queue.cancel(job_id)
    queue.later(40)
    await queue.sweep(grace_s=30.0)
    (one,) = await queue.tries(job_id)
    assert (one.ended, one.ended_at, one.error) == (TryEnd.LOST, queue.now, "Not wanted")


async def test_what_is_refused_leaves_no_try(queue: Queue) -> None:
    job_id = await queue.add()
    old = await queue.take(job_id)
    await queue.back(old)
    new = await queue.take(job_id)
    await queue.end(old, Outcome.FAILED)
    await queue.back(old)
    assert [one.epoch for one in await queue.tries(job_id)] == [1]
    await queue.end(new, Outcome.RETRY)
    assert [one.epoch for one in await queue.tries(job_id)] == [1, 2]


async def test_only_the_last_runs_are_kept(queue: Queue) -> None:
    job_id = await queue.add()
    for _ in range(TRIES_KEPT + 3):
        await queue.back(await queue.take(job_id))
    assert [one.epoch for one in await queue.tries(job_id)] == list(range(4, TRIES_KEPT + 4))


async def test_epochs_may_grow_for_ever(queue: Queue) -> None:
    """S17: ids are uuids, and epochs, the one number that grows with each run, take more than 32 bits."""
    job_id = await queue.add()
    await queue.back(await queue.take(job_id))
    big = 2**53 + 1
    if queue.reference is not None:
        row = queue.reference._open[job_id]
        queue.reference._open[job_id] = replace(row, lease_epoch=big)
    else:
        await queue.inner.database.fetch("UPDATE rota.open_jobs SET lease_epoch = $1", big)
    lease = await queue.take(job_id)
    assert lease.epoch == big + 1
    assert await queue.renew(lease) == {job_id: False}
    assert await queue.end(lease, Outcome.FAILED) is State.FAILED
    assert [one.epoch for one in await queue.tries(job_id)] == [1, big + 1]


# Overlap


async def _taken_over(queue: Queue) -> Lease:
    """A lease of HOLDER that ran out; OTHER has run the job for ten seconds."""
    lease = await queue.take(await queue.add())
    queue.later(LEASE_S + 1)
    await queue.sweep()
    await queue.take(lease.job_id, holder=OTHER)
    queue.later(10)
    return lease


async def test_a_holder_that_stopped_in_time_has_not_overlapped(queue: Queue) -> None:
    lease = await _taken_over(queue)
    assert await queue.overlap_s() == 0
    assert await queue.stopped(Stopped(lease, 12.0)) == {lease: 0.0}
    (one,) = await queue.tries(lease.job_id)
    assert (one.stopped_at, one.ended, one.overlap_s) == (queue.at(-12), TryEnd.LOST, 0.0)
    assert await queue.overlap_s() == 0


async def test_a_holder_that_went_on_has_overlapped(queue: Queue) -> None:
    """The figure that has to stay 0 does move: beside a run that goes on, one that ended, and for as long as both."""
    lease = await _taken_over(queue)
    assert await queue.stopped(Stopped(lease, 4.0)) == {lease: 6.0}
    assert await queue.overlap_s() == 6
    assert await queue.stopped(Stopped(lease, 0.0)) == {}, "the first word stands"
    await queue.end(Lease(lease.job_id, 2), Outcome.RETRY)
    assert await queue.overlap_s() == 6
    assert [one.overlap_s for one in await queue.tries(lease.job_id)] == [6, 0]

    third = await queue.take(lease.job_id, holder=HOLDER)
    assert await queue.overlap_s() == 6, "beside itself nobody runs"
    await queue.end(third)
    other = await _taken_over(queue)
    await queue.end(Lease(other.job_id, 2))
    queue.later(100)
    assert await queue.stopped(Stopped(other, 0.0)) == {other: 10.0}
    assert await queue.overlap_s() == 16


async def test_only_the_holder_says_when_it_stopped(queue: Queue) -> None:
    lease = await _taken_over(queue)
    assert await queue.stopped(Stopped(lease, 0.0), holder=OTHER) == {}
    assert await queue.stopped(Stopped(Lease(lease.job_id, 2), 0.0)) == {}
    assert await queue.stopped(Stopped(Lease(NOBODY, 1), 0.0)) == {}
    assert await queue.stopped() == {}
    assert await queue.overlap_s() == 0


# Log lines


def line(lease: Lease, number: int, event: str = "said", *, said_at: float = 0.0, fields: str | None = None) -> LogLine:
    return LogLine(lease, number, said_at, "info", event, fields)


async def test_lines_are_kept_in_the_order_in_which_they_were_said(queue: Queue) -> None:
    first, second = await queue.add(), await queue.add()
    one, two = [job.lease for job in await queue.claim()]
    await queue.log(line(two, 1, "b1"), line(one, 2, "a2"), clock=10.0)
    await queue.log(line(one, 1, "a1", said_at=7.5, fields='{"n": 1, "wort": "日本"}'), clock=10.0)
    lines = await queue.logs(first, second, NOBODY)
    assert [(kept.job_id, kept.number, kept.event) for kept in lines] == [
        (first, 1, "a1"), (first, 2, "a2"), (second, 1, "b1")
    ]  # fmt: skip
    assert (lines[0].logged_at, lines[0].fields) == (queue.at(-2.5), plain('{"n": 1, "wort": "日本"}'))
    assert (lines[0].level, lines[0].epoch, lines[2].fields) == ("info", 1, None)
    assert [kept.event for kept in await queue.logs(first, limit=1)] == ["a2"]


async def test_lines_whose_answer_was_lost_are_kept_once(queue: Queue) -> None:
    lease = await queue.take(await queue.add())
    for event in ("first", "again"):
        await queue.log(line(lease, 1, event))
    assert [kept.event for kept in await queue.logs(lease.job_id)] == ["first"]


async def test_lines_may_come_after_the_end_and_not_after_the_job(queue: Queue) -> None:
    lease = await queue.take(await queue.add())
    await queue.end(lease)
    await queue.log(line(lease, 1), line(Lease(NOBODY, 1), 1))
    assert len(await queue.logs(lease.job_id)) == 1
    assert await queue.logs(NOBODY) == []


async def test_lines_of_the_last_runs_are_kept(queue: Queue) -> None:
    job_id = await queue.add()
    for _ in range(LOG_RUNS_KEPT + 2):
        lease = await queue.take(job_id)
        await queue.log(line(lease, 1), line(lease, 2))
        await queue.back(lease)
    assert sorted({kept.epoch for kept in await queue.logs(job_id)}) == [3, 4, 5]


# Retention


async def test_tries_and_lines_go_with_their_job(queue: Queue) -> None:
    gone, stays = await queue.add(), await queue.add()
    for lease in [job.lease for job in await queue.claim()]:
        await queue.log(line(lease, 1))
        await queue.end(lease, Outcome.FAILED)
        queue.later(60)
    assert await queue.prune(keep_s=90) == 1
    assert await queue.tries(gone) == await queue.logs(gone) == []
    assert len(await queue.tries(stays)) == len(await queue.logs(stays)) == 1


async def test_each_rule_removes_its_own(queue: Queue) -> None:
    ids = {}
    for kind in ("a", "b"):
        for outcome in (Outcome.DONE, Outcome.FAILED, Outcome.CANCELLED):
            job_id = ids[kind, outcome] = await queue.add(kind)
            await queue.end(await queue.take(job_id, kind=kind), outcome)
    queue.later(60)

    async def left() -> set[tuple[str, Outcome]]:
        rows = {row.id for row in await queue.rows()}
        return {key for key, job_id in ids.items() if job_id in rows}

    everything = set(ids)
    assert (await queue.prune_by(Rule(None, False, 61, ("a",)))).removed == 0
    pruned = await queue.prune_by(Rule(None, False, 50, ("a",)))
    assert (pruned.removed, pruned.before) == (2, queue.at(-50))
    assert await left() == everything - {("b", Outcome.DONE), ("b", Outcome.CANCELLED)}
    assert (await queue.prune_by(Rule("a", True, 50))).removed == 1
    assert await left() == {("a", Outcome.DONE), ("a", Outcome.CANCELLED), ("b", Outcome.FAILED)}
    assert (await queue.prune_by(Rule("b", False, 50))).removed == 0
    assert (await queue.prune_by(Rule(None, True, 50))).removed == 1
    assert (await queue.prune_by(Rule("a", False, 50), limit=1)).removed == 1


async def test_what_ended_before_the_last_look_is_not_read_again(queue: Queue) -> None:
    for _ in range(2):
        await queue.end(await queue.take(await queue.add()))
        queue.later(100)
    rule = Rule(None, False, 50)
    assert (await queue.prune_by(rule, since=queue.at(-150))).removed == 1
    assert (await queue.prune_by(rule, since=queue.at(-150))).removed == 0
    assert (await queue.prune_by(rule)).removed == 1


async def test_each_program_says_how_long_its_kinds_stay(queue: Queue) -> None:
    assert await queue.keep(Keep("a", 60.0), Keep("b")) == [Keep("a", 60.0)]
    assert await queue.keep(Keep("c", None, 5.0), Keep("b")) == [Keep("a", 60.0), Keep("c", None, 5.0)]
    assert await queue.keep(Keep("a", 70.0, 80.0)) == [Keep("a", 70.0, 80.0), Keep("c", None, 5.0)]
    assert await queue.keep(Keep("a")) == [Keep("c", None, 5.0)], "its program says nothing of it any more"
    assert await queue.keep() == [Keep("c", None, 5.0)]


# Results


async def test_how_jobs_stand(queue: Queue) -> None:
    waiting, running, done, failed, cancelled = [await queue.add() for _ in range(5)]
    await queue.cancel(cancelled, reason="Nobody wants it")
    leases = {job.id: job.lease for job in await queue.claim()}
    await queue.back(leases[waiting], reason="later")
    await queue.end(leases[done], result='{"n": 1}')
    await queue.end(leases[failed], Outcome.FAILED, error="no such file")
    assert await queue.results(waiting, running, done, failed, cancelled, NOBODY) == {
        waiting: Answer(State.QUEUED, None, None),
        running: Answer(State.LEASED, None, None),
        done: Answer(State.DONE, '{"n": 1}', None),
        failed: Answer(State.FAILED, None, "no such file"),
        cancelled: Answer(State.CANCELLED, None, "Nobody wants it"),
    }


# What failed, in bulk


async def test_failed_jobs_are_counted_and_named(queue: Queue) -> None:
    ids = []
    for kind in ("a", "b", "a"):
        job_id = await queue.add(kind, dedupe=open_key("k") if kind == "b" else None)
        ids.append(job_id)
        await queue.end(await queue.take(job_id, kind=kind), Outcome.FAILED)
        queue.later(100)
    done = await queue.add("a")
    await queue.end(await queue.take(done, kind="a"))
    assert await queue.failed_count() == {"a": 2, "b": 1}
    assert await queue.failed_count(kinds=["b", "c"]) == {"b": 1}
    assert await queue.failed_count(since_s=150.0) == {"a": 1}
    assert [(job.id, job.keyed) for job in await queue.failed()] == [(ids[0], False), (ids[1], True), (ids[2], False)]
    assert [job.id for job in await queue.failed(kinds=["a"], above=ids[0])] == [ids[2]]
    assert [job.id for job in await queue.failed(limit=2)] == ids[:2]
    assert [job.id for job in await queue.failed(since_s=250.0)] == ids[1:]


async def test_many_failed_jobs_run_again(queue: Queue) -> None:
    async def failed(**options: object) -> Lease:
        lease = await queue.take(await queue.add(**options))
        await queue.end(lease, Outcome.FAILED, error="no")
        return lease

    plain_ones = [(await failed()).job_id for _ in range(2)]
    once = (await failed(dedupe=forever_key("f"))).job_id
    keyed = [(await failed(dedupe=key)).job_id for key in (open_key("o"), queued_key("q"))]
    done = await queue.add()
    await queue.end(await queue.take(done))
    queue.later(60)
    again = [*plain_ones, once]
    assert await queue.retry_many(*again, *keyed, done, NOBODY) == again
    assert await queue.retry_many(*again) == []
    for job_id in again:
        row = await queue.row(job_id)
        assert (row.state, row.tries, row.run_after, row.last_error) == (State.QUEUED, 0, queue.now, "no")
        assert (row.finished_at, row.lease_epoch) == (None, 1)
    assert await queue.states([*keyed, done]) == [State.FAILED, State.FAILED, State.DONE]
    assert [job.id for job in await queue.claim()] == again
    assert len(await queue.tries(*again)) == 3, "what was is kept"


async def test_a_retry_in_bulk_wakes_who_waits(queue: Queue) -> None:
    await queue.listen()
    job_id = await queue.add()
    await queue.end(await queue.take(job_id), Outcome.FAILED)
    await queue.wait(OTHER, kinds=["work"], seconds=timedelta(hours=1).total_seconds())
    await queue.retry_many(job_id)
    assert await queue.heard() == ["work"]
