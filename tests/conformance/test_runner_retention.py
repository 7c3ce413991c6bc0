"""What gateways remove, in pieces, and what they keep; time moves by hand."""

from collections.abc import AsyncIterator

import pytest

from rota.errors import JobNotFound
from rota.lease import Lease
from rota.runners.io.devices import Devices
from rota.runners.io.retention import Retention
from rota.runners.io.usage import UsageBook
from rota.runners.records import AuditNote, End, RunnerJob
from tests.conformance.test_runner_store import Fleet, fleet

__all__ = ["fleet"]

DAY_S = 86_400.0


@pytest.fixture
async def retention(fleet: Fleet) -> AsyncIterator[Retention]:
    fetch = fleet.store.database.fetch
    yield Retention(fleet.store.database, keep_s=7 * DAY_S, keep_failed_s=30 * DAY_S, audit_s=365 * DAY_S)
    await fetch("DELETE FROM rota.retention")


async def ended(fleet: Fleet, state: str = "done", **options: str) -> RunnerJob:
    job = await fleet.add(**options)
    lease = (await fleet.one(job_types=(job.job_type,))).lease
    assert await fleet.store.end([End(lease, state)], now=fleet.now)
    return job


async def test_ended_jobs_go_with_their_facts_and_sessions_and_usage_stays(fleet: Fleet, retention: Retention) -> None:
    done, failed = await ended(fleet), await ended(fleet, "failed")
    waits = await fleet.add()
    held = await fleet.add(job_type="video.analyze.extract")
    lease = (await fleet.one(job_types=("video.analyze.extract",))).lease
    fleet.later(8 * DAY_S)
    # Nobody has recorded what they used.
    assert await retention.prune_jobs(now=fleet.now) == 0
    await fleet.store.database.fetch(
        "UPDATE rota.runner_jobs SET accepted_at = $1 WHERE job_id = $2", fleet.now, done.id
    )
    await UsageBook(fleet.store.database).record(now=fleet.now)
    assert await retention.prune_jobs(now=fleet.now) == 1
    with pytest.raises(JobNotFound):
        await fleet.store.job(done.id)
    fetch = fleet.store.database.fetch
    assert not await fetch("SELECT FROM rota.runner_sessions WHERE job_id = $1", done.id)
    assert not await fetch("SELECT FROM rota.ended_jobs WHERE id = $1", done.id)
    assert await fetch("SELECT FROM rota.usage_records WHERE job_id = $1", done.id)
    assert await fleet.state(failed) == "Failed"
    fleet.later(23 * DAY_S)
    assert await retention.prune_jobs(now=fleet.now) == 1
    assert await fleet.state(waits) == "Queued" and await fleet.state(held) == "Assigned"
    assert lease == Lease(held.id, 1)


async def test_jobs_go_a_piece_at_a_time_the_oldest_first(fleet: Fleet, retention: Retention) -> None:
    jobs = [await ended(fleet) for _ in range(5)]
    await UsageBook(fleet.store.database).record(now=fleet.now)
    fleet.later(8 * DAY_S)
    assert [await retention.prune_jobs(limit=2, now=fleet.now) for _ in range(4)] == [2, 2, 1, 0]
    assert len(jobs) == 5


async def test_a_kind_with_a_rule_of_its_own_is_left_to_workers(fleet: Fleet, retention: Retention) -> None:
    job = await ended(fleet)
    await UsageBook(fleet.store.database).record(now=fleet.now)
    await fleet.store.database.fetch("INSERT INTO rota.retention (kind, keep_s) VALUES ($1, 1)", job.job_type)
    fleet.later(400 * DAY_S)
    assert await retention.prune_jobs(now=fleet.now) == 0


async def test_facts_go_when_workers_have_removed_their_jobs(fleet: Fleet, retention: Retention) -> None:
    job, stays = await fleet.add(), await fleet.add()
    await fleet.store.cancel([job.id], now=fleet.now)
    fleet.later(7200)
    assert await retention.prune_facts(now=fleet.now) == 0
    await fleet.store.database.fetch("DELETE FROM rota.ended_jobs")
    assert await retention.prune_facts(now=fleet.now) == 1
    with pytest.raises(JobNotFound):
        await fleet.store.job(job.id)
    assert await fleet.state(stays) == "Queued"


async def test_the_audit_trail_is_cut_at_its_old_end(fleet: Fleet, retention: Retention) -> None:
    devices = Devices(fleet.store.database)
    for number in range(5):
        await devices.note([AuditNote("acme", f"event {number}")], now=fleet.now)
        fleet.later(100 * DAY_S)
    # 500, 400, 300, 200 and 100 days old now.
    assert [await retention.prune_audit(limit=1, now=fleet.now) for _ in range(3)] == [1, 1, 0]
    assert [row.event for row in await devices.audit("acme")] == ["event 4", "event 3", "event 2"]


async def test_nonces_go_after_ten_minutes_in_pieces(fleet: Fleet, retention: Retention) -> None:
    devices = Devices(fleet.store.database)
    for number in range(3):
        await devices.use_nonces([("d", f"n{number}")], now=fleet.now)
    fleet.later(239)
    assert await retention.tidy(now=fleet.now) == 0  # the protocol asks for 240 s at least
    await devices.use_nonces([("d", "young")], now=fleet.now)
    fleet.later(400)
    assert [await retention.tidy(limit=2, now=fleet.now) for _ in range(3)] == [2, 1, 0]
    assert not await devices.use_nonces([("d", "young")], now=fleet.now)


async def test_a_round_removes_everything_that_is_due(fleet: Fleet, retention: Retention) -> None:
    fetch = fleet.store.database.fetch
    fleet.later(-400 * DAY_S)
    jobs = [await ended(fleet) for _ in range(3)]
    await UsageBook(fleet.store.database).record()
    # The ids of these jobs are of today, as nobody makes them with a clock of last year.
    for number, job in enumerate(jobs):
        old = f"01900000-0000-7000-8000-00000000000{number}"
        for table, column in (("runner_jobs", "job_id"), ("ended_jobs", "id"), ("runner_sessions", "job_id")):
            await fetch(f"UPDATE rota.{table} SET {column} = $2::text::uuid WHERE {column} = $1", job.id, old)
    await Devices(fleet.store.database).use_nonces([("d", "n")], now=fleet.now)
    await retention.remove(batch=2)
    for table in ("runner_jobs", "ended_jobs", "runner_sessions", "runner_audit", "runner_nonces"):
        assert not await fetch(f"SELECT FROM rota.{table}"), table
