"""Opens a transaction on the caller's connection where none is open, by its library's own means.

What has to be written together is then written together whatever the caller's habit is; a transaction of theirs is
left as it is: they commit it, or do not.
"""

import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Any, Final

from rota.queue.io.callers import known_name

_PSYCOPG_IDLE: Final = 0
"""TransactionStatus.IDLE of psycopg and psycopg2, as libpq numbers them."""


def transaction_on(conn: Any) -> AbstractAsyncContextManager[Any] | None:
    """A transaction to enter on an asynchronous connection; None if one is open."""
    name = known_name(conn)
    begin = None if name is None else _ASYNC.get(name)
    return None if begin is None else begin(conn)


def transaction_on_sync(conn: Any) -> AbstractContextManager[Any] | None:
    """The same on a synchronous connection."""
    name = known_name(conn)
    begin = None if name is None else _SYNC.get(name)
    return None if begin is None else begin(conn)


def together(conn: Any) -> AbstractAsyncContextManager[Any]:
    """What is written within is written together, in the caller's transaction or in one of its own."""
    return transaction_on(conn) or nullcontext()


def together_sync(conn: Any) -> AbstractContextManager[Any]:
    """The same on a synchronous connection."""
    return transaction_on_sync(conn) or nullcontext()


def _asyncpg(conn: Any) -> Any:
    return None if conn.is_in_transaction() else conn.transaction()


def _psycopg(conn: Any) -> Any:
    return conn.transaction() if conn.info.transaction_status == _PSYCOPG_IDLE else None


def _psycopg2(conn: Any) -> Any:
    # As a context manager a connection commits or rolls back, and stays open.
    return conn if conn.info.transaction_status == _PSYCOPG_IDLE and not conn.autocommit else None


def _sqlalchemy(conn: Any) -> Any:
    return None if conn.in_transaction() else conn.begin()


def _scoped(registry: Any) -> Any:
    return _sqlalchemy(registry())


def _django(conn: Any) -> Any:
    if conn.in_atomic_block:
        return None
    return importlib.import_module("django.db.transaction").atomic(using=conn.alias)


def _of(attribute: str, begin: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda cursor: begin(getattr(cursor, attribute))


_ASYNC: Final[Mapping[tuple[str, str], Callable[[Any], Any]]] = {
    ("asyncpg", "Connection"): _asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _asyncpg,
    ("psycopg", "AsyncConnection"): _psycopg,
    ("psycopg", "AsyncCursor"): _of("connection", _psycopg),
    ("sqlalchemy", "AsyncConnection"): _sqlalchemy,
    ("sqlalchemy", "AsyncSession"): _sqlalchemy,
    ("sqlalchemy", "async_scoped_session"): _scoped,
}

_SYNC: Final[Mapping[tuple[str, str], Callable[[Any], Any]]] = {
    ("psycopg", "Connection"): _psycopg,
    ("psycopg", "Cursor"): _of("connection", _psycopg),
    ("psycopg2", "connection"): _psycopg2,
    ("psycopg2", "cursor"): _of("connection", _psycopg2),
    ("sqlalchemy", "Connection"): _sqlalchemy,
    ("sqlalchemy", "Session"): _sqlalchemy,
    ("sqlalchemy", "scoped_session"): _scoped,
    ("django", "BaseDatabaseWrapper"): _django,
    ("django", "ConnectionProxy"): _django,
    ("django", "CursorWrapper"): _of("db", _django),
}
