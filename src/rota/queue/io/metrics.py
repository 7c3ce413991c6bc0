"""The queue's metrics: what the database counts and what worker processes counted, as families for Prometheus.

The database is asked at a scrape, and the answer is kept for 15 seconds, and for twenty times as long as the question
took: however often somebody scrapes and however long the history is, counting takes at most a twentieth of a
connection's time. While the database is away its families are left out, because old numbers would look like new ones.

Spec: job queue, "What to watch".
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

import msgspec

from rota.errors import RotaError
from rota.io.clock import lease_clock
from rota.io.families import Family, FamilyType, Sample
from rota.io.log import get_logger
from rota.queue.meters import Meters, add_up
from rota.queue.watching import JobCount
from rota.tallies import ExecTally, Histogram

KEEP_S: Final = 15.0
"""Seed 003: one grouped query, whose result a server keeps for 15 seconds."""
SHARE: Final = 20
"""A question that took a second is asked again after so many seconds at the soonest."""

log = get_logger("rota.metrics")


@dataclass(frozen=True, slots=True)
class Standing:
    """What the database says: how many jobs there are, and the kinds with due work that no live server takes."""

    counts: Sequence[JobCount]
    orphans: Sequence[str] = ()


class MeterFolder:
    """The files of a tree of worker processes; the numbers of those that have ended are kept.

    Args:
        folder: where they are, one for each process, by its id.
        living: asked for the ids of the processes that live.
    """

    def __init__(self, folder: Path, *, living: Callable[[], set[int]]) -> None:
        self._folder = folder
        self._living = living
        self._ended = Meters()

    @staticmethod
    def file(folder: Path, pid: int) -> Path:
        """Where a process writes its numbers."""
        return folder / f"{pid}.json"

    def read(self) -> Meters:
        """The numbers of all processes, also of those that have ended."""
        living, met = self._living(), []
        for file in sorted(self._folder.glob("*.json")):
            alive = int(file.stem) in living
            try:
                meters = msgspec.json.decode(file.read_bytes(), type=Meters)
                if not alive:
                    file.unlink()
            except (OSError, msgspec.DecodeError) as error:
                log.warning("the numbers of a process cannot be read", pid=file.stem, error=str(error))
                continue
            if alive:
                met.append(meters)
            else:
                meters.ended()
                self._ended = add_up([self._ended, meters])
        return add_up([self._ended, *met])


class QueueMetrics:
    """Answers scrapes.

    Args:
        meters: gives the numbers that the worker processes counted.
        standing: asks the database.
        clock: seconds of a clock that never steps.
    """

    def __init__(
        self,
        meters: Callable[[], Meters],
        standing: Callable[[], Awaitable[Standing]],
        *,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        self._meters = meters
        self._ask = standing
        self._clock = clock
        self._asking = asyncio.Lock()
        self._standing: Standing | None = None
        self._fresh_until = -float("inf")

    async def families(self) -> list[Family]:
        """All families, for one scrape."""
        standing = await self._kept()
        shown = of_meters(self._meters())
        counted = [] if standing is None else of_standing(standing)
        up = _one("database_up", "gauge", "Whether the database answered the last question.", standing is not None)
        return [*shown, *counted, up]

    async def _kept(self) -> Standing | None:
        # One asks; whoever comes meanwhile waits for the same answer.
        async with self._asking:
            began = self._clock()
            if began >= self._fresh_until:
                try:
                    self._standing = await self._ask()
                except (RotaError, OSError) as error:
                    log.warning("the database cannot be counted", error=str(error))
                    self._standing = None
                ended = self._clock()
                self._fresh_until = ended + max(KEEP_S, SHARE * (ended - began))
            return self._standing


def of_standing(standing: Standing) -> list[Family]:
    """What the database says, as families."""
    counts = standing.counts
    return [
        Family(
            "jobs", "gauge", "The jobs in the table now, of all tenants.", ("kind", "state"),
            [Sample((one.kind, one.state.value), one.count) for one in counts],
        ),
        _by(
            "kind", "job_oldest_due_seconds", "gauge", "How long the oldest due job of a kind has waited.",
            {one.kind: one.oldest_due_s for one in counts if one.oldest_due_s is not None},
        ),
        _by(
            "kind", "jobs_lease_overdue", "gauge", "Leased jobs whose lease has run out and that no sweep has met.",
            {one.kind: one.overdue for one in counts if one.overdue},
        ),
        _by(
            "kind", "orphan_kinds", "gauge", "Kinds with due jobs that no live server takes.",
            dict.fromkeys(standing.orphans, 1),
        ),
    ]  # fmt: skip


def of_meters(meters: Meters) -> list[Family]:
    """What worker processes counted, as families."""
    return [
        _by("kind", "job_failures_total", "counter", "Jobs that this server wrote as failed.", meters.failures),
        _by(
            "kind", "job_lease_kills_total", "counter", "Jobs that the watchdog stopped for no progress.",
            meters.lease_kills,
        ),
        _by(
            "how", "stall_kills_total", "counter", "The same by how: stopped, killed (child), fenced (process).",
            {"stopped": 0, "killed": 0, "fenced": 0} | meters.stall_kills,
        ),
        _by(
            "why", "lease_lost_total", "counter", "Leases that this server lost: taken by another, unwritten.",
            {"taken": 0, "unwritten": 0} | meters.lease_lost,
        ),
        _one("fenced_total", "counter", "Worker processes that ended themselves to keep a lease.", meters.fenced),
        _one("overlap_seconds_total", "counter", "How long two holders ran one job; it has to be 0.", meters.overlap_s),
        _one("loop_lag_seconds", "gauge", "The worst lateness of an event loop in the last 15 s.", meters.loop_lag_s),
        Family(
            "job_wait_seconds", "histogram", "From when a job was due until its claim.", ("kind",),
            [_sample((kind,), histogram) for kind, histogram in meters.wait.items()],
        ),
        Family(
            "job_run_seconds", "histogram", "How long a handler ran.", ("kind",),
            [_sample((kind,), histogram) for kind, histogram in meters.run.items()],
        ),
        Family("claim_seconds", "histogram", "How long a claim's statement took.", (), [_sample((), meters.claim)]),
        *([] if meters.exec is None else of_exec(meters.exec)),
    ]  # fmt: skip


def of_exec(tally: ExecTally) -> list[Family]:
    """What the clients of exec servers in worker processes counted, as families."""
    return [
        _by("address", "exec_connections", "gauge", "Connections to exec servers.", tally.connections),
        _by(
            "address", "exec_reconnects_total", "counter", "Connections that were made again after one had broken.",
            tally.reconnects,
        ),
        _one("exec_calls_parked", "gauge", "Calls that wait for a slot.", tally.parked),
        _one("exec_calls_running", "gauge", "Calls that have a slot.", tally.running),
        _by(
            "answer", "exec_offers_total", "counter", "Offers of slots: taken, or surplus (another was faster).",
            {"taken": 0, "surplus": 0} | tally.offers,
        ),
        Family(
            "exec_grant_seconds", "histogram", "From a call until its offer was taken.", (),
            [_sample((), tally.grant)],
        ),
        _one("exec_no_slot_total", "counter", "Calls that were given up because no slot came in time.", tally.no_slot),
    ]  # fmt: skip


def _one(name: str, type_: FamilyType, words: str, value: float) -> Family:
    return Family(name, type_, words, (), [Sample((), value)])


def _by(label: str, name: str, type_: FamilyType, words: str, values: Mapping[str, float]) -> Family:
    return Family(name, type_, words, (label,), [Sample((key,), value) for key, value in values.items()])


def _sample(labels: Sequence[str], histogram: Histogram) -> Sample:
    bounds = (*histogram.bounds, float("inf"))
    return Sample(labels, histogram.total, list(zip(bounds, accumulate(histogram.counts), strict=True)))
