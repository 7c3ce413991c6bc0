"""The queue in PostgreSQL: one method for each .sql file, each one statement over arrays.

It holds no rules: the statements do. Whoever reads `sql/claim.sql` and its siblings has read the queue. The same
methods, over plain dicts, are in `rota.queue.reference`; one conformance suite holds the two together.

Every method raises DatabaseAway if the database does not answer (the same call may go through later) and SchemaError
if its schema is missing. `now` is for tests; without it the database's clock decides (I5).
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import asyncpg

from rota.errors import BatchNotFound, DatabaseAway, JobNotFound
from rota.ids import BatchId, Holder, JobId
from rota.io.postgres import Connection, translated
from rota.io.to_the_end import to_the_end
from rota.lease import Lease, Renewal
from rota.queue import periodic
from rota.queue.history import LOG_LINES_MAX, LOG_RUNS_KEPT, TRIES_KEPT, KeptLine, LogLine, Stopped, Try, TryEnd
from rota.queue.io.fleet import Fleet
from rota.queue.job import (
    Answer,
    Ask,
    BatchStatus,
    ClaimedJob,
    Enqueued,
    FailedJob,
    Finish,
    Full,
    JobFilter,
    JobRow,
    NewJob,
    Outcome,
    Poll,
    Release,
    Retried,
    Scope,
    State,
    Swept,
)
from rota.queue.marks import Mark
from rota.queue.payload import encode
from rota.queue.retention import Keep, Pruned, Rule
from rota.queue.standing import UNCLAIMED_MAX

CANCEL_GRACE_S: Final = 30.0
"""How long a holder has to answer a cancel before the job ends without it."""

SWEEP_MAX: Final = 1000
STATES: Final = {state.value: state for state in State}

BATCHES_MAX: Final = 100
"""Batches that are closed in one statement."""

GOING_ON: Final = frozenset({Outcome.RETRY, Outcome.AGAIN})
"""Ends of tries after which the job is queued again."""

WENT_WELL: Final = frozenset({Outcome.DONE, Outcome.AGAIN})

KEYED_TRIES: Final = 3
"""How often a job that met a twin at the same moment is written again; each time the twin is a fact by then."""


class Return(NamedTuple):
    """A job on its way back to the queue; `counted`: its try was one that counts."""

    lease: Lease
    counted: bool
    wait_s: float | None
    reason: str | None
    progress: str | None
    keyed: bool
    afresh: bool = False
    how: TryEnd | None = None


class Store(Fleet):
    """The queue's table family in one schema of one database."""

    async def enqueue(self, job: NewJob, *, conn: Connection | None = None, now: datetime | None = None) -> Enqueued:
        """Adds one job, in the connection's transaction if one is given.

        Raises: asyncpg.InvalidParameterValueError for a job that the database refuses.
        """
        rows = await self._fetch("enqueue.sql", *one_job(job, now=now), conn=conn)
        return Enqueued(JobId(rows[0]["id"]), rows[0]["created"])

    async def enqueue_many(
        self, jobs: Sequence[NewJob], *, conn: Connection | None = None, now: datetime | None = None
    ) -> list[Enqueued]:
        """Adds jobs, all or none; the answers come in the order of `jobs`."""
        if not jobs:
            return []
        rows = await self._fetch("enqueue_many.sql", *many_jobs(jobs, now=now), conn=conn)
        return [Enqueued(JobId(row["id"]), row["created"]) for row in rows]

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
            *_columns(marks),
            holder,
            now,
        )
        return _in_order(rows)

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
                await self._fetch("claim.sql", [], [], [], [], [], *_columns(()), holder, None, conn=conn)
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
        return _in_order(rows)

    async def unstart(self, leases: Iterable[Lease], *, per_s: float) -> list[JobId]:
        """Takes back that jobs of a kind with a rate per so many seconds started; for jobs that are given back unbegun.

        Returns: those whose start no longer counts; once each.
        """
        ordered = sorted(leases)
        rows = await self._fetch(
            "unstart.sql", [lease.job_id for lease in ordered], [lease.epoch for lease in ordered], per_s
        )
        return [JobId(row["id"]) for row in rows]

    async def renew(self, renewals: Iterable[Renewal], *, now: datetime | None = None) -> dict[JobId, bool]:
        """Extends leases; the ids of those that hold, each with whether somebody asked to cancel the job."""
        ordered = sorted(renewals, key=lambda renewal: renewal.lease)
        rows = await self._fetch(
            "renew.sql",
            [renewal.lease.job_id for renewal in ordered],
            [renewal.lease.epoch for renewal in ordered],
            [renewal.lease_s for renewal in ordered],
            [None if renewal.progress is None else encode(renewal.progress) for renewal in ordered],
            now,
        )
        return {JobId(row["id"]): row["cancel_asked"] for row in rows}

    async def finish(self, finishes: Iterable[Finish], *, now: datetime | None = None) -> dict[JobId, State]:
        """Writes how tries ended; the ids that were written, with their state. One that is missing was refused."""
        ordered = sorted(finishes, key=_id_of)
        runs = [finish for finish in ordered if finish.follows is not None and finish.outcome not in GOING_ON]
        others = [finish for finish in ordered if finish.follows is None or finish.outcome in GOING_ON]
        plain = [finish for finish in others if not finish.follow_ups]
        ends = [finish for finish in plain if finish.outcome not in GOING_ON]
        written: dict[JobId, State] = {}
        if ends:
            written |= await self._closing(await self._finish(ends, now=now), now=now)
        if len(ends) < len(plain):
            returns = [_returned(finish) for finish in plain if finish.outcome in GOING_ON]
            written |= await self._return(returns, now=now)
        if len(plain) < len(others):
            written |= await self._follow([finish for finish in others if finish.follow_ups], now=now)
        for run in runs:
            written |= await self._end_run(run, run.follows or "", now=now)
        return written

    async def _finish(
        self, ends: Sequence[Finish], *, now: datetime | None, conn: Connection | None = None
    ) -> list[Any]:
        return await self._fetch(
            "finish.sql",
            [finish.lease.job_id for finish in ends],
            [finish.lease.epoch for finish in ends],
            _unless([finish.outcome for finish in ends], Outcome.DONE),
            _unless([finish.error for finish in ends], None),
            _unless([finish.result for finish in ends], None),
            _unless([finish.progress for finish in ends], None),
            now,
            _unless([finish.how for finish in ends], None),
            conn=conn,
        )

    async def _follow(self, finishes: Sequence[Finish], *, now: datetime | None) -> dict[JobId, State]:
        """Ends with the jobs that follow from them, in one transaction: all of it or nothing."""
        async with self.database.transaction() as conn:
            rows = await self._follow_on(conn, finishes, now=now)
        return await self._closing(rows, now=now)

    async def _follow_on(self, conn: Connection, finishes: Sequence[Finish], *, now: datetime | None) -> list[Any]:
        """The same in the transaction of `conn`; what was written.

        A job that somebody asked to cancel before its end was written ends cancelled, and nothing follows from it.
        """
        held = {
            row["id"]: row["cancel_asked"]
            for row in await self._fetch(
                "hold.sql", [f.lease.job_id for f in finishes], [f.lease.epoch for f in finishes], conn=conn
            )
        }
        well = [finish for finish in finishes if held.get(finish.lease.job_id) is False]
        ends = [finish for finish in well if finish.outcome not in GOING_ON]
        ends += [Finish(f.lease, Outcome.CANCELLED, progress=f.progress) for f in finishes if held.get(f.lease.job_id)]
        rows = await self._finish(sorted(ends, key=_id_of), now=now, conn=conn) if ends else []
        returns = [_returned(finish) for finish in well if finish.outcome in GOING_ON]
        if returns:
            rows = [*rows, *await self._release(returns, now=now, conn=conn)]
        await self.enqueue_many(
            [job for finish in well if finish.outcome in WENT_WELL for job in finish.follow_ups], conn=conn, now=now
        )
        return rows

    async def _end_run(self, finish: Finish, name: str, *, now: datetime | None) -> dict[JobId, State]:
        """Ends the run of a pass and writes its next run, in one transaction."""
        async with self.database.transaction() as conn:
            await self.hold_pass(name, conn=conn)
            passes = await self.passes(name, now=now, conn=conn)
            if finish.follow_ups:
                rows = await self._follow_on(conn, [finish], now=now)
            else:
                rows = await self._finish([finish], now=now, conn=conn)
            for put in periodic.next_runs(passes, ends=finish.lease.job_id) if rows else ():
                await self.put_pass(put, now=now, conn=conn)
        return await self._closing(rows, now=now)

    async def finish_each(
        self, finishes: Sequence[Finish], *, conn: Connection | None = None, now: datetime | None = None
    ) -> dict[JobId, State]:
        """Writes ends of jobs, each in a commit of its own; answers like `finish`.

        After an error some may be written. They are one call where the connection allows transactions of its own.

        Args:
            finishes: ends that `finish_one.sql` can write: of jobs that do not go on, and that nothing follows.
            conn: a connection that is in no transaction; else one of the pool's.
            now: for tests.
        """
        if self.database.target.pooler != "none":
            written: dict[JobId, State] = {}
            for finish in finishes:
                rows = await self._fetch("finish_one.sql", *one_end(finish, now=now), conn=conn)
                written |= await self._closing(rows, now=now)
            return written
        row = (
            await self._fetch(
                "finish_each.sql",
                [finish.lease.job_id for finish in finishes],
                [finish.lease.epoch for finish in finishes],
                [finish.outcome for finish in finishes],
                [finish.error for finish in finishes],
                [finish.result for finish in finishes],
                [finish.progress for finish in finishes],
                [finish.how for finish in finishes],
                now,
                conn=conn,
            )
        )[0]
        states = {finish.lease.job_id: STATES[finish.outcome] for finish in finishes}
        await self._close(row["batches"], now=now)
        return {JobId(job_id): states[job_id] for job_id in row["written"]}

    async def _closing(self, rows: Sequence[Any], *, now: datetime | None) -> dict[JobId, State]:
        """What was written, from rows of (id, state, batch); batches that may have ended with it are closed."""
        await self._close([row[2] for row in rows if row[2] is not None], now=now)
        return {row[0]: STATES[row[1]] for row in rows}

    async def _close(self, batches: Sequence[Any], *, now: datetime | None) -> None:
        if batches:
            # The jobs have ended whatever happens here, and every worker looks after batches now and then.
            with contextlib.suppress(DatabaseAway):
                await self.close_batches([BatchId(found) for found in set(batches)], now=now)

    async def release(self, releases: Iterable[Release], *, now: datetime | None = None) -> dict[JobId, State]:
        """Returns jobs to the queue without counting the try; answers like `finish`."""
        ordered = sorted(releases, key=_id_of)
        for per_s in {one.unstart_s for one in ordered if one.unstart_s is not None}:
            await self.unstart((one.lease for one in ordered if one.unstart_s == per_s), per_s=per_s)
        returns = [
            Return(
                release.lease, False, release.wait_s, release.reason, release.progress, release.keyed, how=release.how
            )
            for release in ordered
        ]
        return await self._return(returns, now=now)

    async def _return(self, returns: Sequence["Return"], *, now: datetime | None) -> dict[JobId, State]:
        """Back to the queue; a job that may have to wait for a twin's transaction goes alone, behind the others."""
        plain = [entry for entry in returns if not entry.keyed]
        batches = ([plain] if plain else []) + [[entry] for entry in returns if entry.keyed]
        written: dict[JobId, State] = {}
        for batch in batches:
            written |= await self._closing(await self._release(batch, now=now), now=now)
        return written

    async def _release(
        self, batch: Sequence[Return], *, now: datetime | None, conn: Connection | None = None
    ) -> list[Any]:
        return await self._write(
            "release.sql",
            [entry.lease.job_id for entry in batch],
            [entry.lease.epoch for entry in batch],
            _unless([entry.counted for entry in batch], False),
            [entry.wait_s for entry in batch],
            [entry.reason for entry in batch],
            _unless([entry.progress for entry in batch], None),
            _unless([entry.afresh for entry in batch], False),
            now,
            _unless([entry.how for entry in batch], None),
            TRIES_KEPT,
            # Within a transaction there is no second try: the whole of it is tried again.
            alone=len(batch) == 1 and conn is None,
            conn=conn,
        )

    async def clock(self) -> datetime:
        """The database's clock."""
        row = (await self._fetch("clock.sql"))[0]
        now: datetime = row["now"]
        return now

    async def disown(
        self, holder: Holder, *, known: Sequence[JobId], before: datetime, now: datetime | None = None
    ) -> int:
        """Returns to the queue, without a try, what this holder leased without knowing: a claim's answer was lost.

        Args:
            holder: the process that asks, while no claim of its own is under way.
            known: the jobs whose leases it holds.
            before: a time that `clock` gave since that claim: leases that were claimed later are left alone, so that
                this statement does no harm however late it arrives.

        Returns: how many jobs went back.
        """
        return len(await self._fetch("disown.sql", holder, list(known), before, now))

    async def sweep(
        self, *, grace_s: float = CANCEL_GRACE_S, limit: int = SWEEP_MAX, now: datetime | None = None
    ) -> list[Swept]:
        """Ends leases that ran out, at most `limit`; jobs with a queued-scope key one at a time, behind the others."""
        rows = await self._fetch("sweep.sql", limit, grace_s, None, now)
        over = [row for row in rows if row["state"] != State.LEASED]
        for row in rows:
            if row["state"] == State.LEASED:
                # It may have to wait for an uncommitted twin. If that takes too long, a later sweep ends it.
                with contextlib.suppress(DatabaseAway, asyncpg.UniqueViolationError):
                    over += await self._write("sweep.sql", 1, grace_s, row["id"], now, alone=True)
        await self._closing([(row["id"], row["state"], row["batch_id"]) for row in over], now=now)
        return [_swept(row) for row in over]

    async def cancel(
        self, ids: Iterable[JobId], *, children: bool = False, reason: str = "Cancelled", now: datetime | None = None
    ) -> dict[JobId, State]:
        """Cancels open jobs: CANCELLED at once, or LEASED where the holder was asked to stop.

        Args:
            ids: the jobs.
            children: also what they added as their children, and the children of those.
            reason: kept with the jobs.
            now: for tests.
        """
        asked = set(ids)
        if not children:
            return await self._cancel(asked, reason=reason, now=now)
        # A handler may cancel its own job with its children, and is cancelled itself before it comes to them.
        states, cancelled = await to_the_end(self._cancel_family(asked, reason=reason, now=now))
        if cancelled:
            raise asyncio.CancelledError
        return states

    async def _cancel_family(self, asked: set[JobId], *, reason: str, now: datetime | None) -> dict[JobId, State]:
        states = await self._cancel(asked, reason=reason, now=now)
        while True:
            # Until none is new: a job that ended meanwhile may have added more on its way.
            found = {JobId(row["id"]) for row in await self._fetch("descendants.sql", sorted(asked))} - states.keys()
            if not found:
                return states
            asked |= found
            states |= await self._cancel(found, reason=reason, now=now)

    async def _cancel(self, ids: Iterable[JobId], *, reason: str, now: datetime | None) -> dict[JobId, State]:
        rows = await self._fetch("cancel.sql", sorted(ids), reason, now)
        return await self._closing([(row["id"], row["state"], row["batch_id"]) for row in rows], now=now)

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

    async def begin_batch(
        self, batch_id: BatchId, *, jobs: int, then: NewJob | None, conn: Connection, now: datetime | None = None
    ) -> None:
        """Begins a batch, in the transaction that adds its jobs."""
        await self._fetch("begin_batch.sql", *one_batch(batch_id, jobs=jobs, then=then, now=now), conn=conn)

    async def close_batches(
        self, ids: Iterable[BatchId] | None = None, *, limit: int = BATCHES_MAX, now: datetime | None = None
    ) -> dict[BatchId, JobId | None]:
        """Closes those of these batches (None: of any) that have no open job, and adds their follow-ups.

        Returns: the closed ones, each with the id of its follow-up.
        """
        rows = await self._fetch("close_batches.sql", None if ids is None else sorted(ids), limit, now)
        return {BatchId(row["id"]): row["then_id"] for row in rows}

    async def batch(self, batch_id: BatchId) -> BatchStatus:
        """How a batch stands.

        Raises: BatchNotFound.
        """
        rows = await self._fetch("batch.sql", batch_id)
        if not rows:
            raise BatchNotFound(f"There is no batch {batch_id}. It may have ended longer ago than its retention.")
        return BatchStatus(**rows[0])

    async def prune_batches(self, *, keep_s: float, limit: int = 1000, now: datetime | None = None) -> int:
        """Removes at most `limit` batches, and windows of keys, that are over for longer than `keep_s` seconds."""
        removed: int = (await self._fetch("prune_batches.sql", keep_s, limit, now))[0]["removed"]
        return removed

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
                *_columns(marks),
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
        return [_row(row) for row in rows]

    async def show(self, lowest: JobId, highest: JobId | None = None, *, limit: int = 10) -> list[JobRow]:
        """Jobs whole, by id, or all whose ids lie from `lowest` to `highest`."""
        rows = await self._fetch("show.sql", lowest, highest or lowest, limit)
        return [_row(row) for row in rows]

    async def unclaimed(self, job_id: JobId, *, kinds: Sequence[str], now: datetime | None = None) -> int:
        """How many due jobs of these kinds that no worker has claimed go before this one: those that are more urgent
        and, if it is queued too, those that are as urgent and were due earlier; at most UNCLAIMED_MAX are counted."""
        rows = await self._fetch("unclaimed.sql", job_id, list(kinds), UNCLAIMED_MAX, now)
        count: int = rows[0]["unclaimed"]
        return count

    async def retry(self, job_id: JobId, *, now: datetime | None = None) -> Retried:
        """Puts an ended job back into the queue, or makes a queued one due now.

        Raises: JobNotFound.
        """
        rows = await self._fetch("retry.sql", job_id, now) or await self._fetch("retry.sql", job_id, now)
        if not rows:
            raise JobNotFound(f"There is no job {job_id}. It may have ended longer ago than its retention.")
        holder = rows[0]["holder"]
        return Retried(job_id, rows[0]["outcome"], None if holder is None else JobId(holder))

    async def _write(self, name: str, *args: Any, alone: bool, conn: Connection | None = None) -> list[Any]:
        """A statement that may meet a twin of a queued-scope key at the same moment; by the next try it is a fact."""
        for _ in range(KEYED_TRIES if alone else 1):
            try:
                return await self._fetch(name, *args, conn=conn)
            except asyncpg.UniqueViolationError as error:
                met = error
        raise met


def one_job(job: NewJob, *, now: datetime | None = None) -> tuple[Any, ...]:
    """The parameters of enqueue.sql."""
    return (
        job.kind,
        job.payload,
        job.priority,
        job.tenant,
        job.dedupe.key if job.dedupe else None,
        job.dedupe.word if job.dedupe else None,
        job.run_after,
        job.delay_s,
        job.max_tries,
        job.trace,
        None if job.parent_id is None else str(job.parent_id),
        None if job.batch_id is None else str(job.batch_id),
        job.dedupe.window_s if job.dedupe else None,
        now,
    )


def many_jobs(jobs: Sequence[NewJob], *, now: datetime | None = None) -> tuple[Any, ...]:
    """The parameters of enqueue_many.sql; a column that no job sets is sent as one null."""
    columns: list[list[Any] | None] = [
        list(column) for column in zip(*(one_job(job)[2:-1] for job in jobs), strict=True)
    ]
    return (
        [job.kind for job in jobs],
        [job.payload for job in jobs],
        *(None if column is None or all(value is None for value in column) else column for column in columns),
        now,
    )


def one_end(finish: Finish, *, unless_cancelled: bool = False, now: datetime | None = None) -> tuple[Any, ...]:
    """The parameters of finish_one.sql."""
    lease = finish.lease
    return (
        str(lease.job_id), lease.epoch, finish.outcome.value, finish.error, finish.result, finish.progress,
        unless_cancelled, now, None if finish.how is None else finish.how.value,
    )  # fmt: skip


def one_batch(batch_id: BatchId, *, jobs: int, then: NewJob | None, now: datetime | None = None) -> tuple[Any, ...]:
    """The parameters of begin_batch.sql."""
    head = (str(batch_id), jobs)
    if then is None:
        return (*head, None, None, None, None, None, None, now)
    return (*head, then.kind, then.payload, then.priority, then.tenant, then.max_tries, then.trace, now)


def _returned(finish: Finish) -> Return:
    """The end of a try after which the job goes on."""
    again = finish.outcome is Outcome.AGAIN
    return Return(finish.lease, True, finish.wait_s, finish.error, finish.progress, finish.keyed, again, finish.how)


def _unless(values: list[Any], usual: Any) -> list[Any] | None:
    """A column, or one null for all of it where every value is the usual one: most batches send two columns of six."""
    return None if values.count(usual) == len(values) else values


def _id_of(write: Finish | Release) -> JobId:
    return write.lease.job_id


def _claimed(row: Sequence[Any]) -> ClaimedJob:
    # By position, in the order of claim.sql: this runs for every job.
    job_id, kind, tenant, payload, priority, epoch, tries, max_tries, run_after, created_at, scope, progress, trace = (
        row
    )
    return ClaimedJob(
        Lease(job_id, epoch),
        kind,
        tenant,
        payload,
        priority,
        tries,
        max_tries,
        run_after,
        created_at,
        None if scope is None else Scope(scope),
        progress,
        trace,
    )


def _columns(marks: Sequence[Mark]) -> tuple[list[Any], ...]:
    return (
        [mark.kind for mark in marks],
        [mark.priority for mark in marks],
        [mark.run_after for mark in marks],
        [mark.job_id for mark in marks],
        [mark.age_s for mark in marks],
    )


def _in_order(rows: Iterable[Sequence[Any]]) -> list[ClaimedJob]:
    claimed = [_claimed(row) for row in rows]
    claimed.sort(key=lambda job: job.order)
    return claimed


def _swept(row: Mapping[str, Any]) -> Swept:
    return Swept(Lease(JobId(row["id"]), row["epoch"]), row["kind"], row["holder"], State(row["state"]), row["tries"])


def _row(row: Mapping[str, Any]) -> JobRow:
    values = dict(row)
    values["id"] = JobId(values["id"])
    values["state"] = State(values["state"])
    values["dedupe_scope"] = None if values["dedupe_scope"] is None else Scope(values["dedupe_scope"])
    return JobRow(**values)
