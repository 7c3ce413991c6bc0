"""When passes are due, and what becomes of them when code and servers change. Pure.

A pass is work by interval or by cron. Its due times form a raster: each is one interval after the one before, or the
next time that its cron line names. A run that comes late moves nothing, and runs that were missed collapse into one.
Intervals are elapsed time, so they neither skip nor double where clocks are changed; cron lines follow the clocks of
their time zone. Everything that is stored is UTC.

Spec: job queue, "Which work runs as jobs". Cron lines are read by the library cronsim, which follows Debian's cron
where clocks are changed.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from rota.errors import SettingsError
from rota.ids import JobId

INTERVAL_S_MIN: Final = 1.0
"""Workers look once a second."""
INTERVAL_S_MAX: Final = 315_576_000.0
"""Ten years."""
GONE_S: Final = 600.0
"""A pass that no live server's code has goes after this time: two programs may share a database, and after an outage
the first of them that is back must not remove the passes of the other."""

_EVERY, _CRON = "every ", "cron "
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Every:
    """A pass by interval, in seconds of elapsed time."""

    interval_s: float

    def __str__(self) -> str:
        return f"{_EVERY}{self.interval_s:.6f}".rstrip("0").rstrip(".") + " s"


@dataclass(frozen=True, slots=True)
class Cron:
    """A pass by a cron line, by the clocks of a time zone such as `Europe/Berlin`."""

    line: str
    tz: str = "UTC"

    def __str__(self) -> str:
        return f"{_CRON}{self.line} {self.tz}"


Schedule = Every | Cron


@dataclass(frozen=True, slots=True)
class Declared:
    """A pass as a program's code has it.

    Attributes:
        schedule: its text, as `str` of an Every or a Cron gives it.
        priority: of its runs.
        first_after_s: when a pass that is new runs first; None for one interval, or the next time of its cron line.
    """

    schedule: str
    priority: int = 0
    first_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class PassRun:
    """The payload of a run: when it was due. The runs of a pass have due times in its raster, however late they run;
    that of a run that a person asked for is when that was."""

    due_at: datetime


@dataclass(frozen=True, slots=True)
class PassRow:
    """A pass as the table has it, with what the last look saw of its open run.

    Attributes:
        due_at: of the open run, or of the last one where none is open.
        extra: the open run was asked for by a person, and the one that is due at `due_at` is still to come.
        missing_since: since when no live server's code has it.
        removed_at: since when it is gone.
        open_state: `queued` or `leased`; None where no run is open. `open_run_after`: when that run may start.
        paused: its kind is paused.
        now: the database's clock.
    """

    name: str
    schedule: str
    priority: int
    due_at: datetime
    extra: bool
    missing_since: datetime | None
    removed_at: datetime | None
    open_id: JobId | None
    open_state: str | None
    open_run_after: datetime | None
    open_tries: int | None
    paused: bool
    now: datetime


@dataclass(frozen=True, slots=True)
class Put:
    """Write the pass so, and see that a run is open at `due_at`. `seen`: the row that this was decided on."""

    name: str
    declared: Declared
    due_at: datetime
    seen: PassRow | None
    extra: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Note whether live code has the pass; of a `removed` one the queued run, `cancels`, is to be cancelled."""

    name: str
    missing: bool
    removed: bool = False
    cancels: JobId | None = None


def key_of(name: str) -> str:
    """The open-scope key of a pass's runs: one open run for each pass, on all servers together."""
    return f"pass:{name}"


def check(schedule: Schedule, *, name: str) -> None:
    """Refuses a schedule that cannot work.

    Raises: SettingsError that names the pass.
    """
    if isinstance(schedule, Every):
        # In this order NaN is refused, too.
        if not INTERVAL_S_MIN <= schedule.interval_s <= INTERVAL_S_MAX:
            raise SettingsError(
                f"The pass {name!r} has an interval of {schedule.interval_s:g} s: give 1 second to ten years."
            )
        return
    try:
        _zone(schedule.tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SettingsError(
            f"The pass {name!r} has tz={schedule.tz!r}, which is no time zone here: give one such as 'Europe/Berlin', "
            "and install the package tzdata where the system has no time zones."
        ) from None
    try:
        _after(schedule, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise SettingsError(
            f"The pass {name!r} has the cron line {schedule.line!r}, which is no good ({error}): give minute, hour, "
            "day, month and weekday, such as '0 3 * * *'."
        ) from None
    except StopIteration:
        raise SettingsError(
            f"The pass {name!r} has the cron line {schedule.line!r}, which names no time at all."
        ) from None


def parse(text: str) -> Schedule:
    """The schedule of a stored text.

    Raises: ValueError for a text that this version does not know.
    """
    if text.startswith(_EVERY):
        return Every(float(text.removeprefix(_EVERY).removesuffix(" s")))
    if text.startswith(_CRON):
        line, _, tz = text.removeprefix(_CRON).rpartition(" ")
        return Cron(line, tz)
    raise ValueError(f"{text!r} is no schedule of this version of Rota")


def first_due(declared: Declared, *, now: datetime) -> datetime:
    """When a pass that is new is due: never at once, unless its code says so."""
    if declared.first_after_s is not None:
        return now + timedelta(seconds=declared.first_after_s)
    schedule = parse(declared.schedule)
    return now + _interval(schedule) if isinstance(schedule, Every) else _after(schedule, now)


def next_due(schedule: Schedule, *, due_at: datetime, now: datetime) -> datetime:
    """When the run after the one that was due at `due_at` is due: the first of the raster that is still to come."""
    if isinstance(schedule, Cron):
        return _after(schedule, max(due_at, now))
    interval = _interval(schedule)
    return due_at + interval * (max(0, (now - due_at) // interval) + 1)


def following(row: PassRow) -> datetime:
    """When a pass whose run has just ended is due again. An extra run leaves the one that is to come as it was.

    Raises: ValueError if this version does not know the schedule.
    """
    if row.extra and row.due_at > row.now:
        return row.due_at
    return next_due(parse(row.schedule), due_at=row.due_at, now=row.now)


def next_runs(rows: Iterable[PassRow], *, ends: JobId) -> list[Put]:
    """What to write where a job of a pass's kind ends, with the passes as they were before.

    Nothing, if it was no run of the pass but a job that somebody added; and the next run of a pass that was removed, or
    whose schedule this version does not know, is not this server's to write.
    """
    runs = []
    for row in rows:
        if row.open_id == ends and row.removed_at is None:
            with contextlib.suppress(ValueError):
                runs.append(Put(row.name, Declared(row.schedule, row.priority), following(row), row))
    return runs


def changed_due(row: PassRow, schedule: Schedule) -> datetime:
    """When a pass is due whose schedule has changed while it waited: its raster goes on from its last run."""
    old = parse(row.schedule)
    if isinstance(old, Every) and isinstance(schedule, Every):
        return next_due(schedule, due_at=row.due_at - _interval(old), now=row.now)
    return row.now + _interval(schedule) if isinstance(schedule, Every) else _after(schedule, row.now)


def reconcile(
    rows: Sequence[PassRow], *, declared: Mapping[str, Declared], now: datetime, gone_s: float = GONE_S
) -> list[Put | Mark]:
    """What to write, so that the table holds what live code says.

    Args:
        rows: the passes of the table.
        declared: what live code says, by name; see `latest`.
        now: the database's clock.
        gone_s: how long a pass may be missing before it is removed.

    Returns: what to do. Several servers may decide the same at once: each write stands only on what was seen.
    """
    known = {row.name: row for row in rows}
    todo: list[Put | Mark] = []
    for name, wanted in sorted(declared.items()):
        row = known.get(name)
        # A schedule that this version does not know is left to the servers that do.
        with contextlib.suppress(ValueError):
            if row is None:
                todo.append(Put(name, wanted, first_due(wanted, now=now), None))
            elif (step := _step(row, wanted)) is not None:
                todo.append(step)
    for row in rows:
        if row.name not in declared and (mark := _mark(row, now=now, gone_s=gone_s)) is not None:
            todo.append(mark)
    return todo


def _mark(row: PassRow, *, now: datetime, gone_s: float) -> Mark | None:
    """What becomes of a pass that no live code has."""
    queued = row.open_id if row.open_state == "queued" else None
    if row.removed_at is not None:
        return Mark(row.name, missing=True, removed=True, cancels=queued) if queued else None
    if row.missing_since is None and gone_s > 0:
        return Mark(row.name, missing=True)
    if (now - (row.missing_since or now)).total_seconds() >= gone_s:
        return Mark(row.name, missing=True, removed=True, cancels=queued)
    return None


def _step(row: PassRow, wanted: Declared) -> Put | Mark | None:
    same = (row.schedule, row.priority) == (wanted.schedule, wanted.priority)
    schedule = parse(wanted.schedule)
    if row.removed_at is not None:
        return Put(row.name, wanted, next_due(schedule, due_at=row.due_at, now=row.now), row)
    if row.open_state is None:
        due_at = following(row) if same else max(following(row), changed_due(row, schedule))
        return Put(row.name, wanted, due_at, row)
    if not same:
        # A run that has begun, or that is due, goes on as it is; its end goes by the new schedule.
        waits = row.open_state == "queued" and not row.open_tries and not row.extra and row.due_at > row.now
        moves = waits and row.schedule != wanted.schedule
        return Put(row.name, wanted, changed_due(row, schedule) if moves else row.due_at, row, extra=row.extra)
    return Mark(row.name, missing=False) if row.missing_since is not None else None


def latest(servers: Iterable[tuple[datetime, str, Mapping[str, Declared]]]) -> dict[str, Declared]:
    """What live code says of each pass: where two versions of a program run side by side, the one that started last.

    Every server decides the same, so nothing goes back and forth while both are there.

    Args:
        servers: of each live one its start, its holder and the passes of its program.
    """
    found: dict[str, Declared] = {}
    for _, _, passes in sorted(servers, key=lambda server: server[:2]):
        found.update(passes)
    return found


def _interval(schedule: Every) -> timedelta:
    return max(timedelta(seconds=schedule.interval_s), _MICROSECOND)


def _after(schedule: Cron, when: datetime) -> datetime:
    # From a time within the hour that comes twice, cronsim begins with the first of the two.
    return next(due for due in CronSim(schedule.line, when.astimezone(_zone(schedule.tz))) if due > when).astimezone(
        UTC
    )


def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
