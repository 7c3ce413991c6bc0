"""S13: while somebody holds an old snapshot, ended jobs stay in the indexes; a claim with marks passes them by."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from rota.ids import Holder
from rota.io.postgres import Connection, Database, Target, statement
from rota.queue.io import claims as claims_module
from rota.queue.io.claims import Claims
from rota.queue.io.store import Store
from rota.queue.job import Ask, ClaimedJob, Finish, NewJob, Outcome, Poll
from rota.queue.marks import Mark

HOLDER = Holder("here:1:aa")
DEAD = 20_000
PAGES_MAX = 60
"""A claim of one job touches about fifty pages where nothing is dead, most of them to write."""


class Watched(Store):
    """A store that says how many pages a claim and a look touch."""

    pages = 0

    async def claim(self, asks: object, *, marks: object = (), **options: object) -> list[ClaimedJob]:
        self.marks = marks
        return await super().claim(asks, marks=marks, **options)  # type: ignore[arg-type]

    async def poll(self, kinds: object, *, marks: object = (), **options: object) -> Poll:
        self.marks = marks
        self.none_expired_s = options.get("none_expired_s")
        return await super().poll(kinds, marks=marks, **options)  # type: ignore[arg-type]

    async def _fetch(self, name: str, *args: object, conn: Connection | None = None) -> list[object]:
        async with self.database.acquire() as own:
            if name in ("claim.sql", "poll.sql"):
                transaction = own.transaction()
                await transaction.start()
                said = await own.fetchval("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + self._sql(name), *args)
                await transaction.rollback()
                (plan,) = json.loads(said)
                self.pages = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
            return await super()._fetch(name, *args, conn=own)


@pytest.fixture
async def store(any_migrated_dsn: str) -> AsyncIterator[Watched]:
    database = Database(Target(any_migrated_dsn), size=2)
    await database.start()
    await database.fetch("ALTER TABLE rota.open_jobs SET (autovacuum_enabled = false)")
    snapshot = await asyncpg.connect(any_migrated_dsn)
    try:
        await snapshot.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await snapshot.fetch("SELECT FROM rota.open_jobs")
        yield Watched(database)
    finally:
        await snapshot.close()
        await database.stop()


async def come_and_go(store: Store, *, priority: int = 0) -> None:
    """Many jobs are added, claimed and ended; what a claim and a finish leave behind."""
    now = datetime.now(UTC)
    for sql in (
        "INSERT INTO rota.open_jobs (id, kind, payload, priority, run_after) "
        "SELECT gen_random_uuid(), 'work', '{}', $2, clock_timestamp() - interval '1 minute' "
        "FROM generate_series(1, $1) AS n",
        "UPDATE rota.open_jobs SET state = 'leased', lease_epoch = 1, leased_by = 'h', tries = 1, "
        "lease_until = clock_timestamp() - interval '1 hour' WHERE kind = 'work' AND $1 > 0 AND priority = $2",
        "DELETE FROM rota.open_jobs WHERE state || '' = 'leased' AND $1 > 0 AND priority = $2",
    ):
        await store.database.fetch(sql, DEAD, priority)
    assert datetime.now(UTC) - now < timedelta(minutes=5)


async def test_s13_a_claim_and_a_look_stay_flat(store: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """S13: at the begin they read a few pages, with 20,000 dead entries many, and with marks a few."""
    clock = [1000.0]
    monkeypatch.setattr(claims_module, "lease_clock", lambda: clock[0])
    claims = Claims(store, holder=HOLDER)
    ask = Ask("work", 1, 300.0, 3)

    async def take() -> int:
        await store.enqueue(NewJob("work"))
        (job,) = await claims.take([ask])
        await store.finish([Finish(job.lease, Outcome.DONE)])
        return store.pages

    assert await take() < PAGES_MAX
    await come_and_go(store)
    clock[0] += 10.0
    assert await take() > 10 * PAGES_MAX, "a whole claim walks over what is dead"
    assert store.marks == []
    assert await claims.take([ask]) == []
    # The look's first is whole, too, and sees that no lease ran out.
    await claims.look(["work"], full=[], grace_s=30.0)
    assert (store.marks, store.none_expired_s) == ((), None)
    assert store.pages > 10 * PAGES_MAX
    for _ in range(2):
        await come_and_go(store)
        # Time that a claim would take; the clock of this test stands still meanwhile.
        claims._marks._lines["work"].wholes.took_s = claims._looks.took_s = 5.0
        clock[0] += 1.0
        seen = await claims.look(["work"], full=[], grace_s=30.0)
        assert (seen.next_due_s, seen.expired) == (None, False)
        assert store.marks
        assert store.none_expired_s == 1.0
        assert store.pages < PAGES_MAX
        assert await take() < PAGES_MAX
        assert store.marks
    # A priority that nobody has seen is found without a walk over what is dead in others.
    await store.enqueue(NewJob("work", priority=5))
    (job,) = await claims.take([ask])
    assert job.priority == 5
    assert store.pages < PAGES_MAX


async def test_the_levels_of_a_mark_do_not_hide_each_other(store: Watched) -> None:
    """Dead entries of several priorities, each with its mark, and live jobs in and between them."""
    for priority in (0, 5):
        await come_and_go(store, priority=priority)
    added = [(await store.enqueue(NewJob("work", priority=priority))).id for priority in (5, 3, 0, -1)]
    marks = [Mark("work", priority, age_s=1.0) for priority in (0, 5)]
    jobs = await store.claim([Ask("work", 9, 300.0, 3)], holder=HOLDER, marks=marks)
    assert [job.id for job in jobs] == added
    assert store.pages < 3 * PAGES_MAX


def test_the_statements_say_the_same_margin() -> None:
    """As `rota.queue.marks.MARGIN_S`."""
    for name in ("claim.sql", "poll.sql"):
        assert "secs => 1 + coalesce(m.age_s, 0)" in statement("rota.queue.io.sql", name, "rota")
