"""Runs a statement on the connection that the caller has, so that a job is added in the caller's own transaction.

Every library is reached by its own public calls, and recognised by the names of an object's classes: none is imported
because Rota knows of it. Nothing of the caller's is changed: no commit, no rollback, no setting, no cursor of theirs.
Whether the jobs are there in the end is decided by the caller's transaction alone; after an error it is in the state
in which its library leaves it after any failed statement.

Errors of the database stay the library's own, so that what the caller catches still works. Two are put into Rota's
words, with the library's error as their cause: a job that our SQL refuses, and a schema that is not there.
"""

import importlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from rota.errors import EnqueueError, SchemaError
from rota.queue.io.placeholders import by_name, named, numbered

Row = Mapping[str, Any]
Name = tuple[str, str]
"""A class as the tables below know it: its top-level package and its own name."""

TAKEN: Final = (
    "an asyncpg Connection, a psycopg Connection or AsyncConnection (or a cursor of one), a psycopg2 connection, "
    "an SQLAlchemy Connection, AsyncConnection, Session or AsyncSession, or Django's connection"
)

_INVALID_PARAMETER: Final = "22023"
_MISSING: Final = frozenset({"3F000", "42883", "42P01"})
"""No such schema, function, table."""

_NUMBERED_DRIVERS: Final = frozenset({"asyncpg"})
_NAMED_DRIVERS: Final = frozenset({"psycopg", "psycopg2"})
"""By SQLAlchemy's names."""


async def fetch_on(conn: Any, text: str, args: Sequence[Any], *, schema: str) -> list[Row]:
    """Runs one statement on an asynchronous connection, in whatever transaction that is in.

    Args:
        conn: of asyncpg (also from a pool), psycopg or SQLAlchemy.
        text: the statement, with $1 … $n, each in a CAST.
        args: its parameters; JSON as text.
        schema: the schema that the statement speaks to, for messages.

    Returns: the rows by column name; a column `id` holds UUIDs.

    Raises: EnqueueError if the connection is of a kind that cannot be used here, or if a job is refused; SchemaError
        if the schema is missing; else the library's own errors.
    """
    run = _ASYNC.get(known_name(conn))
    if run is None:
        raise EnqueueError(_refusal(conn, asked="async"))
    try:
        return _with_uuids(await run(conn, text, args))
    except Exception as error:
        said = in_words(error, schema=schema)
        if said is None:
            raise
        raise said from error


def fetch_on_sync(conn: Any, text: str, args: Sequence[Any], *, schema: str) -> list[Row]:
    """Like `fetch_on`, on a synchronous connection of psycopg, psycopg2, SQLAlchemy or Django."""
    run = _SYNC.get(known_name(conn))
    if run is None:
        raise EnqueueError(_refusal(conn, asked="sync"))
    try:
        return _with_uuids(run(conn, text, args))
    except Exception as error:
        said = in_words(error, schema=schema)
        if said is None:
            raise
        raise said from error


def is_asyncpg(conn: Any) -> bool:
    """Whether this is one connection of asyncpg, its pool's proxy included."""
    return _ASYNC.get(known_name(conn)) is _on_asyncpg


def in_words(error: BaseException, *, schema: str) -> EnqueueError | SchemaError | None:
    """What an error of any library means in Rota's words; None if it is not Rota's to tell."""
    state, message = _state_and_message(error)
    if state == _INVALID_PARAMETER and message.startswith("rota: "):
        return EnqueueError(message)
    # The message may be in any language, but it names what is missing; a trigger of the caller's may miss other things.
    if state in _MISSING and re.search(rf"\b{re.escape(schema)}\b", message):
        return SchemaError(
            f"The schema {schema!r} in the database of this connection is missing or incomplete: {message}. "
            "Run: rota migrate up"
        )
    return None


def _state_and_message(error: BaseException) -> tuple[str | None, str]:
    """SQLSTATE and first line of the deepest error that has one: SQLAlchemy and Django wrap what the driver raised."""
    state, message = None, ""
    below: BaseException | None = error
    while below is not None:
        found = getattr(below, "sqlstate", None) or getattr(below, "pgcode", None)
        if isinstance(found, str):
            state = found
            message = getattr(getattr(below, "diag", None), "message_primary", None) or str(below).partition("\n")[0]
        below = getattr(below, "orig", None) or below.__cause__
    return state, message


async def _on_asyncpg(conn: Any, text: str, args: Sequence[Any]) -> list[Any]:
    rows: list[Any] = await conn.fetch(numbered(text), *args)
    return rows


async def _on_psycopg_async(conn: Any, text: str, args: Sequence[Any]) -> list[Any]:
    # A cursor of our own: the caller's may have rows to fetch, and makes them in a form of their choice.
    async with conn.cursor(row_factory=_mappings) as cursor:
        await cursor.execute(*_for_psycopg(cursor, text, args))
        rows: list[Any] = await cursor.fetchall()
        return rows


def _on_psycopg(conn: Any, text: str, args: Sequence[Any]) -> list[Any]:
    with conn.cursor(row_factory=_mappings) as cursor:
        cursor.execute(*_for_psycopg(cursor, text, args))
        rows: list[Any] = cursor.fetchall()
        return rows


def _for_psycopg(cursor: Any, text: str, args: Sequence[Any]) -> tuple[str, Any]:
    # The connection's cursor_factory is kept (it may trace or bind in the client), and a raw one numbers parameters.
    if any(cls.__name__ == "RawCursorMixin" for cls in type(cursor).__mro__):
        values = by_name(args)
        return numbered(text), list(values.values())
    return named(text), by_name(args)


def _mappings(cursor: Any) -> Callable[[Sequence[Any]], Row]:
    """A row factory of psycopg."""
    columns = [column.name for column in cursor.description or ()]
    return lambda values: dict(zip(columns, values, strict=True))


def _on_psycopg2(conn: Any, text: str, args: Sequence[Any]) -> list[Any]:
    # The connection may have a cursor class that makes rows in another form; this is the plain one.
    plain = importlib.import_module("psycopg2.extensions").cursor
    with conn.cursor(cursor_factory=plain) as cursor:
        return _execute(cursor, text, args)


def _on_django(conn: Any, text: str, args: Sequence[Any]) -> list[Any]:
    if conn.vendor != "postgresql":
        raise EnqueueError(
            f"This Django connection goes to {conn.vendor}, and Rota's tables are in PostgreSQL. "
            "Give the connection to that database, such as connections['jobs']."
        )
    with conn.cursor() as cursor:
        return _execute(cursor, text, args)


def _execute(cursor: Any, text: str, args: Sequence[Any]) -> list[Any]:
    cursor.execute(named(text), by_name(args))
    columns = [column[0] for column in cursor.description]
    return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]


async def _on_sqlalchemy_async(conn: Any, text: str, args: Sequence[Any]) -> list[Any]:
    result = await conn.exec_driver_sql(*_for_sqlalchemy(conn, text, args), _BUFFERED)
    rows: list[Any] = result.mappings().all()
    return rows


async def _on_sqlalchemy_session_async(session: Any, text: str, args: Sequence[Any]) -> list[Any]:
    return await _on_sqlalchemy_async(await session.connection(), text, args)


def _on_sqlalchemy(conn: Any, text: str, args: Sequence[Any]) -> list[Any]:
    result = conn.exec_driver_sql(*_for_sqlalchemy(conn, text, args), _BUFFERED)
    rows: list[Any] = result.mappings().all()
    return rows


def _on_sqlalchemy_session(session: Any, text: str, args: Sequence[Any]) -> list[Any]:
    return _on_sqlalchemy(session.connection(), text, args)


_BUFFERED: Final = {"stream_results": False, "yield_per": None}
"""The caller may stream their own results; ours are a few rows that must be read to the end."""


def _for_sqlalchemy(conn: Any, text: str, args: Sequence[Any]) -> tuple[str, Any]:
    # By the driver's own parameter style: text() would take every :name for a parameter.
    dialect = conn.dialect
    if dialect.name == "postgresql" and dialect.driver in _NUMBERED_DRIVERS:
        return numbered(text), tuple(args)
    if dialect.name == "postgresql" and dialect.driver in _NAMED_DRIVERS:
        return named(text), by_name(args)
    raise EnqueueError(
        f"This SQLAlchemy connection goes through {dialect.name}+{dialect.driver}. "
        "Rota enqueues on PostgreSQL through asyncpg, psycopg or psycopg2."
    )


def _with_uuids(rows: list[Any]) -> list[Row]:
    """psycopg2 answers ids as text, and a connection may have a codec of its own for uuid."""
    if not rows or "id" not in rows[0] or isinstance(rows[0]["id"], UUID):
        return rows
    return [{**row, "id": UUID(str(row["id"]))} for row in rows]


def _through(attribute: str, run: Callable[[Any, str, Sequence[Any]], Any]) -> Callable[[Any, str, Sequence[Any]], Any]:
    """For a cursor: the same on its connection."""
    return lambda cursor, text, args: run(getattr(cursor, attribute), text, args)


_ASYNC: Final[Mapping[Name | None, Callable[[Any, str, Sequence[Any]], Awaitable[list[Any]]]]] = {
    ("asyncpg", "Connection"): _on_asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _on_asyncpg,
    ("psycopg", "AsyncConnection"): _on_psycopg_async,
    ("psycopg", "AsyncCursor"): _through("connection", _on_psycopg_async),
    ("sqlalchemy", "AsyncConnection"): _on_sqlalchemy_async,
    ("sqlalchemy", "AsyncSession"): _on_sqlalchemy_session_async,
    ("sqlalchemy", "async_scoped_session"): _on_sqlalchemy_session_async,
}

_SYNC: Final[Mapping[Name | None, Callable[[Any, str, Sequence[Any]], list[Any]]]] = {
    ("psycopg", "Connection"): _on_psycopg,
    ("psycopg", "Cursor"): _through("connection", _on_psycopg),
    ("psycopg2", "connection"): _on_psycopg2,
    ("psycopg2", "cursor"): _through("connection", _on_psycopg2),
    ("sqlalchemy", "Connection"): _on_sqlalchemy,
    ("sqlalchemy", "Session"): _on_sqlalchemy_session,
    ("sqlalchemy", "scoped_session"): _on_sqlalchemy_session,
    ("django", "BaseDatabaseWrapper"): _on_django,
    ("django", "ConnectionProxy"): _on_django,
    ("django", "CursorWrapper"): _through("db", _on_django),
}

_HOW_TO_CONNECT: Final[Mapping[Name | None, str]] = {
    ("asyncpg", "Pool"): "async with pool.acquire() as conn, conn.transaction()",
    ("asyncpg", "PoolAcquireContext"): "async with pool.acquire() as conn, conn.transaction()",
    ("psycopg_pool", "AsyncConnectionPool"): "async with pool.connection() as conn",
    ("psycopg_pool", "ConnectionPool"): "with pool.connection() as conn",
    ("psycopg2", "AbstractConnectionPool"): "conn = pool.getconn()",
    ("sqlalchemy", "AsyncEngine"): "async with engine.begin() as conn",
    ("sqlalchemy", "Engine"): "with engine.begin() as conn",
    ("sqlalchemy", "async_sessionmaker"): "async with sessions.begin() as session",
    ("sqlalchemy", "sessionmaker"): "with sessions.begin() as session",
    ("django", "ConnectionHandler"): "connections['default']",
}
"""What people give who mean a connection of it."""


def known_name(conn: Any) -> Name | None:
    """The first of an object's classes that is known here; subclasses count as what they come from."""
    for cls in type(conn).__mro__:
        name = (cls.__module__.partition(".")[0], cls.__name__)
        if name in _ASYNC or name in _SYNC or name in _HOW_TO_CONNECT:
            return name
    return None


def _refusal(conn: Any, *, asked: str) -> str:
    name = known_name(conn)
    shown = f"{type(conn).__module__}.{type(conn).__qualname__}"
    if name in _HOW_TO_CONNECT:
        return (
            f"{shown} is no connection and has no transaction, so nothing can be enqueued in it. "
            f"Take one from it and give that: {_HOW_TO_CONNECT[name]}."
        )
    if name in _SYNC and asked == "async":
        return f"{shown} is synchronous. Use app.sync.enqueue(…) with it, without await."
    if name in _ASYNC:
        return f"{shown} is asynchronous. Use `await app.enqueue(…)` with it."
    return f"Rota cannot enqueue on a {shown}. It takes {TAKEN}."
