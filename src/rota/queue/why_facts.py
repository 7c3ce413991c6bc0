"""What is known of a job and its surroundings at one moment, so that somebody can say why it is where it is. Pure.

`why.sql` and `why_rate.sql` read it; `rota.queue.gates` and `rota.queue.explain` put it into words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from rota.commands import CallInLine, KindShare, Place
from rota.queue.job import JobRow
from rota.queue.standing import NO_FACTS, ServerFacts

AHEAD_MAX: Final = 100_000
"""Jobs ahead in line that are counted; beyond it there are just more."""
PACE_MAX: Final = 20_000
"""Ended jobs of the last hour that are looked at for the pace."""


@dataclass(frozen=True, slots=True)
class Taker:
    """A live worker process that takes the job's kind, and the jobs of the kind that it runs.

    Attributes:
        limit: jobs of the kind that it runs at once.
        oldest_id, oldest_s, progress_s, lease_left_s: of the one that runs longest: its id, for how long it runs, when
            it last moved, and when its lease ends if it does not move.
        facts: what it said last of what holds its jobs back.
        held: the jobs of all kinds that it runs, by kind, where others take what this kind needs.
        cpu_jobs: those of them that have its CPU slots, the longest first, at most 5.
    """

    holder: str
    limit: int
    running: int = 0
    draining: bool = False
    oldest_id: str | None = None
    oldest_s: float | None = None
    progress_s: float | None = None
    lease_left_s: float | None = None
    facts: ServerFacts = NO_FACTS
    held: Mapping[str, int] = field(default_factory=dict)
    cpu_jobs: Sequence["RunningJob"] = ()

    @property
    def free(self) -> int:
        """Slots that are free, if it takes work at all."""
        return 0 if self.draining else max(0, self.limit - self.running)

    @property
    def cpus_taken(self) -> int:
        """Its CPU slots in use."""
        return sum(count for kind, count in self.held.items() if kind in self.facts.cpu_kinds)

    def cpus_for(self, kind: str, priority: int) -> int:
        """Its CPU slots that a job may take."""
        urgent = self.facts.cpu_kinds.get(kind)
        return self.facts.cpus - (0 if urgent is not None and priority >= urgent else self.facts.cpus_kept)

    def share_of(self, kind: str) -> KindShare | None:
        """Its share of the slots of exec servers that the kind needs; None if it needs none here."""
        return None if self.facts.exec is None else self.facts.exec.kinds.get(kind)

    def shared(self, share: KindShare) -> int:
        """The jobs here that have taken of such a share."""
        assert self.facts.exec is not None, "a share is of exec servers"
        pool, kinds = set(share.pool), self.facts.exec.kinds
        return sum(count for kind, count in self.held.items() if kind in kinds and pool & set(kinds[kind].services))


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job that has what another one waits for; its kind where that is another."""

    job_id: str
    holder: str
    runs_s: float
    progress_s: float
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class PauseFacts:
    """What somebody paused: a kind, a tenant or all."""

    scope: str
    name: str
    note: str | None
    paused_by: str
    paused_ago_s: float
    opens_in_s: float | None


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """The limits of the job's kind over all servers, and how far they are used.

    Attributes:
        limit, running: of the kind in all.
        tenant_limit, tenant_running: of the job's tenant in the kind. tenant_jobs: those that run longest.
        rate_count, rate_s, started, rate_opens_in_s: so many starts in so many seconds, those of the last window, and
            when the next may start.
        tenants_waiting: of a kind that is taken by turns, how many other tenants have due jobs; None if it is not.
    """

    limit: int | None = None
    running: int = 0
    tenant_limit: int | None = None
    tenant_running: int = 0
    tenant_jobs: Sequence[RunningJob] = ()
    rate_count: int | None = None
    rate_s: float = 0.0
    started: int = 0
    rate_opens_in_s: float | None = None
    tenants_waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a job and its surroundings at one moment.

    Attributes:
        job: the job; its `now` is the moment.
        takers: live worker processes that take its kind.
        roles: the roles of all live worker processes.
        kinds: the kinds that any of these takes.
        holder_seen_s: when the holder of its lease was last seen, in seconds ago; None if nobody knows it.
        ahead, ahead_higher: due jobs of its kind before it in line, and those of them with a higher priority.
        ahead_top: the highest priority of these.
        ended, ended_s: jobs of its kind that ended in the last hour, and since when the first of them ran.
        place: of a queued job that needs a slot of an exec server: where it stands in the line for that.
        calls: of a running one: its calls of exec servers.
    """

    job: JobRow
    takers: Sequence[Taker] = ()
    roles: Sequence[str] = ()
    kinds: Sequence[str] = ()
    pauses: Sequence[PauseFacts] = ()
    fleet: FleetFacts = field(default_factory=FleetFacts)
    holder_seen_s: float | None = None
    ahead: int = 0
    ahead_higher: int = 0
    ahead_top: int | None = None
    ended: int = 0
    ended_s: float = 0.0
    place: Place | None = None
    calls: Sequence[CallInLine] = ()


def ago(job: JobRow, when: datetime | None) -> float:
    """How many seconds before the moment of the facts something was; 0 if it never was."""
    return 0.0 if when is None else (job.now - when).total_seconds()
