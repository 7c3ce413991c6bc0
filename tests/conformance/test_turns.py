"""Limits beyond one server: how many run in all and of one tenant, whose turn it is, and how many start in a window."""

import pytest

from rota.ids import JobId
from rota.queue.job import Ask, ClaimedJob, NewJob, Outcome, Release, State
from rota.queue.limits import Limits, Rate, last_turn
from tests.conformance.queues import HOLDER, LEASE_S, MAX_TRIES, OTHER, Queue


async def turns(
    queue: Queue, limits: Limits, *, free: int = 100, after: str | None = None, **options: object
) -> list[ClaimedJob]:
    ask = Ask("work", free, LEASE_S, MAX_TRIES, limits=limits, after=after)
    claimed: list[ClaimedJob] = await queue.call("claim_turns", [ask], now=queue.now, **{"holder": HOLDER, **options})
    return claimed


def tenants(jobs: list[ClaimedJob]) -> list[str | None]:
    return sorted((job.tenant for job in jobs), key=str)


async def test_a_claim_by_turns_writes_the_lease_as_any_other(queue: Queue) -> None:
    job_id = await queue.add(tenant="a", priority=4, max_tries=7)
    (job,) = await turns(queue, Limits(fair=True))
    assert (job.id, job.lease.epoch, job.tries, job.max_tries, job.tenant, job.priority) == (job_id, 1, 1, 7, "a", 4)
    row = await queue.row(job_id)
    assert (row.state, row.leased_by, row.lease_epoch, row.tries) == (State.LEASED, HOLDER, 1, 1)
    assert (row.started_at, row.heartbeat_at, row.lease_until) == (queue.now, queue.now, queue.at(LEASE_S))
    assert await turns(queue, Limits(fair=True)) == []


# Limits of the fleet


async def test_no_more_run_than_the_fleet_may(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("work", tenant="a") for _ in range(10)])
    limits = Limits(fleet=3)
    first = await turns(queue, limits, free=2)
    assert len(first) == 2
    assert len(await turns(queue, limits, holder=OTHER)) == 1
    assert await turns(queue, limits) == []
    await queue.end(first[0].lease)
    assert len(await turns(queue, limits)) == 1
    await queue.back(first[1].lease)
    assert len(await turns(queue, limits)) == 1


async def test_s19_a_lease_that_ran_out_does_not_count(queue: Queue) -> None:
    """S19: all slots of a kind belong to workers that died; the capacity is back at expiry, without a sweep."""
    await queue.enqueue_many([NewJob("work", tenant="a") for _ in range(8)])
    limits = Limits(fleet=2, tenant=2)
    lost = await turns(queue, limits)
    queue.later(LEASE_S - 1)
    assert await turns(queue, limits) == []
    await queue.renew(lost[0].lease)
    queue.later(1)
    assert len(await turns(queue, limits)) == 1
    assert await queue.renew(lost[1].lease) == {}
    queue.later(LEASE_S)
    assert len(await turns(queue, limits)) == 2


async def test_a_job_that_ended_and_runs_again_without_limits_takes_no_room(queue: Queue) -> None:
    """A server whose program gives the kind no limits claims as if there were none; what it holds is not counted."""
    job_id = await queue.add(tenant="a")
    (first,) = await turns(queue, Limits(tenant=1))
    assert await queue.end(first.lease, Outcome.FAILED) == State.FAILED
    await queue.call("retry", job_id, now=queue.now)
    await queue.take(job_id)
    await queue.add(tenant="a")
    assert len(await turns(queue, Limits(tenant=1))) == 1


async def test_the_order_with_a_limit_is_that_of_the_queue(queue: Queue) -> None:
    low = await queue.add(tenant="a")
    high = await queue.add(tenant="b", priority=5)
    old = await queue.add(tenant="a", run_after=queue.at(-60))
    claimed = [job.id for _ in range(3) for job in await turns(queue, Limits(fleet=3), free=1)]
    assert claimed == [high, old, low]


async def test_s18_a_job_of_the_future_takes_nobodys_turn(queue: Queue) -> None:
    """S18: one of tomorrow, of high priority and the same tenant, blocks and reserves nothing."""
    await queue.add(tenant="a", priority=9, delay_s=86_400)
    await queue.add(tenant="b", priority=9, delay_s=86_400)
    due = {await queue.add(tenant=tenant) for tenant in ("a", "a", "b")}
    for limits in (Limits(fleet=3), Limits(fair=True), Limits(tenant=2)):
        claimed = await turns(queue, limits)
        assert {job.id for job in claimed} == due, limits
        for job in claimed:
            await queue.back(job.lease)


async def test_only_jobs_of_the_lowest_priority_and_above(queue: Queue) -> None:
    ids = [await queue.add(tenant="a", priority=priority) for priority in (-3, 0, 4, 5)]
    for limits in (Limits(fleet=9), Limits(fair=True)):
        ask = Ask("work", 9, LEASE_S, MAX_TRIES, lowest=4, limits=limits)
        claimed = await queue.call("claim_turns", [ask], holder=HOLDER, now=queue.now)
        assert [job.id for job in claimed] == [ids[3], ids[2]]
        for job in claimed:
            await queue.back(job.lease)


# Turns


async def test_each_tenant_has_its_turn(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("work", tenant="a") for _ in range(50)])
    await queue.enqueue_many([NewJob("work", tenant=tenant) for tenant in ("b", "c", "c")])
    limits = Limits(fair=True)
    assert tenants(await turns(queue, limits, free=3)) == ["a", "b", "c"]
    assert tenants(await turns(queue, limits, free=4, after="c")) == ["a", "a", "a", "c"]


async def test_the_first_job_of_a_tenant_waits_for_its_turn_only(queue: Queue) -> None:
    """However many jobs another tenant has queued."""
    await queue.enqueue_many([NewJob("work", tenant="a", priority=9) for _ in range(200)])
    limits, last = Limits(fair=True), None
    for _ in range(3):
        (job,) = await turns(queue, limits, free=1, after=last)
        last = last_turn([job.tenant], after=last)
    await queue.add(tenant="z")
    (job,) = await turns(queue, limits, free=1, after=last)
    assert job.tenant == "z"


async def test_turns_go_round_behind_the_last(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("work", tenant=tenant) for tenant in ("b", "d", "f") for _ in range(2)])
    limits = Limits(fair=True)
    seen: list[str | None] = []
    last: str | None = "c"
    for _ in range(6):
        (job,) = await turns(queue, limits, free=1, after=last)
        last = last_turn([job.tenant], after=last)
        seen.append(job.tenant)
    assert seen == ["d", "f", "b", "d", "f", "b"]
    assert await turns(queue, limits, free=1, after=last) == []


async def test_jobs_without_a_tenant_have_a_turn_of_their_own(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("work", tenant=tenant) for tenant in ("a", None, "", "b", None)])
    limits = Limits(fair=True, tenant=1)
    assert [job.tenant or None for job in await turns(queue, limits, free=1, after="b")] == [None]
    assert [job.tenant or None for job in await turns(queue, limits, free=1, after=None)] == ["a"]
    left = [job.tenant or None for job in await turns(queue, limits, free=9, after="a")]
    assert sorted(left, key=str) == [None, None, "b"]


async def test_within_a_tenant_the_order_is_that_of_the_queue(queue: Queue) -> None:
    low = await queue.add(tenant="a")
    high = await queue.add(tenant="a", priority=5)
    old = await queue.add(tenant="a", run_after=queue.at(-60))
    assert [(await turns(queue, Limits(fair=True), free=1))[0].id for _ in range(3)] == [high, old, low]


async def test_what_is_left_of_the_room_goes_in_equal_shares(queue: Queue) -> None:
    sizes = {"a": 40, "b": 3, "c": 40}
    await queue.enqueue_many([NewJob("work", tenant=name) for name, size in sizes.items() for _ in range(size)])
    taken = tenants(await turns(queue, Limits(fair=True), free=31))
    assert len(taken) == 31
    assert taken.count("b") == 3
    assert abs(taken.count("a") - taken.count("c")) <= 1


# Limits of tenants


async def test_no_more_of_a_tenant_run_than_it_may(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("work", tenant=tenant) for tenant in ("a", "b", None) for _ in range(5)])
    limits = Limits(tenant=2)
    first = await turns(queue, limits, free=3, after="b")
    assert len(first) == 3
    rest = await turns(queue, limits)
    assert [tenants([*first, *rest]).count(tenant) for tenant in ("a", "b", None)] == [2, 2, 5]
    assert await turns(queue, limits, holder=OTHER) == []
    done = next(job for job in [*first, *rest] if job.tenant == "b")
    await queue.end(done.lease)
    assert tenants(await turns(queue, limits, holder=OTHER)) == ["b"]


async def test_a_tenant_at_its_limit_does_not_keep_others_out(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("work", tenant="a", priority=9) for _ in range(1200)])
    limits = Limits(tenant=1)
    assert tenants(await turns(queue, limits)) == ["a"]
    await queue.add(tenant="b")
    assert tenants(await turns(queue, limits)) == ["b"]


async def test_both_limits_hold(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("work", tenant=name) for name in "abcd" for _ in range(5)])
    limits = Limits(fleet=5, tenant=2)
    claimed = await turns(queue, limits)
    assert len(claimed) == 5
    assert max(tenants(claimed).count(name) for name in "abcd") == 2


# Rates


async def starts(queue: Queue, rate: Rate, **options: object) -> int:
    return len(await turns(queue, Limits(rate=rate), **options))  # type: ignore[arg-type]


async def test_no_more_start_in_a_window_than_the_rate_says(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("work") for _ in range(60)])
    rate = Rate(10, per_s=60)
    assert await starts(queue, rate, free=6) == 6
    queue.later(30)
    assert await starts(queue, rate) == 4
    queue.later(29)
    assert await starts(queue, rate) == 0
    queue.later(3)  # the slices of the first have left the window
    assert await starts(queue, rate) == 6
    queue.later(30)
    assert await starts(queue, rate) == 4
    queue.later(600)
    assert await starts(queue, rate) == 10
    assert await starts(queue, rate, holder=OTHER) == 0


async def test_no_window_holds_more_whenever_it_begins(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("work") for _ in range(80)])
    rate, started = Rate(7, per_s=10), []
    for _ in range(150):
        queue.later(0.3)
        started += [queue.now] * await starts(queue, rate, free=2)
    for first in started:
        assert sum(1 for other in started if 0 <= (other - first).total_seconds() < 10) <= 7
    assert len(started) > 24  # nearly seven in each of 4.5 windows


async def test_a_job_that_is_given_back_unbegun_has_not_started(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("work") for _ in range(9)])
    limits = Limits(rate=Rate(4, per_s=60))
    claimed = await turns(queue, limits)
    queue.later(5)
    assert await turns(queue, limits) == []
    released = [Release(job.lease, unstart_s=60.0) for job in claimed[:2]] + [Release(claimed[2].lease)]
    await queue.release(*released)
    assert len(await turns(queue, limits)) == 2


async def test_a_start_is_taken_back_once(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("work") for _ in range(9)])
    limits = Limits(rate=Rate(4, per_s=60))
    leases = [job.lease for job in await turns(queue, limits)]
    for _ in range(2):
        await queue.call("unstart", leases[:1], per_s=60.0)
    assert len(await turns(queue, limits)) == 1
    assert (await queue.row(leases[0].job_id)).state is State.LEASED
    assert await queue.end(leases[0], Outcome.DONE) is State.DONE


async def test_taking_back_a_start_that_was_not_counted_makes_no_room(queue: Queue) -> None:
    """The kind had no rate when the job was claimed."""
    await queue.enqueue_many([NewJob("work") for _ in range(9)])
    (claimed,) = await queue.call("claim", [Ask("work", 1, LEASE_S, MAX_TRIES)], holder=HOLDER, now=queue.now)
    assert await queue.call("unstart", [claimed.lease], per_s=60.0) == [claimed.id]
    assert len(await turns(queue, Limits(rate=Rate(4, per_s=60)))) == 4


async def test_kinds_have_rates_of_their_own(queue: Queue) -> None:
    await queue.enqueue_many([NewJob(kind) for kind in ("work", "play") for _ in range(3)])
    asks = [Ask(kind, 9, LEASE_S, MAX_TRIES, limits=Limits(rate=Rate(2))) for kind in ("work", "play")]
    claimed = await queue.call("claim_turns", asks, holder=HOLDER, now=queue.now)
    assert sorted(job.kind for job in claimed) == ["play", "play", "work", "work"]


# Claims that know where the line begins: see also tests/unit/queue/test_marks.py


async def test_a_claim_takes_no_job_below_the_lowest_priority(queue: Queue) -> None:
    ids: list[JobId] = [await queue.add(priority=priority) for priority in (-3, 0, 4, 5)]
    claimed = await queue.call("claim", [Ask("work", 9, LEASE_S, MAX_TRIES, lowest=4)], holder=HOLDER, now=queue.now)
    assert [job.id for job in claimed] == [ids[3], ids[2]]


@pytest.mark.parametrize("lowest", [None, -(2**31), 2**31 - 1])
async def test_the_lowest_priority_may_be_any(queue: Queue, lowest: int | None) -> None:
    await queue.add(priority=2**31 - 1)
    claimed = await queue.call(
        "claim", [Ask("work", 9, LEASE_S, MAX_TRIES, lowest=lowest)], holder=HOLDER, now=queue.now
    )
    assert len(claimed) == 1
