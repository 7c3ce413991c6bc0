"""The limits of the queue in memory: whose turn it is, and how many jobs started in a window.

Parts of `rota.queue.reference`, written for being read and not for speed; the function `claim_turns` of the database is
tested against them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import floor

from rota.queue.job import JobRow
from rota.queue.limits import SLICES, Rate


def by_turns(
    due: Sequence[JobRow], *, room: int, after: str | None, tenant_limit: int | None, live: Mapping[str, int]
) -> list[JobRow]:
    """Chooses jobs so that tenants take turns.

    Args:
        due: what may be taken, in the queue's order.
        room: how many at most.
        after: the tenant whose turn was the last; None for the jobs without a tenant.
        tenant_limit: how many jobs of a tenant may run at once.
        live: how many do.
    """
    lines: dict[str | None, list[JobRow]] = {}
    for row in due:
        lines.setdefault(row.tenant or None, []).append(row)
    for tenant, line in lines.items():
        if tenant is not None and tenant_limit is not None:
            del line[max(0, tenant_limit - live.get(tenant, 0)) :]
    named = sorted(tenant for tenant in lines if tenant is not None)
    behind = [tenant for tenant in named if tenant > (after or "")]
    taken: list[JobRow] = []
    more = [tenant for tenant in (*behind, None, *(t for t in named if t not in behind)) if lines.get(tenant)]
    share = 1
    while more and len(taken) < room:
        tour, more = more, []
        for tenant in tour:
            got = lines[tenant][: min(share, room - len(taken))]
            del lines[tenant][: len(got)]
            taken += got
            if len(got) == share:
                more.append(tenant)
        share = max(1, (room - len(taken)) // max(1, len(more)))
    return taken


@dataclass(slots=True)
class Starts:
    """How many jobs of each kind started, by slices of the kind's window."""

    _jobs: dict[str, Counter[datetime]] = field(default_factory=dict)

    def room(self, kind: str, rate: Rate, at: datetime) -> int:
        """How many more may start now."""
        first = slice_at(at, rate) - timedelta(seconds=rate.per_s * (SLICES + 0.5) / SLICES)
        return rate.count - sum(jobs for begin, jobs in self._jobs.get(kind, {}).items() if begin > first)

    def add(self, kind: str, rate: Rate, at: datetime, jobs: int) -> None:
        """Counts jobs that started."""
        self._jobs.setdefault(kind, Counter())[slice_at(at, rate)] += jobs

    def take_back(self, kind: str, rate: Rate, at: datetime) -> None:
        """Takes back that a job started at this time; one that was claimed before its kind had a rate was never
        counted, and makes no room."""
        counted, begin = self._jobs.setdefault(kind, Counter()), slice_at(at, rate)
        counted[begin] = max(counted[begin] - 1, 0)

    def forget(self, behind: datetime) -> None:
        """Forgets the slices that begin later."""
        for counted in self._jobs.values():
            for begin in [begin for begin in counted if begin > behind]:
                del counted[begin]


def slice_at(at: datetime, rate: Rate) -> datetime:
    """The begin of the slice that holds this time."""
    slice_s = rate.per_s / SLICES
    return datetime.fromtimestamp(floor(at.timestamp() / slice_s) * slice_s, tz=at.tzinfo)
