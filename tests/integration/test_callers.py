"""Jobs added on the caller's own connection, of every library that Rota takes.

They come and go with the caller's transaction, answers and errors are the same whatever the library, and nothing else
of the caller's connection changes.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import psycopg
import psycopg.rows
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio

from rota.errors import EnqueueError, RotaError, SchemaError
from rota.io.postgres import statement
from rota.queue.io.callers import fetch_on, fetch_on_sync
from rota.queue.io.rows import many_jobs, one_job
from rota.queue.job import NewJob, forever_key, open_key, queued_key
from tests.integration.callers_libraries import (
    CALLERS,
    Asyncpg,
    Caller,
    Django,
    Psycopg,
    Psycopg2,
    PsycopgAsync,
    PsycopgCursor,
    Sqlalchemy,
    SqlalchemyAsync,
    alchemy_url,
)
from tests.postgres_servers import Server

Library = TypeVar("Library", bound=Caller)
Opened = Callable[..., Any]

STRANGE = """Zoë 🦀 100% %s %(p1)s $1 :name 'single' "double" \\ back -- no comment /* nor this */"""
ENQUEUE = statement("rota.queue.io.sql", "enqueue.sql", "rota")


@pytest.fixture(scope="module")
def shared_dsn(default_server: Server) -> Iterator[str]:
    """One database for all tests here, because making one takes longer than most of them."""
    with default_server.database(template=default_server.template()) as address:
        yield address


@pytest.fixture
def dsn(shared_dsn: str) -> Iterator[str]:
    """The shared database, emptied after each test."""
    yield shared_dsn
    with psycopg.connect(shared_dsn, autocommit=True) as conn:
        conn.execute("SET lock_timeout = '5s'")  # a caller that was not closed fails one test, and hangs none
        conn.execute("TRUNCATE rota.open_jobs, rota.ended_jobs, rota.forever_keys, rota.waiting")


@pytest.fixture
def opened(dsn: str) -> Iterator[Opened]:
    """Makes callers: `opened(Psycopg)`; they are closed after the test, however it went."""
    with contextlib.ExitStack() as stack:

        def one(library: type[Library], **options: Any) -> Library:
            made = library(dsn, **options)
            stack.callback(made.close)
            return made

        yield one


@pytest.fixture(params=CALLERS, ids=lambda library: library.__name__)
def caller(request: pytest.FixtureRequest, opened: Opened) -> Caller:
    """A caller with each kind of connection in turn."""
    made: Caller = opened(request.param)
    return made


@pytest.fixture
def observer(dsn: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """Somebody else, who sees what is committed."""
    with psycopg.connect(dsn, autocommit=True, row_factory=psycopg.rows.dict_row) as conn:
        yield conn


def jobs(observer: psycopg.Connection[dict[str, Any]]) -> list[dict[str, Any]]:
    """The jobs that are committed, oldest first."""
    return observer.execute("SELECT * FROM rota.jobs ORDER BY id").fetchall()


def sqlstate(error: BaseException | None) -> str | None:
    """The SQLSTATE of a library's error, or of the one that it wraps."""
    while error is not None:
        found = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if found:
            return str(found)
        error = getattr(error, "orig", None) or error.__cause__
    return None


class TestTransaction:
    def test_jobs_come_with_the_callers_commit(self, caller: Caller, observer: Any) -> None:
        caller.begin()
        row = caller.enqueue(NewJob("one"))
        many = caller.enqueue_many([NewJob("two"), NewJob("three")])
        assert jobs(observer) == []

        caller.commit()

        assert isinstance(row["id"], UUID)
        assert row["created"] is True
        assert [job["id"] for job in jobs(observer)] == [row["id"], *(each["id"] for each in many)]
        assert [job["kind"] for job in jobs(observer)] == ["one", "two", "three"]

    def test_jobs_vanish_with_the_callers_rollback(self, caller: Caller, observer: Any) -> None:
        caller.begin()
        caller.enqueue(NewJob("one"))
        caller.enqueue_many([NewJob("two"), NewJob("three")])

        caller.rollback()

        assert jobs(observer) == []

    def test_jobs_vanish_with_the_callers_savepoint_alone(self, caller: Caller, observer: Any) -> None:
        caller.begin()
        caller.enqueue(NewJob("stays"))
        caller.in_savepoint(lambda: caller.enqueue(NewJob("goes")))
        caller.enqueue(NewJob("stays too"))

        caller.commit()

        assert [job["kind"] for job in jobs(observer)] == ["stays", "stays too"]

    def test_the_callers_settings_stay(self, caller: Caller) -> None:
        # Of the connection and of the transaction.
        text = "SELECT name, setting FROM pg_settings WHERE name NOT LIKE 'plpgsql.%' ORDER BY name"
        caller.begin()
        before = caller.execute(text)

        caller.enqueue(NewJob("one"))
        caller.enqueue_many([NewJob("two")])

        assert caller.execute(text) == before


class TestAnswers:
    def test_a_held_key_answers_with_its_holder(self, caller: Caller) -> None:
        caller.begin()
        first = caller.enqueue(NewJob("one", dedupe=open_key("the key")))

        again = caller.enqueue(NewJob("one", dedupe=open_key("the key")))

        assert first["created"] is True
        assert (again["id"], again["created"]) == (first["id"], False)

    def test_many_answer_in_order_also_where_they_hold_each_others_keys(self, caller: Caller) -> None:
        caller.begin()
        held = caller.enqueue(NewJob("one", dedupe=open_key("held")))["id"]

        rows = caller.enqueue_many(
            [
                NewJob("b", dedupe=queued_key("twice")),
                NewJob("b"),
                NewJob("b", dedupe=open_key("held")),
                NewJob("b", dedupe=queued_key("twice")),
                NewJob("b", dedupe=forever_key("ever")),
                NewJob("b", dedupe=forever_key("ever")),
            ]
        )

        ids = [row["id"] for row in rows]
        assert [row["created"] for row in rows] == [True, True, False, False, True, False]
        assert (ids[2], ids[3], ids[5]) == (held, ids[0], ids[4])
        assert len(set(ids)) == 4

    def test_any_text_comes_back_as_it_was(self, caller: Caller, observer: Any) -> None:
        job = NewJob("Größe 🎞", json.dumps({"text": STRANGE, "n": [1, 2.5, None, "\u2028"]}), tenant=STRANGE)
        caller.begin()
        caller.enqueue(job)
        caller.enqueue_many([job, job])
        caller.commit()

        for found in jobs(observer):
            assert found["kind"] == "Größe 🎞"
            assert found["payload"] == {"text": STRANGE, "n": [1, 2.5, None, "\u2028"]}
            assert found["tenant"] == STRANGE
        assert len(jobs(observer)) == 3

    def test_all_optional_fields_arrive(self, caller: Caller, observer: Any) -> None:
        due = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=timezone(timedelta(hours=5, minutes=30)))
        full = NewJob(
            "full",
            '{"a": 1}',
            priority=-7,
            tenant="t",
            dedupe=forever_key("k"),
            run_after=due,
            max_tries=9,
            trace="00-aa-bb-01",
        )
        later = NewJob("later", delay_s=3600)
        # A whole number of seconds beside a broken one, and nothing: what one list of a library may not hold.
        mixed = [full, NewJob("bare"), later, NewJob("later", delay_s=0.5)]
        caller.begin()
        caller.enqueue(full)
        caller.enqueue(later)
        caller.execute("DELETE FROM rota.forever_keys")
        caller.enqueue_many(mixed)
        caller.commit()

        one, one_later, many, bare, many_later, many_soon = jobs(observer)
        for found in (one, many):
            wanted = {"kind": "full", "payload": {"a": 1}, "priority": -7, "tenant": "t", "max_tries": 9}
            wanted |= {"dedupe_key": "k", "dedupe_scope": "forever", "run_after": due, "trace": "00-aa-bb-01"}
            assert {name: found[name] for name in wanted} == wanted
        assert (bare["priority"], bare["tenant"], bare["max_tries"], bare["trace"]) == (0, None, None, None)
        assert bare["run_after"] == bare["created_at"]
        assert one_later["run_after"] - one_later["created_at"] == timedelta(hours=1)
        assert many_later["run_after"] - many_later["created_at"] == timedelta(hours=1)
        assert many_soon["run_after"] - many_soon["created_at"] == timedelta(seconds=0.5)


class TestErrors:
    def test_a_refused_job_is_named_by_its_number(self, caller: Caller) -> None:
        caller.begin()

        with pytest.raises(
            EnqueueError, match=r"^rota: job 2 of this enqueue has no usable kind: give a name"
        ) as caught:
            caller.enqueue_many([NewJob("good"), NewJob(""), NewJob("good")])

        assert sqlstate(caught.value.__cause__) == "22023"
        assert "\n" not in str(caught.value)

    def test_one_refused_job_is_job_1(self, caller: Caller) -> None:
        caller.begin()

        with pytest.raises(EnqueueError, match=r"^rota: job 1 of this enqueue has a max_tries outside 1 to 1000$"):
            caller.enqueue(NewJob("good", max_tries=0))

    def test_a_missing_schema_says_what_to_run(self, caller: Caller) -> None:
        caller.begin()

        with pytest.raises(SchemaError, match=r"'nowhere' in the database .* missing .*\. Run: rota migrate up$"):
            caller.enqueue(NewJob("one"), schema="nowhere")

    def test_a_missing_function_says_so_too(self, caller: Caller) -> None:
        caller.begin()
        caller.execute("DROP FUNCTION rota.job_ok")

        with pytest.raises(SchemaError, match=r"rota\.job_ok.*Run: rota migrate up$"):
            caller.enqueue(NewJob("one"))

    def test_other_errors_stay_the_librarys(self, caller: Caller) -> None:
        caller.begin()

        with pytest.raises(Exception, match="json") as caught:
            caller.enqueue(NewJob("one", "{no json"))

        assert not isinstance(caught.value, RotaError)
        assert sqlstate(caught.value) == "22P02"
        assert type(caught.value).__module__.split(".")[0] in type(caller.conn).__module__

    def test_what_a_trigger_of_the_callers_misses_is_not_the_schemas_fault(self, caller: Caller) -> None:
        caller.begin()
        caller.execute(
            "CREATE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN PERFORM * FROM audit_log; RETURN NEW; END$$"
        )
        caller.execute("CREATE TRIGGER theirs AFTER INSERT ON rota.open_jobs FOR EACH ROW EXECUTE FUNCTION theirs()")

        with pytest.raises(Exception, match="audit_log") as caught:
            caller.enqueue(NewJob("one"))

        assert not isinstance(caught.value, RotaError)

    def test_an_aborted_transaction_gives_the_librarys_error(self, caller: Caller) -> None:
        caller.begin()
        with pytest.raises(Exception, match="division"):
            caller.execute("SELECT 1/0")

        with pytest.raises(Exception, match="aborted") as caught:
            caller.enqueue(NewJob("one"))

        assert not isinstance(caught.value, RotaError)
        assert sqlstate(caught.value) == "25P02"

    def test_after_an_error_the_caller_goes_on_with_a_new_transaction(self, caller: Caller, observer: Any) -> None:
        caller.begin()
        with pytest.raises(EnqueueError):
            caller.enqueue(NewJob(""))
        caller.rollback()

        caller.begin()
        caller.enqueue(NewJob("one"))
        caller.commit()

        assert [job["kind"] for job in jobs(observer)] == ["one"]


class TestKinds:
    def test_the_wrong_function_says_which_is_right(self, caller: Caller) -> None:
        caller.begin()
        right = (
            r"Use `await app\.enqueue\(…\)` with it\." if caller.is_async else r"Use app\.sync\.enqueue\(…\) with it"
        )

        with pytest.raises(EnqueueError, match=right):
            caller.fetch_wrongly(ENQUEUE)

    async def test_pools_are_refused_with_the_way_to_a_connection(self, dsn: str) -> None:
        engine = sqlalchemy.create_engine(alchemy_url(dsn, "psycopg"))
        async_engine = sqlalchemy.ext.asyncio.create_async_engine(alchemy_url(dsn, "asyncpg"))
        async with asyncpg.create_pool(dsn, min_size=0) as pool:
            with pytest.raises(EnqueueError, match=r"asyncpg\.pool\.Pool is no connection .* async with pool\.acquire"):
                await fetch_on(pool, ENQUEUE, (), schema="rota")
        with pytest.raises(EnqueueError, match=r"AsyncEngine is no connection .* async with engine\.begin\(\) as conn"):
            await fetch_on(async_engine, ENQUEUE, (), schema="rota")
        with pytest.raises(EnqueueError, match=r"Engine is no connection .*: with engine\.begin\(\) as conn"):
            fetch_on_sync(engine, ENQUEUE, (), schema="rota")

    def test_another_database_is_refused(self) -> None:
        engine = sqlalchemy.create_engine("sqlite://")
        with (
            engine.connect() as conn,
            pytest.raises(EnqueueError, match=r"through sqlite\+pysqlite\. Rota enqueues on"),
        ):
            fetch_on_sync(conn, ENQUEUE, (), schema="rota")
        engine.dispose()

    def test_another_database_of_django_is_refused(self) -> None:
        pytest.importorskip("django")
        from django.db.utils import ConnectionHandler

        handler = ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        with pytest.raises(EnqueueError, match=r"Django connection goes to sqlite"):
            fetch_on_sync(handler["default"], ENQUEUE, (), schema="rota")


class TestAutocommit:
    """Without a transaction the job is there at once."""

    def test_asyncpg(self, opened: Opened, observer: Any) -> None:
        caller = opened(Asyncpg)
        caller.enqueue(NewJob("one"))
        assert len(jobs(observer)) == 1

    @pytest.mark.parametrize("library", [Psycopg, Psycopg2])
    def test_psycopg(self, library: type[Caller], opened: Opened, observer: Any) -> None:
        caller = opened(library)
        caller.conn.autocommit = True
        caller.enqueue(NewJob("one"))
        assert len(jobs(observer)) == 1

    def test_psycopg_async(self, opened: Opened, observer: Any) -> None:
        caller = opened(PsycopgAsync)
        caller.run(caller.conn.set_autocommit(True))
        caller.enqueue(NewJob("one"))
        assert len(jobs(observer)) == 1

    def test_sqlalchemy(self, opened: Opened, observer: Any) -> None:
        caller = opened(Sqlalchemy)
        caller.conn = caller.conn.execution_options(isolation_level="AUTOCOMMIT")
        caller.enqueue(NewJob("one"))
        assert len(jobs(observer)) == 1

    def test_django(self, opened: Opened, observer: Any) -> None:
        caller = opened(Django)
        caller.enqueue(NewJob("one"))
        assert len(jobs(observer)) == 1


class TestCallersHabits:
    """What a caller may have set on a connection."""

    @pytest.mark.parametrize(
        "factory",
        [
            psycopg.rows.dict_row,
            psycopg.rows.namedtuple_row,
            psycopg.rows.scalar_row,
            psycopg.rows.kwargs_row(lambda **columns: frozenset(columns)),
            lambda _cursor: lambda _values: None,
        ],
    )
    def test_row_factories_of_psycopg(self, factory: Any, opened: Opened) -> None:
        for caller in (opened(Psycopg), opened(PsycopgAsync)):
            caller.conn.row_factory = factory
            assert caller.enqueue(NewJob("one"))["created"] is True
            assert [row["created"] for row in caller.enqueue_many([NewJob("one")] * 2)] == [True, True]
            assert caller.conn.row_factory is factory

    @pytest.mark.parametrize(
        ("sync_factory", "async_factory"),
        [
            (psycopg.ClientCursor, psycopg.AsyncClientCursor),
            (psycopg.RawCursor, psycopg.AsyncRawCursor),
        ],
    )
    def test_cursor_factories_of_psycopg(
        self, sync_factory: Any, async_factory: Any, opened: Opened, observer: Any
    ) -> None:
        for caller in (opened(Psycopg), opened(PsycopgAsync)):
            caller.conn.cursor_factory = async_factory if caller.is_async else sync_factory
            caller.enqueue(NewJob("one", tenant=STRANGE, delay_s=1))
            caller.enqueue_many([NewJob("one", tenant=STRANGE, delay_s=delay_s) for delay_s in (1, 0.5, None)])
            caller.commit()
        assert [job["tenant"] for job in jobs(observer)] == [STRANGE] * 8

    @pytest.mark.parametrize("name", ["RealDictCursor", "NamedTupleCursor", "DictCursor"])
    def test_cursor_factories_of_psycopg2(self, name: str, opened: Opened) -> None:
        caller = opened(Psycopg2)
        caller.conn.cursor_factory = getattr(pytest.importorskip("psycopg2.extras"), name)
        assert caller.enqueue(NewJob("one"))["created"] is True

    def test_a_cursor_of_the_callers_keeps_its_rows(self, opened: Opened) -> None:
        caller = opened(PsycopgCursor)
        caller.conn.execute("SELECT generate_series(1, 3)")
        assert caller.conn.fetchone() == (1,)

        caller.enqueue(NewJob("one"))

        assert caller.conn.fetchall() == [(2,), (3,)]

    @pytest.mark.parametrize("payload", ["{}", "{no json"])
    @pytest.mark.parametrize("library", [Psycopg, PsycopgAsync, Psycopg2])
    def test_no_cursor_of_ours_stays_open(self, library: type[Caller], payload: str, opened: Opened) -> None:
        made: list[Any] = []

        class Watched(type(opened(library).conn)):  # type: ignore[misc]
            """A subclass, as tracing libraries make one."""

            def cursor(self, *args: Any, **options: Any) -> Any:
                made.append(super().cursor(*args, **options))
                return made[-1]

        caller = opened(library, connection_class=Watched)
        made.clear()  # psycopg2 and psycopg may have used one to connect

        try:
            caller.enqueue(NewJob("one", payload))
        except Exception as error:
            assert payload != "{}", error

        assert [each.closed for each in made] == [True]

    def test_codecs_of_asyncpg(self, opened: Opened, observer: Any) -> None:
        # The most usual one would store the payload as a JSON string.
        caller = opened(Asyncpg)
        for name, encode, decode in (
            ("jsonb", json.dumps, json.loads),
            ("json", json.dumps, json.loads),
            ("uuid", str, str),
        ):
            codec = caller.conn.set_type_codec(name, schema="pg_catalog", encoder=encode, decoder=decode)
            caller.run(codec)

        row = caller.enqueue(NewJob("one", '{"a": 1}'))
        (many,) = caller.enqueue_many([NewJob("one", '{"a": 1}')])

        assert isinstance(row["id"], UUID)
        assert [job["id"] for job in jobs(observer)] == [row["id"], many["id"]]
        assert [job["payload"] for job in jobs(observer)] == [{"a": 1}, {"a": 1}]

    def test_a_record_class_of_asyncpg(self, opened: Opened) -> None:
        class Theirs(asyncpg.Record):
            def __getattr__(self, name: str) -> Any:
                return self[name]

        caller = opened(Asyncpg)
        caller.run(caller.conn.close())
        caller.conn = caller.run(asyncpg.connect(caller.dsn, record_class=Theirs))
        assert caller.enqueue(NewJob("one"))["created"] is True

    def test_a_transaction_begun_by_hand(self, opened: Opened, observer: Any) -> None:
        caller = opened(Asyncpg)
        caller.execute("BEGIN")
        caller.enqueue(NewJob("one"))
        assert jobs(observer) == []
        caller.execute("COMMIT")
        assert len(jobs(observer)) == 1

    @pytest.mark.parametrize("options", [{"stream_results": True}, {"yield_per": 5}])
    def test_streaming_of_sqlalchemy(self, options: dict[str, Any], opened: Opened, observer: Any) -> None:
        caller = opened(Sqlalchemy)
        caller.conn = caller.conn.execution_options(**options)
        caller.enqueue(NewJob("one"))
        caller.enqueue_many([NewJob("one")] * 20)
        caller.commit()
        assert len(jobs(observer)) == 21

    @pytest.mark.parametrize("options", [{"stream_results": True}, {"yield_per": 5}])
    def test_streaming_of_sqlalchemy_async(self, options: dict[str, Any], opened: Opened, observer: Any) -> None:
        caller = opened(SqlalchemyAsync)
        caller.conn = caller.run(caller.conn.execution_options(**options))
        caller.enqueue(NewJob("one"))
        caller.enqueue_many([NewJob("one")] * 20)
        caller.commit()
        assert len(jobs(observer)) == 21

    def test_sqlalchemys_synchronous_side_of_an_asynchronous_connection(self, opened: Opened, observer: Any) -> None:
        caller = opened(SqlalchemyAsync)
        rows = caller.run(
            caller.conn.run_sync(lambda conn: fetch_on_sync(conn, ENQUEUE, one_job(NewJob("one")), schema="rota"))
        )
        caller.commit()
        assert [job["id"] for job in jobs(observer)] == [rows[0]["id"]]

    def test_many_jobs_at_once_in_every_library(self, caller: Caller, observer: Any) -> None:
        text = statement("rota.queue.io.sql", "enqueue_many.sql", "rota")
        many = [
            NewJob("many", json.dumps({"n": number}), tenant=STRANGE if number % 2 else None) for number in range(300)
        ]
        caller.begin()
        rows = caller.fetch(text, many_jobs(many))
        caller.commit()
        found = jobs(observer)
        assert [job["id"] for job in found] == [row["id"] for row in rows]
        assert [job["payload"]["n"] for job in found] == list(range(300))
        assert all((job["tenant"] == STRANGE) == (job["payload"]["n"] % 2 == 1) for job in found)
