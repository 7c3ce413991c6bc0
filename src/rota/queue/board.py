"""What the live view shows: a line for each kind and one for each server, made of what was read. Pure.

Spec: job queue, "What to watch".
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rota.queue.job import State
from rota.queue.watching import EndedCount, JobCount

RATE_S: Final = 60.0
"""Rates are those of the last minute: people think in it, and a live view should move."""


@dataclass(frozen=True, slots=True)
class ServerLine:
    """A live worker process. `kinds`: those that it takes, with their limits; `running`: how many of each run."""

    holder: str
    role: str
    kinds: Mapping[str, int]
    running: Mapping[str, int]
    draining: bool
    seen_ago_s: float


@dataclass(frozen=True, slots=True)
class KindLine:
    """The jobs of one kind.

    Attributes:
        running: leased jobs. overdue: those of them whose lease has run out.
        room: jobs of the kind that all live servers together run at once.
        due, later: queued jobs whose time has come, and the others.
        oldest_due_s: how long the oldest due one has waited.
        done, failed: jobs that ended in the last minute; cancelled ones are in neither.
        taken: whether a live server takes the kind.
    """

    kind: str
    running: int
    overdue: int
    room: int
    due: int
    later: int
    oldest_due_s: float | None
    done: int
    failed: int
    taken: bool


@dataclass(frozen=True, slots=True)
class Board:
    """All of it. `kinds`: those with the most due jobs first; `servers`: as they were read."""

    kinds: Sequence[KindLine]
    servers: Sequence[ServerLine]

    @property
    def running(self) -> int:
        """Jobs that run now."""
        return sum(line.running for line in self.kinds)

    @property
    def due(self) -> int:
        """Jobs that wait although their time has come."""
        return sum(line.due for line in self.kinds)

    def plain(self) -> dict[str, Any]:
        """The same as JSON values; rates are per minute."""
        return {
            "running": self.running, "due": self.due, "kinds": [asdict(line) for line in self.kinds],
            "servers": [asdict(line) for line in self.servers],
        }  # fmt: skip


def board(counts: Sequence[JobCount], ended: Sequence[EndedCount], servers: Sequence[ServerLine]) -> Board:
    """Puts together what was read of one moment."""
    kinds = {one.kind for one in counts} | {one.kind for one in ended}
    kinds |= {kind for server in servers for kind in server.kinds}
    of = {(one.kind, one.state): one for one in counts}
    ends = {(one.kind, one.state): one.count for one in ended}
    lines = []
    for kind in kinds:
        queued, leased = of.get((kind, State.QUEUED)), of.get((kind, State.LEASED))
        takers = [server for server in servers if kind in server.kinds and not server.draining]
        lines.append(
            KindLine(
                kind,
                running=leased.count if leased else 0,
                overdue=leased.overdue if leased else 0,
                room=sum(server.kinds[kind] for server in takers),
                due=queued.due if queued else 0,
                later=queued.count - queued.due if queued else 0,
                oldest_due_s=queued.oldest_due_s if queued else None,
                done=ends.get((kind, State.DONE), 0),
                failed=ends.get((kind, State.FAILED), 0),
                taken=bool(takers),
            )
        )
    lines.sort(key=lambda line: (-line.due, -line.running, -line.done, line.kind))
    return Board(lines, servers)
