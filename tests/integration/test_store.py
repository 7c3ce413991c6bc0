"""The queue on a real PostgreSQL: what only many connections, open transactions and killed sessions can show.

What each method does is in `tests/conformance`. S18 and S19 are there too, and S18's cost is in `test_plans.py`.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from rota.errors import DatabaseAway, PayloadError
from rota.ids import Holder, JobId
from rota.io.migrate import up
from rota.io.postgres import Database, Target, channel
from rota.lease import Lease, Renewal
from rota.queue.io.store import Store
from rota.queue.job import (
    Ask,
    ClaimedJob,
    Dedupe,
    Enqueued,
    Finish,
    NewJob,
    Outcome,
    Release,
    Scope,
    State,
    open_key,
    queued_key,
    throttle_key,
)
from rota.queue.payload import cut_text, encode
from tests.conformance.queues import empty
from tests.postgres_servers import Server

LEASE_S = 300.0
HOLDER = Holder("here:1:aa")
CONNECTIONS = 8

BROKEN_ROWS = """
    SELECT id FROM rota.jobs GROUP BY id HAVING count(*) > 1
    UNION ALL
    SELECT id FROM rota.jobs WHERE CASE state
        WHEN 'queued' THEN lease_until IS NOT NULL OR cancel_asked_at IS NOT NULL OR finished_at IS NOT NULL
        WHEN 'leased' THEN lease_until IS NULL OR leased_by IS NULL OR max_tries IS NULL
        ELSE finished_at IS NULL END OR tries > lease_epoch
"""


@pytest.fixture(scope="module")
def target(server: Server) -> Iterator[Target]:
    with server.database() as dsn:
        asyncio.run(up(Target(dsn)))
        yield Target(dsn)


@pytest.fixture
async def database(target: Target) -> AsyncIterator[Database]:
    database = Database(target, size=CONNECTIONS)
    await database.start()
    try:
        await empty(database)
        yield database
        # Whatever a test did: no job is in two places, or in a state that does not fit the rest of its row.
        assert await database.fetch(BROKEN_ROWS) == []
    finally:
        await database.stop()


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database)


def ask(*, free: int = 1000, lease_s: float = LEASE_S, max_tries: int = 3) -> Ask:
    return Ask("work", free, lease_s, max_tries)


async def take(store: Store, count: int, *, ago_s: float = 0.0, **one: Any) -> list[ClaimedJob]:
    """Adds jobs and claims them; with `ago_s`, as if so long ago."""
    await store.enqueue_many([NewJob("work", run_after=datetime(2000, 1, 1, tzinfo=UTC)) for _ in range(count)])
    claimed = await store.claim([ask(free=count, **one)], holder=HOLDER, now=in_the_past(ago_s))
    assert len(claimed) == count
    return claimed


def in_the_past(seconds: float) -> datetime | None:
    return datetime.now(UTC) - timedelta(seconds=seconds) if seconds else None


async def states(database: Database) -> dict[JobId, State]:
    return {row["id"]: State(row["state"]) for row in await database.fetch("SELECT id, state FROM rota.jobs")}


async def deadlocks(database: Database) -> int:
    rows = await database.fetch("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    return int(rows[0]["deadlocks"])


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Waits until something is so; a test that waits in vain fails after 10 s."""
    async with asyncio.timeout(10):
        while not await holds():
            await asyncio.sleep(0.005)


async def until_waiting(database: Database, count: int) -> None:
    """Waits until so many sessions of this database wait for a lock."""

    async def waiting() -> bool:
        rows = await database.fetch(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(rows[0][0] == count)

    await eventually(waiting)


@asynccontextmanager
async def transaction(target: Target) -> AsyncIterator[tuple[asyncpg.Connection, asyncpg.transaction.Transaction]]:
    """A caller's own connection in a transaction of its own; rolled back unless the test ends it."""
    conn = await asyncpg.connect(target.dsn)
    try:
        open_transaction = conn.transaction()
        await open_transaction.start()
        yield conn, open_transaction
    finally:
        await conn.close()


# Claims


async def test_claims_at_the_same_time_never_overlap(store: Store) -> None:
    count, rest = 3000, Random(5)
    await store.enqueue_many([NewJob("work", priority=rest.randrange(4)) for _ in range(count)])

    async def worker(number: int) -> list[Lease]:
        leases: list[Lease] = []
        while claimed := await store.claim([ask(free=13 + number)], holder=Holder(f"here:{number}:aa")):
            assert len(claimed) <= 13 + number
            assert [job.order for job in claimed] == sorted(job.order for job in claimed)
            leases += [job.lease for job in claimed]
            if number == 0 and len(leases) < 200:  # work comes in meanwhile
                await store.enqueue_many([NewJob("work", priority=9)] * 10)
        return leases

    shares = await asyncio.gather(*(worker(number) for number in range(CONNECTIONS)))
    leases = [lease for share in shares for lease in share]
    # A row that another claim is looking at is passed over, so a claim may come back empty before all is taken.
    leases += [job.lease for job in await store.claim([ask()], holder=HOLDER)]
    assert len(leases) == len({lease.job_id for lease in leases}) >= count
    assert {lease.epoch for lease in leases} == {1}
    assert set((await states(store.database)).values()) == {State.LEASED}


async def test_a_claim_that_is_cut_off_loses_nothing(store: Store, target: Target) -> None:
    """S26: there is nothing between 'taken off the queue' and 'recorded as started'."""
    await store.enqueue_many([NewJob("work") for _ in range(600)])
    random, killer = Random(6), await asyncpg.connect(target.dsn)
    cut = 0
    try:
        for number in range(30):
            victim = Database(target, size=1)
            await victim.start()
            pid = (await victim.fetch("SELECT pg_backend_pid()"))[0][0]
            claim = asyncio.create_task(Store(victim).claim([ask(free=20)], holder=Holder(f"dead:{number}:aa")))
            await asyncio.sleep(random.random() * 0.004)
            await killer.execute("SELECT pg_terminate_backend($1)", pid)
            try:
                await claim
            except DatabaseAway:
                cut += 1
            await victim.stop()
        rows = await store.database.fetch("SELECT state, tries, lease_epoch, leased_by, started_at FROM rota.jobs")
        assert len(rows) == 600
        for row in rows:
            leased = row["state"] == "leased"
            assert (row["tries"], row["lease_epoch"]) == (int(leased), int(leased))
            assert (row["leased_by"] is not None, row["started_at"] is not None) == (leased, leased)
        assert cut > 0, "no claim was cut off"
    finally:
        await killer.close()
    # Whatever was leased comes back by its lease, and runs.
    later = datetime.now(UTC) + timedelta(seconds=LEASE_S + 60)
    await store.sweep(now=later)
    assert len(await store.claim([ask()], holder=HOLDER, now=later)) == 600


async def test_a_program_with_a_wrong_clock_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """S15: an hour ahead, an hour behind; leases, run_after and expiry are the database's (I5)."""
    for skew_s in (3600, -3600):
        with monkeypatch.context() as wrong:
            real, real_ns = time.time, time.time_ns
            wrong.setattr(time, "time", lambda skew_s=skew_s, real=real: real() + skew_s)
            wrong.setattr(time, "time_ns", lambda skew_s=skew_s, real=real_ns: real() + skew_s * 10**9)
            due = await store.enqueue(NewJob("work"))
            await store.enqueue(NewJob("work", delay_s=60.0))
            claimed = await store.claim([ask()], holder=HOLDER)
            assert [job.id for job in claimed] == [due.id]
            assert await store.sweep() == []
            poll = await store.poll(["work"], holder=HOLDER)
            assert not poll.expired
            assert poll.next_due_s == pytest.approx(60, abs=10)
            lease = claimed[0].lease
            assert await store.renew([Renewal(lease, LEASE_S, None)]) == {lease.job_id: False}
            row = await store.database.fetch(
                "SELECT lease_until - now() AS left FROM rota.open_jobs WHERE id = $1", due.id
            )
            assert row[0]["left"].total_seconds() == pytest.approx(LEASE_S, abs=10)
            await store.finish([Finish(lease, Outcome.DONE)])
            await store.database.fetch("DELETE FROM rota.open_jobs")


# Keys (I6)


def key_of(text: str, scope: Scope) -> Dedupe:
    """A key of any scope."""
    return throttle_key(text, window_s=600) if scope is Scope.THROTTLE else Dedupe(text, scope)


@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize("first_commits", [False, True], ids=["rollback", "commit"])
async def test_an_enqueue_waits_for_the_fate_of_its_twin(
    store: Store, target: Target, scope: Scope, first_commits: bool
) -> None:
    """S4: five transactions with one key; the first decides late."""
    job = NewJob("work", dedupe=key_of("key", scope))

    async def other() -> Enqueued:
        async with transaction(target) as (conn, own):
            added = await store.enqueue(job, conn=conn)
            await own.commit()
            return added

    async with transaction(target) as (conn, first):
        added = await store.enqueue(job, conn=conn)
        assert added.created
        others = [asyncio.create_task(other()) for _ in range(4)]
        await until_waiting(store.database, 4)
        assert not any(task.done() for task in others)
        await (first.commit() if first_commits else first.rollback())
        answers = await asyncio.gather(*others)
    assert sum(answer.created for answer in answers) == (0 if first_commits else 1)
    (row,) = await store.database.fetch("SELECT id FROM rota.open_jobs")
    assert {answer.id for answer in answers} == {row["id"]}
    assert (row["id"] == added.id) == first_commits


@pytest.mark.parametrize(("key", "jobs"), [(open_key("a"), 1), (queued_key("a"), 2)], ids=["open", "queued"])
async def test_twenty_enqueues_while_a_keyed_job_runs(store: Store, key: Dedupe, jobs: int) -> None:
    """S20."""
    await store.enqueue(NewJob("work", dedupe=key))
    assert len(await store.claim([ask()], holder=HOLDER)) == 1
    answers = await asyncio.gather(*(store.enqueue(NewJob("work", dedupe=key)) for _ in range(20)))
    assert sum(answer.created for answer in answers) == jobs - 1
    assert len({answer.id for answer in answers}) == 1
    assert len(await states(store.database)) == jobs


async def test_batches_with_the_same_keys_do_not_deadlock(store: Store) -> None:
    keys = [key_of(f"key {number}", scope) for number in range(30) for scope in Scope]

    async def add(seed: int) -> list[Enqueued]:
        order = list(keys)
        Random(seed).shuffle(order)
        added = await store.enqueue_many([NewJob("work", dedupe=key) for key in order])
        return [added[order.index(key)] for key in keys]

    for _ in range(5):
        answers = await asyncio.gather(*(add(seed) for seed in range(CONNECTIONS)))
        for same in zip(*answers, strict=True):
            assert len({answer.id for answer in same}) == 1
        await store.database.fetch("DELETE FROM rota.open_jobs")
        await store.database.fetch("DELETE FROM rota.forever_keys")


async def test_a_key_that_is_freed_while_an_enqueue_looks_at_it(store: Store) -> None:
    """The holder ends between the insert and the look at who holds the key: then the key is free."""
    for _ in range(60):
        await store.enqueue(NewJob("work", dedupe=open_key("a")))
        (job,) = await store.claim([ask()], holder=HOLDER)
        ending = asyncio.create_task(store.finish([Finish(job.lease, Outcome.DONE)]))
        answers = await asyncio.gather(*(store.enqueue(NewJob("work", dedupe=open_key("a"))) for _ in range(4)))
        assert await ending == {job.id: State.DONE}
        others = {answer.id for answer in answers if answer.id != job.id}
        assert len(others) <= 1
        assert sum(answer.created for answer in answers) == len(others)
        await store.cancel(others)


async def test_same_keys_never_stop_a_claim(store: Store) -> None:
    """S3: retries and fresh jobs of one key among unrelated ones, with several workers and callers."""
    random, over = Random(8), asyncio.Event()
    key_of = {"open": open_key("a"), "queued": queued_key("a")}

    async def caller() -> None:
        while not over.is_set():
            kind = random.choice(["open", "queued"])
            await store.enqueue(NewJob(kind, dedupe=key_of[kind], delay_s=random.choice([None, 0.01])))
            await store.enqueue(NewJob("plain"))

    running: dict[str, int] = {"open": 0}

    async def worker(number: int) -> int:
        ended = 0
        while not over.is_set():
            asks = [Ask(kind, 2, LEASE_S, 3) for kind in ("open", "queued", "plain")]
            claimed = await store.claim(asks, holder=Holder(f"here:{number}:aa"))
            for job in claimed:
                if job.kind == "open":
                    running["open"] += 1
                    assert running["open"] == 1, "two jobs of one open key run"
                outcome = random.choice([Outcome.DONE, Outcome.RETRY, Outcome.RETRY, Outcome.FAILED])
                running["open"] -= job.kind == "open"
                keyed = job.dedupe_scope is Scope.QUEUED
                written = await store.finish([Finish(job.lease, outcome, wait_s=0.01, keyed=keyed)])
                assert job.id in written
                ended += job.kind == "plain"
        return ended

    work = [asyncio.create_task(worker(number)) for number in range(4)]
    calls = [asyncio.create_task(caller()) for _ in range(2)]
    await asyncio.sleep(1.5)
    over.set()
    assert all(await asyncio.gather(*work))
    await asyncio.gather(*calls)


async def _hold_keyed(store: Store, *, ago_s: float = 0.0) -> tuple[Lease, list[Lease]]:
    """One leased job with a queued-scope key, and three plain ones."""
    await store.enqueue(NewJob("work", dedupe=queued_key("a")))
    claimed = await store.claim([ask(max_tries=5)], holder=HOLDER)
    others = await take(store, 3, max_tries=5)
    leases = [job.lease for job in claimed + others]
    if ago_s:
        await store.database.fetch("UPDATE rota.open_jobs SET lease_until = now() - make_interval(secs => $1)", ago_s)
    return leases[0], leases[1:]


Ended = Callable[[Store, Lease, Sequence[Lease]], Coroutine[Any, Any, Any]]


async def _retry_all(store: Store, keyed: Lease, plain: Sequence[Lease]) -> Any:
    writes = [Finish(keyed, Outcome.RETRY, keyed=True), *(Finish(lease, Outcome.RETRY) for lease in plain)]
    return await store.finish(writes)


async def _release_all(store: Store, keyed: Lease, plain: Sequence[Lease]) -> Any:
    return await store.release([Release(keyed, keyed=True), *(Release(lease) for lease in plain)])


async def _sweep_all(store: Store, keyed: Lease, plain: Sequence[Lease]) -> Any:
    return {swept.lease.job_id: swept.state for swept in await store.sweep()}


@pytest.mark.parametrize("end", [_retry_all, _release_all, _sweep_all])
@pytest.mark.parametrize("twin_commits", [True, False], ids=["commit", "rollback"])
async def test_an_uncommitted_twin_holds_up_nobody_else(
    store: Store, target: Target, end: Ended, twin_commits: bool
) -> None:
    keyed, plain = await _hold_keyed(store, ago_s=60 if end is _sweep_all else 0)
    async with transaction(target) as (conn, twin):
        assert (await store.enqueue(NewJob("work", dedupe=queued_key("a")), conn=conn)).created
        ending = asyncio.create_task(end(store, keyed, plain))

        async def others_are_back() -> bool:
            seen = await states(store.database)
            return all(seen[lease.job_id] is State.QUEUED for lease in plain)

        await eventually(others_are_back)
        await until_waiting(store.database, 1)
        assert (await states(store.database))[keyed.job_id] is State.LEASED
        assert not ending.done()
        await (twin.commit() if twin_commits else twin.rollback())
        written = await ending
    fate = State.DONE if twin_commits else State.QUEUED
    assert written == {keyed.job_id: fate, **{lease.job_id: State.QUEUED for lease in plain}}
    assert (await states(store.database))[keyed.job_id] is fate


# Ends that meet


@pytest.mark.parametrize(("max_tries", "lost"), [(1, State.FAILED), (3, State.QUEUED)], ids=["last try", "more tries"])
async def test_a_sweep_and_a_finish_at_the_same_moment(store: Store, max_tries: int, lost: State) -> None:
    """S5, 500 times in all: one of the two is first, and the other changes nothing."""
    random, won = Random(9), 0
    for _ in range(250):
        (job,) = await take(store, 1, ago_s=2 * LEASE_S, max_tries=max_tries)

        async def finish(lease: Lease = job.lease) -> dict[JobId, State]:
            await asyncio.sleep(random.random() * 0.002)
            return await store.finish([Finish(lease, Outcome.DONE, result='"ok"')])

        async def sweep() -> list[Any]:
            await asyncio.sleep(random.random() * 0.002)
            return await store.sweep()

        finished, swept = await asyncio.gather(finish(), sweep())
        (row,) = await store.database.fetch(
            "SELECT state, finished_at, last_error, result FROM rota.jobs WHERE id = $1", job.id
        )
        if finished:
            won += 1
            assert (row["state"], row["result"], row["last_error"]) == ("done", '"ok"', None)
            assert swept == []
        else:
            assert [each.state for each in swept] == [lost]
            assert (row["state"], row["result"]) == (lost, None)
            assert (row["finished_at"] is None) == (lost is State.QUEUED)
        await store.cancel([job.id])
    assert 0 < won < 250, f"the finish was first {won} times: there was no race"


async def test_whatever_meets_there_is_no_deadlock(store: Store) -> None:
    """Every statement over the same jobs at the same time, in any order, under leases that hold or are old."""
    before = await deadlocks(store.database)
    leases = [job.lease for job in await take(store, 60)]
    random, over = Random(10), asyncio.Event()

    def some() -> list[Lease]:
        return random.sample(leases, 25)

    async def renew() -> None:
        await store.renew([Renewal(lease, random.choice([0.001, LEASE_S]), {"n": 1}) for lease in some()])

    async def finish() -> None:
        await store.finish([Finish(lease, random.choice(list(Outcome)), error="why") for lease in some()])

    async def release() -> None:
        await store.release([Release(lease, wait_s=0.0) for lease in some()])

    async def sweep() -> None:
        await store.sweep(limit=10, grace_s=0.01)

    async def cancel() -> None:
        await store.cancel([lease.job_id for lease in random.sample(leases, 3)])

    async def claim() -> None:
        wanted = ask(free=20, lease_s=random.choice([0.01, LEASE_S]), max_tries=1000)
        claimed = await store.claim([wanted], holder=HOLDER)
        if len(claimed) < 10:
            await store.enqueue_many([NewJob("work")] * 20)
        for job in claimed:
            leases[random.randrange(len(leases))] = job.lease

    async def retry() -> None:
        ended = await store.database.fetch("SELECT id FROM rota.ended_jobs LIMIT 3")
        for row in ended:
            await store.retry(row["id"])

    async def again_and_again(act: Callable[[], Awaitable[None]]) -> int:
        count = 0
        while not over.is_set():
            await act()
            count += 1
        return count

    acts = [renew, finish, release, sweep, cancel, claim, claim, retry]
    tasks = [asyncio.create_task(again_and_again(act)) for act in acts]
    await asyncio.sleep(2.5)
    over.set()
    assert all(await asyncio.gather(*tasks))  # a deadlock would be a DatabaseAway
    assert await deadlocks(store.database) == before


async def test_a_person_who_clicks_twice(store: Store) -> None:
    """The second retry begins before the first has committed, and still finds the job."""
    for _ in range(40):
        (job,) = await take(store, 1)
        await store.finish([Finish(job.lease, Outcome.FAILED)])
        answers = await asyncio.gather(*(store.retry(job.id) for _ in range(4)))
        assert {answer.outcome for answer in answers} == {"queued"}
        await store.cancel([job.id])


async def test_a_retry_while_the_job_is_claimed(store: Store) -> None:
    for _ in range(40):
        added = await store.enqueue(NewJob("work"))
        answer, claimed = await asyncio.gather(store.retry(added.id), store.claim([ask()], holder=HOLDER))
        assert answer.outcome in ("queued", "leased")
        await store.finish([Finish(job.lease, Outcome.DONE) for job in claimed])
        await store.cancel([added.id])


# The caller's own transaction


async def test_an_enqueue_is_part_of_the_callers_transaction(store: Store, target: Target) -> None:
    heard: list[str] = []
    async with AsyncExitStack() as stack:
        ears = await asyncpg.connect(target.dsn)
        stack.push_async_callback(ears.close)
        await ears.add_listener(channel("rota"), lambda *said: heard.append(said[-1]))
        await store.wait(HOLDER, kinds=["work"], seconds=60)
        async with transaction(target) as (conn, own):
            await store.enqueue(NewJob("work"), conn=conn)
            await store.enqueue_many([NewJob("work")] * 3, conn=conn)
            assert await states(store.database) == {}
            await own.rollback()
        assert await states(store.database) == {}
        async with transaction(target) as (conn, own):
            await store.enqueue_many([NewJob("work")] * 3, conn=conn)
            await ears.execute("SELECT 1")
            assert heard == []
            await own.commit()
        assert len(await states(store.database)) == 3

        async def told() -> bool:
            return heard == ["work"]

        await eventually(told)


async def test_a_refused_enqueue_takes_the_callers_change_along(store: Store, target: Target) -> None:
    """S7: never half a transaction, and never a change that is lost without a word."""
    await store.database.fetch("DROP TABLE IF EXISTS orders")
    await store.database.fetch("CREATE TABLE orders (id integer)")
    async with transaction(target) as (conn, own):
        await conn.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(asyncpg.UntranslatableCharacterError):
            await conn.execute("""SELECT rota.enqueue('work', '{"a": "\\u0000"}')""")
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await conn.execute("SELECT 1")
        await own.rollback()
    async with transaction(target) as (conn, own):
        await conn.execute("INSERT INTO orders VALUES (2)")
        with pytest.raises(asyncpg.InvalidParameterValueError):
            async with conn.transaction():
                await store.enqueue(NewJob("work", max_tries=0), conn=conn)
        await own.commit()
    rows = await store.database.fetch("SELECT id FROM orders")
    assert [row["id"] for row in rows] == [2]


# SQL from anywhere


async def test_enqueue_from_plain_sql(store: Store, psql: Callable[[str, str], str]) -> None:
    dsn = store.database.target.dsn
    first = psql(dsn, """SELECT id, created FROM rota.enqueue('thumbnail', '{"path": "a.mp4"}')""").split("|")
    assert first[1] == "t"
    keyed = "SELECT created FROM rota.enqueue('report', dedupe_key => 'today', delay_s => 60, priority => 7)"
    assert [psql(dsn, keyed), psql(dsn, keyed)] == ["t", "f"]
    rows = {row.kind: row for row in await store.show(JobId(UUID(int=0)), JobId(UUID(int=2**128 - 1)))}
    assert str(rows["thumbnail"].id) == first[0]
    assert json.loads(rows["thumbnail"].payload or "") == {"path": "a.mp4"}
    assert (rows["report"].dedupe_scope, rows["report"].priority, rows["report"].payload) == (Scope.OPEN, 7, "{}")
    assert (rows["report"].run_after - rows["report"].created_at).total_seconds() == 60
    count = psql(
        dsn,
        "SELECT count(*) FROM rota.enqueue_many(ARRAY['a', 'b'], ARRAY['{}', '[1]']::jsonb[], "
        "execution_ids => ARRAY['e', NULL], places => ARRAY['CloudPool', NULL])",
    )
    assert count == "2"


async def test_enqueue_from_a_trigger(store: Store, target: Target) -> None:
    async with transaction(target) as (conn, own):
        await conn.execute("""
            DROP TABLE IF EXISTS orders;
            CREATE TABLE orders (id integer, paid boolean);
            CREATE FUNCTION order_paid() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM rota.enqueue('invoice', jsonb_build_object('order', NEW.id), dedupe_key => 'order ' || NEW.id);
                RETURN NULL;
            END $$;
            CREATE TRIGGER order_paid AFTER INSERT OR UPDATE ON orders FOR EACH ROW WHEN (NEW.paid)
                EXECUTE FUNCTION order_paid();
        """)
        await own.commit()
    async with transaction(target) as (conn, own):
        await conn.execute("INSERT INTO orders SELECT n, n % 2 = 0 FROM generate_series(1, 6) AS n")
        await conn.execute("UPDATE orders SET paid = true WHERE id <= 4")
        await own.commit()
    async with transaction(target) as (conn, own):
        await conn.execute("INSERT INTO orders VALUES (99, true)")
        await own.rollback()
    claimed = await store.claim([Ask("invoice", 100, LEASE_S, 3)], holder=HOLDER)
    assert sorted(json.loads(job.payload)["order"] for job in claimed) == [1, 2, 3, 4, 6]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("''", "has no usable kind: give a name of 1 to 200 characters"),
        ("NULL", "has no usable kind: give a name of 1 to 200 characters"),
        ("'k', NULL", "has no payload: give JSON, such as '{}'"),
        (
            "'k', to_jsonb(repeat('x', 34000000))",
            "has a payload over 32 MiB: store the bytes elsewhere and enqueue their",
        ),
        ("'k', max_tries => 0", "has a max_tries outside 1 to 1000"),
        ("'k', place => 'moon'", "has an unknown place: give worker, CloudPool or OrgRunner"),
        ("'k', delay_s => -1", "has a delay_s outside 0 to 3155760000 (a hundred years)"),
        ("'k', delay_s => 'NaN'", "has a delay_s outside 0 to 3155760000 (a hundred years)"),
        ("'k', run_after => 'infinity'", "has a run_after outside the years 1 to 9999"),
        ("'k', run_after => '-infinity'", "has a run_after outside the years 1 to 9999"),
        ("'k', run_after => '10000-01-01'", "has a run_after outside the years 1 to 9999"),
        ("'k', run_after => '0044-03-15 BC'", "has a run_after outside the years 1 to 9999"),
        (
            "'k', dedupe_key => 'a', dedupe_scope => 'often'",
            "has an unknown dedupe_scope: give open, queued, forever, throttle, replace, merge or debounce",
        ),
        ("'k', dedupe_scope => 'open'", "needs a dedupe_key of 1 to 500 characters together with a dedupe_scope"),
        ("'k', dedupe_key => ''", "needs a dedupe_key of 1 to 500 characters together with a dedupe_scope"),
    ],
)
async def test_sql_says_why_it_refuses(store: Store, call: str, reason: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
        await store.database.fetch(f"SELECT * FROM rota.enqueue({call})")
    assert str(caught.value).startswith(f"rota: job 1 of this enqueue {reason}")
    assert await states(store.database) == {}


async def test_what_the_seed_shows_to_operators_works(store: Store) -> None:
    failed, expired, _ = await take(store, 3, max_tries=1)
    await store.finish([Finish(failed.lease, Outcome.FAILED, error="broken")])
    await store.database.fetch(
        "UPDATE rota.open_jobs SET lease_until = now() - interval '1 s' WHERE id = $1", expired.id
    )
    await store.sweep()
    await store.enqueue_many([NewJob("work"), NewJob("work", delay_s=60.0), NewJob("other")])
    rows = await store.database.fetch(
        "SELECT kind, tenant, last_error, finished_at FROM rota.jobs WHERE state = 'failed' "
        "ORDER BY finished_at DESC LIMIT 20"
    )
    assert [row["last_error"] for row in rows] == ["The lease ran out on the last try", "broken"]
    rows = await store.database.fetch(
        "SELECT kind, tenant, leased_by, tries, last_error FROM rota.jobs WHERE last_error LIKE 'The lease ran out%' "
        "OR last_error LIKE '%made no progress%' ORDER BY created_at DESC LIMIT 20"
    )
    assert [(row["leased_by"], row["tries"]) for row in rows] == [(HOLDER, 1)]
    rows = await store.database.fetch(
        "SELECT kind, count(*), min(run_after) FROM rota.jobs "
        "WHERE state = 'queued' AND run_after <= now() GROUP BY kind"
    )
    assert {row["kind"]: row["count"] for row in rows} == {"work": 1, "other": 1}


# Payloads


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"], ids=["U+0000", "lone surrogate"])
async def test_text_that_cannot_be_stored_is_refused_by_its_field(text: str) -> None:
    """S7 in the library: before anything is sent."""
    with pytest.raises(PayloadError) as caught:
        encode({"order": {"lines": [{"name": "good"}, {"name": text}]}})
    assert caught.value.path == "$.order.lines[1].name"


async def test_payload_and_result_come_back_as_they_were(store: Store) -> None:
    """S8."""
    value = {"typed": "\\u0000 \\ud800 \\\\n", "more": 'emoji 😀👩‍👩‍👧, 漢字, "quotes", \u2028, \x7f\x01', "n": 2**70}
    await store.enqueue(NewJob("work", encode(value), tenant="Ünï😀", trace="\\u0000"))
    (job,) = await store.claim([ask()], holder=HOLDER)
    assert json.loads(job.payload) == value
    assert (job.tenant, job.trace) == ("Ünï😀", "\\u0000")
    await store.renew([Renewal(job.lease, LEASE_S, value)])
    await store.finish([Finish(job.lease, Outcome.DONE, result=encode(value), error="\\u0000 😀")])
    (row,) = await store.show(job.id)
    assert json.loads(row.result or "") == json.loads(row.progress or "") == value
    assert row.last_error == "\\u0000 😀"


async def test_big_payloads_with_a_listener(store: Store, target: Target) -> None:
    """S9: a NOTIFY carries no payload, so no size of one can break it."""
    heard: list[str] = []
    ears = await asyncpg.connect(target.dsn)
    try:
        await ears.add_listener(channel("rota"), lambda *said: heard.append(said[-1]))
        await store.wait(HOLDER, kinds=["work", "漢" * 200], seconds=60)
        for size in (20_000, 8_000_000):
            await store.enqueue(NewJob("work", encode({"blob": "x" * size})))
        await store.enqueue(NewJob("漢" * 200))

        async def told() -> bool:
            return heard == ["work", "work", "漢" * 200]

        await eventually(told)
    finally:
        await ears.close()
    claimed = await store.claim([ask()], holder=HOLDER)
    assert [len(json.loads(job.payload)["blob"]) for job in claimed] == [20_000, 8_000_000]


async def test_long_texts_are_cut_and_stored(store: Store) -> None:
    """S10."""
    (job,) = await take(store, 1)
    error = cut_text("😀" * 3000 + "\0\ud800")
    await store.finish([Finish(job.lease, Outcome.FAILED, error=error)])
    (row,) = await store.show(job.id)
    assert row.last_error == error
    assert error.endswith("😀…")
    assert len(error.encode()) <= 8192


@pytest.mark.parametrize("depth", [100, 400])
async def test_nested_payloads(store: Store, depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    await store.enqueue(NewJob("work", encode(value)))
    (job,) = await store.claim([ask()], holder=HOLDER)
    assert json.loads(job.payload) == value


async def test_a_warm_store_has_its_connections_and_their_plans(target: Target) -> None:
    database = Database(target, size=3)
    await database.start()
    try:
        store = Store(database)
        await store.warm(HOLDER, connections=2)
        async with database.acquire() as one, database.acquire() as other:
            planned = (
                "SELECT count(*) FROM pg_prepared_statements WHERE statement ~ '^-- (Takes the next|Writes the end)'"
            )
            assert [await conn.fetchval(planned) for conn in (one, other)] == [2, 2]
    finally:
        await database.stop()
