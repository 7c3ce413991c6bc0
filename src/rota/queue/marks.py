"""Where the live part of a kind's line begins, so that a claim need not walk over what is dead. Pure.

A job that was claimed leaves its entry in the index until vacuum takes it away, and while somebody holds an old
snapshot vacuum may not. Then each claim that begins at the start of the line reads all that was claimed since. So a
worker remembers, for each priority of a kind (a level), how far it has taken everything, and the next claim begins
there: a mark. A level that has no mark is found and read from its start.

What is behind a mark (a job that went back to its place, one with an older `run_after`, one whose transaction took
longer than `MARGIN_S` to commit) a marked claim does not see. So from time to time a claim is whole: it has no marks.
It is when `WHOLE_SHARE` times the time that the last whole one took has passed, and after `WHOLE_EVERY_S_MAX` at the
latest. While whole claims are quick, nearly all of them are, and nothing waits for that; while they are slow they take
a twentieth of the time, and what is behind a mark waits for ten seconds at most, and for the look. Beside these jobs,
order and priority are those of a whole claim.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from msgspec import Struct

from rota.ids import JobId
from rota.queue.job import Ask, ClaimedJob

MARGIN_S: Final = 1.0
"""A mark stays so far behind the database's clock: a job is due from the start of the transaction that adds it, and is
seen from its end. The statements say the same."""
WHOLE_SHARE: Final = 20.0
"""Looks at everything take a twentieth of the time at most."""
WHOLE_EVERY_S_MAX: Final = 10.0
"""However long they take: only they find what went back to an old place elsewhere."""
LEVELS_MAX: Final = 32
"""Marks of one kind; of more, those are forgotten that were reached the longest ago."""


class Mark(Struct, frozen=True, gc=False):
    """Where to begin in one level: behind a job, or at what was due so many seconds ago."""

    kind: str
    priority: int
    run_after: datetime | None = None
    job_id: JobId | None = None
    age_s: float | None = None


@dataclass(slots=True)
class Wholes:
    """When to look at all of it again: not before a multiple of what that cost the last time."""

    at: float = float("-inf")
    took_s: float = 0.0

    def due(self, now: float) -> bool:
        """Whether it is time."""
        return now - self.at >= min(WHOLE_EVERY_S_MAX, WHOLE_SHARE * self.took_s)

    def was(self, *, sent_at: float, took_s: float) -> None:
        """Notes that somebody has looked, from when on and for how long."""
        self.at, self.took_s = sent_at, took_s


@dataclass(slots=True)
class _Line:
    levels: dict[int, ClaimedJob | float] = field(default_factory=dict)
    """For each priority the last job taken, or since when there is nothing due before; the last reached last."""
    wholes: Wholes = field(default_factory=Wholes)


@dataclass(slots=True)
class Marks:
    """What one worker remembers. Times are seconds of a clock that never steps."""

    _lines: dict[str, _Line] = field(default_factory=dict)

    def of(self, kinds: Iterable[str], *, now: float) -> list[Mark]:
        """The marks to claim with; none for a kind that is due for a whole claim."""
        return [
            mark
            for kind in kinds
            if (line := self._lines.get(kind)) is not None and not line.wholes.due(now)
            for mark in _marks(kind, line, now)
        ]

    def all(self, kinds: Iterable[str], *, now: float) -> list[Mark]:
        """The marks to look with."""
        return [mark for kind in kinds if (line := self._lines.get(kind)) for mark in _marks(kind, line, now)]

    def claimed(
        self, asks: Sequence[Ask], jobs: Iterable[ClaimedJob], *, marks: Sequence[Mark], sent_at: float, took_s: float
    ) -> None:
        """Moves the marks to where a claim has come.

        Args:
            asks: what it asked for.
            jobs: what it brought, in the queue's order.
            marks: those that it was given.
            sent_at: the clock before it was sent.
            took_s: how long its answer took.
        """
        got: dict[str, list[ClaimedJob]] = {ask.kind: [] for ask in asks}
        for job in jobs:
            got[job.kind].append(job)
        marked = {mark.kind for mark in marks}
        for ask in asks:
            line = self._lines.setdefault(ask.kind, _Line())
            if ask.kind not in marked:
                line.wholes.was(sent_at=sent_at, took_s=took_s)
            taken = got[ask.kind]
            full = len(taken) >= ask.free
            if full and not taken:
                continue
            # All above the lowest level that was reached is taken, and all of that too unless there was no room left.
            lowest = taken[-1].priority if full else ask.lowest
            for priority in {*line.levels, *(job.priority for job in taken)}:
                if lowest is None or priority > lowest or (priority == lowest and not full):
                    line.levels[priority] = sent_at
            if full:
                line.levels[taken[-1].priority] = taken[-1]
            for job in taken[:: max(1, len(taken) - 1)]:
                # The level moves to the end of the order in which levels are forgotten.
                line.levels[job.priority] = line.levels.pop(job.priority)
            while len(line.levels) > LEVELS_MAX:
                del line.levels[next(iter(line.levels))]

    def forget(self, kinds: Iterable[str]) -> None:
        """Makes the next claim of these kinds a whole one: a job of theirs went back to its old place."""
        for kind in kinds:
            self._lines.pop(kind, None)


def _marks(kind: str, line: _Line, now: float) -> Iterable[Mark]:
    for priority, reached in line.levels.items():
        if isinstance(reached, float):
            yield Mark(kind, priority, age_s=now - reached)
        else:
            yield Mark(kind, priority, run_after=reached.run_after, job_id=reached.id)
