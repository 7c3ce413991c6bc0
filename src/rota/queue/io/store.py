"""The queue in PostgreSQL: one method for each .sql file, each one statement over arrays.

It holds no rules: the statements do. Whoever reads `sql/claim.sql` and its siblings has read the queue. What adds jobs
is in `adding.py`, what ends tries in `ends.py`; servers, passes and pauses are in `fleet.py`. The same methods, over
plain dicts, are in `rota.queue.reference`; one conformance suite holds the two together.

Every method raises DatabaseAway if the database does not answer (the same call may go through later) and SchemaError
if its schema is missing. `now` is for tests; without it the database's clock decides (I5).
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime

from rota.errors import JobNotFound
from rota.ids import Holder, JobId
from rota.io.postgres import Connection, translated
from rota.lease import Lease, Renewal
from rota.queue.history import LOG_LINES_MAX, LOG_RUNS_KEPT, KeptLine, LogLine, Stopped, Try, TryEnd
from rota.queue.io.ends import Ends
from rota.queue.io.rows import STATES, columns_of, in_order, row_of
from rota.queue.job import (
    CANCEL_GRACE_S,
    Answer,
    Ask,
    ClaimedJob,
    FailedJob,
    Full,
    JobFilter,
    JobRow,
    Poll,
    Retried,
    State,
)
from rota.queue.marks import Mark
from rota.queue.payload import encode
from rota.queue.retention import Keep, Pruned, Rule
from rota.queue.server import CLOCK_AHEAD_S
from rota.queue.standing import UNCLAIMED_MAX


class Store(Ends):
    """The queue's table family in one schema of one database."""

    # Open jobs, and who waits for some

    async def claim(
        self, asks: Sequence[Ask], *, holder: Holder, marks: Sequence[Mark] = (), now: datetime | None = None
    ) -> list[ClaimedJob]:
        """Takes due jobs of the kinds asked for, in the queue's order; where there is a mark, those behind it."""
        rows = await self._fetch(
            "claim.sql",
            [ask.kind for ask in asks],
            [ask.free for ask in asks],
            [ask.lease_s for ask in asks],
            [ask.max_tries for ask in asks],
            [ask.lowest for ask in asks],
            *columns_of(marks),
            holder,
            now,
        )
        return in_order(rows)

    async def warm(self, holder: Holder, *, connections: int) -> None:
        """Opens so many connections and has each plan the statements that run for every job. A new connection takes
        tens of milliseconds for that, for which the first jobs would wait.

        Raises: DatabaseError.
        """
        if self.database.target.pooler != "none":
            # It prepares no statements, and its connections to the server are anybody's.
            return
        await asyncio.gather(*(self._warm_one(holder) for _ in range(connections)))

    async def _warm_one(self, holder: Holder) -> None:
        try:
            async with self.database.acquire() as conn:
                await self._fetch("claim.sql", [], [], [], [], [], *columns_of(()), holder, None, conn=conn)
                await self._finish([], now=None, conn=conn)
        except Exception as error:
            raise translated(error, self.database.target) from error

    async def claim_turns(
        self, asks: Sequence[Ask], *, holder: Holder, now: datetime | None = None
    ) -> list[ClaimedJob]:
        """The same for kinds that have limits beyond one server."""
        ordered = sorted(asks, key=lambda ask: ask.kind)
        limits = [ask.limits for ask in ordered]
        rows = await self._fetch(
            "claim_turns.sql",
            [ask.kind for ask in ordered],
            [ask.free for ask in ordered],
            [ask.lease_s for ask in ordered],
            [ask.max_tries for ask in ordered],
            [ask.lowest for ask in ordered],
            [limit.fleet for limit in limits],
            [limit.tenant for limit in limits],
            [limit.by_turns for limit in limits],
            [ask.after for ask in ordered],
            [None if limit.rate is None else limit.rate.count for limit in limits],
            [None if limit.rate is None else limit.rate.per_s for limit in limits],
            holder,
            now,
        )
        return in_order(rows)

    async def renew(self, renewals: Iterable[Renewal], *, now: datetime | None = None) -> dict[JobId, bool | None]:
        """Extends leases; the ids of those that hold, each with whether somebody asked to cancel the job. None: it was
        not extended, because somebody's transaction holds its row; ask again."""
        ordered = sorted(renewals, key=lambda renewal: renewal.lease)
        rows = await self._fetch(
            "renew.sql",
            [renewal.lease.job_id for renewal in ordered],
            [renewal.lease.epoch for renewal in ordered],
            [renewal.lease_s for renewal in ordered],
            [None if renewal.progress is None else encode(renewal.progress) for renewal in ordered],
            now,
            self.holder,
        )
        return {JobId(row["id"]): row["cancel_asked"] for row in rows}

    async def clock(self) -> datetime:
        """The database's clock."""
        row = (await self._fetch("clock.sql"))[0]
        now: datetime = row["now"]
        return now

    async def set_back(self, *, ahead_s: float = CLOCK_AHEAD_S, now: datetime | None = None) -> tuple[int, int]:
        """Brings back to now what was written more than `ahead_s` seconds later than now: the database's clock has been
        set back. Leases are counted anew, jobs that were due at once are due, and starts of then count for no rate.

        Returns: how many leases, and how many jobs that are due.
        """
        row = (await self._fetch("set_back.sql", ahead_s, now))[0]
        return row["leases"], row["due"]

    async def poll(
        self,
        kinds: Sequence[str],
        *,
        holder: Holder,
        full: Sequence[Full] = (),
        grace_s: float = CANCEL_GRACE_S,
        marks: Sequence[Mark] = (),
        none_expired_s: float | None = None,
        now: datetime | None = None,
    ) -> Poll:
        """What a server needs to know; writes nothing. With marks, and the seconds since when no lease had run out, it
        looks at what comes behind."""
        row = (
            await self._fetch(
                "poll.sql",
                list(kinds),
                holder,
                grace_s,
                [one.kind for one in full],
                [one.lowest for one in full],
                [one.running for one in full],
                *columns_of(marks),
                none_expired_s,
                now,
            )
        )[0]
        urgent: dict[str, list[int]] = {}
        for kind, priority in zip(row["urgent_kinds"], row["urgent_priorities"], strict=True):
            urgent.setdefault(kind, []).append(priority)
        cancels = tuple(JobId(found) for found in row["cancels"])
        return Poll(row["next_due_s"], row["expired"], cancels, urgent, tuple(row["paused"]))

    async def wait(self, holder: Holder, *, kinds: Sequence[str], seconds: float) -> None:
        """Says that this holder sleeps, so that enqueueing wakes it."""
        await self._fetch("wait.sql", holder, list(kinds), seconds)

    async def awake(self, holder: Holder) -> None:
        """Takes back what `wait` said."""
        await self._fetch("awake.sql", holder)

    async def move(
        self,
        ids: Iterable[JobId],
        *,
        priority: int | None = None,
        run_after: datetime | None = None,
        delay_s: float | None = None,
        now: datetime | None = None,
    ) -> dict[JobId, State]:
        """Gives queued jobs another priority, another time, or both.

        Returns: the open ones among them: QUEUED if it was moved, LEASED if it runs and was left as it is.
        """
        rows = await self._fetch("move.sql", sorted(ids), priority, run_after, delay_s, now)
        return {row["id"]: STATES[row["state"]] for row in rows}

    # What is kept beside the jobs

    async def keep(self, rules: Sequence[Keep]) -> list[Keep]:
        """Says how long the ended jobs of a program's kinds stay, where it is not as the settings say.

        Args:
            rules: one for each kind of the program.

        Returns: the rules of all programs.
        """
        rows = await self._fetch(
            "keep.sql",
            [rule.kind for rule in rules],
            [rule.keep_s for rule in rules],
            [rule.keep_failed_s for rule in rules],
        )
        return [Keep(row["kind"], row["keep_s"], row["keep_failed_s"]) for row in rows]

    async def prune(
        self, rule: Rule, *, since: datetime | None = None, limit: int = 1000, now: datetime | None = None
    ) -> Pruned:
        """Removes at most `limit` ended jobs that have stayed as long as this rule says.

        Args:
            rule: which jobs, and how long they stay.
            since: jobs that ended before are gone already.
            limit: how many at most.
            now: for tests.

        Returns: how many were removed, and `before`: what ended before is gone if they were fewer than `limit`.
        """
        row = (
            await self._fetch("prune.sql", rule.kind, list(rule.others), rule.failed, rule.keep_s, since, limit, now)
        )[0]
        return Pruned(row["removed"], row["before"])

    async def tries(self, ids: Iterable[JobId], *, now: datetime | None = None) -> list[Try]:
        """The tries that are kept of these jobs, by job and epoch; a job that simply succeeded has none."""
        return [
            Try(**{**row, "job_id": JobId(row["job_id"]), "ended": TryEnd(row["ended"])})
            for row in await self._fetch("tries.sql", list(ids), now)
        ]

    async def stopped(
        self, stops: Iterable[Stopped], *, holder: Holder, conn: Connection | None = None, now: datetime | None = None
    ) -> dict[Lease, float]:
        """Notes when this holder really stopped runs whose leases it had lost.

        Returns: for each that was noted, how many seconds it ran beside runs by other holders. One that is missing
            has been noted before, or its lease was not swept yet.
        """
        ordered = sorted(stops, key=lambda stop: stop.lease)
        rows = await self._fetch(
            "stopped.sql",
            [stop.lease.job_id for stop in ordered],
            [stop.lease.epoch for stop in ordered],
            holder,
            [stop.ago_s for stop in ordered],
            now,
            conn=conn,
        )
        return {Lease(JobId(row["id"]), row["epoch"]): row["overlap_s"] for row in rows}

    async def overlap_s(self, *, now: datetime | None = None) -> float:
        """How many seconds runs of one job by different holders have overlapped, in all that is kept: 0, or I2 is
        broken."""
        overlap_s: float = (await self._fetch("overlap.sql", now))[0]["overlap_s"]
        return overlap_s

    async def log(self, lines: Sequence[LogLine], *, clock: float, now: datetime | None = None) -> None:
        """Keeps lines that handlers logged; `clock` is the lease clock of this moment."""
        await self._fetch(
            "log.sql",
            [line.lease.job_id for line in lines],
            [line.lease.epoch for line in lines],
            [line.number for line in lines],
            [max(0.0, clock - line.said_at) for line in lines],
            [line.level for line in lines],
            [line.event for line in lines],
            [line.fields for line in lines],
            LOG_RUNS_KEPT,
            now,
        )

    async def logs(self, ids: Iterable[JobId], *, limit: int = LOG_LINES_MAX) -> list[KeptLine]:
        """The lines that are kept of these jobs, of each the last `limit`, in the order in which they were said."""
        return [
            KeptLine(**{**row, "job_id": JobId(row["job_id"])})
            for row in await self._fetch("logs.sql", list(ids), limit)
        ]

    # Results, and what failed

    async def results(self, ids: Iterable[JobId]) -> dict[JobId, Answer]:
        """How these jobs stand; one that does not exist is missing."""
        return {
            JobId(row["id"]): Answer(State(row["state"]), row["result"], row["last_error"])
            for row in await self._fetch("results.sql", list(ids))
        }

    async def failed_count(
        self, *, kinds: Sequence[str] | None = None, since_s: float | None = None, now: datetime | None = None
    ) -> dict[str, int]:
        """How many failed jobs there are of each kind, of these kinds, that ended within so many seconds."""
        rows = await self._fetch("failed_count.sql", None if kinds is None else list(kinds), since_s, now)
        return {row["kind"]: row["count"] for row in rows}

    async def failed(
        self,
        *,
        kinds: Sequence[str] | None = None,
        since_s: float | None = None,
        above: JobId | None = None,
        limit: int = 1000,
        now: datetime | None = None,
    ) -> list[FailedJob]:
        """One page of failed jobs, by id; the next page is `above` the last id of this one."""
        rows = await self._fetch("failed.sql", None if kinds is None else list(kinds), since_s, above, limit, now)
        return [FailedJob(JobId(row["id"]), row["keyed"]) for row in rows]

    async def retry_many(self, ids: Iterable[JobId], *, now: datetime | None = None) -> list[JobId]:
        """Puts failed jobs back into the queue, but for those with a key, which `retry` takes one by one; the ids of
        those that are queued now."""
        return sorted(JobId(row["id"]) for row in await self._fetch("retry_many.sql", sorted(ids), now))

    async def retry(self, job_id: JobId, *, now: datetime | None = None) -> Retried:
        """Puts an ended job back into the queue, or makes a queued one due now.

        Raises: JobNotFound.
        """
        rows = await self._fetch("retry.sql", job_id, now) or await self._fetch("retry.sql", job_id, now)
        if not rows:
            raise JobNotFound(f"There is no job {job_id}. It may have ended longer ago than its retention.")
        holder = rows[0]["holder"]
        return Retried(job_id, rows[0]["outcome"], None if holder is None else JobId(holder))

    # Looking

    async def page(
        self, wanted: JobFilter, *, limit: int, below: JobId | None = None, now: datetime | None = None
    ) -> list[JobRow]:
        """One page of jobs, newest first; the next page is `below` the last id of this one."""
        rows = await self._fetch(
            "list.sql",
            None if wanted.kinds is None else list(wanted.kinds),
            None if wanted.states is None else [state.value for state in wanted.states],
            wanted.tenant,
            wanted.older_s,
            wanted.newer_s,
            below,
            limit,
            now,
        )
        return [row_of(row) for row in rows]

    async def show(self, lowest: JobId, highest: JobId | None = None, *, limit: int = 10) -> list[JobRow]:
        """Jobs whole, by id, or all whose ids lie from `lowest` to `highest`."""
        rows = await self._fetch("show.sql", lowest, highest or lowest, limit)
        return [row_of(row) for row in rows]

    async def unclaimed(self, job_id: JobId, *, kinds: Sequence[str], now: datetime | None = None) -> dict[str, int]:
        """How many due jobs of each of these kinds that no worker has claimed go before this one: those that are more
        urgent and, if it is queued too, those that are as urgent and were due earlier; at most UNCLAIMED_MAX are
        counted, and kinds without any are left out."""
        rows = await self._fetch("unclaimed.sql", job_id, list(kinds), UNCLAIMED_MAX, now)
        return {row["kind"]: row["unclaimed"] for row in rows}

    async def unclaimed_above(self, priority: int, *, kinds: Sequence[str], now: datetime | None = None) -> int:
        """How many due jobs of these kinds that no worker has claimed are more urgent than a call of no job; at most
        UNCLAIMED_MAX are counted."""
        (row,) = await self._fetch("unclaimed_above.sql", priority, list(kinds), UNCLAIMED_MAX, now)
        return int(row["unclaimed"])
