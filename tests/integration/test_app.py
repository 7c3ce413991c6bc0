"""The app as a program holds it: handlers, enqueueing in a transaction and without, refusals, starts and stops."""

import asyncio
import json
import math
import os
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

import rota
from rota.ids import JobId
from rota.io import migrate
from rota.io.embedded import EmbeddedPostgres
from rota.io.postgres import Target
from rota.queue.job import JobFilter, JobRow
from tests.integration.programs import ROTA, nothing_runs, run
from tests.postgres_servers import Psql


@dataclass
class Thumbnail:
    path: str
    width: int = 320


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("ROTA_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def app(migrated_dsn: str) -> AsyncIterator[rota.App]:
    made = rota.App(dsn=migrated_dsn)
    yield made
    await made.stop()


@pytest.fixture
async def conn(migrated_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(migrated_dsn)
    yield opened
    await opened.close()


async def jobs(app: rota.App) -> list[JobRow]:
    """All jobs, newest first."""
    return await (await app.store()).page(JobFilter(), limit=100)


async def payload_of(app: rota.App, job_id: JobId) -> Any:
    (row,) = await (await app.store()).show(job_id)
    return json.loads(row.payload or "null")


def refusal(error: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


# --- handlers ---


def test_a_function_stays_itself_and_its_kind_is_its_name() -> None:
    app = rota.App(settings=rota.Settings())

    @app.job
    async def bare(ctx: Any) -> None: ...

    @app.job()
    async def called(ctx: Any) -> None: ...

    @app.job("named.like-this", limit=2)
    def other(ctx: Any) -> str:
        return "it stays itself"

    assert sorted(app.handlers) == ["bare", "called", "named.like-this"]
    assert app.handlers["bare"].function is bare and app.handlers["bare"].is_async
    assert app.handlers["named.like-this"].kind.limit == 2
    assert other(None) == "it stays itself"


def test_one_function_may_have_two_kinds_and_no_kind_two_functions() -> None:
    app = rota.App(settings=rota.Settings())

    async def work(ctx: Any) -> None: ...

    app.job("one")(work)
    app.job("two")(work)
    assert sorted(app.handlers) == ["one", "two"]
    said = refusal(rota.SettingsError, lambda: app.job("one")(lambda ctx: None))
    assert said == "Two handlers want the kind 'one'. Give one of them another name."


def test_names_that_no_kind_can_have_are_refused() -> None:
    app = rota.App(settings=rota.Settings())
    assert refusal(rota.SettingsError, lambda: app.job("x" * 201)(lambda ctx: None)).endswith(
        "give 1 to 200 characters."
    )
    assert "U+0000" in refusal(rota.PayloadError, lambda: app.job("a\0b")(lambda ctx: None))


def test_a_kind_takes_what_it_does_not_say_from_the_settings() -> None:
    settings = rota.Settings(limit=7, lease_s=100.0, heartbeat_s=20.0, max_tries=9, limits={"ROTA_LIMIT_SECOND": 0})
    app = rota.App(settings=settings)
    app.job("first")(lambda ctx: None)
    app.job("second", limit=5, lease_s=6.0, max_tries=1, retry=rota.Exponential())(lambda ctx: None)
    first, second = app.handlers["first"].kind, app.handlers["second"].kind
    assert (first.limit, first.lease_s, first.heartbeat_s, first.max_tries) == (7, 100.0, 20.0, 9)
    assert (second.limit, second.lease_s, second.heartbeat_s, second.max_tries) == (0, 6.0, 2.0, 1)
    assert first.retry == rota.Fixed() and second.retry == rota.Exponential()


def test_a_limit_of_a_kind_that_is_not_there_is_refused() -> None:
    app = rota.App(settings=rota.Settings(limits={"biuld": 1}))
    app.job("build")(lambda ctx: None)
    assert refusal(rota.SettingsError, lambda: app.handlers) == (
        "biuld limits a kind that this program does not have. Its kinds: build."
    )


def test_an_app_without_handlers_has_no_worker(migrated_dsn: str) -> None:
    said = refusal(rota.SettingsError, rota.App(dsn=migrated_dsn).worker)
    assert said == "This app has no handlers: there is nothing to work on. Decorate one with @app.job."


def test_handlers_that_come_later_count_too() -> None:
    app = rota.App(settings=rota.Settings())
    app.job("first")(lambda ctx: None)
    assert list(app.handlers) == ["first"]
    app.job("second")(lambda ctx: None)
    assert sorted(app.handlers) == ["first", "second"]


# --- settings ---


def test_settings_come_from_code_then_environment_then_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "rota.toml").write_text("dsn = 'postgresql://file/d'\nschema = 'file'\npool_size = 9")
    monkeypatch.setenv("ROTA_SCHEMA", "env")
    app = rota.App(dsn="postgresql://code/d")
    settings = app.settings
    assert (settings.dsn, settings.schema, settings.pool_size) == ("postgresql://code/d", "env", 9)
    monkeypatch.setenv("ROTA_SCHEMA", "later")
    assert app.settings is settings, "read once"
    assert app.override(schema="flag", dsn=None).settings.schema == "flag"
    assert app.settings.dsn == "postgresql://code/d"


def test_given_settings_are_not_mixed_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_SCHEMA", "env")
    app = rota.App(settings=rota.Settings(schema="given"))
    assert app.settings.schema == "given"
    assert app.override(dsn="postgresql://flag/d", schema=None).settings == rota.Settings(
        dsn="postgresql://flag/d", schema="given"
    )


async def test_without_a_database_the_first_use_says_so() -> None:
    app = rota.App()
    for use in (app.start(), app.enqueue("mail"), app.cancel(JobId(uuid4()))):
        with pytest.raises(rota.SettingsError, match="No database is set"):
            await use
    await app.stop()


# --- enqueueing ---


async def test_a_job_is_there_if_and_when_the_callers_transaction_commits(
    app: rota.App, conn: asyncpg.Connection
) -> None:
    class Undone(Exception): ...

    with pytest.raises(Undone):
        async with conn.transaction():
            undone = await app.enqueue("thumbnail", Thumbnail("a.mp4"), conn=conn)
            assert undone.created
            raise Undone
    assert await jobs(app) == []
    async with conn.transaction():
        added = await app.enqueue("thumbnail", Thumbnail("b.mp4"), conn=conn)
        assert await jobs(app) == [], "others do not see it yet"
    assert [row.id for row in await jobs(app)] == [added.id]
    assert await payload_of(app, added.id) == {"path": "b.mp4", "width": 320}


async def test_an_error_in_a_nested_transaction_takes_back_its_jobs_alone(
    app: rota.App, conn: asyncpg.Connection
) -> None:
    async with conn.transaction():
        kept = await app.enqueue("mail", conn=conn)
        with pytest.raises(asyncpg.DivisionByZeroError):
            async with conn.transaction():
                await app.enqueue("mail", conn=conn)
                await conn.execute("SELECT 1 / 0")
    assert [row.id for row in await jobs(app)] == [kept.id]


async def test_without_a_connection_a_job_is_there_at_once(app: rota.App) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    added = await app.enqueue(
        "mail", {"to": ["a", "b"], "n": 1.5}, priority=-3, tenant="acme", run_after=due, max_tries=2
    )
    (row,) = await jobs(app)
    assert added == rota.Enqueued(row.id, created=True)
    assert (row.kind, row.priority, row.tenant, row.run_after, row.max_tries) == ("mail", -3, "acme", due, 2)
    assert await payload_of(app, added.id) == {"to": ["a", "b"], "n": 1.5}


async def test_a_handler_stands_for_its_kind_with_its_tries(app: rota.App) -> None:
    @app.job("thumbnail", max_tries=5)
    async def make(ctx: Any, job: Thumbnail) -> None: ...

    await app.enqueue(make, Thumbnail("a.mp4"))
    await app.enqueue("thumbnail", max_tries=1)
    await app.enqueue("of-another-program")
    assert [(row.kind, row.max_tries) for row in await jobs(app)][::-1] == [
        ("thumbnail", 5), ("thumbnail", 1), ("of-another-program", None),
    ]  # fmt: skip


def test_a_function_of_no_kind_is_refused() -> None:
    app, other = rota.App(settings=rota.Settings()), rota.App(settings=rota.Settings())

    @other.job
    def elsewhere(ctx: Any) -> None: ...

    assert refusal(rota.EnqueueError, lambda: app.new(elsewhere)) == (
        "elsewhere is no handler of this app. Decorate it with @app.job, or give the kind's name."
    )
    assert "is no handler of this app" in refusal(rota.EnqueueError, lambda: app.new(5))  # type: ignore[arg-type]


async def test_no_payload_is_an_empty_object_and_null_is_null(app: rota.App) -> None:
    assert await payload_of(app, (await app.enqueue("mail")).id) == {}
    for value in (0, "", [], {"a": None}):
        assert await payload_of(app, (await app.enqueue("mail", value)).id) == value


async def test_one_open_job_holds_its_key(app: rota.App, conn: asyncpg.Connection) -> None:
    first = await app.enqueue("mail", dedupe=rota.open_key("k"))
    async with conn.transaction():
        second = await app.enqueue("mail", {"other": 1}, dedupe=rota.open_key("k"), conn=conn)
    assert first.created and not second.created and second.id == first.id
    assert (await app.enqueue("mail", dedupe=rota.queued_key("k"))).created, "another scope"
    assert await app.cancel(first.id) is rota.State.CANCELLED
    assert (await app.enqueue("mail", dedupe=rota.open_key("k"))).created, "the key is free again"
    once = await app.enqueue("mail", dedupe=rota.forever_key("k"))
    await app.cancel(once.id)
    assert await app.enqueue("mail", dedupe=rota.forever_key("k")) == rota.Enqueued(once.id, created=False)


async def test_many_jobs_are_added_all_or_none(app: rota.App, conn: asyncpg.Connection) -> None:
    held = await app.enqueue("mail", dedupe=rota.open_key("held"))
    new = [
        app.new("mail", {"n": 1}),
        app.new("scan", dedupe=rota.open_key("held")),
        app.new("mail", {"n": 3}, priority=1),
    ]
    answers = await app.enqueue_many(new)
    assert [answer.created for answer in answers] == [True, False, True]
    assert answers[1].id == held.id
    assert await payload_of(app, answers[2].id) == {"n": 3}
    transaction = conn.transaction()
    await transaction.start()
    assert len(await app.enqueue_many(new, conn=conn)) == 3
    await transaction.rollback()
    assert len(await jobs(app)) == 3
    assert await app.enqueue_many([]) == []


async def test_keys_twice_in_one_call_are_one_job(app: rota.App) -> None:
    first, second = await app.enqueue_many([app.new("mail", dedupe=rota.open_key("k")) for _ in range(2)])
    assert first.created and second == rota.Enqueued(first.id, created=False)


# --- what is refused ---


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"priority": 2**31}, "priority=2147483648 is no good: give a whole number; higher runs first."),
        ({"priority": -(2**31)}, "priority=-2147483648 is no good"),
        ({"priority": 1.5}, "priority=1.5 is no good"),
        ({"priority": True}, "priority=True is no good"),
        ({"priority": "high"}, "priority='high' is no good"),
        ({"run_after": datetime(2030, 1, 1)}, "run_after has no time zone: give one, such as datetime.now(UTC)"),  # noqa: DTZ001
        ({"run_after": datetime(2030, 1, 1, tzinfo=UTC), "delay_s": 1}, "Give run_after or delay_s, not both."),
        ({"delay_s": -1}, "delay_s=-1 is no good: give seconds from 0 to 3,155,760,000."),
        ({"delay_s": math.nan}, "delay_s=nan is no good"),
        ({"delay_s": math.inf}, "delay_s=inf is no good"),
        ({"max_tries": 0}, "max_tries=0 is no good: give a whole number, 1 to 1,000."),
        ({"max_tries": 2.5}, "max_tries=2.5 is no good"),
        ({"run_after": datetime.max.replace(tzinfo=UTC)}, "is no good: give a time of the years 2 to 9998."),
        ({"run_after": datetime.min.replace(tzinfo=UTC)}, "is no good: give a time of the years 2 to 9998."),
        ({"parent": "x"}, "parent='x' is no id of a job: give that of what enqueue returned."),
        ({"tenant": "t" * 201}, "A tenant's name has at most 200 characters, and 'ttt"),
        ({"max_tries": 1001}, "max_tries=1001 is no good"),
        ({"dedupe": rota.open_key("")}, "A dedupe key has 1 to 500 characters."),
        ({"dedupe": rota.open_key("k" * 501)}, "A dedupe key has 1 to 500 characters."),
        ({"kind": ""}, "'' is no kind: give a name of 1 to 200 characters."),
        ({"kind": "k" * 201}, "is no kind: give a name of 1 to 200 characters."),
        ({"kind": "a\0b"}, "kind cannot be stored: it has the character U+0000"),
        ({"tenant": "\ud800"}, "tenant cannot be stored: it has a lone surrogate (U+D800)"),
        ({"dedupe": rota.open_key("a\0b")}, "dedupe key cannot be stored: it has the character U+0000"),
    ],
)
async def test_arguments_that_make_no_sense_are_refused(app: rota.App, arguments: dict[str, Any], said: str) -> None:
    arguments = {"kind": "mail", **arguments}
    with pytest.raises((rota.EnqueueError, rota.PayloadError)) as caught:
        await app.enqueue(**arguments)
    assert said in str(caught.value)
    assert refusal(type(caught.value), lambda: app.new(**arguments)) == str(caught.value)
    assert await jobs(app) == []


@pytest.mark.parametrize("given", ["x", None, 5, b"0" * 16, "0190" * 9])
async def test_what_is_no_id_is_said_to_be_none(app: rota.App, given: Any) -> None:
    said = re.escape(f"{given!r} is no id of a job: give what enqueue returned, its id, or the id's text.")
    for call in (
        lambda: app.result(given), lambda: app.cancel(given), lambda: app.move(given, priority=1),
        lambda: asyncio.to_thread(app.sync.result, given),
    ):  # fmt: skip
        with pytest.raises(rota.JobNotFound, match=said):
            await call()
    with pytest.raises(rota.BatchNotFound, match="is no id of a batch: give that of what enqueue_batch returned"):
        await app.batch_status(given)


async def test_an_id_may_be_given_as_text(app: rota.App) -> None:
    added = await app.enqueue("mail")
    assert await app.move(str(added.id), priority=3) is rota.State.QUEUED  # type: ignore[arg-type]
    assert await app.cancel(str(added.id)) is rota.State.CANCELLED  # type: ignore[arg-type]


@pytest.mark.parametrize("jobs", [[5], ["mail"], [None], [("mail", {})]])
async def test_what_is_no_new_job_is_not_enqueued(app: rota.App, jobs: list[Any]) -> None:
    mixed = [app.new("mail"), *jobs]
    for add in (app.enqueue_many, app.enqueue_batch):
        with pytest.raises(rota.EnqueueError, match="is no new job: make it"):
            await add(mixed)


async def test_jobs_may_come_one_by_one_from_a_generator(app: rota.App) -> None:
    assert len(await app.enqueue_many(app.new("mail") for _ in range(3))) == 3  # type: ignore[arg-type]


class Deep:
    """Nothing that JSON could say."""


@pytest.mark.parametrize(
    ("payload", "path", "said"),
    [
        ("a\0b", "$", "has the character U+0000, which PostgreSQL cannot store"),
        ({"a": [{"b": "x\0"}]}, "$.a[0].b", "has the character U+0000"),
        ({"a\0": 1}, "$", "has a key that has the character U+0000"),
        ({"a": "\udc80"}, "$.a", "has a lone surrogate (U+DC80), which is no Unicode text"),
        ({"a": {"b": math.nan}}, "$.a.b", "is nan, which JSON cannot hold"),
        ([1, math.inf], "$[1]", "is inf, which JSON cannot hold"),
        (Thumbnail("a\0b"), "$.path", "has the character U+0000"),
        ({"parts": [0, Deep()]}, "$.parts[1]", "is a Deep"),
        ({"a": {1, 2, Deep}}, "$.a", ""),
        ({"big": "x" * (16 * 1024 * 1024)}, "$", "bytes of JSON; at most 16,777,216 are allowed"),
    ],
)
async def test_payloads_that_cannot_be_stored_are_refused_by_their_place(
    app: rota.App, conn: asyncpg.Connection, payload: Any, path: str, said: str
) -> None:
    for use in (app.enqueue("mail", payload), app.enqueue("mail", payload, conn=conn)):
        with pytest.raises(rota.PayloadError) as caught:
            await use
        assert caught.value.path.startswith(path) and said in str(caught.value)
    assert await jobs(app) == []


async def test_a_payload_that_contains_itself_is_refused(app: rota.App) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(rota.PayloadError, match="contains itself"):
        await app.enqueue("mail", endless)


async def test_what_is_no_connection_is_refused(app: rota.App) -> None:
    with pytest.raises(
        rota.EnqueueError, match=r"Rota cannot enqueue on a builtins\.str\. It takes an asyncpg Connection"
    ):
        await app.enqueue("mail", conn="postgresql://db")
    with pytest.raises(rota.EnqueueError, match="asynchronous"):
        async with (await app.database()).acquire() as own:
            app.sync.enqueue("mail", conn=own)


# --- cancel ---


async def test_cancel_says_what_became_of_the_job(app: rota.App) -> None:
    added = await app.enqueue("mail")
    assert await app.cancel(added.id, reason="not wanted") is rota.State.CANCELLED
    (row,) = await jobs(app)
    assert (row.state, row.last_error) == (rota.State.CANCELLED, "not wanted")
    assert await app.cancel(added.id) is None
    assert await app.cancel(JobId(uuid4())) is None


async def test_a_running_job_is_asked_and_ends_cancelled(app: rota.App) -> None:
    started = asyncio.Event()

    @app.job
    async def endless(ctx: rota.Context) -> None:
        started.set()
        await asyncio.Event().wait()

    added = await app.enqueue(endless)
    worker = app.worker()
    working = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(30):
            await started.wait()
            assert await app.cancel(added.id, reason="not wanted") is rota.State.LEASED
            while (await jobs(app))[0].state is not rota.State.CANCELLED:
                await asyncio.sleep(0.02)
    finally:
        worker.stop()
        await working
    assert (await jobs(app))[0].last_error == "not wanted"


# --- start and stop ---


async def test_start_and_stop_may_come_twice_and_in_any_order(migrated_dsn: str) -> None:
    app = rota.App(dsn=migrated_dsn)
    await app.stop()
    await app.stop()
    await app.start()
    await app.start()
    added = await app.enqueue("mail")
    await app.stop()
    await app.stop()
    assert [row.id for row in await jobs(app)] == [added.id], "it opens again when it is needed"
    await app.stop()
    async with app, app:
        assert len(await jobs(app)) == 1
    await app.stop()


async def test_many_first_uses_at_once_open_one_pool(app: rota.App, conn: asyncpg.Connection) -> None:
    pools = await asyncio.gather(*(app.database() for _ in range(20)))
    assert len({id(pool) for pool in pools}) == 1
    await asyncio.gather(*(app.enqueue("mail") for _ in range(40)))
    used = await conn.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'rota'")
    assert 1 <= used <= app.settings.pool_size


async def test_it_leaves_no_connection_behind(migrated_dsn: str, conn: asyncpg.Connection) -> None:
    async with rota.App(dsn=migrated_dsn) as app:
        await app.enqueue("mail")
    async with asyncio.timeout(10):
        while await conn.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'rota'"):
            await asyncio.sleep(0.02)


async def test_a_start_that_fails_leaves_no_connection(dsn: str) -> None:
    conn = await asyncpg.connect(dsn)
    with pytest.raises(rota.SchemaError):
        async with rota.App(dsn=dsn):
            raise AssertionError("it started")
    async with asyncio.timeout(10):
        while await conn.fetchval("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()") > 1:
            await asyncio.sleep(0.02)
    await conn.close()


async def test_a_missing_schema_is_refused_at_the_start_and_at_use(dsn: str) -> None:
    app = rota.App(dsn=dsn)
    with pytest.raises(
        rota.SchemaError, match=r"The schema 'rota' in postgresql://.* does not exist yet. Run: rota migrate up"
    ):
        await app.start()
    with pytest.raises(rota.SchemaError, match=r"is missing or incomplete. Run: rota migrate up"):
        await app.enqueue("mail")
    await migrate.up(Target(dsn))
    await app.start()
    await app.enqueue("mail")
    await app.stop()


async def test_a_newer_schema_is_refused(migrated_dsn: str, psql: Psql) -> None:
    psql(migrated_dsn, "INSERT INTO rota.migrations (number, name, applied_by) VALUES (9999, 'from_tomorrow', '9.9')")
    app = rota.App(dsn=migrated_dsn)
    with pytest.raises(rota.SchemaError, match=r"is newer than this program: .* \(by Rota 9\.9\)"):
        await app.start()
    await app.stop()


async def test_a_schema_of_another_name_is_its_own(dsn: str) -> None:
    await migrate.up(Target(dsn, schema="jobs_a"))
    await migrate.up(Target(dsn, schema="jobs_b"))
    async with rota.App(dsn=dsn, schema="jobs_a") as a, rota.App(dsn=dsn, schema="jobs_b") as b:
        added = await a.enqueue("mail")
        assert [row.id for row in await jobs(a)] == [added.id]
        assert await jobs(b) == []


async def test_a_database_that_is_away_can_be_asked_again(tmp_path: Path) -> None:
    app = rota.App(dsn=f"postgresql://rota@/rota?host={tmp_path}")
    for _ in range(2):
        with pytest.raises(rota.DatabaseAway, match=r"The database at postgresql://local socket/rota does not answer"):
            await app.enqueue("mail")
    await app.stop()


async def test_a_database_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "server", fsync=False) as server:
        await migrate.up(Target(server.dsn))
        async with rota.App(dsn=server.dsn) as app:
            first = await app.enqueue("mail")
            server.stop()
            uses: list[Callable[[], Any]] = [
                lambda: app.enqueue("mail"), lambda: app.enqueue_many([app.new("mail")] * 2),
                lambda: app.enqueue_many([app.new("mail")] * 100), lambda: app.cancel(first.id), app.start,
            ]  # fmt: skip
            for use in uses:
                with pytest.raises(rota.DatabaseAway, match=r"does not answer"):
                    await use()
            server.start()
            second = await app.enqueue("mail")
            assert [row.id for row in await jobs(app)] == [second.id, first.id]


def test_a_program_brings_its_own_database(tmp_path: Path) -> None:
    place = tmp_path / "program"
    place.mkdir()
    (place / "own.py").write_text(
        "import asyncio, rota\n"
        "from rota.io import migrate\n"
        "async def main():\n"
        "    app = rota.App(dsn='embedded:data')\n"
        "    await migrate.up(app.target)\n"
        "    async with app:\n"
        "        print((await app.enqueue('mail')).created)\n"
        "asyncio.run(main())\n"
    )
    done = run([ROTA[0], "own.py"], folder=place)
    assert (done.status, done.out, done.err) == (0, "True\n", "")
    nothing_runs(place)
    listed = run([*ROTA, "jobs", "list", "--dsn", "embedded:data"], folder=place)
    assert listed.status == 0 and " mail " in listed.out
    nothing_runs(place)
