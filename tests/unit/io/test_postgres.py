"""The way to the database, without one: what is shown of an address, which schemas there may be, what errors mean."""

import errno
import importlib.resources
from typing import Any

import asyncpg
import pytest

from rota.errors import DatabaseAway, DatabaseError, SchemaError, SettingsError
from rota.io import postgres
from rota.io.postgres import Database, Target, channel, check_schema_name, connect, fill_in, show_dsn, translated

TARGET = Target("postgresql://app:hunter2@db:5432/shop?sslmode=require", schema="jobs")


# --- what is shown of an address ---


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://app:hunter2@db:5432/shop?sslmode=require", "postgresql://db:5432/shop"),
        ("postgres://app@db/shop", "postgresql://db/shop"),
        ("postgresql://db", "postgresql://db"),
        ("postgresql:///shop", "postgresql://local socket/shop"),
        ("postgresql://rota@/rota?host=%2Frun&port=5432", "postgresql://local socket/rota"),
        ("postgresql://app:hunter2@one:5432,two:5433/shop", "postgresql://one:5432,two:5433/shop"),
        ("postgresql://app:hunter2@[::1]:5432/shop", "postgresql://[::1]:5432/shop"),
        ("postgresql://db/shop?user=app@home&password=hunter2", "postgresql://db/shop"),
        # badly written: what may be a piece of the password is not shown
        ("postgresql://app:hun@ter2@db/shop", "postgresql://db/shop"),
        ("postgresql://app:hun/ter2@db/shop", "postgresql://db/shop"),
        ("postgresql://app:hun?ter2@db/shop", "postgresql://db/shop"),
        ("postgresql://app:hun#ter2@db/shop", "postgresql://db/shop"),
        ("postgresql://app:hunter2", "postgresql://…"),
        ("postgresql://app:hunter2/shop", "postgresql://…"),
        ("postgresql://app:hunter2@[::1/shop", "postgresql://…"),
        ("host=db password=hunter2", "an address that is not postgresql://…"),
        ("app:hunter2@db/shop", "an address that is not postgresql://…"),
        ("mysql://app:hunter2@db/shop", "an address that is not postgresql://…"),
        ("", "an address that is not postgresql://…"),
    ],
)
def test_an_address_is_shown_without_user_password_and_query(dsn: str, shown: str) -> None:
    assert show_dsn(dsn) == shown
    assert Target(dsn).shown == shown


# --- schemas ---


@pytest.mark.parametrize("name", ["rota", "_", "a", "jobs_2", "s" * 41])
def test_plain_names_are_schemas(name: str) -> None:
    assert check_schema_name(name) == name
    assert len(channel(name)) <= 63, "a channel's name is an identifier"


@pytest.mark.parametrize("name", ["", "Rota", "1st", "pg_rota", "a b", 'a"b', "a'b", "a.b", "rota\n", "ä", "s" * 42])
def test_names_that_need_quoting_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="is no usable name"):
        check_schema_name(name)
    with pytest.raises(SettingsError):
        fill_in("SELECT 1", schema=name)


def test_the_schema_is_filled_in_as_psql_would() -> None:
    text = "SELECT ':schema' FROM :\"schema\".jobs WHERE :'schema' = $1; LISTEN :'channel'"
    assert fill_in(text, schema="jobs") == "SELECT ':schema' FROM \"jobs\".jobs WHERE 'jobs' = $1; LISTEN 'jobs_wake'"


def test_a_statement_is_read_from_its_file() -> None:
    text = postgres.statement("rota.queue.io.sql", "wake.sql", "jobs")
    assert '"jobs".' in text and ':"schema"' not in text
    with pytest.raises(KeyError):
        postgres.statement("rota.queue.io.sql", "nothing.sql", "jobs")


def test_a_program_has_all_statements_once_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have no files left to open when it needs another, or they are those of another version by then."""
    names = [file.name for file in importlib.resources.files("rota.queue.io.sql").iterdir()]
    postgres.statement("rota.queue.io.sql", "wake.sql", "early")

    def gone(_package: str) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(importlib.resources, "files", gone)
    read = [postgres.statement("rota.queue.io.sql", name, "late") for name in names if name.endswith(".sql")]
    assert len(read) > 50 and all(read)


# --- what errors mean ---


@pytest.mark.parametrize(
    ("error", "expected", "said"),
    [
        (asyncpg.InvalidPasswordError("no"), DatabaseError, "refuses this user or password. Check ROTA_DSN."),
        (asyncpg.InvalidAuthorizationSpecificationError("no"), DatabaseError, "refuses this user or password"),
        (asyncpg.InvalidCatalogNameError("no"), DatabaseError, "does not exist. Create it, or correct ROTA_DSN."),
        (asyncpg.UndefinedTableError("no"), SchemaError, "Run: rota migrate up"),
        (asyncpg.UndefinedFunctionError("no"), SchemaError, "Run: rota migrate up"),
        (
            asyncpg.InvalidSchemaNameError("no"),
            SchemaError,
            "The schema 'jobs' in postgresql://db:5432/shop is missing",
        ),
        (
            asyncpg.ProtocolViolationError("unsupported startup parameter: jit"),
            SettingsError,
            "Set ROTA_POOLER=transaction",
        ),
        (asyncpg.InvalidSQLStatementNameError("no"), SettingsError, "Set ROTA_POOLER=transaction"),
        (asyncpg.DuplicatePreparedStatementError("no"), SettingsError, "Set ROTA_POOLER=transaction"),
        (asyncpg.ReadOnlySQLTransactionError("no"), DatabaseAway, "is read-only now (a failover?)."),
        (asyncpg.AdminShutdownError("terminating"), DatabaseAway, "does not answer: terminating."),
        (asyncpg.CannotConnectNowError("starting up"), DatabaseAway, "does not answer: starting up."),
        (asyncpg.TooManyConnectionsError("full"), DatabaseAway, "does not answer: full."),
        (asyncpg.QueryCanceledError("timeout"), DatabaseAway, "does not answer: timeout."),
        (asyncpg.LockNotAvailableError("locked"), DatabaseAway, "does not answer: locked."),
        (asyncpg.DeadlockDetectedError("deadlock"), DatabaseAway, "does not answer: deadlock."),
        (asyncpg.SerializationError("serial"), DatabaseAway, "does not answer: serial."),
        (asyncpg.ConnectionDoesNotExistError("gone"), DatabaseAway, "does not answer: gone."),
        (asyncpg.InterfaceError("closed"), DatabaseAway, "does not answer: closed."),
        (ConnectionRefusedError("refused"), DatabaseAway, "does not answer: refused."),
        (asyncpg.ProtocolViolationError("garbage"), DatabaseAway, "does not answer: garbage."),
        (TimeoutError(), DatabaseAway, "does not answer: TimeoutError."),
    ],
)
def test_an_error_of_the_database_has_its_words(error: Exception, expected: type[Exception], said: str) -> None:
    found = translated(error, TARGET)
    assert type(found) is expected
    assert said in str(found)
    assert "hunter2" not in str(found) and "app" not in str(found)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.UniqueViolationError("twin"), asyncpg.InvalidParameterValueError("rota: no"), asyncpg.DataError("bad"),
        KeyError("ours"), ValueError("ours"),
        DatabaseAway("said before"), SettingsError("said before"), SchemaError("said before"),
    ],
)  # fmt: skip
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    assert translated(error, TARGET) is error


# --- addresses that cannot be used: asyncpg finds that out before it connects ---

UNUSABLE = [
    "host=db password=hunter2", "mysql://app:hunter2@db/shop", "postgresql://app:hun/ter2@db/shop",
    "postgresql://app:hun?ter2@db/shop", "postgresql://app:hunter2@[::1/shop", "postgresql://app:hunter2@db/shop?sslmode=x",
    "hunter2",
]  # fmt: skip


@pytest.mark.parametrize("dsn", UNUSABLE)
async def test_an_address_that_cannot_be_read_is_a_wrong_setting_and_shows_nothing(dsn: str) -> None:
    for opening in (connect(Target(dsn)), Database(Target(dsn)).start()):
        with pytest.raises(SettingsError, match=r"The database's address \(ROTA_DSN\) is no good: ") as caught:
            await opening
        shown: BaseException | None = caught.value
        while shown is not None:
            assert "hun" not in str(shown) and "ter2" not in str(shown)
            shown = None if shown.__suppress_context__ else shown.__context__


async def test_a_database_that_was_not_started_can_be_stopped() -> None:
    database = Database(TARGET)
    await database.stop()
    await database.stop()


def test_behind_a_transaction_pooler_nothing_depends_on_the_session() -> None:
    options: Any = postgres._options(Target("", pooler="transaction"))
    assert options == {"statement_cache_size": 0}
    assert postgres._options(TARGET)["server_settings"]["statement_timeout"] == "30000"
