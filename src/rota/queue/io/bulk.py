"""Adds many jobs by COPY, which takes a quarter of the time of the SQL function for the same jobs.

Only what needs no decision goes this way: jobs without keys and delays that the schema's `job_ok` would surely pass.
Small batches, all others, and other libraries' connections go to the function `enqueue_many`, which decides and says
what is wrong. So no rule stands here twice, and no answer depends on the way taken.

The rows are written in COPY's binary form here: they are sent while the next ones are written, and a codec of the
caller's for jsonb cannot touch them. Times are left to the table's defaults, the database's clock (I5).
"""

import os
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final

from asyncpg.pgproto.pgproto import UUID

from rota.ids import JobId
from rota.io.postgres import statement
from rota.queue.io.callers import fetch_on, in_words, is_asyncpg
from rota.queue.io.placeholders import numbered
from rota.queue.io.rows import many_jobs
from rota.queue.job import Enqueued, NewJob

COPY_JOBS_MIN: Final = 50
"""Jobs from which on COPY is quicker, with its three round trips more (measured on one machine)."""

COPY_PAYLOAD_CHARS_MAX: Final = 1024 * 1024
"""Characters of JSON that surely stay below `job_ok`'s 32 MiB of jsonb: up to 4 bytes each, and jsonb takes up to 8
bytes for one (in `[[[` or `1,1,1`)."""

CHUNK_BYTES: Final = 256 * 1024
"""Bytes of rows in one message: PostgreSQL stores them while the next ones are written (smaller ones were slower)."""

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END: Final = b"\xff\xff"
_NULL: Final = b"\xff\xff\xff\xff"
_JSONB_VERSION: Final = b"\1"
_INT4_MIN: Final = -(2**31)
_INT4_MAX: Final = 2**31 - 1
_TIMES_FROM: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_size: Final = struct.Struct(">i").pack
_int4: Final = struct.Struct(">ii").pack
_int8: Final = struct.Struct(">iq").pack


@dataclass(frozen=True, slots=True)
class _Plan:
    """What COPY needs to know: the optional columns that some job sets, and when the first of each kind is due."""

    columns: tuple[str, ...]
    first_due: Mapping[str, datetime | None]


async def copy_on(conn: Any, jobs: Sequence[NewJob], *, schema: str) -> list[Enqueued]:
    """Adds many jobs on the caller's connection by the quickest way that it and they allow, all or none.

    In a transaction of the caller's they are part of it, and after an error it can only be rolled back, as after any
    failed statement. Without one they are committed at the end.

    Args:
        conn: an asynchronous connection, as `fetch_on` takes it; COPY needs asyncpg's.
        jobs: any number.
        schema: Rota's schema in that database.

    Returns: in the order of `jobs`, each id, and whether it is new or the one that holds the key.

    Raises: EnqueueError, SchemaError or the library's own errors, as `fetch_on`.
    """
    if not jobs:
        return []
    plan = _plan(jobs) if len(jobs) >= COPY_JOBS_MIN and _takes_our_bytes(conn) else None
    if plan is None:
        rows = await fetch_on(conn, _sql("enqueue_many.sql", schema), many_jobs(jobs), schema=schema)
        return [Enqueued(JobId(row["id"]), row["created"]) for row in rows]
    ids = _new_ids(len(jobs), unix_us=time.time_ns() // 1000)
    try:
        async with _transaction(conn):
            await conn.copy_to_table(
                "open_jobs",
                schema_name=schema,
                columns=["id", "kind", "payload", *plan.columns],
                source=_stream(jobs, ids, plan.columns),
                format="binary",
            )
            await conn.fetch(numbered(_sql("wake.sql", schema)), list(plan.first_due), list(plan.first_due.values()))
    except Exception as error:
        said = in_words(error, schema=schema)
        if said is None:
            raise
        raise said from error
    return [Enqueued(JobId(UUID(new)), True) for new in ids]


def _sql(name: str, schema: str) -> str:
    return statement("rota.queue.io.sql", name, schema)


def _takes_our_bytes(conn: Any) -> bool:
    # The server reads binary text in the connection's encoding, which somebody may have set.
    return is_asyncpg(conn) and conn.get_settings().client_encoding.lower().replace("-", "") == "utf8"


def _transaction(conn: Any) -> AbstractAsyncContextManager[Any]:
    # The caller's own transaction makes COPY and wake one already; asyncpg's transaction() would refuse one that was
    # begun by hand.
    if conn.is_in_transaction():
        return nullcontext()
    own: AbstractAsyncContextManager[Any] = conn.transaction()
    return own


def _plan(jobs: Sequence[NewJob]) -> _Plan | None:
    """Looks at each job once; None if one of them needs the function, to decide or to be refused."""
    kinds: set[str] = set()
    priorities: set[int] = set()
    tries: set[int] = set()
    dues: list[tuple[str, datetime]] = []
    columns: set[str] = set()
    for job in jobs:
        if job.dedupe is not None or job.delay_s is not None or len(job.payload) > COPY_PAYLOAD_CHARS_MAX:
            return None
        kinds.add(job.kind)
        if job.priority is not None:
            priorities.add(job.priority)
        if job.max_tries is not None:
            tries.add(job.max_tries)
        if job.run_after is not None:
            dues.append((job.kind, job.run_after))
        if job.tenant is not None:
            columns.add("tenant")
        if job.trace is not None:
            columns.add("trace")
        if job.parent_id is not None:
            columns.add("parent_id")
        if job.batch_id is not None:
            columns.add("batch_id")
    if not (
        all(1 <= len(kind) <= 200 for kind in kinds)
        and all(_INT4_MIN <= priority <= _INT4_MAX for priority in priorities)
        and all(1 <= count <= 1000 for count in tries)
        # COPY knows a default only for a whole column, and a time without zone is for the driver to refuse.
        and len(dues) in (0, len(jobs))
        and all(due.tzinfo is not None for _, due in dues)
    ):
        return None
    set_by_some = {"priority": priorities, "max_tries": tries, "run_after": dues}
    columns.update(name for name, values in set_by_some.items() if values)
    first_due: dict[str, datetime | None] = dict.fromkeys(kinds)
    first_due.update(sorted(dues, reverse=True))
    return _Plan(tuple(sorted(columns)), first_due)


async def _stream(jobs: Sequence[NewJob], ids: Sequence[bytes], columns: Sequence[str]) -> AsyncIterator[bytes]:
    """What COPY reads, as asyncpg wants it; it is written as fast as the socket takes it."""
    for chunk in _chunks(jobs, ids, columns):
        yield chunk


def _new_ids(count: int, *, unix_us: int) -> list[bytes]:
    """As `rota.ids.uuid_v7s`, as bytes, and in a fifth of its time."""
    tail = (0x8000_0000_0000_0000 | int.from_bytes(os.urandom(8), "big") >> 2).to_bytes(8, "big")
    ends = [(0x7000 | us * 4096 // 1000).to_bytes(2, "big") + tail for us in range(1000)]
    return [(us // 1000).to_bytes(6, "big") + ends[us % 1000] for us in range(unix_us, unix_us + count)]


def _chunks(jobs: Sequence[NewJob], ids: Sequence[bytes], columns: Sequence[str]) -> Iterator[bytes]:
    """The rows in COPY's binary form: for each a count of fields, then each field's size and bytes."""
    start = struct.pack(">hi", 3 + len(columns), 16)
    kinds = {kind: _text(kind) for kind in {job.kind for job in jobs}}
    fields = [(attrgetter(name), _FIELDS[name]) for name in columns]
    rows, size = [_SIGNATURE], 0
    for job, new in zip(jobs, ids, strict=True):
        payload = job.payload.encode()
        row = start + new + kinds[job.kind] + _size(len(payload) + 1) + _JSONB_VERSION + payload
        for value_of, field in fields:
            row += field(value_of(job))
        rows.append(row)
        size += len(row)
        if size >= CHUNK_BYTES:
            yield b"".join(rows)
            rows, size = [], 0
    rows.append(_END)
    yield b"".join(rows)


def _text(value: str | None) -> bytes:
    if value is None:
        return _NULL
    raw = value.encode()
    return _size(len(raw)) + raw


def _integer(value: int | None) -> bytes:
    return _NULL if value is None else _int4(4, value)


def _priority(value: int | None) -> bytes:
    return _int4(4, value or 0)


def _id(value: UUID | None) -> bytes:
    return _NULL if value is None else _size(16) + value.bytes


def _instant(value: datetime) -> bytes:
    return _int8(8, (value - _TIMES_FROM) // _MICROSECOND)


_FIELDS: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "priority": _priority,
    "tenant": _text,
    "run_after": _instant,
    "max_tries": _integer,
    "trace": _text,
    "parent_id": _id,
    "batch_id": _id,
}
"""The optional columns, which NewJob calls the same, and how each is written."""
