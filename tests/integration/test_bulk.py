"""Many jobs at once on asyncpg: what goes by COPY is the same as what the SQL function adds, and all or none."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest

from rota.errors import EnqueueError, SchemaError
from rota.io.postgres import statement
from rota.queue.io import bulk
from rota.queue.io.bulk import COPY_JOBS_MIN, COPY_PAYLOAD_CHARS_MAX, copy_on
from rota.queue.io.callers import fetch_on
from rota.queue.io.rows import many_jobs
from rota.queue.job import NewJob, open_key

COUNT = 3000
"""Jobs of some chunks."""

STRANGE = """Zoë 🦀 100% %s $1 :name 'single' "double" \\ \u2028"""
DUE = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=timezone(timedelta(hours=-5)))
COMPARED = """
    SELECT kind, payload::text, priority, tenant, max_tries, trace, state, place, tries, lease_epoch, dedupe_key,
           created_at = now() AS created_now, CASE WHEN run_after = now() THEN NULL ELSE run_after END AS run_after
    FROM rota.open_jobs ORDER BY id"""


@pytest.fixture
async def conn(migrated_dsn: str) -> AsyncIterator[Any]:
    """The caller's connection."""
    conn = await asyncpg.connect(migrated_dsn)
    yield conn
    await conn.close()


@pytest.fixture
async def observer(migrated_dsn: str) -> AsyncIterator[Any]:
    """Somebody else, who sees what is committed."""
    conn = await asyncpg.connect(migrated_dsn)
    yield conn
    await conn.close()


@pytest.fixture
def only_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function must not be used."""
    monkeypatch.setattr(bulk, "many_jobs", None)


@pytest.fixture
def only_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """COPY must not be used."""
    monkeypatch.setattr(bulk, "_stream", None)


def plain(count: int = COUNT) -> list[NewJob]:
    """Jobs that may go by COPY."""
    return [NewJob(f"kind {number % 3}", json.dumps({"n": number, "text": STRANGE})) for number in range(count)]


async def count_jobs(conn: Any) -> int:
    """How many jobs this connection sees."""
    count: int = await conn.fetchval("SELECT count(*) FROM rota.jobs")
    return count


@pytest.mark.usefixtures("only_copy")
class TestCopy:
    async def test_jobs_come_in_order_and_with_the_callers_commit(self, conn: Any, observer: Any) -> None:
        jobs = plain()
        async with conn.transaction():
            added = await copy_on(conn, jobs, schema="rota")
            assert await count_jobs(observer) == 0

        rows = await observer.fetch("SELECT id, kind, payload FROM rota.open_jobs ORDER BY id")
        assert [each.id for each in added] == [row["id"] for row in rows]
        assert all(each.created and isinstance(each.id, UUID) and each.id.version == 7 for each in added)
        assert [row["kind"] for row in rows] == [job.kind for job in jobs]
        assert [json.loads(row["payload"]) for row in rows] == [json.loads(job.payload) for job in jobs]

    async def test_jobs_vanish_with_the_callers_rollback(self, conn: Any, observer: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            async with conn.transaction():
                await copy_on(conn, plain(), schema="rota")
                raise ZeroDivisionError
        assert await count_jobs(observer) == 0

    async def test_without_a_transaction_they_are_there_at_once(self, conn: Any, observer: Any) -> None:
        await copy_on(conn, plain(), schema="rota")
        assert await count_jobs(observer) == COUNT
        assert not conn.is_in_transaction()

    async def test_a_transaction_begun_by_hand(self, conn: Any, observer: Any) -> None:
        await conn.execute("BEGIN")
        await copy_on(conn, plain(), schema="rota")
        assert await count_jobs(observer) == 0
        await conn.execute("COMMIT")
        assert await count_jobs(observer) == COUNT

    async def test_a_savepoint_of_the_callers(self, conn: Any, observer: Any) -> None:
        async with conn.transaction():
            await copy_on(conn, plain(COPY_JOBS_MIN), schema="rota")
            inner = conn.transaction()
            await inner.start()
            await copy_on(conn, plain(), schema="rota")
            await inner.rollback()
        assert await count_jobs(observer) == COPY_JOBS_MIN

    async def test_a_connection_of_a_pool(self, migrated_dsn: str, observer: Any) -> None:
        async with asyncpg.create_pool(migrated_dsn, min_size=1, max_size=1) as pool, pool.acquire() as pooled:
            await copy_on(pooled, plain(), schema="rota")
        assert await count_jobs(observer) == COUNT

    async def test_codecs_of_the_callers_do_not_touch_payloads(self, conn: Any, observer: Any) -> None:
        for name in ("jsonb", "json"):
            await conn.set_type_codec(name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
        await conn.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=str)
        added = await copy_on(conn, plain(), schema="rota")
        rows = await observer.fetch("SELECT id, payload->>'text' AS text FROM rota.open_jobs ORDER BY id")
        assert [(row["id"], row["text"]) for row in rows] == [(each.id, STRANGE) for each in added]

    async def test_what_a_batch_needs_in_memory_is_bounded(self, conn: Any, observer: Any) -> None:
        # Payloads far larger than a chunk, and one at the limit.
        texts = ["x" * size for size in (0, 1, 70_000, COPY_PAYLOAD_CHARS_MAX - 2, 200_000)] * 10
        await copy_on(conn, [NewJob("big", json.dumps(text)) for text in texts], schema="rota")
        rows = await observer.fetch("SELECT payload#>>'{}' AS text FROM rota.open_jobs ORDER BY id")
        assert [row["text"] for row in rows] == texts


VARIANTS: dict[str, Sequence[NewJob]] = {
    "nothing": [NewJob("a", '{"x": [1, 2.50, "é", null]}')],
    "priority": [NewJob("a", priority=5), NewJob("a"), NewJob("a", priority=-(2**31)), NewJob("a", priority=2**31 - 1)],
    "tenant": [NewJob("a", tenant=STRANGE), NewJob("a"), NewJob("a", tenant="")],
    "max_tries": [NewJob("a", max_tries=1), NewJob("b"), NewJob("b", max_tries=1000)],
    "trace": [NewJob("a", trace="00-aa-bb-01"), NewJob("a")],
    "run_after": [NewJob("a", run_after=DUE), NewJob("b", run_after=datetime(1969, 1, 1, tzinfo=UTC))],
    "all": [
        NewJob("ä" * 200, "[]", priority=1, tenant="t", run_after=DUE, max_tries=2, trace="x"),
        NewJob("b", run_after=DUE),
    ],
}


@pytest.mark.parametrize("name", VARIANTS)
async def test_copy_and_function_store_the_same(name: str, conn: Any, only_copy: None) -> None:
    jobs = [*VARIANTS[name]] * COPY_JOBS_MIN
    stored = []
    for by_copy in (True, False):
        transaction = conn.transaction()
        await transaction.start()
        if by_copy:
            await copy_on(conn, jobs, schema="rota")
        else:
            text = statement("rota.queue.io.sql", "enqueue_many.sql", "rota")
            await fetch_on(conn, text, many_jobs(jobs), schema="rota")
        stored.append([tuple(row) for row in await conn.fetch(COMPARED)])
        await transaction.rollback()
    assert len(stored[0]) == len(jobs)
    assert stored[0] == stored[1]


@pytest.mark.usefixtures("only_function")
class TestFunction:
    """What COPY may not decide."""

    async def test_few_jobs(self, conn: Any, observer: Any) -> None:
        await copy_on(conn, plain(COPY_JOBS_MIN - 1), schema="rota")
        assert await count_jobs(observer) == COPY_JOBS_MIN - 1

    async def test_no_jobs(self, conn: Any) -> None:
        assert await copy_on(conn, [], schema="rota") == []

    async def test_keys(self, conn: Any) -> None:
        added = await copy_on(conn, [*plain(100), *[NewJob("a", dedupe=open_key("k"))] * 2], schema="rota")
        assert [each.created for each in added] == [True] * 101 + [False]
        assert added[-1].id == added[-2].id

    async def test_delays(self, conn: Any, observer: Any) -> None:
        await copy_on(conn, [*plain(100), NewJob("later", delay_s=60)], schema="rota")
        row = await observer.fetchrow("SELECT run_after - created_at AS delay FROM rota.jobs WHERE kind = 'later'")
        assert row["delay"] == timedelta(seconds=60)

    async def test_some_run_after(self, conn: Any, observer: Any) -> None:
        await copy_on(conn, [*plain(100), NewJob("later", run_after=DUE)], schema="rota")
        rows = await observer.fetch("SELECT run_after FROM rota.jobs WHERE run_after <> created_at")
        assert [row["run_after"] for row in rows] == [DUE]

    @pytest.mark.parametrize(
        ("bad", "said"),
        [
            (NewJob(""), "no usable kind"),
            (NewJob("k" * 201), "no usable kind"),
            (NewJob("a", max_tries=0), "max_tries outside"),
            (NewJob("a", max_tries=1001), "max_tries outside"),
            (NewJob("a", delay_s=-1), "delay_s outside"),
            (NewJob("a", "[" + "1," * 4_000_000 + "1]"), "payload over 32 MiB"),
        ],
    )
    async def test_a_job_that_is_refused_has_its_number(self, bad: NewJob, said: str, conn: Any, observer: Any) -> None:
        with pytest.raises(EnqueueError, match=f"^rota: job 101 of this enqueue has .*{said}"):
            await copy_on(conn, [*plain(100), bad, *plain(100)], schema="rota")
        assert await count_jobs(observer) == 0

    @pytest.mark.parametrize("bad", [NewJob("a", priority=2**31), NewJob("a", priority=-(2**31) - 1)])
    async def test_what_the_driver_refuses_is_its_own_error(self, bad: NewJob, conn: Any) -> None:
        with pytest.raises(asyncpg.DataError):
            await copy_on(conn, [*plain(100), bad], schema="rota")

    async def test_another_encoding_of_the_connection(self, conn: Any, observer: Any) -> None:
        await conn.execute("SET client_encoding = 'latin1'")
        await copy_on(conn, [NewJob("Größe", '"é"')] * 100, schema="rota")
        assert (
            await observer.fetchval("SELECT count(*) FROM rota.jobs WHERE kind = 'Größe' AND payload = '\"é\"'") == 100
        )

    async def test_connections_of_other_libraries(self, migrated_dsn: str, observer: Any) -> None:
        async with await psycopg.AsyncConnection.connect(migrated_dsn) as other:
            added = await copy_on(other, plain(), schema="rota")
        rows = await observer.fetch("SELECT id FROM rota.jobs ORDER BY id")
        assert [each.id for each in added] == [row["id"] for row in rows]

    async def test_what_is_no_connection(self) -> None:
        with pytest.raises(EnqueueError, match=r"Rota cannot enqueue on a builtins\.int"):
            await copy_on(1, plain(), schema="rota")


class TestFailing:
    """All or none, whatever fails."""

    async def test_a_missing_schema(self, conn: Any) -> None:
        with pytest.raises(SchemaError, match=r"'nowhere' .*Run: rota migrate up"):
            await copy_on(conn, plain(), schema="nowhere")

    async def test_a_missing_function_takes_the_rows_back(self, conn: Any, observer: Any) -> None:
        await conn.execute("DROP FUNCTION rota.wake")
        with pytest.raises(SchemaError, match="wake"):
            await copy_on(conn, plain(), schema="rota")
        assert await count_jobs(observer) == 0
        assert not conn.is_in_transaction()

    async def test_a_text_that_cannot_be_sent_stops_the_copy(self, conn: Any, observer: Any) -> None:
        with pytest.raises(UnicodeEncodeError):
            await copy_on(conn, [*plain(), NewJob("a", tenant="\ud800")], schema="rota")
        await copy_on(conn, plain(60), schema="rota")
        assert await count_jobs(observer) == 60

    async def test_a_text_that_postgres_refuses_is_the_drivers_error(self, conn: Any, observer: Any) -> None:
        with pytest.raises(asyncpg.CharacterNotInRepertoireError):
            await copy_on(conn, [*plain(), NewJob("a", tenant="\0")], schema="rota")
        assert await count_jobs(observer) == 0

    async def test_a_cancelled_copy_leaves_nothing(self, conn: Any, observer: Any) -> None:
        locking = observer.transaction()
        await locking.start()
        await observer.execute("LOCK TABLE rota.open_jobs")
        copying = asyncio.create_task(copy_on(conn, plain(), schema="rota"))
        waits = "SELECT FROM pg_locks WHERE relation = 'rota.open_jobs'::regclass AND NOT granted"
        while not await observer.fetch(waits):
            pass

        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
        await locking.rollback()

        assert await count_jobs(conn) == 0
        await copy_on(conn, plain(60), schema="rota")
        assert await count_jobs(observer) == 60

    async def test_an_aborted_transaction_gives_the_drivers_error(self, conn: Any, observer: Any) -> None:
        transaction = conn.transaction()
        await transaction.start()
        with pytest.raises(asyncpg.DivisionByZeroError):
            await conn.execute("SELECT 1/0")
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await copy_on(conn, plain(), schema="rota")
        await transaction.rollback()
        assert await count_jobs(observer) == 0


class TestWake:
    """Workers that wait are woken for what is due, once the jobs are there."""

    @pytest.mark.usefixtures("only_copy")
    @pytest.mark.parametrize(
        ("run_afters", "woken"),
        [
            ({"now": None, "later": None}, {"now", "later"}),
            ({"now": datetime(2020, 1, 1, tzinfo=UTC), "later": DUE}, {"now"}),
            ({"later": DUE}, set()),
        ],
    )
    async def test_only_due_kinds(
        self, run_afters: dict[str, datetime | None], woken: set[str], conn: Any, observer: Any
    ) -> None:
        heard: list[str] = []
        await observer.add_listener("rota_wake", lambda *said: heard.append(said[-1]))
        await observer.execute(
            "INSERT INTO rota.waiting VALUES ('somebody', '{now,later,other}', now() + interval '1 hour')"
        )
        # The due one stands between later ones of its kind.
        jobs = [NewJob(kind, run_after=run_after) for kind, run_after in run_afters.items()] * COPY_JOBS_MIN
        if run_afters.get("now"):
            jobs = [NewJob("now", run_after=DUE), *jobs, NewJob("now", run_after=DUE)]

        async with conn.transaction():
            await copy_on(conn, jobs, schema="rota")
            await observer.fetch("SELECT")
            assert heard == []
        await observer.fetch("SELECT")

        assert set(heard) == woken
        assert len(heard) == len(woken)
