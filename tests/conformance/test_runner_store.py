"""Runner jobs in PostgreSQL: what is created, claimed, renewed, ended, reaped; time moves by hand."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from rota.errors import JobNotFound, OrganisationDisabled
from rota.io.postgres import Database, Target
from rota.lease import Lease
from rota.runners.io.devices import Devices
from rota.runners.io.store import RunnerStore
from rota.runners.records import (
    DESKTOP,
    OUTPUT_BYTES_OTHER,
    POOL,
    Assigned,
    Back,
    End,
    NewRunnerJob,
    RunnerAsk,
    RunnerJob,
    Waiting,
    idempotency_key,
)
from tests.conformance.queues import empty

TABLES = (
    "runner_jobs", "runner_sessions", "runner_rejections", "runner_audit", "runner_devices", "pairing_codes",
    "pool_credentials", "runner_nonces", "gateways", "usage_records", "disabled_organisations",
)  # fmt: skip


class Fleet:
    """The store with a clock that stands still until the test moves it."""

    def __init__(self, store: RunnerStore) -> None:
        self.store = store
        self.now = datetime.now(UTC).replace(microsecond=0)
        self._made = 0

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    async def add(self, org: str = "acme", target: str = POOL, **options: Any) -> RunnerJob:
        self._made += 1
        self.later(0.001)
        new = NewRunnerJob(
            options.pop("key", f"key {self._made}"), target, org, options.pop("job_type", "video.compile"),
            options.pop("execution", f"execution {self._made}"), options.pop("spec", {"n": self._made}), **options,
        )  # fmt: skip
        job, created = await self.store.create(new, now=self.now)
        assert created
        return job

    async def claim(
        self, runner: str = "pool:a", org: str | None = None, *, cap: int | None = None, **options: Any
    ) -> list[Assigned]:
        ask = RunnerAsk(
            runner, POOL if org is None else DESKTOP, org, options.pop("job_types", ("video.compile",)),
            options.pop("digest", None), options.pop("fontset", (2025, 1)), options.pop("size", 10**12), **options,
        )  # fmt: skip
        return await self.store.claim(ask, instance="gateway-1", org_cap=cap, now=self.now)

    async def one(self, runner: str = "pool:a", org: str | None = None, **options: Any) -> Assigned:
        found = await self.claim(runner, org, **options)
        assert len(found) == 1
        return found[0]

    async def state(self, job: RunnerJob | Assigned) -> str:
        job_id = job.id if isinstance(job, RunnerJob) else job.lease.job_id
        return (await self.store.job(job_id)).shown_state


@pytest.fixture
async def fleet(stored: Target) -> AsyncIterator[Fleet]:
    database = Database(stored, size=4)
    await database.start()
    try:
        await empty(database)
        for table in TABLES:
            await database.fetch(f"DELETE FROM rota.{table}")
        yield Fleet(RunnerStore(database))
    finally:
        await database.stop()


async def test_s91_twenty_creates_of_one_key_give_one_job(fleet: Fleet) -> None:
    key = idempotency_key("e", "s", "0", "compile")
    new = NewRunnerJob(key, POOL, "acme", "video.compile", "e", {"mode": "Reencode"})
    answers = await asyncio.gather(*(fleet.store.create(new) for _ in range(20)))
    assert len({job.id for job, _ in answers}) == 1
    assert [created for _, created in answers].count(True) == 1
    assert await fleet.store.demand() == [Waiting(POOL, "acme", "video.compile", None, None, OUTPUT_BYTES_OTHER, 1)]


async def test_s92_the_same_key_with_another_spec_gives_the_first_job_unchanged(fleet: Fleet) -> None:
    first = await fleet.add(key="k", spec={"a": 1})
    again, created = await fleet.store.create(NewRunnerJob("k", DESKTOP, "other", "x", "e", {"b": 2}))
    assert not created and again == first and again.spec == {"a": 1} and again.shown_state == "Queued"
    with pytest.raises(JobNotFound):
        await fleet.store.job(uuid4())


async def test_a_desktop_gets_jobs_of_its_organisation_and_the_pool_all_of_the_pool(fleet: Fleet) -> None:
    pooled = await fleet.add("acme", POOL)
    own = await fleet.add("acme", DESKTOP)
    foreign = await fleet.add("other", DESKTOP)
    assert [job.lease.job_id for job in await fleet.claim("device", "acme", free=9)] == [own.id]
    assert [job.lease.job_id for job in await fleet.claim("pool:a", free=9)] == [pooled.id]
    assert await fleet.state(foreign) == "Queued"


async def test_only_what_the_runner_has_is_assigned(fleet: Fleet) -> None:
    typed = await fleet.add(job_type="remotion.workspace-session", runtime_digest="sha256:aa")
    fonts = await fleet.add(fontset_version="2025.10", fontset_key=(2025, 10))
    large = await fleet.add(output_bytes_max=2000)
    remotion = ("remotion.workspace-session",)
    assert await fleet.claim(job_types=remotion) == []
    assert await fleet.claim(job_types=remotion, digest="sha256:bb") == []
    assert [j.lease.job_id for j in await fleet.claim(job_types=remotion, digest="sha256:aa")] == [typed.id]
    assert await fleet.claim(fontset=(2025, 9), size=1999, free=9) == []
    assert [j.lease.job_id for j in await fleet.claim(fontset=(2025, 9), free=9)] == [large.id]
    assert [j.lease.job_id for j in await fleet.claim(fontset=(2026,), size=10**12, free=9)] == [fonts.id]


async def test_order_is_priority_then_fair_share_then_creation_and_a_cap_holds(fleet: Fleet) -> None:
    a = [await fleet.add("a") for _ in range(4)]
    b = await fleet.add("b")
    urgent = await fleet.add("b", priority=5)
    assert (await fleet.one()).lease.job_id == urgent.id
    assert (await fleet.one()).lease.job_id == a[0].id  # each has one slot or none: a comes first by creation
    assert [job.lease.job_id for job in await fleet.claim(cap=2, free=9)] == [a[1].id, b.id]
    assert await fleet.claim(cap=2, free=9) == []  # two of each run
    assert len(await fleet.claim(cap=3, free=9)) == 1


async def test_replicas_that_claim_together_do_not_pass_the_cap(fleet: Fleet) -> None:
    for _ in range(6):
        await fleet.add("a")
    found = await asyncio.gather(*(fleet.claim(f"pool:{n}", cap=2) for n in range(6)))
    assert sum(map(len, found)) == 2
    # A claim waits for the one before, whose jobs it has to count.
    database = fleet.store.database
    async with database.transaction() as conn:
        await fleet.store._fetch("lock_pool.sql", conn=conn)
        next_one = asyncio.create_task(fleet.claim("pool:7"))
        waits = "SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        async with asyncio.timeout(30):
            while (await database.fetch(waits))[0]["n"] == 0:
                assert not next_one.done()
                await asyncio.sleep(0.01)
    assert len(await next_one) == 1


async def test_life_of_a_job(fleet: Fleet) -> None:
    job = await fleet.add()
    given = await fleet.one()
    assert (given.lease.epoch, given.tries, given.accepted, given.left_s) == (1, 1, False, job.timeout_s)
    assert await fleet.state(job) == "Assigned"
    session = await fleet.store.session(given.session_id, now=fleet.now)
    assert session is not None and session.held and session.gateway_instance == "gateway-1"
    assert await fleet.store.accept(given.lease, now=fleet.now)
    assert await fleet.state(job) == "Running"
    fleet.later(44)
    assert await fleet.store.renew({given.lease: "pool:a"}, now=fleet.now) == {job.id: False}
    fleet.later(44)
    assert await fleet.store.progress(given.lease, {"stage": "encode"})
    assert await fleet.store.end([End(given.lease, "done", result='{"ok": true}')], now=fleet.now) == {job.id: "done"}
    ended = await fleet.store.job(job.id)
    assert (ended.shown_state, ended.result, ended.session_id) == ("Succeeded", {"ok": True}, given.session_id)
    session = await fleet.store.session(given.session_id)
    assert session is not None and session.closed_at is not None and not session.held
    assert await fleet.store.end([End(given.lease, "failed")], now=fleet.now) == {}


async def test_a_row_that_a_transaction_holds_keeps_no_other_runner_waiting(fleet: Fleet) -> None:
    jobs = [await fleet.add() for _ in range(2)]
    leases = [(await fleet.one(runner)).lease for runner in ("pool:a", "pool:b")]
    beats = dict(zip(leases, ("pool:a", "pool:b"), strict=True))
    async with fleet.store.database.transaction() as conn:
        await conn.execute("UPDATE rota.open_jobs SET priority = 7 WHERE id = $1", jobs[0].id)
        assert await fleet.store.renew(beats, now=fleet.now) == {jobs[0].id: None, jobs[1].id: False}
        assert await fleet.store.renew({leases[0]: "pool:b"}, now=fleet.now) == {}, "of another runner: it is lost"
    assert await fleet.store.renew(beats, now=fleet.now) == dict.fromkeys((job.id for job in jobs), False)


async def test_nothing_under_an_old_epoch_or_of_another_runner_changes_a_job(fleet: Fleet) -> None:
    job = await fleet.add()
    old = (await fleet.one()).lease
    assert await fleet.store.renew({old: "pool:b"}, now=fleet.now) == {}
    assert await fleet.store.release([Back(old, "busy", rejected_by="pool:a")], now=fleet.now) == {job.id: "queued"}
    assert (await fleet.store.job(job.id)).tries == 0
    assert await fleet.claim("pool:a") == []  # it rejected the job a moment ago
    new = (await fleet.one("pool:b")).lease
    assert new.epoch == 2
    assert not await fleet.store.accept(old, now=fleet.now)
    assert await fleet.store.renew({old: "pool:a"}, now=fleet.now) == {}
    assert await fleet.store.end([End(old, "done")], now=fleet.now) == {}
    assert await fleet.store.release([Back(old, "late")], now=fleet.now) == {}
    assert not await fleet.store.progress(old, {})
    assert await fleet.store.resume([("pool:a", old)], instance="gateway-2", now=fleet.now) == {}
    assert await fleet.state(job) == "Assigned"
    await fleet.store.release([Back(new, "busy", rejected_by="pool:b")], now=fleet.now)
    fleet.later(31)
    assert (await fleet.one("pool:a")).lease.epoch == 3


async def test_a_job_that_the_gateway_asks_to_leave_out_is_left_out(fleet: Fleet) -> None:
    job = await fleet.add()
    assert await fleet.claim(without=(UUID(str(job.id)),)) == []


async def test_a_runner_that_comes_back_in_time_keeps_its_job_at_the_new_replica(fleet: Fleet) -> None:
    job = await fleet.add()
    given = await fleet.one()
    await fleet.store.accept(given.lease, now=fleet.now)
    fleet.later(30)
    # In the same statement as somebody else, who says that it holds the same lease.
    both = [("pool:b", given.lease), ("pool:a", given.lease), ("pool:c", given.lease)]
    kept = await fleet.store.resume(both, instance="gateway-2", now=fleet.now)
    assert list(kept) == ["pool:a"]
    assert [(one.lease, one.accepted, one.session_id) for one in kept["pool:a"]] == [
        (given.lease, True, given.session_id)
    ]
    session = await fleet.store.session(given.session_id, now=fleet.now)
    assert session is not None and session.gateway_instance == "gateway-2"
    fleet.later(46)
    assert await fleet.store.resume([("pool:a", given.lease)], instance="gateway-1", now=fleet.now) == {}
    assert await fleet.store.renew({given.lease: "pool:a"}, now=fleet.now) == {}
    assert await fleet.state(job) == "Running"  # until the reaper comes


async def test_the_reaper_expires_sessions_and_requeues_one_shot_jobs(fleet: Fleet) -> None:
    session = await fleet.add()
    shot = await fleet.add(one_shot=True)
    assert len(await fleet.claim(free=2)) == 2
    assert await fleet.store.reap(now=fleet.now) == {}
    fleet.later(46)
    assert await fleet.store.reap(now=fleet.now) == {session.id: "expired", shot.id: "queued"}
    expired = await fleet.store.job(session.id)
    assert (expired.shown_state, expired.failure_class, expired.failure_code) == ("Expired", "platform", "session_lost")
    again = await fleet.one()
    assert (again.lease.job_id, again.tries) == (shot.id, 2)
    fleet.later(46)
    assert await fleet.store.reap(now=fleet.now) == {shot.id: "failed"}
    assert (await fleet.store.job(shot.id)).failure_class == "platform"


async def test_a_lease_that_its_gateway_gives_up_is_treated_as_run_out(fleet: Fleet) -> None:
    job = await fleet.add()
    given = await fleet.one()
    assert await fleet.store.expire(given.lease, now=fleet.now) == {job.id: "expired"}
    assert await fleet.store.expire(given.lease, now=fleet.now) == {}


async def test_cancel(fleet: Fleet) -> None:
    waits, runs = await fleet.add(), await fleet.add()
    assert await fleet.store.cancel([waits.id], now=fleet.now) == {waits.id: "cancelled"}
    given = await fleet.one()
    assert await fleet.store.cancel([waits.id, runs.id], now=fleet.now) == {runs.id: "leased"}
    assert await fleet.store.cancels("gateway-1") == {given.lease: "user"}
    assert await fleet.store.cancels("gateway-2") == {}
    assert await fleet.store.renew({given.lease: "pool:a"}, now=fleet.now) == {runs.id: True}
    fleet.later(9)
    assert await fleet.store.reap(now=fleet.now) == {}
    fleet.later(2)
    assert await fleet.store.reap(now=fleet.now) == {runs.id: "cancelled"}  # S56: nobody answered within the grace
    assert await fleet.store.end([End(given.lease, "done")], now=fleet.now) == {}


async def test_a_job_that_is_given_back_after_a_cancel_ends(fleet: Fleet) -> None:
    job = await fleet.add()
    given = await fleet.one()
    await fleet.store.cancel([job.id], now=fleet.now)
    assert await fleet.store.release([Back(given.lease, "busy")], now=fleet.now) == {job.id: "cancelled"}


async def test_jobs_of_an_execution_end_with_it(fleet: Fleet) -> None:
    # A queue job that runs is the execution: its id binds the runner jobs to this try.
    database = fleet.store.database
    rows = await database.fetch(
        "INSERT INTO rota.open_jobs (id, kind, payload, state, lease_epoch, leased_by, lease_until) "
        "VALUES (gen_random_uuid(), 'render', '{}', 'leased', 3, 'h', now() + interval '1 day') RETURNING id"
    )
    execution = rows[0]["id"]
    waits = await fleet.add(execution=str(execution))
    runs = await fleet.add(execution=str(execution), priority=1)
    given = await fleet.one()
    assert given.lease.job_id == runs.id
    assert await fleet.store.reap(now=fleet.now) == {}
    await database.fetch("UPDATE rota.open_jobs SET lease_epoch = 4 WHERE id = $1", execution)
    assert await fleet.store.reap(now=fleet.now) == {waits.id: "cancelled", runs.id: "leased"}
    assert await fleet.store.cancels("gateway-1") == {given.lease: "execution_ended"}


@pytest.mark.parametrize("over", ["queued again", "ended"])
async def test_a_job_that_comes_after_the_end_of_its_execution_ends_too(fleet: Fleet, over: str) -> None:
    """Its engine asked for it while its try ended: nobody will open a session with it."""
    database = fleet.store.database
    rows = await database.fetch(
        "INSERT INTO rota.open_jobs (id, kind, payload, state, lease_epoch) "
        "VALUES (gen_random_uuid(), 'render', '{}', 'queued', 3) RETURNING id"
        if over == "queued again"
        else "INSERT INTO rota.ended_jobs (id, kind, payload, state, lease_epoch, priority, tries, max_tries, place, "
        "run_after, created_at, finished_at) "
        "VALUES (gen_random_uuid(), 'render', '{}', 'done', 3, 0, 1, 1, 'worker', now(), now(), now()) RETURNING id"
    )
    late = await fleet.add(execution=str(rows[0]["id"]))
    assert await fleet.store.reap(now=fleet.now) == {late.id: "cancelled"}


async def test_an_engine_ends_an_execution_of_its_own(fleet: Fleet) -> None:
    jobs = [await fleet.add(execution="theirs") for _ in range(3)]
    await fleet.one()
    answer = await fleet.store.cancel_execution("theirs", now=fleet.now)
    assert sorted(answer.values()) == ["cancelled", "cancelled", "leased"] and set(answer) == {job.id for job in jobs}


async def test_one_session_of_an_execution_is_open_at_a_time(fleet: Fleet) -> None:
    first, second = await fleet.add(execution="e"), await fleet.add(execution="e")
    given = await fleet.claim(free=2)
    assert [job.session_id == job.lease.job_id for job in given] == [False, True]  # the second has no row, and runs
    assert (await fleet.store.job(first.id)).session_id == given[0].session_id
    assert (await fleet.store.job(second.id)).session_id is None
    assert await fleet.store.session(given[1].session_id) is None
    await fleet.store.end([End(one.lease, "done") for one in given], now=fleet.now)
    third = await fleet.add(execution="e")
    assert (await fleet.one()).session_id != third.id


async def test_a_session_is_closed_before_its_job_ends(fleet: Fleet) -> None:
    await fleet.add()
    given = await fleet.one()
    assert await fleet.store.close_session(given.session_id, reason="closed", now=fleet.now)
    assert not await fleet.store.close_session(given.session_id, reason="again", now=fleet.now)
    session = await fleet.store.session(given.session_id, now=fleet.now)
    assert session is not None and (session.closed_reason, session.state) == ("closed", "leased")


async def test_staging_numbers_are_never_given_twice(fleet: Fleet) -> None:
    job = await fleet.add()
    numbers = await asyncio.gather(*(fleet.store.next_staging(job.id, count=2) for _ in range(10)))
    assert sorted(numbers) == list(range(0, 20, 2))
    with pytest.raises(JobNotFound):
        await fleet.store.next_staging(uuid4())


async def test_what_is_paused_is_not_assigned(fleet: Fleet) -> None:
    await fleet.add("acme")
    pause = (
        "INSERT INTO rota.pauses (scope, name, paused_by, paused_at, until) VALUES ('tenant', 'acme', 'x', now(), NULL)"
    )
    await fleet.store.database.fetch(pause)
    assert await fleet.claim() == []


async def test_a_disabled_organisation_gets_nothing_new_and_keeps_what_it_has(fleet: Fleet) -> None:
    devices = Devices(fleet.store.database)
    held, waits = await fleet.add("acme"), await fleet.add("acme")
    theirs = await fleet.add("other")
    lease = (await fleet.one()).lease
    assert lease.job_id == held.id
    await devices.disable_org("acme", now=fleet.now)
    with pytest.raises(OrganisationDisabled, match="rota runner enable"):
        await fleet.add("acme")
    # One that is there already is still found by its key.
    same = NewRunnerJob(waits.idempotency_key, POOL, "acme", "video.compile", waits.execution_id, {})
    assert await fleet.store.create(same, now=fleet.now) == (await fleet.store.job(waits.id), False)
    assert [one.lease.job_id for one in await fleet.claim(free=5)] == [theirs.id]
    assert await fleet.store.demand() == []
    assert await fleet.store.renew({lease: "pool:a"}, now=fleet.now)
    await devices.enable_org("acme", now=fleet.now)
    assert [one.org_id for one in await fleet.store.demand()] == ["acme"]
    assert (await fleet.one()).lease.job_id == waits.id


async def test_depth_and_demand(fleet: Fleet) -> None:
    for _ in range(3):
        await fleet.add()
    await fleet.add("b", DESKTOP)
    await fleet.one()
    assert {(d.target, d.state): d.jobs for d in await fleet.store.depth()} == {
        (POOL, "queued"): 2, (POOL, "leased"): 1, (DESKTOP, "queued"): 1,
    }  # fmt: skip
    assert await fleet.store.demand() == [
        Waiting(POOL, "acme", "video.compile", None, None, OUTPUT_BYTES_OTHER, 2),
        Waiting(DESKTOP, "b", "video.compile", None, None, OUTPUT_BYTES_OTHER, 1),
    ]


async def test_gateways_know_where_the_owner_of_a_session_is(fleet: Fleet) -> None:
    await fleet.add()
    given = await fleet.one()
    before = await fleet.store.session(given.session_id)
    await fleet.store.see_gateway("gateway-1", "http://10.0.0.1:8760", now=fleet.now)
    await fleet.store.see_gateway("gateway-1", "http://10.0.0.2:8760", now=fleet.now)
    after = await fleet.store.session(given.session_id)
    assert before is not None and after is not None
    assert (before.address, after.address) == (None, "http://10.0.0.2:8760")


async def test_the_queue_leaves_runner_jobs_alone(fleet: Fleet) -> None:
    from rota.ids import Holder
    from rota.queue.io.store import Store

    await fleet.add()
    given = await fleet.one()
    store = Store(fleet.store.database)
    fleet.later(3600)
    assert await store.sweep(now=fleet.now) == []
    assert not (await store.poll([], holder=Holder("h"), now=fleet.now)).expired
    assert isinstance(given.lease, Lease) and await fleet.state(given) == "Assigned"
