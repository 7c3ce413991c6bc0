"""The statements of whoever looks at the queue: one method for each .sql file. None of them changes a job.

Every method raises DatabaseAway if the database does not answer, and SchemaError if its schema is missing. `now` is
for tests; without it the database's clock decides (I5).

Spec: job queue, "What to watch".
"""

import json
from datetime import UTC, datetime
from typing import Any

from rota.commands import CallInLine, Place
from rota.ids import JobId
from rota.io.postgres import Database, statement
from rota.queue.io.store import Store
from rota.queue.job import JobRow, Scope, State
from rota.queue.server import LIVE_S
from rota.queue.standing import calls_of, place_of_queued, sharing, taken
from rota.queue.watching import (
    COUNTS_MAX,
    ERROR_MAX,
    EVERYTHING,
    FAILED_MAX,
    EndedCount,
    Failure,
    JobCount,
    KeyHolder,
    Overview,
    Viewer,
)
from rota.queue.why_facts import AHEAD_MAX, PACE_MAX, Facts, FleetFacts, PauseFacts, RunningJob, Taker


class Watch:
    """Looks at the queue in one schema of one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def _fetch(self, name: str, *args: Any) -> list[Any]:
        return await self.database.fetch(statement("rota.queue.io.sql", name, self.database.target.schema), *args)

    async def counts(self, *, ended: bool, viewer: Viewer = EVERYTHING, now: datetime | None = None) -> list[JobCount]:
        """Jobs by kind and state, the most first; `ended`: also those that have ended, which takes longer."""
        rows = await self._fetch("counts.sql", ended, viewer.tenant, COUNTS_MAX, now)
        return [
            JobCount(
                row["kind"], State(row["state"]), row["count"], row["due"], row["oldest_due_s"], row["overdue"]
            )
            for row in rows
        ]  # fmt: skip

    async def ended(
        self, *, within_s: float, viewer: Viewer = EVERYTHING, now: datetime | None = None
    ) -> list[EndedCount]:
        """Jobs that ended within so many seconds, by kind and state."""
        rows = await self._fetch("ended.sql", within_s, viewer.tenant, now)
        return [EndedCount(row["kind"], State(row["state"]), row["count"]) for row in rows]

    async def failed(self, *, viewer: Viewer = EVERYTHING, limit: int = FAILED_MAX) -> list[Failure]:
        """The jobs that failed last, newest first, with their errors cut."""
        rows = await self._fetch("last_failed.sql", viewer.tenant, limit, ERROR_MAX)
        return [
            Failure(JobId(row["id"]), row["kind"], row["tenant"], row["tries"], row["finished_at"], row["error"])
            for row in rows
        ]

    async def clock_ahead_s(self) -> float:
        """How far the database's clock is ahead of this machine's, in seconds; as exact as half a round trip."""
        before = datetime.now(UTC)
        now = await Store(self.database).clock()
        return (now - (before + (datetime.now(UTC) - before) / 2)).total_seconds()

    async def facts(self, job: JobRow, *, now: datetime | None = None) -> Facts:
        """What surrounds a job, of one moment: who takes its kind, what is paused, who is before it."""
        place, calls = await self._line(job, now)
        rows = await self._fetch("why.sql", job.id, LIVE_S, AHEAD_MAX, PACE_MAX, now)
        if not rows:
            # It ended, and was removed, since it was read.
            return Facts(job)
        row = rows[0]
        limits = json.loads(row["limits"] or "{}")
        rate = None
        if limits.get("rate_count") is not None:
            rate = (await self._fetch("why_rate.sql", job.kind, limits["rate_s"], now))[0]
        by_turns = limits.get("fair") or limits.get("tenant") is not None
        return Facts(
            job,
            takers=[_taker(values) for values in json.loads(row["takers"])],
            place=place,
            calls=calls,
            roles=row["roles"],
            kinds=row["kinds"],
            pauses=[PauseFacts(**values) for values in json.loads(row["pauses"])],
            fleet=FleetFacts(
                limit=limits.get("fleet"),
                running=row["running"],
                tenant_limit=limits.get("tenant"),
                tenant_running=row["tenant_running"],
                tenant_jobs=[RunningJob(**values) for values in json.loads(row["tenant_jobs"])],
                rate_count=limits.get("rate_count"),
                rate_s=limits.get("rate_s", 0.0),
                started=0 if rate is None else rate["started"],
                rate_opens_in_s=None if rate is None else rate["opens_in_s"],
                tenants_waiting=row["tenants_waiting"] if by_turns else None,
            ),
            holder_seen_s=row["holder_seen_s"],
            ahead=row["ahead"],
            ahead_higher=row["ahead_higher"],
            ahead_top=row["ahead_top"],
            ended=row["ended"],
            ended_s=row["ended_s"] or 0.0,
        )

    async def place(self, job: JobRow, *, now: datetime | None = None) -> Place | None:
        """Where an open job stands in line for slots of exec servers: behind the calls that wait there, and behind the
        jobs that no worker has claimed yet. None: it needs none, waits for none, or nobody can tell."""
        place, calls = await self._line(job, now)
        return place or next((call.place for call in calls if call.place is not None), None)

    async def _line(self, job: JobRow, now: datetime | None) -> tuple[Place | None, list[CallInLine]]:
        """The place of a queued job; the calls of a running one."""
        store = Store(self.database)
        live = [row for row in await store.servers(now=now) if row.live]
        kinds = sharing(job.kind, [row.facts for row in live])
        if job.state not in (State.QUEUED, State.LEASED):
            return None, []
        unclaimed = await store.unclaimed(job.id, kinds=kinds, now=now) if kinds else {}
        if job.state is State.LEASED:
            facts = next((row.facts for row in live if row.holder == job.leased_by), None)
            return None, calls_of(str(job.id), facts, unclaimed=sum(unclaimed.values()))
        if not kinds or job.run_after > job.now:
            return None, []
        return place_of_queued(job.kind, job.priority, [row.facts for row in live], unclaimed=unclaimed), []

    async def key_holders(self, key: str) -> list[KeyHolder]:
        """The jobs that hold a key, one for each scope at most."""
        rows = await self._fetch("key_holder.sql", key)
        return [KeyHolder(JobId(row["id"]), Scope(row["scope"]), row["exists"]) for row in rows]

    async def overview(self, viewer: Viewer) -> Overview:
        """What an administrator sees: jobs by kind and state, and the failed ones.

        Args:
            viewer: whose jobs; rows and counts of other tenants are in neither.
        """
        counts = await self.counts(ended=True, viewer=viewer)
        return Overview(
            sorted(counts, key=lambda one: (one.kind, one.state)), await self.failed(viewer=viewer)
        )  # fmt: skip


def _taker(values: dict[str, Any]) -> Taker:
    facts = taken(values.pop("facts"))
    return Taker(**{**values, "facts": facts, "cpu_jobs": [RunningJob(**one) for one in values["cpu_jobs"]]})
