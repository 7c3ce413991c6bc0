"""Numbered migrations: what the schema of this program is, and how a database gets there.

Each file `migrations/NNNN_name.sql` is applied once, in order, all in one transaction under an advisory lock of that
transaction (which a transaction pooler keeps too), so that many processes may start at once. A program that meets a
newer schema than its own says so and stops.
"""

import contextlib
import importlib.resources
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import asyncpg

from rota.errors import DatabaseAway, DatabaseError, SchemaError
from rota.io.postgres import Connection, Target, connect, fill_in, translated, why_read_only
from rota.version import SERVER_VERSION_MIN, __version__

LOCK: Final = 0x526F7461
"""The advisory lock of migrations ("Rota" in ASCII), together with a hash of the schema's name."""

ENCODINGS: Final = frozenset({"UTF8", "SQL_ASCII"})
"""Of a database: those that take any text as it is."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema. `text` has the schema's name filled in."""

    number: int
    name: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Applied:
    """A step that a database has."""

    number: int
    name: str
    applied_at: datetime
    by: str


def migrations(schema: str) -> list[Migration]:
    """All steps of this program, in order, for this schema."""
    found = []
    for entry in importlib.resources.files("rota.io.migrations").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match:
            text = fill_in(entry.read_text(encoding="utf-8"), schema=schema)
            found.append(Migration(int(match[1]), match[2], text))
    return sorted(found, key=lambda migration: migration.number)


def script(schema: str) -> str:
    """The whole schema as one SQL script, for people who apply such things by their own means."""
    steps = [_begin(schema)]
    for step in migrations(schema):
        steps.append(f"-- {step.number:04} {step.name}\n{step.text.rstrip()}\n{_record(schema, step)}")
    return "BEGIN;\n\n" + "\n\n".join(steps) + "\n\nCOMMIT;\n"


def step_sql(schema: str, number: int) -> tuple[str, str, str, str]:
    """One step for somebody who runs it on a connection of their own, in a transaction of theirs.

    Returns: four statements: what must stand before any step (safe to repeat; it takes the lock that keeps others from
        migrating meanwhile); a query that gives a row if the step is applied already; the step; its record.
    """
    step = next(step for step in migrations(schema) if step.number == number)
    lock = f"SELECT pg_advisory_xact_lock({LOCK}, hashtext('{schema}'));"
    done = fill_in(f'SELECT 1 FROM :"schema".migrations WHERE number = {step.number}', schema=schema)  # noqa: S608
    return f"{lock}\n{_begin(schema)}", done, step.text, _record(schema, step)


async def status(target: Target) -> tuple[list[Applied], list[Migration]]:
    """What the database has, and what it still lacks.

    Raises: DatabaseAway, DatabaseError; SchemaError if the database is newer than this program.
    """
    async with _connected(target) as conn:
        await _require_fit(conn, target)
        applied = await _applied(conn, target.schema)
    _refuse_newer(applied, target)
    done = {step.number for step in applied}
    return applied, [step for step in migrations(target.schema) if step.number not in done]


async def up(target: Target) -> list[Migration]:
    """Applies what is missing, and returns it; safe when many processes do it at once.

    Raises: DatabaseAway, DatabaseError; SchemaError if the database is newer than this program.
    """
    async with _connected(target) as conn:
        await _require_fit(conn, target)
        async with conn.transaction(isolation="read_committed"):
            # Another process may be at it: its work is waited for, longer than a lock may usually take.
            await conn.execute("SET LOCAL lock_timeout = '120s'; SET LOCAL statement_timeout = '600s'")
            await conn.execute("SELECT pg_advisory_xact_lock($1::integer, hashtext($2))", LOCK, target.schema)
            applied = await _applied(conn, target.schema)
            _refuse_newer(applied, target)
            done = {step.number for step in applied}
            missing = [step for step in migrations(target.schema) if step.number not in done]
            if missing:
                await conn.execute(_begin(target.schema))
            for step in missing:
                await conn.execute(step.text)
                await conn.execute(_record(target.schema, step))
            return missing


async def require_current(target: Target) -> None:
    """Refuses to work on a schema that is not this program's.

    Raises: SchemaError; DatabaseAway, DatabaseError.
    """
    applied, missing = await status(target)
    if not applied:
        raise SchemaError(f"The schema {target.schema!r} in {target.shown} does not exist yet. Run: rota migrate up")
    if missing:
        names = ", ".join(f"{step.number:04}_{step.name}" for step in missing)
        raise SchemaError(f"The schema {target.schema!r} in {target.shown} lacks {names}. Run: rota migrate up")


@contextlib.asynccontextmanager
async def _connected(target: Target) -> AsyncIterator[Connection]:
    conn = await connect(target)
    try:
        yield conn
    except asyncpg.InsufficientPrivilegeError as error:
        raise DatabaseError(
            f"This user may not read or make the schema {target.schema!r} in {target.shown}: {error}. "
            "Run `rota migrate up` as a user who may, or give `rota migrate --sql` to whoever is one."
        ) from error
    except (asyncpg.UndefinedColumnError, asyncpg.DuplicateObjectError, asyncpg.DuplicateTableError) as error:
        raise SchemaError(
            f"The schema {target.schema!r} in {target.shown} holds something that is not Rota's: {error}. "
            "Choose another schema in ROTA_SCHEMA."
        ) from error
    except asyncpg.ReadOnlySQLTransactionError as error:
        raise DatabaseAway(await why_read_only(conn, target)) from error
    except Exception as error:
        raise translated(error, target) from error
    finally:
        await conn.close()


async def _require_fit(conn: Connection, target: Target) -> None:
    version, encoding = await conn.fetchrow(
        "SELECT current_setting('server_version_num')::integer, current_setting('server_encoding')"
    )
    if version < SERVER_VERSION_MIN:
        raise DatabaseError(
            f"The database at {target.shown} is PostgreSQL {version // 10_000}; Rota needs 14 or later."
        )
    if encoding not in ENCODINGS:
        raise DatabaseError(
            f"The database at {target.shown} has the encoding {encoding}, which cannot hold every text of a payload, "
            "a result or an error. Rota needs one that was created with ENCODING 'UTF8'."
        )


async def _applied(conn: Connection, schema: str) -> list[Applied]:
    exists: Any = await conn.fetchval("SELECT to_regclass($1)", f'"{schema}".migrations')
    if exists is None:
        return []
    rows = await conn.fetch(
        fill_in('SELECT number, name, applied_at, applied_by FROM :"schema".migrations ORDER BY number', schema=schema)
    )
    return [Applied(row["number"], row["name"], row["applied_at"], row["applied_by"]) for row in rows]


def _refuse_newer(applied: list[Applied], target: Target) -> None:
    own = {step.number for step in migrations(target.schema)}
    newer = [step for step in applied if step.number not in own]
    if newer:
        raise SchemaError(
            f"The schema {target.schema!r} in {target.shown} is newer than this program: it has "
            f"{newer[-1].number:04}_{newer[-1].name} (by Rota {newer[-1].by}), and this is Rota {__version__}. "
            "Run the newer Rota."
        )


def _begin(schema: str) -> str:
    return fill_in(
        'CREATE SCHEMA IF NOT EXISTS :"schema";\n'
        'CREATE TABLE IF NOT EXISTS :"schema".migrations (\n'
        "    number integer PRIMARY KEY, name text NOT NULL,\n"
        "    applied_at timestamptz NOT NULL DEFAULT now(), applied_by text NOT NULL);",
        schema=schema,
    )


def _record(schema: str, step: Migration) -> str:
    return fill_in(
        f'INSERT INTO :"schema".migrations (number, name, applied_by) '  # noqa: S608 - of our own files
        f"VALUES ({step.number}, '{step.name}', '{__version__}');",
        schema=schema,
    )
