"""Virtual time, and a database on the other end of a line that loses, delays and repeats.

Nothing here knows what a worker is. One seed gives one history: every choice is drawn from one `Random`, and events of
the same moment happen in the order in which they were planned.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from rota.errors import DatabaseAway
from rota.ids import JobId
from rota.queue.job import JobRow
from rota.queue.reference import Reference

START = datetime(2026, 3, 1, tzinfo=UTC)

LOOKS = frozenset({"poll", "passes", "clock"})
"""Statements that write nothing, and that nobody watches: there are more of them than of all others."""

Answer = Callable[[Any], None]
"""Takes what a call returned, or the DatabaseAway that ended it."""

Rows = Mapping[JobId, JobRow]
Watcher = Callable[[str, tuple[Any, ...], Any, Rows, Rows], None]
"""Told of each statement that may write: its name, its arguments, its answer, and all rows before and after it."""


@dataclass(frozen=True, slots=True)
class Line:
    """How bad the line to the database is; the probabilities are for each call."""

    lost_request: float = 0.02
    lost_answer: float = 0.02
    repeated: float = 0.02
    """The request arrives a second time, up to `repeated_after_s` later."""
    repeated_after_s: float = 20.0
    slow: float = 0.08
    slow_s: float = 8.0
    fast_s: float = 0.02
    patience_s: float = 15.0
    """After so long without an answer the caller takes the call for lost."""


CALM = Line(lost_request=0, lost_answer=0, repeated=0, slow=0)


@dataclass(slots=True)
class World:
    """The clock, the events to come, and the database.

    Attributes:
        random: the one source of chance.
        line: how bad the line is now.
        now_s: true seconds since the start.
        away_until_s: the database answers nobody before this time.
        watchers: told of every statement that the database carried out.
    """

    random: Random
    line: Line = field(default_factory=Line)
    now_s: float = 0.0
    away_until_s: float = 0.0
    watchers: list[Watcher] = field(default_factory=list)
    database: Reference = field(init=False)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _planned: int = 0

    def __post_init__(self) -> None:
        self.database = Reference(clock=self.clock, random=self.random)

    def clock(self) -> datetime:
        """The database's clock."""
        return START + timedelta(seconds=self.now_s)

    def rows(self) -> dict[JobId, JobRow]:
        """Every job as it stands."""
        return self.database._ended | self.database._open

    def row(self, job_id: JobId) -> JobRow | None:
        """One job as it stands; None if there is none."""
        return self.database._open.get(job_id) or self.database._ended.get(job_id)

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        """Plans an event."""
        self._planned += 1
        heapq.heappush(self._events, (self.now_s + max(0.0, delay_s), self._planned, event))

    def run(self, until_s: float, *, done: Callable[[], bool] = lambda: False) -> None:
        """Lets time pass until then, or until it is done."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
            if done():
                return
        self.now_s = until_s

    def statement(self, name: str, *args: Any, **options: Any) -> Any:
        """Carries out one statement now, with no line between."""
        if name in LOOKS:
            return getattr(self.database, name)(*args, **options)
        before = self.rows()
        answer = getattr(self.database, name)(*args, **options)
        after = self.rows()
        for watch in self.watchers:
            watch(name, args, answer, before, after)
        return answer

    def call(self, name: str, *args: Any, answer: Answer, **options: Any) -> None:
        """Sends a statement to the database. `answer` is called once, sooner or later: with what came back, or with
        the error that ended the call; the statement may have been carried out all the same."""
        waiting = [answer]

        def reply(what: Any) -> None:
            while waiting:
                waiting.pop()(what)

        def carry_out(*, first: bool) -> None:
            if self.now_s < self.away_until_s:
                if first:
                    self.after(self._delay_s(), lambda: reply(DatabaseAway("The database is away")))
                return
            returned = self.statement(name, *args, **options)
            if first and self.random.random() >= self.line.lost_answer:
                self.after(self._delay_s(), lambda: reply(returned))

        if self.random.random() >= self.line.lost_request:
            self.after(self._delay_s(), lambda: carry_out(first=True))
        if self.random.random() < self.line.repeated:
            self.after(self.random.uniform(0, self.line.repeated_after_s), lambda: carry_out(first=False))
        self.after(self.line.patience_s, lambda: reply(DatabaseAway("No answer came in time")))

    def _delay_s(self) -> float:
        slow = self.random.random() < self.line.slow
        return self.random.uniform(0, self.line.slow_s if slow else self.line.fast_s)
