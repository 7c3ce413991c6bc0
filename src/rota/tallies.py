"""Numbers that several parts count and one shows: a histogram, and what a client of exec servers counts. Pure.

The queue shows them beside its own (`rota.queue.meters`) and knows nothing of slots; `rota.slots` fills them in and
knows nothing of scrapes.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct, field

GRANT_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0, 7200.0)
"""Bounds of what a call waits for its slot: from a free one on this machine to the hours of a long line."""


class Histogram(Struct):
    """Counts of values between bounds; the last count is of those beyond the highest."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    @classmethod
    def over(cls, bounds: Sequence[float]) -> "Histogram":
        """An empty one."""
        return cls(tuple(bounds), [0] * (len(bounds) + 1))

    def observe(self, values: Iterable[float]) -> None:
        """Counts values, in seconds; a negative one, which a clock can make, counts as 0."""
        bounds, counts, total = self.bounds, self.counts, 0.0
        for value in values:
            if value > 0:
                counts[bisect_left(bounds, value)] += 1
                total += value
            else:
                counts[0] += 1
        self.total += total

    def add(self, other: "Histogram") -> None:
        """Adds the counts of another one with the same bounds."""
        if self.bounds == other.bounds:
            self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
            self.total += other.total


class ExecTally(Struct):
    """What one client of exec servers, or several together, counted. Addresses come from settings, so they are few.

    Attributes:
        connections: those that are greeted now, by address.
        parked: calls that wait for a slot now.
        running: calls that have one now.
        offers: offers by what was said to them: `taken`, or `surplus` where another exec server was faster.
        grant: from when a call asked for a slot until an offer was taken.
        no_slot: calls that were given up because no slot came in time.
        reconnects: connections that were made again after one had broken, by address.
    """

    connections: dict[str, int] = {}
    parked: int = 0
    running: int = 0
    offers: dict[str, int] = {}
    grant: Histogram = field(default_factory=lambda: Histogram.over(GRANT_S))
    no_slot: int = 0
    reconnects: dict[str, int] = {}

    def add(self, other: "ExecTally") -> None:
        """Adds the numbers of another client."""
        for mine, theirs in (
            (self.connections, other.connections),
            (self.offers, other.offers),
            (self.reconnects, other.reconnects),
        ):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count
        self.parked += other.parked
        self.running += other.running
        self.no_slot += other.no_slot
        self.grant.add(other.grant)

    def ended(self) -> None:
        """Its process is over, and its connections and calls with it."""
        self.connections = dict.fromkeys(self.connections, 0)
        self.parked = self.running = 0
