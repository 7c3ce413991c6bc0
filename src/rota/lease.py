"""Leases as a holder keeps them: what it may still do, what it has to renew, and when it must stop.

Pure: no clock, no thread, no database. Times are seconds of a clock that never steps and that also counts while the
machine sleeps; the caller passes `now`. Not thread-safe: the shell that owns a book guards it.

Keeps I2 (a holder stops before its lease can run out: the deadline counts from *before* the claim or renewal was
sent, while the database counts from when it took it) and I4 (a lease follows progress: without progress since the
last write it is not renewed, and the job is stopped one heartbeat before its lease ends).

Spec: job queue, "Leases, heartbeats and the stall kill".
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from math import inf
from typing import Any, Final

from msgspec import Struct

from rota.ids import JobId

GIVE_BACK_S: Final = 2.0
"""What it may take to end a process from outside, and to give back what else ran in it."""


class Lease(Struct, frozen=True, order=True, gc=False):
    """The right to run one job. Everything said after the claim carries it, and an older epoch changes nothing (I3)."""

    job_id: JobId
    epoch: int


class Loss(StrEnum):
    """Why a holder has to stop a job that it runs."""

    STALLED = "stalled"
    """The job made no progress, and its lease is about to end."""

    UNWRITTEN = "unwritten"
    """The job made progress, but the renewal could not be written for the lease time."""

    TAKEN = "taken"
    """The database says that the lease is over: another holder may run the job, or somebody ended it."""

    CANCELLED = "cancelled"
    """Somebody cancelled the job, and it did not end within the grace."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """One lease to extend. `progress` is what to store with it; None leaves what is stored."""

    lease: Lease
    lease_s: float
    progress: Any | None


class Held(Struct, gc=False):
    """One lease as its holder keeps it. The book changes it; others read `deadline`."""

    lease: Lease
    lease_s: float
    heartbeat_s: float
    deadline: float
    """When the lease is over as far as this holder may trust it; 0 once it is lost."""
    next_beat: float
    rest_s: float
    """How long before the deadline its run gets no further step: one that begins later may not be over in time, and
    whoever ends the process for it needs a while."""
    guard_s: float
    """How long before the deadline a process is ended in which nobody can look: then there is time to give back what
    else ran in it."""
    progressed: bool = False
    """Whether the job moved since the last renewal was sent."""
    progress: Any | None = None
    sent_at: float | None = None
    """When the renewal that is under way was sent."""
    closing: bool = False
    """It is renewed no more: its job was cancelled, or ends in a transaction of its handler's."""
    ends_at: float = inf
    """When its job has to have ended whatever the lease says, because somebody cancelled it."""
    ended_at: float | None = None
    """When the job's run ended."""
    lost_deadline: float = 0.0
    """The deadline that stood when the lease was lost."""
    in_thread: bool = False
    """Whether the run is in a thread, which nothing stops but the end of its process."""
    guarded: bool = False
    """Whether the run got no further step because its lease was over: what it did, it did before."""

    def ends(self, *, now: float) -> float:
        """Notes that the run has ended. Returns: when it took its last step of its own accord, at the latest."""
        over = self.deadline or self.lost_deadline
        self.ended_at = min(now, over) if self.guarded else now
        return self.ended_at

    @property
    def moved(self) -> bool:
        """Whether there is progress that the database does not have yet."""
        return self.progressed or self.sent_at is not None


@lru_cache(maxsize=64)
def _ends_of(lease_s: float, heartbeat_s: float, margin_s: float) -> tuple[float, float]:
    """`Held.rest_s` and `Held.guard_s`: the same for all jobs of a kind, and asked for each."""
    rest_s = min(margin_s, lease_s / 4) / 2
    # Well after a job that moved is told to stop: from then on somebody looks all the time, if anybody can.
    return rest_s, max(rest_s / 8, min(GIVE_BACK_S, min(heartbeat_s, lease_s / 2) / 4))


@dataclass(slots=True)
class LeaseBook:
    """The leases that one process holds.

    `margin_s` is kept between the moment a stop is asked for and the end of the lease where the heartbeat is longer
    than the lease allows; it is a lower bound for the time that stopping may take.
    """

    margin_s: float = 1.0
    abandoned: bool = False
    """The process is about to end: it gives back what it holds, so none of it is its own any more."""
    gone_by: float = inf
    """When the process has to be gone, because it gives back jobs that go on in it."""
    _held: dict[JobId, Held] = field(default_factory=dict)

    def grant(self, lease: Lease, *, lease_s: float, heartbeat_s: float, sent_at: float) -> Held:
        """Records a claimed lease.

        Args:
            lease: what the claim returned.
            lease_s: how long it lasts, over 0.
            heartbeat_s: how often the job's progress is written, over 0 and under `lease_s`.
            sent_at: the clock before the claim was sent.

        Returns: the entry, for whoever has to look at its deadline often.
        """
        deadline = 0.0 if self.abandoned else sent_at + lease_s
        rest_s, guard_s = _ends_of(lease_s, heartbeat_s, self.margin_s)
        held = Held(lease, lease_s, heartbeat_s, deadline, sent_at + heartbeat_s, rest_s, guard_s)
        self._held[lease.job_id] = held
        return held

    def drop(self, lease: Lease) -> None:
        """Forgets a lease that was given back or whose job ended; an unknown one is fine."""
        held = self._held.get(lease.job_id)
        if held is not None and held.lease == lease:
            del self._held[lease.job_id]

    def progressed(self, lease: Lease, *, progress: Any | None = None) -> bool:
        """Notes that the job moved. `progress` is stored with the next renewal.

        Returns: False if this lease is not held any more; the caller must then stop.
        """
        held = self._held.get(lease.job_id)
        if held is None or held.lease != lease:
            return False
        held.progressed = True
        if progress is not None:
            held.progress = progress
        return True

    def close(self, lease: Lease) -> bool:
        """Renews a lease no more, because its job's end is being written. Returns: False if it is not held."""
        held = self._held.get(lease.job_id)
        if held is None or held.lease != lease:
            return False
        held.closing = True
        return True

    def cancelled(self, job_id: JobId, *, ends_at: float) -> None:
        """Notes that somebody cancelled a job: it is renewed no more, and has to have ended at this time. What was
        noted first stands."""
        held = self._held.get(job_id)
        if held is not None and held.ends_at == inf:
            held.closing = True
            held.ends_at = ends_at
            held.deadline = min(held.deadline, ends_at)

    def abandon(self, *, now: float) -> None:
        """Trusts no lease any more, before the process gives its jobs back and ends: another holder may run them soon,
        and until its very end this process may stand still and go on. No job takes a step after this (I2)."""
        self.abandoned = True
        for held in self._held.values():
            held.lost_deadline, held.deadline = min(now, held.deadline or held.lost_deadline), 0.0
            held.closing = True

    def holds(self, lease: Lease, *, now: float) -> bool:
        """Whether its holder may still act under this lease."""
        held = self._held.get(lease.job_id)
        return held is not None and held.lease == lease and now < held.deadline

    def held_of(self, leases: Sequence[Lease], *, now: float) -> set[Lease]:
        """Which of these leases are held now."""
        if self._held.keys().isdisjoint([lease.job_id for lease in leases]):
            return set()
        return {lease for lease in leases if self.holds(lease, now=now)}

    def due(self, *, now: float) -> list[Renewal]:
        """Takes the renewals to send now, in the order of their ids; answer each batch with `renewed` or `unanswered`.

        A job without progress since its last renewal is not among them (I4), nor is one whose renewal is under way.
        """
        renewals = []
        for held in self._held.values():
            # Without progress the beat stays due, so that the first move after it is written at once.
            if held.closing:
                continue
            if held.progressed and held.sent_at is None and held.next_beat <= now < held.deadline:
                renewals.append(Renewal(held.lease, held.lease_s, held.progress))
                held.progressed = False
                held.progress = None
                held.sent_at = now
        return sorted(renewals, key=lambda renewal: renewal.lease)

    def renewed(self, renewals: Iterable[Renewal], *, kept: Iterable[JobId], now: float) -> list[Lease]:
        """Notes the database's answer.

        Args:
            renewals: what `due` gave.
            kept: the ids of the leases that were extended.
            now: the clock.

        Returns: the leases that are lost; each is forgotten, and its job must be stopped.
        """
        extended, lost = set(kept), []
        for renewal in renewals:
            held = self._held.get(renewal.lease.job_id)
            if held is None or held.lease != renewal.lease or held.sent_at is None:
                continue
            if renewal.lease.job_id in extended:
                held.deadline = 0.0 if self.abandoned else min(held.sent_at + held.lease_s, held.ends_at)
                held.next_beat = max(held.sent_at + held.heartbeat_s, now)
                held.sent_at = None
            else:
                held.lost_deadline, held.deadline = held.deadline, 0.0
                del self._held[renewal.lease.job_id]
                lost.append(renewal.lease)
        return lost

    def unanswered(self, renewals: Iterable[Renewal], *, now: float) -> None:
        """Notes that a batch of renewals failed; each is tried again, soon but not at once."""
        for renewal in renewals:
            held = self._held.get(renewal.lease.job_id)
            if held is None or held.lease != renewal.lease:
                continue
            held.sent_at = None
            held.progressed = True
            if held.progress is None:
                held.progress = renewal.progress
            held.next_beat = now + min(1.0, held.heartbeat_s / 4)

    def overdue(self, *, now: float) -> list[tuple[Lease, Loss]]:
        """The leases whose jobs must be stopped now: one heartbeat before they end (seed: the stall kill).

        A job that moved is given up later, half a heartbeat before the end: until then its renewal may be written.
        Each is given at every look and stays held until `drop`, so that the job's end can still be written in time.
        """
        return [
            (held.lease, Loss.CANCELLED if held.ends_at < inf else Loss.UNWRITTEN if held.moved else Loss.STALLED)
            for held in self._held.values()
            if now >= self._stop_at(held)
        ]

    def ending(self, *, now: float) -> list[Lease]:
        """The leases that are about to end, with a job that should have stopped by now: the last moment to act."""
        return [held.lease for held in self._held.values() if now >= held.deadline - held.rest_s]

    def look_by(self, *, now: float) -> float:
        """Until when nobody has to look at this book for every run in it to end before its lease does (I2). If nobody
        has looked by then, nobody can, and the process has to end. inf: nothing runs.

        A lease that is over counts no more: whoever looks has seen to it.
        """
        ends = (
            # Who looks in the guard itself may take half of it to look again, but not beyond the last moments of the
            # lease; and who looks in those a while in any case, because no step begins there any more.
            max(
                held.deadline - held.guard_s,
                min(now + held.guard_s / 2, held.deadline - held.rest_s / 8),
                now + held.rest_s / 2,
            )
            for held in self._held.values()
            if held.deadline > now and held.ended_at is None
        )
        return min(self.gone_by, min(ends, default=inf))

    def end_by(self, *, now: float) -> float:
        """By when the process has to end whatever it does, also if it stands still: a thread goes on at once when its
        process does. inf: nothing runs in a thread, or whoever looks has seen to it."""
        ends = (
            held.deadline
            for held in self._held.values()
            if held.in_thread and held.deadline > now and held.ended_at is None
        )
        return min(self.gone_by, min(ends, default=inf))

    def first_look_s(self, lease_s: float, heartbeat_s: float) -> float:
        """The same for a lease that is granted, in seconds since its claim was sent."""
        return lease_s - _ends_of(lease_s, heartbeat_s, self.margin_s)[1]

    def deadline(self, lease: Lease) -> float:
        """When this lease ends by this holder's clock; 0.0 if it is not held any more."""
        held = self._held.get(lease.job_id)
        return held.deadline if held is not None and held.lease == lease else 0.0

    def ended_at(self, lease: Lease) -> float | None:
        """When the run under this lease ended; None if it goes on, or the lease is not held any more."""
        held = self._held.get(lease.job_id)
        return held.ended_at if held is not None and held.lease == lease else None

    def next_look(self) -> float | None:
        """The earliest time at which `due`, `overdue` or `ending` may have something; None while nothing is held."""
        return min(map(self._look_at, self._held.values()), default=None)

    def pace_s(self) -> float | None:
        """Within how many seconds to look again whatever `next_look` says, because a job may move at any time; None
        while nothing is held."""
        return min((held.heartbeat_s / 2 for held in self._held.values()), default=None)

    def _look_at(self, held: Held) -> float:
        if held.progressed and held.sent_at is None and not held.closing:
            return min(held.next_beat, self._stop_at(held))
        return self._stop_at(held)

    def _margin(self, held: Held) -> float:
        return min(self.margin_s, held.lease_s / 4)

    def _stop_at(self, held: Held) -> float:
        if held.ends_at < inf:
            # It was told when it was cancelled; this is the end of its grace.
            return held.deadline - self._margin(held)
        notice = min(held.heartbeat_s, held.lease_s / 2) / (2 if held.moved else 1)
        return held.deadline - max(notice, self._margin(held))

    def __iter__(self) -> Iterator[Lease]:
        return (held.lease for held in self._held.values())

    def __len__(self) -> int:
        return len(self._held)
