"""The connections that callers have, each as one test double of a caller: begin, enqueue, commit, look at the error.

The tests are written once and run for every library. They are synchronous, because Django refuses to work beside a
running event loop; an asynchronous library gets a loop of its own and runs one call at a time on it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from psycopg.conninfo import conninfo_to_dict

from rota.io.postgres import statement
from rota.queue.io.callers import fetch_on, fetch_on_sync
from rota.queue.io.rows import many_jobs, one_job
from rota.queue.job import NewJob

SQL = "rota.queue.io.sql"


class Caller(ABC):
    """A program with a connection of one library: all is in one transaction until `commit` or `rollback`."""

    is_async: ClassVar[bool]
    conn: Any
    """What is given to Rota."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    @abstractmethod
    def begin(self) -> None:
        """Begins a transaction in the library's own words."""

    @abstractmethod
    def execute(self, text: str) -> list[tuple[Any, ...]]:
        """Runs SQL on the same connection, and gives the rows."""

    @abstractmethod
    def commit(self) -> None:
        """Ends the transaction."""

    @abstractmethod
    def rollback(self) -> None:
        """Takes the transaction back."""

    @abstractmethod
    def in_savepoint(self, work: Callable[[], object]) -> None:
        """Runs something inside a savepoint of the library's, and takes it back."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connection, whatever state it is in."""

    @abstractmethod
    def fetch(self, text: str, args: Sequence[Any], *, schema: str = "rota") -> list[Any]:
        """The function of Rota for this kind of connection."""

    @abstractmethod
    def fetch_wrongly(self, text: str) -> list[Any]:
        """The function for the other kind."""

    def enqueue(self, job: NewJob, *, schema: str = "rota") -> Any:
        """One row: id, created."""
        (row,) = self.fetch(statement(SQL, "enqueue.sql", schema), one_job(job), schema=schema)
        return row

    def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Any]:
        """Rows: id, created."""
        return self.fetch(statement(SQL, "enqueue_many.sql", "rota"), many_jobs(jobs))


class SyncCaller(Caller):
    """A program without an event loop."""

    is_async = False

    def fetch(self, text: str, args: Sequence[Any], *, schema: str = "rota") -> list[Any]:
        return fetch_on_sync(self.conn, text, args, schema=schema)

    def fetch_wrongly(self, text: str) -> list[Any]:
        return asyncio.run(fetch_on(self.conn, text, (), schema="rota"))


class AsyncCaller(Caller):
    """A program with an event loop; `run` is `await`."""

    is_async = True

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.runner = asyncio.Runner()
        self.run = self.runner.run

    def fetch(self, text: str, args: Sequence[Any], *, schema: str = "rota") -> list[Any]:
        return self.run(fetch_on(self.conn, text, args, schema=schema))

    def fetch_wrongly(self, text: str) -> list[Any]:
        return fetch_on_sync(self.conn, text, (), schema="rota")

    def close(self) -> None:
        self.run(self.close_connection())
        self.runner.close()

    @abstractmethod
    async def close_connection(self) -> None:
        """Closes the connection."""


class Asyncpg(AsyncCaller):
    """`asyncpg.connect`."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.conn = self.run(asyncpg.connect(dsn))

    def begin(self) -> None:
        self.transaction = self.conn.transaction()
        self.run(self.transaction.start())

    def execute(self, text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.run(self.conn.fetch(text))]

    def commit(self) -> None:
        self.run(self.transaction.commit())

    def rollback(self) -> None:
        self.run(self.transaction.rollback())

    def in_savepoint(self, work: Callable[[], object]) -> None:
        inner = self.conn.transaction()
        self.run(inner.start())
        work()
        self.run(inner.rollback())

    async def close_connection(self) -> None:
        await self.conn.close()


class AsyncpgPooled(Asyncpg):
    """`pool.acquire()`."""

    def __init__(self, dsn: str) -> None:
        AsyncCaller.__init__(self, dsn)
        self.run(self.open())

    async def open(self) -> None:
        self.pool = await asyncpg.create_pool(self.dsn, min_size=1, max_size=1)
        self.conn = await self.pool.acquire()

    async def close_connection(self) -> None:
        if self.conn.is_in_transaction():
            await self.conn.execute("ROLLBACK")
        await self.pool.release(self.conn)
        await self.pool.close()


class PsycopgAsync(AsyncCaller):
    """`psycopg.AsyncConnection`."""

    def __init__(self, dsn: str, *, connection_class: Any = psycopg.AsyncConnection) -> None:
        super().__init__(dsn)
        self.conn = self.connection = self.run(connection_class.connect(dsn))

    def begin(self) -> None:
        """psycopg begins by itself."""

    def execute(self, text: str) -> list[tuple[Any, ...]]:
        async def rows() -> list[tuple[Any, ...]]:
            cursor = await self.connection.execute(text)
            return await cursor.fetchall() if cursor.description else []

        return self.run(rows())

    def commit(self) -> None:
        self.run(self.connection.commit())

    def rollback(self) -> None:
        self.run(self.connection.rollback())

    def in_savepoint(self, work: Callable[[], object]) -> None:
        inner = self.connection.transaction(force_rollback=True)
        self.run(inner.__aenter__())
        work()
        self.run(inner.__aexit__(None, None, None))

    async def close_connection(self) -> None:
        await self.connection.close()


class PsycopgAsyncCursor(PsycopgAsync):
    """`AsyncConnection.cursor()`."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.conn = self.connection.cursor()


class Psycopg(SyncCaller):
    """`psycopg.connect`."""

    def __init__(self, dsn: str, *, connection_class: Any = psycopg.Connection) -> None:
        super().__init__(dsn)
        self.conn = self.connection = connection_class.connect(dsn)

    def begin(self) -> None:
        """psycopg begins by itself."""

    def execute(self, text: str) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(text)
        return cursor.fetchall() if cursor.description else []

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def in_savepoint(self, work: Callable[[], object]) -> None:
        with self.connection.transaction(force_rollback=True):
            work()

    def close(self) -> None:
        self.connection.close()


class PsycopgCursor(Psycopg):
    """`Connection.cursor()`."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.conn = self.connection.cursor()


class Psycopg2(SyncCaller):
    """`psycopg2.connect`."""

    def __init__(self, dsn: str, *, connection_class: Any = None) -> None:
        super().__init__(dsn)
        connect = pytest.importorskip("psycopg2").connect
        self.conn = self.connection = connect(dsn, connection_factory=connection_class)

    def begin(self) -> None:
        """psycopg2 begins by itself."""

    def execute(self, text: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(text)
            return cursor.fetchall() if cursor.description else []

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def in_savepoint(self, work: Callable[[], object]) -> None:
        self.execute("SAVEPOINT here")
        work()
        self.execute("ROLLBACK TO SAVEPOINT here")

    def close(self) -> None:
        self.connection.close()


class Psycopg2Cursor(Psycopg2):
    """`connection.cursor()`."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.conn = self.connection.cursor()


class SqlalchemyAsync(AsyncCaller):
    """`AsyncEngine.connect()`."""

    driver = "asyncpg"

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.engine = sqlalchemy.ext.asyncio.create_async_engine(alchemy_url(dsn, self.driver))
        self.conn = self.open()

    def open(self) -> Any:
        return self.run(self.started(self.engine.connect()))

    async def started(self, awaited: Any) -> Any:
        return await awaited

    def begin(self) -> None:
        """SQLAlchemy begins by itself."""

    def execute(self, text: str) -> list[tuple[Any, ...]]:
        result = self.run(self.conn.execute(sqlalchemy.text(text)))
        return [tuple(row) for row in result] if result.returns_rows else []

    def commit(self) -> None:
        self.run(self.conn.commit())

    def rollback(self) -> None:
        self.run(self.conn.rollback())

    def in_savepoint(self, work: Callable[[], object]) -> None:
        inner = self.run(self.started(self.conn.begin_nested()))
        work()
        self.run(inner.rollback())

    async def close_connection(self) -> None:
        await self.conn.close()
        await self.engine.dispose()


class SqlalchemyAsyncPsycopg(SqlalchemyAsync):
    """The same over psycopg."""

    driver = "psycopg"


class SqlalchemyAsyncSession(SqlalchemyAsync):
    """`AsyncSession`."""

    def open(self) -> Any:
        return sqlalchemy.ext.asyncio.AsyncSession(self.engine)


class SqlalchemyAsyncSessionPsycopg(SqlalchemyAsyncSession):
    """The same over psycopg."""

    driver = "psycopg"


class SqlalchemyAsyncScopedSession(SqlalchemyAsync):
    """`async_scoped_session`."""

    def open(self) -> Any:
        sessions = sqlalchemy.ext.asyncio.async_sessionmaker(self.engine)
        return sqlalchemy.ext.asyncio.async_scoped_session(sessions, scopefunc=lambda: None)


class Sqlalchemy(SyncCaller):
    """`Engine.connect()`."""

    driver = "psycopg"

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        pytest.importorskip(self.driver)
        self.engine = sqlalchemy.create_engine(alchemy_url(dsn, self.driver))
        self.conn = self.open()

    def open(self) -> Any:
        return self.engine.connect()

    def begin(self) -> None:
        """SQLAlchemy begins by itself."""

    def execute(self, text: str) -> list[tuple[Any, ...]]:
        result = self.conn.execute(sqlalchemy.text(text))
        return [tuple(row) for row in result] if result.returns_rows else []

    def commit(self) -> None:
        self.conn.commit()

    def rollback(self) -> None:
        self.conn.rollback()

    def in_savepoint(self, work: Callable[[], object]) -> None:
        inner = self.conn.begin_nested()
        work()
        inner.rollback()

    def close(self) -> None:
        self.conn.close()
        self.engine.dispose()


class SqlalchemyPsycopg2(Sqlalchemy):
    """The same over psycopg2."""

    driver = "psycopg2"


class SqlalchemySession(Sqlalchemy):
    """`Session`."""

    def open(self) -> Any:
        return sqlalchemy.orm.Session(self.engine)


class SqlalchemySessionPsycopg2(SqlalchemySession):
    """The same over psycopg2."""

    driver = "psycopg2"


class SqlalchemyScopedSession(Sqlalchemy):
    """`scoped_session`, as Flask-SQLAlchemy has it."""

    def open(self) -> Any:
        return sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(self.engine))


class Django(SyncCaller):
    """`django.db.connection`, inside `transaction.atomic()`."""

    alias = "default"

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        pytest.importorskip("django")
        import django
        from django.conf import settings

        if not settings.configured:
            settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
        from django.db import connection, connections, transaction

        parts = conninfo_to_dict(dsn)
        connections.settings = connections.configure_settings(
            {
                name: {
                    "ENGINE": "django.db.backends.postgresql",
                    "NAME": parts["dbname"],
                    "USER": parts.get("user", ""),
                    "PASSWORD": parts.get("password", ""),
                    "HOST": parts.get("host", ""),
                    "PORT": parts.get("port", ""),
                }
                for name in ("default", "jobs")
            }
        )
        self.connections, self.transaction = connections, transaction
        self.own = connections[self.alias]
        self.conn = connection if self.alias == "default" else self.own

    def begin(self) -> None:
        self.atomic = self.transaction.atomic(using=self.alias)
        self.atomic.__enter__()

    def execute(self, text: str) -> list[tuple[Any, ...]]:
        with self.own.cursor() as cursor:
            cursor.execute(text)
            return cursor.fetchall() if cursor.description else []

    def commit(self) -> None:
        self.atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        self.transaction.set_rollback(True, using=self.alias)
        self.atomic.__exit__(None, None, None)

    def in_savepoint(self, work: Callable[[], object]) -> None:
        with self.transaction.atomic(using=self.alias):
            work()
            self.transaction.set_rollback(True, using=self.alias)

    def close(self) -> None:
        if self.own.in_atomic_block:
            self.rollback()
        self.own.close()
        for name in ("default", "jobs"):
            if hasattr(self.connections._connections, name):
                del self.connections[name]


class DjangoOther(Django):
    """`connections['jobs']`."""

    alias = "jobs"


class DjangoCursor(Django):
    """`connection.cursor()`."""

    def begin(self) -> None:
        super().begin()
        self.conn = self.own.cursor()

    def close(self) -> None:
        self.conn.close()
        super().close()


def alchemy_url(dsn: str, driver: str) -> sqlalchemy.URL:
    """The same database, as SQLAlchemy names it."""
    parts = conninfo_to_dict(dsn)
    host = str(parts.get("host", ""))
    return sqlalchemy.URL.create(
        f"postgresql+{driver}",
        username=str(parts.get("user", "")) or None,
        password=str(parts.get("password", "")) or None,
        host=None if host.startswith("/") else host,
        port=None if parts.get("port") is None else int(str(parts["port"])),
        database=urlsplit(dsn).path[1:],
        query={"host": host} if host.startswith("/") else {},
    )


CALLERS: Sequence[type[Caller]] = (
    Asyncpg,
    AsyncpgPooled,
    PsycopgAsync,
    PsycopgAsyncCursor,
    SqlalchemyAsync,
    SqlalchemyAsyncPsycopg,
    SqlalchemyAsyncSession,
    SqlalchemyAsyncSessionPsycopg,
    SqlalchemyAsyncScopedSession,
    Psycopg,
    PsycopgCursor,
    Psycopg2,
    Psycopg2Cursor,
    Sqlalchemy,
    SqlalchemyPsycopg2,
    SqlalchemySession,
    SqlalchemySessionPsycopg2,
    SqlalchemyScopedSession,
    Django,
    DjangoOther,
    DjangoCursor,
)
