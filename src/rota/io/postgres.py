"""The one way to the database: connections with their limits, statements from .sql files, errors in Rota's words.

Two rules live here. A connection never outlives a role change: one that answers "read-only" (a failover) is thrown
away, and the caller sees `DatabaseAway`, which means "try again". And every connection has time limits of its own, so
that no statement, lock or forgotten transaction holds a job for ever.

With `pooler="transaction"` (pgbouncer) nothing depends on session state: no prepared statement outlives its
transaction, and the limits are set inside each one.

Spec: job queue, "The connections of the jobs".
"""

import asyncio
import contextlib
import functools
import importlib.resources
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import asyncpg

from rota.errors import DatabaseAway, DatabaseError, SchemaError, SettingsError

STATEMENT_TIMEOUT_MS: Final = 30_000
"""Each of Rota's statements takes milliseconds; one that takes so long holds up what should know that it failed."""
LOCK_TIMEOUT_MS: Final = 5_000
"""Whoever holds a row for longer than this forgot a transaction, and others have work to do on the same connections."""
IDLE_IN_TRANSACTION_TIMEOUT_MS: Final = 60_000
"""No transaction of Rota's waits for anything but the database: one that idles is of a process that stands still."""
CONNECT_TIMEOUT_S: Final = 10.0
"""How long a connection may take, TLS and a pooler's queue included, and how long one is waited for in the pool."""
COMMAND_TIMEOUT_S: Final = 40.0
"""How long a pool's statement waits for its answer. The server gives up sooner; only a dead line takes so long."""

READ_ONLY: Final = "The database at {place} is read-only now (a failover?)."
STANDBY: Final = (
    "The database at {place} is read-only: it is a standby now (a failover?). Let ROTA_DSN name the primary, or add "
    "target_session_attrs=read-write to it."
)
READ_ONLY_SOURCES: Final = {
    "user": "for this user (ALTER ROLE)",
    "database": "for this database (ALTER DATABASE)",
    "database user": "for this user in this database (ALTER ROLE … IN DATABASE)",
    "client": "in its address (ROTA_DSN) or in PGOPTIONS",
}
"""Who has said so, by pg_settings.source; what a file of the server says may change at any time."""
READ_ONLY_LOOK_S: Final = 2.0
"""How long it may take to ask why."""

TRANSACTION_TIMEOUT_SINCE: Final = 17
"""The version of PostgreSQL that knows of it."""
_NO_TRANSACTION_LIMIT: Final = "transaction_timeout = 0"

Pooler = Literal["none", "transaction"]
Connection = Any
"""An asyncpg connection, or the pool's proxy of one."""

_AWAY: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.InterfaceError,
    asyncpg.exceptions.ReadOnlySQLTransactionError,
    asyncpg.exceptions.IdleInTransactionSessionTimeoutError,
    asyncpg.exceptions.LockNotAvailableError,
    # Whole classes of states (40, 53, 57, 58): whatever is in them is of the server's moment, never of a job's row.
    asyncpg.exceptions.TransactionRollbackError,
    asyncpg.exceptions.InsufficientResourcesError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.PostgresSystemError,
    asyncpg.exceptions.ConnectionDoesNotExistError,
    # What asyncpg says of a session that was ended while it asked for types.
    asyncpg.exceptions.InternalClientError,
)


def check_schema_name(schema: str) -> str:
    """Allows names that need no thought about quoting or about channel names.

    Raises: SettingsError.
    """
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", schema) or schema.startswith("pg_"):
        raise SettingsError(
            f"The schema {schema!r} is no usable name: take lower-case letters, digits and _, at most 41, "
            "beginning with a letter, and not with pg_."
        )
    return schema


@functools.cache
def statement(package: str, name: str, schema: str) -> str:
    """One .sql file of a package with the schema filled in, as psql would with `-v schema=… -v channel=…`."""
    return fill_in(_texts(package)[name], schema=schema)


@functools.cache
def _texts(package: str) -> dict[str, str]:
    """All .sql files of a package: what a program needs when it stops is not to be read only then, when its open files
    may have run out, or another version may have been installed over it."""
    files = importlib.resources.files(package).iterdir()
    return {file.name: file.read_text(encoding="utf-8") for file in files if file.name.endswith(".sql")}


def fill_in(text: str, *, schema: str) -> str:
    """Puts the names of this schema and of its channel into SQL text."""
    check_schema_name(schema)
    return (
        text.replace(':"schema"', f'"{schema}"')
        .replace(":'schema'", f"'{schema}'")
        .replace(":'channel'", f"'{channel(schema)}'")
    )


def channel(schema: str) -> str:
    """The NOTIFY channel on which workers of this schema are woken."""
    return f"{schema}_wake"


_PLACE: Final = re.compile(r"(?P<hosts>(,?(\[[^\]/@]*\]|[^\[\]:/,@]*)(:\d{1,5})?)*)(?P<path>/[^@]*)?")
"""Hosts with ports, and a path."""


def show_dsn(dsn: str) -> str:
    """A DSN without its user, its password and its query, fit for logs and messages; also one that is badly written."""
    scheme, _, rest = dsn.partition("://")
    if scheme not in ("postgresql", "postgres"):
        return "an address that is not postgresql://…"
    # A password that was not percent-encoded may hold / and ?, so all before the last @ may belong to it.
    before_query = rest.partition("?")[0]
    place = _PLACE.fullmatch(before_query) or _PLACE.fullmatch(rest.rpartition("@")[2].partition("?")[0])
    if place is None:
        return "postgresql://…"
    return f"postgresql://{place['hosts'] or 'local socket'}{place['path'] or ''}"


@dataclass(frozen=True, slots=True)
class Target:
    """Which database, and how to speak to it."""

    dsn: str
    schema: str = "rota"
    pooler: Pooler = "none"
    application: str = "rota"

    @property
    def shown(self) -> str:
        """The address as logs and messages may have it."""
        return show_dsn(self.dsn)


async def connect(target: Target) -> Connection:
    """Opens one connection with its limits.

    Raises: DatabaseAway if the database does not answer; DatabaseError or SettingsError if it refuses for good.
    """
    try:
        conn = await asyncpg.connect(target.dsn, timeout=CONNECT_TIMEOUT_S, **_options(target))
        await _lift_limits(conn, target)
        return conn
    except ValueError as error:
        raise _unreadable(error) from None
    except Exception as error:
        raise translated(error, target) from error


_SESSION: Final = {
    "statement_timeout": str(STATEMENT_TIMEOUT_MS),
    "lock_timeout": str(LOCK_TIMEOUT_MS),
    "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_TIMEOUT_MS),
    # Short statements over small batches: compiling them costs more than running them.
    "jit": "off",
    # Each statement reaches its rows by an index. A plan that was made, and is kept, while a table was almost empty
    # would read it whole, for each row anew: seconds for one batch once a hundred thousand jobs wait.
    "enable_seqscan": "off",
    # So each has one plan whatever its parameters are, and need not be planned again and again.
    "plan_cache_mode": "force_generic_plan",
}


def _options(target: Target) -> dict[str, Any]:
    if target.pooler == "transaction":
        return {"statement_cache_size": 0}
    # Each statement waits for whoever holds a row or a key and goes on with what that left: under a stricter level,
    # which somebody may have given the role or the database, it would be refused instead.
    return {
        "server_settings": {
            "application_name": target.application,
            "default_transaction_isolation": "read committed",
            # The pool keeps connections at hand, and one only listens.
            "idle_session_timeout": "0",
            **_SESSION,
        }
    }


async def _lift_limits(conn: Connection, target: Target) -> None:
    """Takes away what somebody gave the role or the database and no start parameter can: PostgreSQL before 17 would
    refuse a parameter that it does not know."""
    if target.pooler == "none" and _limits_transactions(conn):
        await conn.execute(f"SET {_NO_TRANSACTION_LIMIT}")


def _limits_transactions(conn: Connection) -> bool:
    return bool(conn.get_server_version().major >= TRANSACTION_TIMEOUT_SINCE)


def _unreadable(error: ValueError) -> SettingsError:
    """What is wrong with an address; Python's own words for it could quote a piece of the password."""
    said = f"{error}" if isinstance(error, asyncpg.exceptions.ClientConfigurationError) else "it cannot be read"
    return SettingsError(
        f"The database's address (ROTA_DSN) is no good: {said}. Give postgresql://user:password@host/database, "
        "with characters such as / ? @ in a password percent-encoded."
    )


def translated(error: Exception, target: Target) -> Exception:
    """An error of a connection or a statement in Rota's words; what they do not cover stays as it is."""
    match error:
        case DatabaseError() | SettingsError():
            return error
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return DatabaseError(f"The database at {target.shown} refuses this user or password. Check ROTA_DSN.")
        case asyncpg.InvalidCatalogNameError():
            return DatabaseError(f"The database at {target.shown} does not exist. Create it, or correct ROTA_DSN.")
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedFunctionError() | asyncpg.InvalidSchemaNameError():
            return SchemaError(
                f"The schema {target.schema!r} in {target.shown} is missing or incomplete. Run: rota migrate up"
            )
        case asyncpg.InsufficientPrivilegeError():
            return DatabaseError(
                f"The database at {target.shown} does not allow this user to do that: {error}. "
                "docs/OPERATING.md lists the grants that each role needs."
            )
        case (
            asyncpg.UndefinedObjectError()
            | asyncpg.InvalidParameterValueError()
            | asyncpg.exceptions.CantChangeRuntimeParamError()
        ) if "parameter" in str(error):
            return SettingsError(
                f"The database at {target.shown} refuses a parameter of its address (ROTA_DSN): {error}. "
                "Take it out, or correct it."
            )
        case asyncpg.ProtocolViolationError() if "startup parameter" in str(error):
            return SettingsError(
                f"A connection pooler at {target.shown} refuses startup parameters. "
                "Set ROTA_POOLER=transaction, or give the database's own address."
            )
        case asyncpg.InvalidSQLStatementNameError() | asyncpg.DuplicatePreparedStatementError():
            return SettingsError(
                f"A connection pooler at {target.shown} loses prepared statements. Set ROTA_POOLER=transaction."
            )
        case asyncpg.ReadOnlySQLTransactionError():
            return DatabaseAway(READ_ONLY.format(place=target.shown))
        case _ if isinstance(error, _AWAY):
            said = str(error).strip() or type(error).__name__
            return DatabaseAway(f"The database at {target.shown} does not answer: {said}.")
        case _:
            return error


async def why_read_only(conn: Connection, target: Target) -> str:
    """Words for a refused write, from a connection that is not needed any more."""
    try:
        standby, name, source = await conn.fetchrow(
            "SELECT pg_is_in_recovery(), current_user, source FROM pg_settings "
            "WHERE name = 'default_transaction_read_only'",
            timeout=READ_ONLY_LOOK_S,
        )
    except Exception:
        # It went down together with the write, or stands in somebody's broken transaction.
        return READ_ONLY.format(place=target.shown)
    if standby:
        return STANDBY.format(place=target.shown)
    if source in READ_ONLY_SOURCES:
        return (
            f"The database at {target.shown} is read-only for the user {name!r}: default_transaction_read_only is on "
            f"{READ_ONLY_SOURCES[source]}. Turn it off there, or take another user."
        )
    return READ_ONLY.format(place=target.shown)


async def _is_standby(conn: Connection) -> bool:
    """Asked on a connection that had an error; one that cannot say so is none."""
    try:
        return bool(await conn.fetchval("SELECT pg_is_in_recovery()", timeout=READ_ONLY_LOOK_S))
    except Exception:
        return False


class Database:
    """A pool of connections to one database. `start` and `stop` may be called twice and in any order.

    Args:
        target: where and how.
        size: connections at most.
    """

    def __init__(self, target: Target, *, size: int = 4) -> None:
        self.target = target
        self._size = size
        self._pool: Any | None = None
        self._starting = asyncio.Lock()
        self._at_hand: list[Connection] = []
        """Connections that nobody uses, and that are still lent by the pool: its way of lending costs as much as a
        short statement."""
        self._asking = 0
        """Those who wait for the pool to lend them one."""

    async def start(self) -> None:
        """Opens the pool and one connection.

        Raises: DatabaseAway, DatabaseError, SettingsError.
        """
        async with self._starting:
            if self._pool is not None:
                return
            try:
                self._pool = await asyncpg.create_pool(
                    self.target.dsn,
                    min_size=1,
                    max_size=self._size,
                    timeout=CONNECT_TIMEOUT_S,
                    command_timeout=COMMAND_TIMEOUT_S,
                    # Rota sets no session state, so there is nothing to reset, and a round trip to save.
                    reset=_leave_as_it_is,
                    init=functools.partial(_lift_limits, target=self.target),
                    **_options(self.target),
                )
            except ValueError as error:
                raise _unreadable(error) from None
            except Exception as error:
                raise translated(error, self.target) from error

    async def stop(self) -> None:
        """Closes the pool; connections that do not end in time are cut."""
        async with self._starting:
            pool, self._pool = self._pool, None
        if pool is None:
            return
        while self._at_hand:
            with contextlib.suppress(*_AWAY):
                await pool.release(self._at_hand.pop())
        try:
            await asyncio.wait_for(pool.close(), timeout=5)
        except (TimeoutError, *_AWAY):
            pool.terminate()

    async def fetch(self, text: str, *args: Any, conn: Connection | None = None) -> list[Any]:
        """Runs one statement and returns its rows.

        Args:
            text: the statement.
            args: its parameters.
            conn: the connection to use; else one of the pool's.

        Raises: DatabaseAway if the same call may go through later; other DatabaseErrors if not.
        """
        if conn is not None:
            return await self._fetch_on(conn, text, args)
        # Written out, and not by `acquire`: a context manager would be a tenth of what a short statement costs here.
        try:
            pool, own = await self._lend()
            try:
                rows = await self._fetch_on(own, text, args)
            except BaseException as error:
                await self._dismiss(pool, own, error)
                raise
            await self._take_back(pool, own)
        except Exception as error:
            raise translated(error, self.target) from error
        return rows

    @contextlib.asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        """Lends a connection of the pool; one whose server turned read-only, or that broke, is thrown away.

        Raises: as `start`, if there is none to lend; what happens on the connection is the caller's to translate.
        """
        pool, conn = await self._lend()
        try:
            yield conn
        except BaseException as error:
            await self._dismiss(pool, conn, error)
            raise
        await self._take_back(pool, conn)

    async def _lend(self) -> tuple[Any, Connection]:
        if self._pool is None:
            await self.start()
        pool = self._pool
        if pool is None:
            raise DatabaseAway("The program is stopping.")
        while self._at_hand:
            conn = self._at_hand.pop()
            if not _closed(conn):
                return pool, conn
            await pool.release(conn)
        self._asking += 1
        try:
            return pool, await pool.acquire(timeout=CONNECT_TIMEOUT_S)
        except Exception as error:
            raise translated(error, self.target) from error
        finally:
            self._asking -= 1

    async def _take_back(self, pool: Any, conn: Connection) -> None:
        # One that broke meanwhile is seen when it is lent the next time.
        if self._asking or self._pool is not pool:
            # Who waits in the pool hears of nothing else.
            await pool.release(conn)
        else:
            self._at_hand.append(conn)

    async def _dismiss(self, pool: Any, conn: Connection, error: BaseException) -> None:
        """Gives back a connection on which an error came.

        Raises: DatabaseAway in place of what a standby refuses, with the words for it.
        """
        try:
            match error:
                case asyncpg.ReadOnlySQLTransactionError():
                    why = await why_read_only(conn, self.target)
                    conn.terminate()
                    raise DatabaseAway(why) from error
                case asyncpg.FeatureNotSupportedError() if await _is_standby(conn):
                    # Its unlogged tables, such as that of the servers, cannot even be read there.
                    conn.terminate()
                    raise DatabaseAway(STANDBY.format(place=self.target.shown)) from error
                case asyncpg.exceptions.InternalClientError() | TimeoutError():
                    # After a statement without an answer the pool would wait for one to its cancellation, too.
                    conn.terminate()
        finally:
            # After an error the pool looks at it first.
            await pool.release(conn)

    @contextlib.asynccontextmanager
    async def transaction(self, *, lock_timeout_ms: int = LOCK_TIMEOUT_MS) -> AsyncIterator[Connection]:
        """Lends a connection with a transaction, committed at the end and rolled back by an error.

        Args:
            lock_timeout_ms: how long its statements wait for somebody else's transaction, milliseconds over 0.

        Raises: as `fetch`.
        """
        settings = {} if self.target.pooler == "none" else _SESSION
        if lock_timeout_ms != LOCK_TIMEOUT_MS:
            settings = {**settings, "lock_timeout": str(lock_timeout_ms)}
        try:
            async with self.acquire() as conn, conn.transaction(isolation="read_committed"):
                if settings:
                    await conn.execute(_set_local(settings, conn))
                yield conn
        except Exception as error:
            raise translated(error, self.target) from error

    async def _fetch_on(self, conn: Connection, text: str, args: Sequence[Any]) -> list[Any]:
        if self.target.pooler == "none" or conn.is_in_transaction():
            rows: list[Any] = await conn.fetch(text, *args)
            return rows
        # Here no setting of the session keeps a stricter level of the role away.
        async with conn.transaction(isolation="read_committed"):
            await conn.execute(_set_local(_SESSION, conn))
            rows = await conn.fetch(text, *args)
            return rows


def _set_local(settings: Mapping[str, str], conn: Connection) -> str:
    lines = [f"{name} = {value}" for name, value in settings.items()]
    if _limits_transactions(conn):
        lines.append(_NO_TRANSACTION_LIMIT)
    return ";".join(f"SET LOCAL {line}" for line in lines)


def _closed(conn: Connection) -> bool:
    try:
        return bool(conn.is_closed())
    except asyncpg.exceptions.InterfaceError:
        # The server ended it, and the pool has taken it back by itself.
        return True


async def _leave_as_it_is(_connection: Connection) -> None:
    return None
