"""Reads what `rota doctor` judges: the database's own views, its clock, and whether a pooler stands between.

The judgement is `rota.queue.health`. Nothing is written.
"""

from datetime import UTC, datetime

from rota.errors import DatabaseError
from rota.io import migrate
from rota.io.clock import lease_clock
from rota.io.postgres import Database, statement
from rota.queue.fleet_health import FleetHealth
from rota.queue.health import Health, Hold, TableHealth
from rota.queue.io.store import Store
from rota.queue.io.watch import Watch


async def read_health(database: Database) -> Health:
    """Looks at the database.

    Raises: DatabaseAway if it does not answer; DatabaseError, SettingsError.
    """
    target = database.target
    _, missing = await migrate.status(target)

    def text(name: str) -> str:
        return statement("rota.queue.io.sql", name, target.schema)

    sent_at, before = lease_clock(), datetime.now(UTC)
    now = await Store(database).clock()
    round_trip_s = lease_clock() - sent_at
    ahead_s = (now - before).total_seconds() - round_trip_s / 2
    facts = (await database.fetch(text("health.sql")))[0]
    return Health(
        **dict(facts),
        ahead_s=ahead_s,
        round_trip_s=round_trip_s,
        pooler=target.pooler,
        shares_sessions=await _shares_sessions(database),
        missing=[f"{step.number:04}_{step.name}" for step in missing],
        tables=[TableHealth(**dict(row)) for row in await database.fetch(text("health_tables.sql"))],
        holds=[Hold(**dict(row)) for row in await database.fetch(text("health_holds.sql"))],
    )


async def read_fleet(database: Database) -> FleetHealth:
    """Looks at the workers and at the work.

    Raises: as `read_health`.
    """
    store = Store(database)
    counts = await Watch(database).counts(ended=False)
    return FleetHealth(
        now=await store.clock(),
        servers=await store.servers(),
        orphans=await store.orphan_kinds(),
        overdue={one.kind: one.overdue for one in counts if one.overdue},
        due=sum(one.due for one in counts),
        pauses=await store.pauses(),
    )


async def _shares_sessions(database: Database) -> bool:
    """Whether two connections that are open at once get the same session of the server, one after the other: only
    behind a pooler that lends sessions for a transaction each."""
    try:
        async with database.acquire() as one, database.acquire() as other:
            pids = set()
            for conn in (one, other, one, other):
                async with conn.transaction():
                    pids.add((conn is one, await conn.fetchval("SELECT pg_backend_pid()")))
    except DatabaseError:
        return False
    of_one = {pid for is_one, pid in pids if is_one}
    return bool(of_one & {pid for is_one, pid in pids if not is_one}) or len(of_one) > 1
