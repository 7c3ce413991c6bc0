"""What changes while a statement runs: each is held after its snapshot was taken, and others commit meanwhile.

A statement under READ COMMITTED reads the rows as they were when it began, but writes them as they are. Here a copy of
each one waits, before it looks at the first row, for an advisory lock that the test holds.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from rota.ids import Holder, JobId
from rota.io.migrate import up
from rota.io.postgres import Database, Target
from rota.lease import Lease, Renewal
from rota.queue.io.store import Store
from rota.queue.job import Ask, Finish, JobRow, NewJob, Outcome, Release, Retried, State, Swept
from rota.queue.limits import Limits
from tests.conformance.queues import empty
from tests.postgres_servers import Server

LOCK = 42
LEASE_S = 300.0
HOLDER = Holder("here:1:aa")
OTHER = Holder("there:2:bb")


GATE = f"(SELECT true FROM pg_advisory_xact_lock_shared({LOCK}))"
FIRST = {
    "cancel.sql": ("WHERE o.id = given.id FOR UPDATE", f"WHERE o.id = given.id AND {GATE} FOR UPDATE"),
    "disown.sql": ("WHERE o.state = 'leased'", f"WHERE {GATE} AND o.state = 'leased'"),
    "finish.sql": ("result, progress, how)\n)", f"result, progress, how)\n    WHERE {GATE}\n)"),
    "retry.sql": ("WHERE e.id = $1 FOR UPDATE", f"WHERE e.id = $1 AND {GATE} FOR UPDATE"),
}
"""Where these statements can be held; the others look at the clock before they look at a row."""
CLOCK = ("now()) AS now", f"(SELECT now() WHERE {GATE})) AS now")


class Held(Store):
    """A store whose statements begin, and wait for the lock before they look at a row."""

    def _sql(self, name: str) -> str:
        text = super()._sql(name)
        held = text.replace(*FIRST.get(name, CLOCK), 1)
        assert held != text, f"{name} cannot be held"
        return held


class Race:
    """One job, a store, and the same store held."""

    def __init__(self, store: Store, held: Held, gate: asyncpg.Connection) -> None:
        self.store = store
        self.held = held
        self._gate = gate
        self.job_id = JobId(UUID(int=0))

    async def queued(self, **options: Any) -> JobId:
        self.job_id = (await self.store.enqueue(NewJob("work", **options))).id
        return self.job_id

    async def leased(self, *, ago_s: float = 0.0, max_tries: int = 3) -> Lease:
        """Claims one job, as if so long ago."""
        await self.queued(run_after=datetime(2000, 1, 1, tzinfo=UTC), max_tries=max_tries)
        claimed = await self.claim(self.store, now=datetime.now(UTC) - timedelta(seconds=ago_s))
        assert claimed == [Lease(self.job_id, 1)]
        return claimed[0]

    async def claim(self, store: Store, *, holder: Holder = OTHER, now: datetime | None = None) -> list[Lease]:
        return [job.lease for job in await store.claim([Ask("work", 10, LEASE_S, 3)], holder=holder, now=now)]

    async def meanwhile(self, slow: Awaitable[Any], *quick: Awaitable[Any]) -> Any:
        """Starts the slow one, does the quick ones when it has its snapshot, lets it go on, and gives its answer."""
        await self._gate.execute("SELECT pg_advisory_lock($1)", LOCK)
        task = asyncio.ensure_future(slow)
        async with asyncio.timeout(10):
            while not await self._gate.fetchval(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            ):
                assert not task.done(), "the slow statement was not held"
                await asyncio.sleep(0.002)
        for each in quick:
            await each
        assert not task.done()
        await self._gate.execute("SELECT pg_advisory_unlock($1)", LOCK)
        return await task

    async def row(self) -> JobRow:
        (row,) = await self.store.show(self.job_id)
        return row

    async def state(self) -> State:
        return (await self.row()).state


@pytest.fixture(scope="module")
def target(server: Server) -> Iterator[Target]:
    with server.database() as dsn:
        asyncio.run(up(Target(dsn)))
        yield Target(dsn)


@pytest.fixture
async def race(target: Target) -> AsyncIterator[Race]:
    database = Database(target, size=4)
    await database.start()
    gate = await asyncpg.connect(target.dsn)
    try:
        await empty(database)
        yield Race(Store(database), Held(database), gate)
    finally:
        await gate.close()
        await database.stop()


End = Callable[[Store, Lease], Awaitable[dict[JobId, State]]]


def _retry(store: Store, lease: Lease) -> Awaitable[dict[JobId, State]]:
    return store.finish([Finish(lease, Outcome.RETRY)])


def _done(store: Store, lease: Lease) -> Awaitable[dict[JobId, State]]:
    return store.finish([Finish(lease, Outcome.DONE)])


def _release(store: Store, lease: Lease) -> Awaitable[dict[JobId, State]]:
    return store.release([Release(lease)])


# A cancel that comes in between


@pytest.mark.parametrize("end", [_retry, _release])
async def test_a_cancel_during_an_end_is_obeyed(race: Race, end: End) -> None:
    lease = await race.leased()
    written = await race.meanwhile(end(race.held, lease), race.store.cancel([lease.job_id], reason="Not wanted"))
    assert written == {lease.job_id: State.CANCELLED}
    row = await race.row()
    assert (row.state, row.last_error, row.cancel_asked_at) == (State.CANCELLED, "Not wanted", None)


async def test_a_cancel_during_the_sweep_is_obeyed(race: Race) -> None:
    lease = await race.leased(ago_s=2 * LEASE_S)
    swept = await race.meanwhile(race.held.sweep(), race.store.cancel([lease.job_id], reason="Not wanted"))
    assert swept == [Swept(lease, "work", OTHER, State.CANCELLED, 1)]
    row = await race.row()
    assert (row.state, row.last_error) == (State.CANCELLED, "Not wanted")


async def test_a_cancel_during_a_renewal_is_told(race: Race) -> None:
    lease = await race.leased()
    kept = await race.meanwhile(race.held.renew([Renewal(lease, LEASE_S, None)]), race.store.cancel([lease.job_id]))
    assert kept == {lease.job_id: True}


async def test_a_cancel_during_a_claim_wins(race: Race) -> None:
    job_id = await race.queued()
    assert await race.meanwhile(race.claim(race.held), race.store.cancel([job_id])) == []
    assert await race.state() is State.CANCELLED


# A sweep that comes in between


@pytest.mark.parametrize("end", [_retry, _done, _release])
@pytest.mark.parametrize("max_tries", [1, 3])
async def test_an_end_after_the_sweep_is_refused(race: Race, end: End, max_tries: int) -> None:
    lease = await race.leased(ago_s=2 * LEASE_S, max_tries=max_tries)
    assert await race.meanwhile(end(race.held, lease), race.store.sweep()) == {}
    row = await race.row()
    assert row.state is (State.FAILED if max_tries == 1 else State.QUEUED)
    assert (row.last_error or "").startswith("The lease ran out")


async def test_an_end_after_the_next_claim_is_refused(race: Race) -> None:
    lease = await race.leased(ago_s=2 * LEASE_S)
    assert await race.meanwhile(_done(race.held, lease), race.store.sweep(), race.claim(race.store)) == {}
    assert (await race.row()).lease_epoch == 2


async def test_a_renewal_after_the_sweep_is_refused(race: Race) -> None:
    """Its own time is that of its beginning, when the lease had not run out yet; the row says otherwise."""
    lease = await race.leased()
    kept = await race.meanwhile(
        race.held.renew([Renewal(lease, LEASE_S, None)]),
        race.store.sweep(now=datetime.now(UTC) + timedelta(seconds=2 * LEASE_S)),
    )
    assert kept == {lease.job_id: None}, "its row changed under the statement: it is to ask again"
    assert await race.store.renew([Renewal(lease, LEASE_S, None)]) == {}
    assert await race.state() is State.QUEUED


# Renewals, ends and claims during a sweep


async def test_a_renewal_during_the_sweep_keeps_the_job(race: Race) -> None:
    lease = await race.leased(ago_s=2 * LEASE_S)
    past = datetime.now(UTC) - timedelta(seconds=1.5 * LEASE_S)
    renewal = race.store.renew([Renewal(lease, 10 * LEASE_S, None)], now=past)
    assert await race.meanwhile(race.held.sweep(), renewal) == []
    assert await race.state() is State.LEASED


async def test_an_end_during_the_sweep_stands(race: Race) -> None:
    lease = await race.leased(ago_s=2 * LEASE_S)
    assert await race.meanwhile(race.held.sweep(), _done(race.store, lease)) == []
    assert await race.state() is State.DONE


async def test_a_new_lease_during_the_sweep_is_left_alone(race: Race) -> None:
    await race.leased(ago_s=2 * LEASE_S)
    assert await race.meanwhile(race.held.sweep(), race.store.sweep(), race.claim(race.store)) == []
    row = await race.row()
    assert (row.state, row.lease_epoch) == (State.LEASED, 2)


async def test_two_sweeps_take_a_job_once(race: Race) -> None:
    await race.leased(ago_s=2 * LEASE_S, max_tries=1)
    assert await race.meanwhile(race.held.sweep(), race.store.sweep()) == []
    assert await race.state() is State.FAILED


# Claims


async def test_a_claim_during_a_claim_takes_the_job_alone(race: Race) -> None:
    await race.queued()
    assert await race.meanwhile(race.claim(race.held, holder=HOLDER), race.claim(race.store)) == []
    row = await race.row()
    assert (row.leased_by, row.lease_epoch, row.tries) == (OTHER, 1, 1)


async def test_a_claim_during_a_cancel_is_asked_to_stop(race: Race) -> None:
    job_id = await race.queued()
    assert await race.meanwhile(race.held.cancel([job_id]), race.claim(race.store)) == {job_id: State.LEASED}
    assert (await race.row()).cancel_asked_at is not None


async def test_an_end_during_a_cancel_stands(race: Race) -> None:
    lease = await race.leased()
    assert await race.meanwhile(race.held.cancel([lease.job_id]), _done(race.store, lease)) == {}
    assert await race.state() is State.DONE


async def test_what_a_claim_took_during_a_disowning_is_seen_by_the_next(race: Race) -> None:
    await race.queued()
    assert (
        await race.meanwhile(race.held.disown(OTHER, known=[], before=await race.store.clock()), race.claim(race.store))
        == 0
    )
    assert await race.state() is State.LEASED
    assert await race.store.disown(OTHER, known=[], before=await race.store.clock()) == 1


# A person's retry


async def test_a_claim_during_a_retry(race: Race) -> None:
    job_id = await race.queued()
    answer = await race.meanwhile(race.held.retry(job_id), race.claim(race.store))
    assert answer == Retried(job_id, "leased")


async def test_a_retry_during_a_retry(race: Race) -> None:
    lease = await race.leased()
    await race.store.finish([Finish(lease, Outcome.FAILED)])
    answer = await race.meanwhile(race.held.retry(lease.job_id), race.store.retry(lease.job_id))
    assert answer == Retried(lease.job_id, "queued")
    assert (await race.row()).tries == 0


async def test_a_renewal_that_began_before_its_lease_ran_out_is_refused_once_a_claim_counts_it_no_more(
    race: Race,
) -> None:
    """S19, to the letter: a limit is not exceeded by a lease that comes back."""
    limits = Limits(fleet=1)
    await race.queued()
    await race.queued()
    (first,) = await race.store.claim_turns([Ask("work", 1, 1.0, 3, limits=limits)], holder=HOLDER)
    again = Ask("work", 1, LEASE_S, 3, limits=limits)
    claimed: list[Any] = []

    async def claim_when_over() -> None:
        assert await race.store.claim_turns([again], holder=OTHER) == []
        async with asyncio.timeout(30):
            while not claimed:
                claimed.extend(await race.store.claim_turns([again], holder=OTHER))
                await asyncio.sleep(0.02)

    kept = await race.meanwhile(race.held.renew([Renewal(first.lease, LEASE_S, None)]), claim_when_over())
    assert kept == {}
    assert len(claimed) == 1


async def test_a_renewal_under_way_counts(race: Race) -> None:
    """Its row is locked, so it may be extended yet: a claim does not take its place."""
    limits = Limits(fleet=1)
    await race.queued()
    await race.queued()
    (first,) = await race.store.claim_turns([Ask("work", 1, 0.001, 3, limits=limits)], holder=HOLDER)
    again = Ask("work", 1, LEASE_S, 3, limits=limits)
    async with race.store.database.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM rota.open_jobs WHERE id = $1 FOR UPDATE", first.id)
        assert await race.store.claim_turns([again], holder=OTHER) == []
    assert len(await race.store.claim_turns([again], holder=OTHER)) == 1
