"""What a worker counts of itself: totals, histograms and a few latest values. Pure: no clock, no thread, no database.

A worker counts in batches and says now and then, as a snapshot, how far it has come; whoever shows the numbers adds
up the snapshots of several processes (`add_up`), also of those that have ended, so that a total never goes back.

Spec: job queue, "What to watch".
"""

from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct, field

from rota.tallies import ExecTally, Histogram

WAIT_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Bounds of what a job waits after it was due: from the 2 ms of a wake-up to the hour of a queue that is too full."""
RUN_S: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0)
"""Bounds of what a handler takes: from one statement to a film."""
CLAIM_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Bounds of what a claim's statement takes."""

KINDS_MAX: Final = 1000
"""Kinds with numbers of their own: a worker has at most a few dozen, but a number may never fill a memory."""


class Meters(Struct):
    """The numbers of one process, or of several together. Those by kind are dicts.

    Attributes:
        failures: jobs that were written as failed.
        lease_kills: jobs that the watchdog stopped because they made no progress.
        stall_kills: the same by how the stop ended: `stopped`, `killed`, `fenced`.
        lease_lost: leases that were lost, by why: `taken`, `unwritten`.
        fenced: processes that ended themselves because a job could not be stopped.
        overlap_s: how long runs of one job by two holders overlapped; has to be 0 (I2).
        wait: from when a job was due until its claim.
        run: how long its handler took.
        claim: how long the statement took.
        loop_lag_s: how late the event loop was at the last look.
        exec: what its client of exec servers counted; None: it has none.
    """

    failures: dict[str, int] = field(default_factory=dict)
    lease_kills: dict[str, int] = field(default_factory=dict)
    stall_kills: dict[str, int] = field(default_factory=dict)
    lease_lost: dict[str, int] = field(default_factory=dict)
    fenced: int = 0
    overlap_s: float = 0.0
    wait: dict[str, Histogram] = field(default_factory=dict)
    run: dict[str, Histogram] = field(default_factory=dict)
    claim: Histogram = field(default_factory=lambda: Histogram.over(CLAIM_S))
    loop_lag_s: float = 0.0
    exec: ExecTally | None = None

    def waited(self, kind: str, seconds: Iterable[float]) -> None:
        """Notes what jobs of a kind waited, a batch at once."""
        _histogram(self.wait, kind, WAIT_S).observe(seconds)

    def ran(self, kind: str, seconds: Iterable[float]) -> None:
        """Notes what handlers of a kind took, a batch at once."""
        _histogram(self.run, kind, RUN_S).observe(seconds)

    def failed(self, kind: str) -> None:
        """Notes a job that was written as failed."""
        _count(self.failures, kind)

    def stalled(self, kind: str, *, how: str) -> None:
        """Notes a job that the watchdog stopped: `stopped`, `killed` with its child process, or `fenced` with all."""
        _count(self.lease_kills, kind)
        _count(self.stall_kills, how)
        self.fenced += how == "fenced"

    def ended(self) -> None:
        """Notes that the process is over: what was only true while it lived counts no more."""
        self.loop_lag_s = 0.0
        if self.exec is not None:
            self.exec.ended()

    def lost(self, why: str) -> None:
        """Notes a lease that was lost: `taken` by another, or `unwritten` for the lease time."""
        _count(self.lease_lost, why)


def add_up(snapshots: Iterable[Meters]) -> Meters:
    """The numbers of several processes as one: sums, and of the latest values the worst."""
    total = Meters()
    for one in snapshots:
        for mine, theirs in (
            (total.failures, one.failures),
            (total.lease_kills, one.lease_kills),
            (total.stall_kills, one.stall_kills),
            (total.lease_lost, one.lease_lost),
        ):
            for name, count in theirs.items():
                _count(mine, name, count)
        for own, other in ((total.wait, one.wait), (total.run, one.run)):
            for kind, histogram in other.items():
                _histogram(own, kind, histogram.bounds).add(histogram)
        total.claim.add(one.claim)
        total.fenced += one.fenced
        total.overlap_s += one.overlap_s
        total.loop_lag_s = max(total.loop_lag_s, one.loop_lag_s)
        if one.exec is not None:
            total.exec = total.exec or ExecTally()
            total.exec.add(one.exec)
    return total


def _count(counts: dict[str, int], name: str, more: int = 1) -> None:
    if name in counts or len(counts) < KINDS_MAX:
        counts[name] = counts.get(name, 0) + more


def _histogram(histograms: dict[str, Histogram], kind: str, bounds: Any) -> Histogram:
    found = histograms.get(kind)
    if found is None:
        found = Histogram.over(bounds)
        if len(histograms) < KINDS_MAX:
            histograms[kind] = found
    return found
