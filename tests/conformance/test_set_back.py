"""A clock that is set back (set_back): nobody waits until it has caught up, and no holder loses any of its lease."""

from datetime import timedelta

from rota.queue.job import Ask, NewJob, Outcome, State
from rota.queue.limits import Limits, Rate
from rota.queue.server import LIVE_S
from tests.conformance.queues import HOLDER, LEASE_S, MAX_TRIES, OTHER, Queue
from tests.conformance.test_servers import HERE, THERE, serve, servers

HOUR_S = 3600.0


async def set_back(queue: Queue, seconds: float = HOUR_S) -> tuple[int, int]:
    queue.now -= timedelta(seconds=seconds)
    brought: tuple[int, int] = await queue.call("set_back", now=queue.now)
    return brought


async def test_a_lease_from_ahead_is_counted_from_now(queue: Queue) -> None:
    job_id = await queue.add()
    queue.later(HOUR_S)
    lease = await queue.take(job_id, lease_s=20.0)
    assert await set_back(queue) == (1, 0)
    row = await queue.row(job_id)
    assert (row.state, row.leased_by, row.heartbeat_at, row.lease_until) == (
        State.LEASED, HOLDER, queue.now, queue.at(20.0),
    )  # fmt: skip
    queue.later(19.0)
    assert await queue.sweep() == [], "its holder may count on as much as it was promised"
    assert await queue.renew(lease, lease_s=20.0) == {job_id: False}
    queue.later(21.0)
    assert [swept.lease for swept in await queue.sweep()] == [lease]


async def test_a_lease_of_now_stays_as_it_is(queue: Queue) -> None:
    job_id = await queue.add()
    queue.later(4.0)
    await queue.take(job_id)
    heartbeat_at = queue.now
    assert await set_back(queue, 4.0) == (0, 0), "that is no more than what runs at once may differ by"
    assert (await queue.row(job_id)).heartbeat_at == heartbeat_at


async def test_a_job_that_was_due_at_once_is_due(queue: Queue) -> None:
    queue.later(HOUR_S)
    date = queue.at(9.0)
    at_once, delayed, dated, other = [
        job.id
        for job in await queue.enqueue_many(
            [NewJob("work"), NewJob("work", delay_s=60.0), NewJob("work", run_after=date), NewJob("other")]
        )
    ]
    taken = await queue.take(other, kind="other")
    assert await set_back(queue) == (1, 1)
    assert [job.id for job in await queue.claim(kind="work")] == [at_once]
    assert (await queue.row(delayed)).run_after == queue.at(HOUR_S + 60.0)
    assert (await queue.row(dated)).run_after == date
    assert await queue.end(taken) is State.DONE


async def test_a_job_that_went_back_keeps_its_time(queue: Queue) -> None:
    job_id = await queue.add()
    queue.later(HOUR_S)
    lease = await queue.take(job_id)
    await queue.end(lease, Outcome.RETRY, wait_s=30.0)
    assert await set_back(queue) == (0, 0)
    assert (await queue.row(job_id)).run_after == queue.at(HOUR_S + 30.0)


async def test_what_a_rate_counted_ahead_is_forgotten(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("work") for _ in range(6)])
    asked = Ask("work", 100, LEASE_S, MAX_TRIES, limits=Limits(rate=Rate(2, 60.0)))

    async def started() -> int:
        return len(await queue.call("claim_turns", [asked], holder=HOLDER, now=queue.now))

    queue.later(HOUR_S)
    assert await started() == 2
    queue.now -= timedelta(seconds=HOUR_S)
    assert await started() == 0
    assert await set_back(queue, 0.0) == (2, 0)
    assert await started() == 2


async def test_a_server_that_ended_ahead_is_not_live_for_ever(queue: Queue) -> None:
    await serve(queue, HERE)
    queue.later(300.0)
    await serve(queue, THERE)
    await set_back(queue, 300.0)
    seen = {row.holder: row.seen_at for row in await servers(queue)}
    assert seen == {HOLDER: queue.now, OTHER: queue.now}
    queue.later(LIVE_S + 1)
    assert not any(row.live for row in await servers(queue))
