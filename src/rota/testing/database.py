"""What a test of a program says to a real database: run all that is due, and look at what was added on a connection.

The worker is a real one, so nothing differs from production but that it stops when nothing is left to do. What was
added is read on the caller's connection, in its transaction: nothing has to be committed to be seen.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, Final, Unpack

from rota.app import App
from rota.declarations import KindOrHandler
from rota.ids import Holder, JobId
from rota.io.postgres import statement
from rota.queue.io import callers
from rota.queue.io.store import Store
from rota.queue.job import JobFilter, State
from rota.queue.new_job import kind_of
from rota.queue.pause import paused_of
from rota.testing.added import Added, Wanted, check_enqueued, check_not_enqueued

DRAIN_S_MAX: Final = 60.0
LOOK_S: Final = 0.02
"""How often `drain` looks whether something is left."""
SEEN_MAX: Final = 10_000
"""Jobs of a kind that an assertion reads."""


async def drain(app: App, *, timeout_s: float = DRAIN_S_MAX) -> None:
    """Works on the app's kinds with a worker in this process, until nothing is due and nothing runs.

    What waits for its time is left, and so is what is paused.

    Args:
        app: the program, on a database with Rota's schema.
        timeout_s: how long it may take.

    Raises: AssertionError when the time is over; SettingsError, DatabaseError.
    """
    store = await app.store()
    kinds = list(app.taken())
    try:
        async with asyncio.timeout(timeout_s):
            # A worker that stops may still add what follows a batch, and another one takes that.
            while not await _is_quiet(store, kinds):
                await _work(app, store, kinds)
    except TimeoutError:
        left = await store.page(JobFilter(kinds=tuple(kinds), states=(State.QUEUED, State.LEASED)), limit=10)
        shown = ", ".join(f"{row.kind} {row.id} {row.state}" for row in left)
        raise AssertionError(f"Jobs are still due or running after {timeout_s:g} s: {shown}.") from None


async def _work(app: App, store: Store, kinds: Sequence[str]) -> None:
    worker = app.worker()
    working = asyncio.create_task(worker.run())
    try:
        while not working.done() and not await _is_quiet(store, kinds):
            # The table tells nobody when its last job has ended.
            await asyncio.wait([working], timeout=LOOK_S)
        worker.stop()
        await working
    finally:
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def _is_quiet(store: Store, kinds: Sequence[str]) -> bool:
    holder = Holder("rota.testing")
    paused = paused_of((await store.poll([], holder=holder)).paused)
    seen = await store.poll([kind for kind in kinds if not paused.holds(kind)], holder=holder)
    if seen.next_due_s is not None and seen.next_due_s <= 0:
        return False
    return not await store.page(JobFilter(kinds=tuple(kinds), states=(State.LEASED,)), limit=1)


async def assert_enqueued_on(
    conn: Any, kind: KindOrHandler, *, count: int | None = None, schema: str = "rota", **wanted: Unpack[Wanted]
) -> list[Added]:
    """Asserts that jobs of a kind were added, as an asynchronous connection sees them within its transaction.

    Args:
        conn: as for `app.enqueue`.
        kind: a handler, or a kind by name.
        count: exactly so many; None: at least one.
        schema: where Rota's tables live.
        wanted: what they are, such as `payload=…` or `tenant=…`; see `Wanted`.

    Returns: the jobs, oldest first.

    Raises: AssertionError that lists what was added; EnqueueError, SchemaError or the library's own errors.
    """
    return check_enqueued(await _on(conn, kind, schema), kind, count=count, wanted=wanted)


async def assert_not_enqueued_on(
    conn: Any, kind: KindOrHandler, *, schema: str = "rota", **wanted: Unpack[Wanted]
) -> None:
    """Asserts that an asynchronous connection sees no job of a kind that is as described."""
    check_not_enqueued(await _on(conn, kind, schema), kind, wanted=wanted)


def assert_enqueued_on_sync(
    conn: Any, kind: KindOrHandler, *, count: int | None = None, schema: str = "rota", **wanted: Unpack[Wanted]
) -> list[Added]:
    """`assert_enqueued_on` for a synchronous connection, as for `app.sync.enqueue`."""
    return check_enqueued(_on_sync(conn, kind, schema), kind, count=count, wanted=wanted)


def assert_not_enqueued_on_sync(
    conn: Any, kind: KindOrHandler, *, schema: str = "rota", **wanted: Unpack[Wanted]
) -> None:
    """`assert_not_enqueued_on` for a synchronous connection."""
    check_not_enqueued(_on_sync(conn, kind, schema), kind, wanted=wanted)


async def _on(conn: Any, kind: str | Callable[..., Any], schema: str) -> list[Added]:
    rows = await callers.fetch_on(conn, _statement(schema), (kind_of(kind), SEEN_MAX), schema=schema)
    return [_added(row) for row in rows]


def _on_sync(conn: Any, kind: str | Callable[..., Any], schema: str) -> list[Added]:
    rows = callers.fetch_on_sync(conn, _statement(schema), (kind_of(kind), SEEN_MAX), schema=schema)
    return [_added(row) for row in rows]


def _statement(schema: str) -> str:
    return statement("rota.queue.io.sql", "jobs_of_kind.sql", schema)


def _added(row: callers.Row) -> Added:
    return Added(
        JobId(row["id"]), row["kind"], row["tenant"], row["priority"], State(row["state"]),
        json.loads(row["payload"]), row["dedupe_key"], row["run_after"], row["created_at"],
    )  # fmt: skip
