"""Limits beyond one server, with several who claim at once, and the worker that obeys them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from random import Random

import asyncpg
import pytest

import rota
from rota.ids import Holder
from rota.io.postgres import Database, Target
from rota.queue.io import claim_loop
from rota.queue.io.claims import Claims
from rota.queue.io.store import Store
from rota.queue.job import Ask, ClaimedJob, Finish, NewJob, Outcome, Release, State
from rota.queue.limits import Limits, Rate, last_turn
from tests.integration.test_worker import Bench, made_bench, until, working

CLAIMERS = 6
LEASE_S = 300.0
TENANTS = ("a", "b", "c", "d", None)


@pytest.fixture
async def database(any_migrated_dsn: str) -> AsyncIterator[Database]:
    database = Database(Target(any_migrated_dsn), size=CLAIMERS)
    await database.start()
    try:
        yield database
    finally:
        await database.stop()


class Fleet:
    """Servers that claim, finish and give back at random, and what runs on all of them."""

    def __init__(self, store: Store, limits: Limits, *, seed: int) -> None:
        self.store = store
        self.limits = limits
        self.random = Random(seed)
        self.live: Counter[str | None] = Counter()
        self.most = 0
        self.ended = 0
        self.started = 0

    async def serve(self, name: int, *, rounds: int) -> None:
        held: list[ClaimedJob] = []
        last: str | None = None
        for _ in range(rounds):
            ask = Ask("work", self.random.randint(1, 4), LEASE_S, 100, limits=self.limits, after=last)
            claimed = await self.store.claim_turns([ask], holder=Holder(f"here:{name}:aa"))
            last = last_turn((job.tenant for job in claimed), after=last)
            self.live.update(job.tenant for job in claimed)
            self.started += len(claimed)
            self.check()
            held += claimed
            self.random.shuffle(held)
            leaving, held = held[: (count := self.random.randint(0, len(held)))], held[count:]
            self.live.subtract(job.tenant for job in leaving)
            half = len(leaving) // 2
            await self.store.finish(Finish(job.lease, Outcome.DONE) for job in leaving[:half])
            await self.store.release(Release(job.lease) for job in leaving[half:])
            self.ended += half
            await asyncio.sleep(0)
        self.live.subtract(job.tenant for job in held)
        await self.store.release(Release(job.lease) for job in held)

    def check(self) -> None:
        """What the database knows as running is at least what is counted here: never more than the limits say."""
        self.most = max(self.most, self.live.total())
        if self.limits.fleet is not None:
            assert self.live.total() <= self.limits.fleet
        if self.limits.tenant is not None:
            assert max((jobs for tenant, jobs in self.live.items() if tenant), default=0) <= self.limits.tenant


@pytest.mark.parametrize(
    ("limits", "seed"), [(Limits(fleet=5), 1), (Limits(tenant=2), 2), (Limits(fleet=7, tenant=2, fair=True), 3)]
)
async def test_limits_are_never_exceeded_whoever_claims(database: Database, limits: Limits, seed: int) -> None:
    fleet = Fleet(Store(database), limits, seed=seed)
    await fleet.store.enqueue_many([NewJob("work", tenant=TENANTS[n % 5]) for n in range(400)])
    async with asyncio.timeout(60):
        await asyncio.gather(*(fleet.serve(name, rounds=80) for name in range(CLAIMERS)))
    assert fleet.ended > 10
    assert fleet.most == limits.fleet or limits.fleet is None


async def test_a_rate_is_never_exceeded_whoever_claims(database: Database) -> None:
    fleet = Fleet(Store(database), Limits(rate=Rate(37, per_s=3600)), seed=4)
    await fleet.store.enqueue_many([NewJob("work") for _ in range(200)])
    async with asyncio.timeout(60):
        await asyncio.gather(*(fleet.serve(name, rounds=15) for name in range(CLAIMERS)))
    assert fleet.started == 37


async def test_a_tenant_waits_for_its_turn_beside_a_hundred_thousand_jobs_of_another(database: Database) -> None:
    """peers 41: one tenant's backlog blocks nobody, and a claim does not read it."""
    await database.fetch(
        "INSERT INTO rota.open_jobs (id, kind, payload, tenant, priority) "
        "SELECT (rota.uuid_v7_head(now(), n) || rota.uuid_v7_tail())::uuid, 'work', '{}', 'big', 9 "
        "FROM generate_series(1, 100000) AS n"
    )
    await database.fetch("ANALYZE rota.open_jobs")
    store = Store(database)
    claims = Claims(store, holder=Holder("here:1:aa"))
    ask = Ask("work", 1, LEASE_S, 3, limits=Limits(fair=True))
    assert [job.tenant for _ in range(3) for job in await claims.take([ask])] == ["big"] * 3
    await store.enqueue_many([NewJob("work", tenant=f"small-{n}") for n in range(3)])
    turns = [job.tenant for _ in range(5) for job in await claims.take([ask])]
    assert turns == ["small-0", "small-1", "small-2", "big", "big"]


async def test_the_statements_within_the_function_walk_their_index(migrated_dsn: str) -> None:
    """Whatever the statistics say: they are those of an empty table."""
    conn = await asyncpg.connect(
        migrated_dsn, server_settings={"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan"}
    )
    try:
        await conn.execute("ALTER TABLE rota.open_jobs SET (autovacuum_enabled = false)")
        claim = (
            "SELECT count(*) FROM rota.claim_turns('work', 5, 300, 3, NULL, {fleet}, {tenant}, {turns}, 'b', NULL, "
            "NULL, 'h', NULL)"
        )
        for options in ((9, "NULL", False), (9, 5, True), ("NULL", "NULL", True)):
            sql = claim.format(fleet=options[0], tenant=options[1], turns=options[2])
            await conn.execute(sql)
            await conn.execute(
                "INSERT INTO rota.open_jobs (id, kind, payload, tenant) SELECT gen_random_uuid(), 'work', '{}', "
                "'t' || n % 20 FROM generate_series(1, 20000) AS n"
            )
            async with conn.transaction():
                before = await _scanned(conn)
                assert await conn.fetchval(sql) == 5
                assert await _scanned(conn) - before < 400, options
            await conn.execute("TRUNCATE rota.open_jobs")
    finally:
        await conn.close()


async def _scanned(conn: asyncpg.Connection) -> int:
    """Entries of the table's indexes that this transaction has read."""
    return int(
        await conn.fetchval(
            "SELECT sum(pg_stat_get_xact_tuples_returned(i.indexrelid)) FROM pg_index AS i "
            "WHERE i.indrelid = 'rota.open_jobs'::regclass"
        )
    )


# The worker


@pytest.fixture
async def bench(migrated_dsn: str) -> AsyncIterator[Bench]:
    async with made_bench(migrated_dsn) as made:
        yield made


async def test_two_workers_keep_to_the_limit_of_the_fleet(bench: Bench) -> None:
    running, most = 0, 0

    @bench.app.job(limit=8, fleet_limit=3)
    async def scan() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    await bench.app.enqueue_many([bench.app.new("scan") for _ in range(40)])
    async with working(bench.app), working(bench.app):
        await until(lambda: _all_done(bench, 40), what="all are done")
    assert most == 3


async def _all_done(bench: Bench, count: int) -> bool:
    return await bench.value("SELECT count(*) FROM rota.ended_jobs WHERE state = 'done'") == count


async def test_a_worker_goes_on_as_soon_as_a_limit_makes_room(migrated_dsn: str) -> None:
    """Its own jobs' ends make room: it does not wait for its next look."""
    async with made_bench(migrated_dsn, poll_s=60.0) as bench:

        @bench.app.job(limit=8, fleet_limit=1, tenant_limit=1)
        async def scan() -> None:
            await asyncio.sleep(0)

        await bench.app.enqueue_many([bench.app.new("scan", tenant=str(n % 3)) for n in range(25)])
        async with working(bench.app):
            await until(lambda: _all_done(bench, 25), what="all are done")


async def test_a_worker_goes_on_when_the_window_is_over(migrated_dsn: str) -> None:
    async with made_bench(migrated_dsn) as bench:

        @bench.app.job(rate=rota.Rate(3, per_s=1))
        async def send() -> None: ...

        await bench.app.enqueue_many([bench.app.new("send") for _ in range(7)])
        async with working(bench.app):
            await until(lambda: _all_done(bench, 7), what="all are done")
        starts = [
            row[0] for row in await bench.conn.fetch("SELECT started_at FROM rota.ended_jobs ORDER BY started_at")
        ]
        assert all((later - first).total_seconds() >= 1 for first, later in zip(starts, starts[3:], strict=False))


async def test_tenants_take_turns(bench: Bench) -> None:
    order: list[str | None] = []

    @bench.app.job(limit=1, fair=True)
    async def build(ctx: rota.Context) -> None:
        order.append(ctx.job.tenant)

    await bench.app.enqueue_many([bench.app.new("build", tenant=name) for name in ("a",) * 6 + ("b",) * 2 + ("c",) * 2])
    async with working(bench.app):
        await until(lambda: len(order) == 10, what="all have run")
    assert sorted(order[:3], key=str) == ["a", "b", "c"]
    assert sorted(order[3:6], key=str) == ["a", "b", "c"]
    assert order[6:] == ["a"] * 4


async def test_an_allowance_that_changes_holds_jobs_back(bench: Bench) -> None:
    @bench.app.job
    async def cut() -> None: ...

    allowed = 0
    added = await bench.app.enqueue(cut)
    worker = bench.app.worker()
    worker.allow("cut", lambda: allowed)
    task = asyncio.create_task(worker.run())
    try:
        await until(worker.ready.is_set, what="the worker has looked")
        assert (await bench.row(added.id)).state is State.QUEUED
        allowed = 1
        worker.look_again()
        assert (await bench.ends(added.id)).state is State.DONE
    finally:
        worker.stop(now=True)
        await task


async def test_a_job_whose_claim_was_answered_late_is_given_back_unbegun(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Little of its lease is left: it would be stopped as if it had stalled. No try counts, and it runs after all."""
    ran: list[int] = []

    @bench.app.job(lease_s=60, heartbeat_s=10)
    async def send(ctx: rota.Context) -> None:
        ran.append(ctx.job.tries)

    clock = claim_loop.lease_clock
    late_s = 40.0
    monkeypatch.setattr(claim_loop, "lease_clock", lambda: clock() - late_s)
    added = await bench.app.enqueue(send)
    async with working(bench.app):
        await bench.reaches(added.id, lambda row: row.lease_epoch >= 2)
        assert ran == []
        late_s = 0.0
        row = await bench.ends(added.id)
    assert (row.state, row.tries, ran) == (State.DONE, 1, [1])
