"""What people and their tools look at: how many jobs there are, how fast they end, which failed last. Pure values.

The statements that read them are methods of `rota.queue.io.watch.Watch`; the same over the queue in memory is
`WatchedReference`, and one conformance suite holds the two together.

Spec: job queue, "What to watch".
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from rota.errors import SettingsError
from rota.ids import JobId
from rota.queue.job import ENDED, JobRow, Scope, State
from rota.queue.reference import Reference

ERROR_MAX: Final = 500
"""Characters of an error in a list. Seed 003."""
FAILED_MAX: Final = 20
"""Failed jobs in a list. Seed 003."""
COUNTS_MAX: Final = 5000
"""Kinds times states that are counted; the rarest are left out beyond it."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Whose jobs somebody may see. Make one with `of_tenant` or `everything`, so that nobody sees all by mistake."""

    tenant: str | None

    @classmethod
    def of_tenant(cls, tenant: str) -> "Viewer":
        """Somebody who may see the jobs of this tenant, and those of the deployment, which have none.

        Raises: SettingsError if there is no tenant.
        """
        if not isinstance(tenant, str) or not tenant:
            raise SettingsError(f"Viewer.of_tenant({tenant!r}): give the tenant, or take Viewer.everything().")
        return cls(tenant)

    @classmethod
    def everything(cls) -> "Viewer":
        """Somebody who may see the jobs of all tenants."""
        return cls(None)


EVERYTHING: Final = Viewer.everything()


@dataclass(frozen=True, slots=True)
class JobCount:
    """How many jobs of one kind are in one state.

    Attributes:
        due: of the queued ones, those whose time has come.
        oldest_due_s: how long the oldest of these has waited; None if none waits.
        overdue: of the leased ones, those whose lease has run out and that no sweep has met yet.
    """

    kind: str
    state: State
    count: int
    due: int = 0
    oldest_due_s: float | None = None
    overdue: int = 0


@dataclass(frozen=True, slots=True)
class EndedCount:
    """How many jobs of one kind ended in one way within a time."""

    kind: str
    state: State
    count: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed job in a list."""

    id: JobId
    kind: str
    tenant: str | None
    tries: int
    finished_at: datetime
    error: str


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The job that holds a key. `exists`: False for a key of scope forever whose job was removed."""

    id: JobId
    scope: Scope
    exists: bool


@dataclass(frozen=True, slots=True)
class Overview:
    """What the admin endpoint and `rota admin jobs` give."""

    counts: list[JobCount] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """The same as JSON values: `jobs` with kind, state and count, and `failed`, newest first."""
        return {
            "jobs": [{"kind": one.kind, "state": one.state.value, "count": one.count} for one in self.counts],
            "failed": [
                {**asdict(one), "id": str(one.id), "finished_at": one.finished_at.astimezone(UTC).isoformat()}
                for one in self.failed
            ],
        }


class WatchedReference:
    """The methods of `Watch`, without their `await`, over the queue in memory."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    def counts(self, *, ended: bool, viewer: Viewer = EVERYTHING, now: datetime) -> list[JobCount]:
        """See Watch.counts."""
        rows = [row for row in self._rows(viewer) if ended or row.state not in ENDED]
        found = []
        for (kind, state), count in Counter((row.kind, row.state) for row in rows).items():
            of_this = [row for row in rows if (row.kind, row.state) == (kind, state)]
            due = [row.run_after for row in of_this if state is State.QUEUED and row.run_after <= now]
            overdue = [row for row in of_this if row.lease_until is not None and row.lease_until < now]
            oldest = (now - min(due)).total_seconds() if due else None
            found.append(JobCount(kind, state, count, len(due), oldest, len(overdue)))
        found.sort(key=lambda one: (-one.count, one.kind, one.state))
        return found[:COUNTS_MAX]

    def ended(self, *, within_s: float, viewer: Viewer = EVERYTHING, now: datetime) -> list[EndedCount]:
        """See Watch.ended."""
        recent = Counter(
            (row.kind, row.state)
            for row in self._rows(viewer)
            if row.finished_at is not None and (now - row.finished_at).total_seconds() < within_s
        )
        return [EndedCount(kind, state, count) for (kind, state), count in sorted(recent.items())]

    def failed(self, *, viewer: Viewer = EVERYTHING, limit: int = FAILED_MAX) -> list[Failure]:
        """See Watch.failed."""
        rows = [(row.finished_at, row.id, row) for row in self._rows(viewer) if row.state is State.FAILED]
        return [
            Failure(row.id, row.kind, row.tenant, row.tries, at, (row.last_error or "")[:ERROR_MAX])
            for at, _, row in sorted(rows, key=lambda entry: entry[:2], reverse=True)[:limit]
            if at is not None
        ]

    def key_holders(self, key: str) -> list[KeyHolder]:
        """See Watch.key_holders."""
        rows = [row for row in self._rows(EVERYTHING) if row.dedupe_key == key]
        found = [
            KeyHolder(row.id, row.dedupe_scope, exists=True)
            for row in rows
            if (row.dedupe_scope is Scope.OPEN and row.state not in ENDED)
            or (row.dedupe_scope is Scope.QUEUED and row.state is State.QUEUED)
        ]
        forever = self._reference.forever_holder(key)
        if forever is not None:
            found.append(KeyHolder(forever, Scope.FOREVER, exists=forever in [row.id for row in rows]))
        return found

    def _rows(self, viewer: Viewer) -> Iterable[JobRow]:
        lowest, highest = JobId(UUID(int=0)), JobId(UUID(int=2**128 - 1))
        return [
            row
            for row in self._reference.show(lowest, highest, limit=2**31)
            if viewer.tenant is None or row.tenant is None or row.tenant == viewer.tenant
        ]
