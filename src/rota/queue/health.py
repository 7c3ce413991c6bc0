"""What `rota doctor` thinks of what it found: each thing with what to do about it. Pure rules over facts.

The facts are read by `rota.queue.io.health`. A check that is fine says so in a few words; one that is not says what
is wrong first and what to do next. Bounds are constants with their reasons.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rota.version import SERVER_VERSION_MIN

SKEW_S: Final = 2.0
"""Clocks kept by NTP are within a tenth of a second; at two seconds `run_after` from a program is off visibly."""
NOTIFY_WARNING: Final = 0.1
"""Usually the queue is empty. At 1 every commit that notifies fails."""
NOTIFY_PROBLEM: Final = 0.5
DEAD_MIN: Final = 20_000
"""Ten times what starts a vacuum of the open jobs; fewer dead rows cost a claim nothing."""
HOLD_S: Final = 300.0
"""A snapshot that is held for so long leaves the dead rows of a whole lease behind."""
HOLD_PROBLEM_S: Final = 3600.0
SLOT_AGE: Final = 1_000_000
"""Transactions that a replication slot may lag behind before it counts: an hour at a few hundred a second."""
CONNECTIONS_SHARE: Final = 0.9
TIMEOUTS: Final = {"statement_timeout": "30s", "lock_timeout": "5s", "idle_timeout": "1min"}
"""What each of Rota's connections asks for."""


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    """Good to know; nothing has to be done."""

    WARNING = "warning"
    """It works, and should be put right."""

    PROBLEM = "problem"
    """Jobs do not run, run late, or will."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `advice` says what to do, where there is something to do."""

    about: str
    level: Level
    words: str
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class TableHealth:
    """The rows of one table, as the statistics have them."""

    name: str
    live: int
    dead: int
    vacuumed_ago_s: float | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Who keeps vacuum from removing dead rows; see health_holds.sql."""

    what: str
    name: str
    detail: str
    age: int
    open_s: float | None


@dataclass(frozen=True, slots=True)
class Health:
    """What was found of the database.

    Attributes:
        ahead_s: how far the database's clock is ahead of this machine's; exact to `round_trip_s` / 2.
        pooler: as it is set.
        read_only_by: who has turned default_transaction_read_only on, as PostgreSQL calls it: user, database, client …
        hidden: the tables of Rota of which row-level security hides rows from this user.
        shares_sessions: two connections were served by one session: a pooler in transaction mode is between.
    """

    version_num: int
    version: str
    in_recovery: bool = False
    read_only_by: str | None = None
    ahead_s: float = 0.0
    round_trip_s: float = 0.0
    pooler: str = "none"
    shares_sessions: bool = False
    statement_timeout: str = "30s"
    lock_timeout: str = "5s"
    idle_timeout: str = "1min"
    fsync: str = "on"
    synchronous_commit: str = "on"
    autovacuum: str = "on"
    connections: int = 1
    connections_max: int = 100
    notify_usage: float = 0.0
    missing: Sequence[str] = ()
    hidden: Sequence[str] = ()
    tables: Sequence[TableHealth] = field(default_factory=list)
    holds: Sequence[Hold] = field(default_factory=list)


def examine(health: Health) -> list[Check]:
    """Judges the database.

    Returns: one check or more of each thing, in the order of what to put right first.
    """
    return [
        *_database(health),
        *_schema(health),
        *_pooler(health),
        *_clock(health),
        *_connections(health),
        *_notifications(health),
        *_vacuum(health),
    ]


def has_findings(checks: Sequence[Check]) -> bool:
    """Whether somebody has to do something."""
    return any(check.level in (Level.WARNING, Level.PROBLEM) for check in checks)


def _database(health: Health) -> Iterator[Check]:
    about = "database"
    if health.version_num < SERVER_VERSION_MIN:
        yield Check(
            about, Level.PROBLEM, f"PostgreSQL {health.version} is too old", "Rota needs PostgreSQL 14 or later."
        )
    elif health.in_recovery:
        yield Check(
            about, Level.PROBLEM, f"PostgreSQL {health.version} is a standby: it takes no writes",
            "Let ROTA_DSN name the primary, or add target_session_attrs=read-write to it.",
        )  # fmt: skip
    elif health.read_only_by is not None:
        yield Check(
            about, Level.PROBLEM,
            f"PostgreSQL {health.version} takes no writes: default_transaction_read_only is on ({health.read_only_by})",
            "Turn it off there: ALTER ROLE or ALTER DATABASE … RESET default_transaction_read_only, or in ROTA_DSN.",
        )  # fmt: skip
    else:
        yield Check(about, Level.OK, f"PostgreSQL {health.version}")
    if health.fsync != "on":
        yield Check(
            about, Level.PROBLEM, "fsync is off: a crash of the machine can destroy the whole database",
            "Set fsync = on in postgresql.conf and restart the server.",
        )  # fmt: skip
    if health.synchronous_commit == "off":
        yield Check(
            about, Level.WARNING, "synchronous_commit is off: a crash loses jobs whose enqueue had committed",
            "Set synchronous_commit = on for this database or this user.",
        )  # fmt: skip
    if health.autovacuum != "on":
        yield Check(
            about, Level.PROBLEM, "autovacuum is off: dead rows stay, and claims become slower and slower",
            "Set autovacuum = on in postgresql.conf and reload the server.",
        )  # fmt: skip


def _schema(health: Health) -> Iterator[Check]:
    if health.missing:
        yield Check(
            "schema", Level.PROBLEM, f"lacks {', '.join(health.missing)}: this program's workers do not start",
            "Run: rota migrate up",
        )  # fmt: skip
    else:
        yield Check("schema", Level.OK, "up to date")
    if health.hidden:
        yield Check(
            "schema", Level.PROBLEM, f"row-level security hides rows of {', '.join(health.hidden)} from this user",
            "Turn it off: ALTER TABLE … DISABLE ROW LEVEL SECURITY, or ALTER ROLE … BYPASSRLS. "
            "A worker has to see every job.",
        )  # fmt: skip


def _pooler(health: Health) -> Iterator[Check]:
    about = "pooler"
    if health.pooler == "none" and health.shares_sessions:
        yield Check(
            about, Level.PROBLEM,
            "a pooler in transaction mode stands between, and nobody told Rota: wake-ups and time limits are lost",
            "Set ROTA_POOLER=transaction, or let ROTA_DSN name the database itself.",
        )  # fmt: skip
    elif health.pooler == "transaction" and not health.shares_sessions:
        yield Check(
            about, Level.NOTE, "ROTA_POOLER=transaction is set, and no pooler in transaction mode was noticed",
            "Without one, unset it: jobs then start at once and not within poll_s.",
        )  # fmt: skip
    else:
        yield Check(about, Level.OK, "transaction mode, as set" if health.shares_sessions else "none noticed")
    lost = [name for name, wanted in TIMEOUTS.items() if getattr(health, name) != wanted]
    if lost and health.pooler == "none":
        shown = ", ".join(f"{name} is {getattr(health, name)}" for name in lost)
        yield Check(
            about, Level.WARNING, f"the time limits of Rota's sessions do not arrive: {shown}",
            "Something between drops startup parameters. Set ROTA_POOLER=transaction if it is a pooler.",
        )  # fmt: skip


def _clock(health: Health) -> Iterator[Check]:
    sure_s = abs(health.ahead_s) - health.round_trip_s / 2
    way = "ahead of" if health.ahead_s > 0 else "behind"
    if sure_s > SKEW_S:
        yield Check(
            "clock", Level.WARNING, f"the database's clock is {abs(health.ahead_s):.1f} s {way} this machine's",
            "Leases do not mind, but a run_after that a program computes here is off by as much. "
            "Let NTP keep both clocks.",
        )  # fmt: skip
    else:
        yield Check("clock", Level.OK, f"within {max(abs(health.ahead_s), health.round_trip_s / 2) * 1000:.0f} ms")


def _connections(health: Health) -> Iterator[Check]:
    words = f"{health.connections} of {health.connections_max} in use"
    if health.connections >= CONNECTIONS_SHARE * health.connections_max:
        yield Check(
            "connections", Level.WARNING, words,
            "Raise max_connections, lower ROTA_JOB_POOL_SIZE, or put a pooler between. "
            "A worker that gets no connection waits and tries again.",
        )  # fmt: skip
    else:
        yield Check("connections", Level.OK, words)


def _notifications(health: Health) -> Iterator[Check]:
    words = f"the queue of notifications is {health.notify_usage:.0%} full"
    advice = (
        "A session that listens has a transaction open for long: end it (see vacuum). "
        "When the queue is full, every commit that notifies fails."
    )
    if health.notify_usage >= NOTIFY_PROBLEM:
        yield Check("notifications", Level.PROBLEM, words, advice)
    elif health.notify_usage >= NOTIFY_WARNING:
        yield Check("notifications", Level.WARNING, words, advice)
    else:
        yield Check("notifications", Level.OK, words)


def _vacuum(health: Health) -> Iterator[Check]:
    about, fine = "vacuum", True
    for hold in health.holds:
        found = _hold(hold)
        if found is not None:
            fine = False
            yield found
    for table in health.tables:
        if table.dead >= max(DEAD_MIN, 2 * table.live):
            fine = False
            ago = "never" if table.vacuumed_ago_s is None else f"{table.vacuumed_ago_s / 60:.0f} min ago"
            yield Check(
                about, Level.WARNING,
                f"{table.name} has {table.dead:,} dead rows beside {table.live:,} live ones; last vacuumed {ago}",
                "End what holds vacuum back (above, or long transactions of other databases); "
                f"else run: VACUUM {table.name}",
            )  # fmt: skip
    if fine:
        dead = sum(table.dead for table in health.tables)
        yield Check(about, Level.OK, f"{dead:,} dead rows in all, nothing holds them")


def _hold(hold: Hold) -> Check | None:
    """What to do about one who holds dead rows back; None where that is no matter yet."""
    since_s = hold.open_s or 0.0
    if hold.what == "slot":
        if hold.age < SLOT_AGE:
            return None
        return Check(
            "vacuum", Level.WARNING,
            f"replication slot {hold.name} ({hold.detail}) holds back {hold.age:,} transactions",
            f"Let its reader catch up, or drop it: SELECT pg_drop_replication_slot('{hold.name}')",
        )  # fmt: skip
    if since_s < HOLD_S:
        return None
    level = Level.PROBLEM if since_s >= HOLD_PROBLEM_S else Level.WARNING
    minutes = f"{since_s / 60:.0f} min"
    match hold.what:
        case "prepared":
            words = f"prepared transaction {hold.name} ({hold.detail}) is open for {minutes}"
            advice = f"Finish it: COMMIT PREPARED '{hold.name}' or ROLLBACK PREPARED '{hold.name}'"
        case "standby":
            words = f"a standby's query (session {hold.name}, {hold.detail}) holds a snapshot for {minutes}"
            advice = "End that query on the standby, or turn hot_standby_feedback off there."
        case _:
            words = f"session {hold.name} ({hold.detail}) holds a snapshot for {minutes}"
            advice = f"End it: SELECT pg_terminate_backend({hold.name})"
    return Check("vacuum", level, words, advice)
