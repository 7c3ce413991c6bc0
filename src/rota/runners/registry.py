"""What one replica of the gateway knows of its connections and of the jobs on them. Pure data.

`Link` is a connection, `Live` a leased job whose runner is, or lately was, connected here. Which links could take a job
is kept in `Registry`, so that a queued job finds one without a look at all of them.

Spec: runners, "Routing and targets", "Scaling signal".
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Final

from rota.runners.codes import CancelReason
from rota.runners.gateway_events import Identity, Job
from rota.runners.matching import RunnerKind, Target, offered, target_of
from rota.runners.messages import Capabilities, Hello, RunnerHeartbeat
from rota.runners.session import OpGate

SLOTS_MAX: Final = 256
"""Slots of one runner that count, whatever it claims."""


class Phase(Enum):
    """How far a connection is."""

    HELLO = "hello"  # nothing was said yet
    CHECKING = "checking"  # its hello is looked at
    HOLDING = "holding"  # the jobs that it still holds are looked at
    OPEN = "open"  # it was welcomed
    CLOSING = "closing"  # nothing that comes counts any more


class State(Enum):
    """How far a leased job is."""

    OFFERED = "offered"
    RUNNING = "running"
    CANCELLING = "cancelling"


@dataclass(slots=True, eq=False)
class Live:
    """One leased job.

    Attributes:
        job: what the store told.
        runner_id: whose it is.
        link: the connection of its runner, if it has one here.
        state: how far it is.
        gate: its session's ops.
        leased_until: when its lease is over at the latest, by this replica's clock.
        answer_by: when an offer is over, or a cancel's grace.
        progress_at: when progress was last stored.
        cancel_reason: why it is cancelled, if it is.
        returned_at: when it last let its runner in past the ramp.
        left_at: when its runner's last connection here ended.
        token: the last token that was found good, and its end: most messages show the same.
    """

    job: Job
    runner_id: str
    link: "Link | None"
    state: State
    gate: OpGate
    leased_until: float
    answer_by: float | None = None
    progress_at: float = 0.0
    cancel_reason: str = CancelReason.USER
    returned_at: float = -inf
    left_at: float = -inf
    token: tuple[str, int] | None = None


@dataclass(slots=True, eq=False)
class Link:
    """One connection."""

    number: int
    host: str
    heard_at: float
    phase: Phase = Phase.HELLO
    hello: Hello | None = None
    identity: Identity | None = None
    version: str = ""
    reported: int = 0
    """Free slots, as the runner said last, less what was assigned since."""
    draining: bool = False
    outdated: bool = False
    claiming: int = 0
    """Slots for which a claim is under way."""
    claim_again: bool = False
    claimed_at: tuple[int, int] = (0, 0)
    """What the gateway had heard of new work when the claim was made: of any, and of queued jobs."""
    barred: set[str] = field(default_factory=set)
    """Devices and organisations that were barred while its hello was looked at: what was read of them may be older."""
    order: int = 0
    """Of its hello, among all that any replica found good."""
    elsewhere: dict[str, int] = field(default_factory=dict)
    """Hellos that other replicas found good while its own was looked at: the order of the last, by runner."""
    jobs: dict[str, Live] = field(default_factory=dict)
    beats: deque[RunnerHeartbeat] = field(default_factory=deque)
    declined: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """Jobs that it declined, and until when they are not offered again."""

    @property
    def capabilities(self) -> Capabilities:
        """What it says it can do; only after its hello."""
        assert self.hello is not None
        return self.hello.capabilities

    @property
    def slots(self) -> int:
        """How many jobs it may hold."""
        return min(SLOTS_MAX, self.capabilities.slots)

    @property
    def could_work(self) -> bool:
        """Whether it takes jobs at all."""
        return self.phase is Phase.OPEN and not self.draining and not self.outdated and bool(offered(self.capabilities))

    @property
    def free(self) -> int:
        """How many jobs it could be given now."""
        if not self.could_work:
            return 0
        return max(0, min(self.reported, self.slots - len(self.jobs)) - self.claiming)


@dataclass(frozen=True, slots=True)
class RunnerView:
    """One connected runner, as `GET /internal/v1/runners` shows it."""

    identity: Identity
    capabilities: Capabilities
    free: int
    running: int
    draining: bool
    available: bool


@dataclass(frozen=True, slots=True)
class Figures:
    """What this replica has; the names are those of the scaling answer, in our spelling."""

    connected_cloud_pool: int = 0
    connected_org_runner: int = 0
    available_cloud_pool: int = 0
    free_slots_cloud_pool: int = 0
    free_slots_org_runner: int = 0
    runners_without_job_types: int = 0
    draining_runners: int = 0


@dataclass(slots=True)
class Registry:
    """The links of one replica."""

    links: dict[int, Link] = field(default_factory=dict)
    of_runner: dict[str, Link] = field(default_factory=dict)
    """The newest link of each runner, from when it was verified."""
    checking: dict[int, Link] = field(default_factory=dict)
    """Those whose hello is looked at: few of thousands."""
    _idle: dict[tuple[str, str | None], OrderedDict[int, Link]] = field(default_factory=dict)

    def place(self, link: Link) -> None:
        """Sees anew whether this link could take a job; call it after each change. It comes last in its line."""
        if link.identity is None:
            return
        key = (target_of(link.identity.kind), link.identity.org_id)
        line = self._idle.get(key)
        if link.free > 0:
            if line is None:
                line = self._idle[key] = OrderedDict()
            line.setdefault(link.number, link)
        elif line is not None and line.pop(link.number, None) is not None and not line:
            del self._idle[key]

    def idle(self, target: str, org_id: str) -> list[Link]:
        """The links that could take a job of this target and organisation: the one that has waited longest first."""
        line = self._idle.get((target, None if target == Target.CLOUD_POOL else org_id))
        return [] if line is None else list(line.values())

    def any_free(self) -> bool:
        """Whether any link could take a job."""
        return bool(self._idle)

    def forget(self, link: Link) -> None:
        """The link is over."""
        link.phase = Phase.CLOSING
        self.checking.pop(link.number, None)
        self.place(link)
        if link.identity is not None and self.of_runner.get(link.identity.runner_id) is link:
            del self.of_runner[link.identity.runner_id]

    def runners(self) -> list[RunnerView]:
        """All that are connected, in the order in which they came."""
        return [
            RunnerView(
                link.identity, link.capabilities, link.free, len(link.jobs), link.draining, link.could_work
            )
            for link in self.links.values()
            if link.phase is Phase.OPEN and link.identity is not None
        ]  # fmt: skip

    def figures(self) -> Figures:
        """The counts of the scaling answer."""
        views = self.runners()
        pool = [view for view in views if view.identity.kind == RunnerKind.CLOUD_POOL]
        return Figures(
            connected_cloud_pool=len(pool),
            connected_org_runner=len(views) - len(pool),
            available_cloud_pool=sum(view.available for view in pool),
            free_slots_cloud_pool=sum(view.free for view in pool),
            free_slots_org_runner=sum(view.free for view in views) - sum(view.free for view in pool),
            runners_without_job_types=sum(not offered(view.capabilities) for view in views),
            draining_runners=sum(view.draining for view in views),
        )
