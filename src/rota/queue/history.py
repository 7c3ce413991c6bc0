"""What is kept of a job beside its row: its tries, where it did not simply succeed, and the lines its handler logged.

Pure. A first try that goes well leaves neither. `JobLog` bounds what one run may keep: its first lines, and then the
number of those that were dropped.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from rota.errors import PayloadError
from rota.ids import JobId
from rota.lease import Lease
from rota.queue.payload import cut_text, encode

TRIES_KEPT: Final = 100
"""Runs of one job that are kept, for one that yields or snoozes for years."""
LOG_LINES_MAX: Final = 1000
"""Lines of one run that are kept."""
LOG_BYTES_MAX: Final = 256 * 1024
"""Bytes of events and fields of one run that are kept."""
LOG_RUNS_KEPT: Final = 3
"""Runs of one job whose lines are kept, the last ones: a job is held to so many times the two bounds above."""
EVENT_BYTES_MAX: Final = 2000
"""Bytes of one event's words that are kept; the rest is cut off."""
FIELDS_BYTES_MAX: Final = 8 * 1024
"""The same of its fields."""
FULL: Final = "The log of this run is full: what is said from here on is only counted"
DROPPED: Final = "Lines were dropped, because the log of this run was full"


class TryEnd(StrEnum):
    """How a run ended."""

    DONE = "done"
    FAILED = "failed"
    """The handler failed, and the job with it."""
    RETRY = "retry"
    """The handler failed, and the job runs again."""
    CANCELLED = "cancelled"
    """The handler said that it was cancelled."""
    STOPPED = "stopped"
    """Its worker told it to stop, and it did: a coroutine was cancelled, a thread or a child process looked."""
    KILLED = "killed"
    """Its child process was killed."""
    FENCED = "fenced"
    """Nothing else stopped it: its process ended itself."""
    LOST = "lost"
    """Its lease ran out: its holder died, or could not be heard."""
    GIVEN_BACK = "given_back"
    SNOOZED = "snoozed"
    YIELDED = "yielded"


UNCOUNTED: Final = frozenset({TryEnd.GIVEN_BACK, TryEnd.SNOOZED, TryEnd.YIELDED})
"""Ends that cost a job none of its tries."""


@dataclass(frozen=True, slots=True)
class Try:
    """One run of a job, as it is kept.

    Attributes:
        job_id: the job.
        epoch: its lease's number.
        holder: who ran it.
        started_at: when it was claimed.
        progress_at: when its last progress was written.
        ended_at: when its lease was over for the database.
        stopped_at: when its holder really stopped, where that was said after the lease was lost.
        ended: how it ended.
        error: why, where it did not go well.
        overlap_s: how long it ran beside later runs by other holders; anything but 0 is a broken promise (I2).
    """

    job_id: JobId
    epoch: int
    holder: str
    started_at: datetime
    progress_at: datetime | None
    ended_at: datetime
    stopped_at: datetime | None
    ended: TryEnd
    error: str | None
    overlap_s: float


class Stopped(Struct, frozen=True, gc=False):
    """What a holder says after it lost a lease: so many seconds ago the run really stopped."""

    lease: Lease
    ago_s: float


class LogLine(Struct, frozen=True, gc=False):
    """A line that a handler logged. `fields` is JSON text; `said_at` is a time of the lease clock."""

    lease: Lease
    number: int
    said_at: float
    level: str
    event: str
    fields: str | None


@dataclass(frozen=True, slots=True)
class KeptLine:
    """A line as it is kept; `fields` is JSON text."""

    job_id: JobId
    epoch: int
    number: int
    logged_at: datetime
    level: str
    event: str
    fields: str | None


@dataclass(slots=True)
class JobLog:
    """The lines of one run; whoever shares it between threads guards it."""

    lease: Lease
    lines: int = 0
    bytes: int = 0
    dropped: int = 0

    def say(self, level: str, event: str, fields: Mapping[str, Any], *, now: float) -> LogLine | None:
        """Takes a line.

        Args:
            level: such as `info`.
            event: what happened; long ones are cut.
            fields: values that JSON can say; what it cannot say is kept as text.
            now: the lease clock.

        Returns: the line to keep; None if it was dropped.
        """
        if self.dropped:
            self.dropped += 1
            return None
        said, kept = cut_text(event, bytes_max=EVENT_BYTES_MAX), _fields(fields) if fields else None
        size = len(said.encode()) + len((kept or "").encode())
        if self.lines >= LOG_LINES_MAX - 2 or self.bytes + size > LOG_BYTES_MAX:
            self.dropped = 1
            return self._line("warning", FULL, None, now)
        self.bytes += size
        return self._line(level, said, kept, now)

    def close(self, *, now: float) -> LogLine | None:
        """The last line, if lines were dropped: how many."""
        if not self.dropped:
            return None
        return self._line("warning", DROPPED, encode({"dropped": self.dropped}), now)

    def _line(self, level: str, event: str, fields: str | None, now: float) -> LogLine:
        self.lines += 1
        return LogLine(self.lease, self.lines, now, level, event, fields)


def _fields(fields: Mapping[str, Any]) -> str:
    try:
        return encode(fields, what="log line", bytes_max=FIELDS_BYTES_MAX)
    except PayloadError:
        # A log line is for people: a value that cannot be stored is shown, not refused.
        share = max(20, FIELDS_BYTES_MAX // (4 * len(fields)))
        shown = {_shown(key, 80): _shown(value, share) for key, value in list(fields.items())[:100]}
        return encode(shown, what="log line")


def _shown(value: Any, bytes_max: int) -> str:
    return cut_text(value if isinstance(value, str) else repr(value), bytes_max=bytes_max)


def overlap_s(stopped_at: datetime | None, later: Iterable[tuple[datetime, datetime]]) -> float:
    """How long a run that really stopped at this time ran beside later ones, given as (start, end), in seconds."""
    if stopped_at is None:
        return 0.0
    return sum(max(0.0, (min(stopped_at, end) - start).total_seconds()) for start, end in later)
