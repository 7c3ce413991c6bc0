"""Which connection is whose: by the names of its classes, without importing any library; and errors in Rota's words."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from rota.errors import EnqueueError, SchemaError
from rota.queue.io.callers import fetch_on, fetch_on_sync, in_words, is_asyncpg


def class_of(module: str, name: str, *bases: type) -> type:
    """A class that looks like a library's."""
    return type(name, bases, {"__module__": module})


def thing_of(module: str, name: str) -> Any:
    """An object of a subclass of it, as programs make them."""
    theirs = class_of(module, name)
    return class_of("shop.database", "TracedConnection", class_of("shop.mixins", "Traced"), theirs)()


def refusal(conn: Any, *, sync: bool) -> str:
    """What is said to a connection that cannot be used."""
    with pytest.raises(EnqueueError) as caught:
        if sync:
            fetch_on_sync(conn, "SELECT $1", [1], schema="rota")
        else:
            asyncio.run(fetch_on(conn, "SELECT $1", [1], schema="rota"))
    return str(caught.value)


SYNC = [
    ("psycopg", "Connection"),
    ("psycopg", "Cursor"),
    ("psycopg2.extensions", "connection"),
    ("psycopg2.extensions", "cursor"),
    ("sqlalchemy.engine.base", "Connection"),
    ("sqlalchemy.orm.session", "Session"),
    ("sqlalchemy.orm.scoping", "scoped_session"),
    ("django.db.backends.base.base", "BaseDatabaseWrapper"),
    ("django.utils.connection", "ConnectionProxy"),
    ("django.db.backends.utils", "CursorWrapper"),
]
ASYNC = [
    ("asyncpg.connection", "Connection"),
    ("asyncpg.pool", "PoolConnectionProxy"),
    ("psycopg", "AsyncConnection"),
    ("psycopg", "AsyncCursor"),
    ("sqlalchemy.ext.asyncio.engine", "AsyncConnection"),
    ("sqlalchemy.ext.asyncio.session", "AsyncSession"),
    ("sqlalchemy.ext.asyncio.scoping", "async_scoped_session"),
]


@pytest.mark.parametrize(("module", "name"), SYNC)
def test_a_synchronous_connection_is_sent_to_app_sync(module: str, name: str) -> None:
    said = refusal(thing_of(module, name), sync=False)
    assert said == "shop.database.TracedConnection is synchronous. Use app.sync.enqueue(…) with it, without await."


@pytest.mark.parametrize(("module", "name"), ASYNC)
def test_an_asynchronous_connection_is_sent_to_await(module: str, name: str) -> None:
    said = refusal(thing_of(module, name), sync=True)
    assert said == "shop.database.TracedConnection is asynchronous. Use `await app.enqueue(…)` with it."


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(
    ("module", "name", "way"),
    [
        ("asyncpg.pool", "Pool", "async with pool.acquire() as conn, conn.transaction()"),
        ("asyncpg.pool", "PoolAcquireContext", "async with pool.acquire() as conn, conn.transaction()"),
        ("psycopg_pool.pool_async", "AsyncConnectionPool", "async with pool.connection() as conn"),
        ("psycopg_pool.pool", "ConnectionPool", "with pool.connection() as conn"),
        ("psycopg2.pool", "AbstractConnectionPool", "conn = pool.getconn()"),
        ("sqlalchemy.ext.asyncio.engine", "AsyncEngine", "async with engine.begin() as conn"),
        ("sqlalchemy.engine.base", "Engine", "with engine.begin() as conn"),
        ("sqlalchemy.ext.asyncio.session", "async_sessionmaker", "async with sessions.begin() as session"),
        ("sqlalchemy.orm.session", "sessionmaker", "with sessions.begin() as session"),
        ("django.db.utils", "ConnectionHandler", "connections['default']"),
    ],
)
def test_a_pool_is_no_transaction(module: str, name: str, way: str, sync: bool) -> None:
    said = refusal(thing_of(module, name), sync=sync)
    assert "is no connection and has no transaction" in said
    assert said.endswith(f" give that: {way}.")


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("conn", ["postgresql://localhost/shop", 7, object(), thing_of("pg8000.dbapi", "Connection")])
def test_anything_else_is_named_with_what_is_taken(conn: Any, sync: bool) -> None:
    said = refusal(conn, sync=sync)
    assert said.startswith(f"Rota cannot enqueue on a {type(conn).__module__}.{type(conn).__qualname__}. It takes ")
    for taken in ("asyncpg", "psycopg", "psycopg2", "SQLAlchemy", "Session", "Django"):
        assert taken in said


def test_a_name_alone_is_not_enough() -> None:
    assert refusal(thing_of("sqlite3", "Connection"), sync=True).startswith("Rota cannot enqueue on")
    assert refusal(thing_of("asyncpg_like", "Connection"), sync=False).startswith("Rota cannot enqueue on")


def test_is_asyncpg() -> None:
    assert is_asyncpg(thing_of("asyncpg.connection", "Connection"))
    assert is_asyncpg(thing_of("asyncpg.pool", "PoolConnectionProxy"))
    assert not is_asyncpg(thing_of("asyncpg.pool", "Pool"))
    assert not is_asyncpg(thing_of("psycopg", "AsyncConnection"))
    assert not is_asyncpg(None)


def test_no_library_is_imported_for_being_known() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import rota.queue.io.callers, rota.queue.io.bulk, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "rota.queue.io.bulk" in found
    assert not {"psycopg", "psycopg2", "psycopg_pool", "sqlalchemy", "django"} & set(found)


class Failure(Exception):
    """A library's error."""

    def __init__(self, said: str, *, cause: BaseException | None = None, **attributes: Any) -> None:
        super().__init__(said)
        self.__cause__ = cause
        for name, value in attributes.items():
            setattr(self, name, value)


REFUSED = "rota: job 3 of this enqueue has no usable kind"


@pytest.mark.parametrize(
    "error",
    [
        Failure(f"{REFUSED}\nHINT:  none", sqlstate="22023"),
        Failure(f"{REFUSED}\nCONTEXT: …", sqlstate="22023", diag=Failure("", message_primary=REFUSED)),
        Failure(f"{REFUSED}\nCONTEXT: …", pgcode="22023", diag=Failure("", message_primary=REFUSED)),
        Failure("(builtins.Failure) …", orig=Failure(f"{REFUSED}\n…", sqlstate="22023")),
        Failure(
            "(dbapi.Error) …",
            orig=Failure(
                f"<class 'asyncpg.…'>: {REFUSED}",
                sqlstate="22023",
                pgcode="22023",
                cause=Failure(REFUSED, sqlstate="22023"),
            ),
        ),
        Failure("django's", cause=Failure(f"{REFUSED}\n…", sqlstate="22023")),
    ],
)
def test_a_refused_job_in_the_words_of_the_function(error: Failure) -> None:
    said = in_words(error, schema="rota")
    assert isinstance(said, EnqueueError)
    assert str(said) == REFUSED


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("3F000", 'schema "jobs" does not exist'),
        ("42883", "function jobs.enqueue(text) does not exist"),
        ("42P01", 'relation "jobs.open_jobs" does not exist'),
        ("42883", "Funktion jobs.wake(text[]) existiert nicht"),
    ],
)
def test_a_missing_schema(state: str, message: str) -> None:
    said = in_words(Failure(message, sqlstate=state), schema="jobs")
    assert isinstance(said, SchemaError)
    assert message in str(said)
    assert str(said).endswith("Run: rota migrate up")


@pytest.mark.parametrize(
    "error",
    [
        Failure("something"),
        ValueError("rota: job 1"),
        Failure("invalid value for parameter", sqlstate="22023"),
        Failure("rota: job 1 …", sqlstate="23505"),
        Failure('relation "audit_log" does not exist', sqlstate="42P01"),
        Failure('relation "rotation" does not exist', sqlstate="42P01"),
        Failure("current transaction is aborted", sqlstate="25P02"),
        Failure("rota", sqlstate=22023),
    ],
)
def test_all_other_errors_are_not_rotas_to_tell(error: Exception) -> None:
    assert in_words(error, schema="rota") is None
