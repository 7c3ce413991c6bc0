"""The store's part for the ends of tries: finished, given back, cancelled, or run out.

One method for each statement, as in `rota.queue.io.store`. A batch of ends goes by as few statements as its sorts
allow; what follows from an end is written in its transaction. A lease is compared in each of them (I3).
"""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import asyncpg

from rota.errors import DatabaseAway
from rota.ids import BatchId, Holder, JobId
from rota.io.postgres import LOCK_TIMEOUT_MS, Connection
from rota.io.to_the_end import to_the_end
from rota.lease import Lease
from rota.queue import periodic
from rota.queue.history import TRIES_KEPT, TryEnd
from rota.queue.io.adding import Adding
from rota.queue.io.rows import STATES, one_end, swept_of, unless
from rota.queue.job import CANCEL_GRACE_S, Finish, Outcome, Release, State, Swept

SWEEP_MAX: Final = 1000
"""Leases that one sweep ends: so many rows it locks at once."""

GOING_ON: Final = (Outcome.RETRY, Outcome.AGAIN)
"""Ends of tries after which the job is queued again."""

WENT_WELL: Final = (Outcome.DONE, Outcome.AGAIN)

KEYED_TRIES: Final = 3
"""How often a job that met a twin at the same moment is written again; each time the twin is a fact by then."""

KEYED_WAIT_MS: Final = 200
"""How long a write that goes apart, because of a key, waits for somebody's open transaction before it comes again: each
that waits keeps a connection from all others."""

SWEEP_WAITS_MAX: Final = 3
"""How many jobs with such keys a sweep waits for in vain before it leaves the others to the next one."""

NONE_SWEPT: Final = JobId(UUID(int=0))
"""Before all jobs: a sweep begins with the first."""


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


class Ends(Adding):
    """How tries end, in one schema of one database."""

    _swept_to: JobId = NONE_SWEPT
    """The last job with a queued-scope key that a sweep asked for before it gave up: the next one begins behind it."""

    async def finish(self, finishes: Iterable[Finish], *, now: datetime | None = None) -> dict[JobId, State]:
        """Writes how tries ended; the ids that were written, with their state. One that is missing was refused."""
        ordered = sorted(finishes, key=_id_of)
        ends = [one for one in ordered if not one.follow_ups and one.follows is None and one.outcome not in GOING_ON]
        written: dict[JobId, State] = {}
        if ends:
            written = await self._closing(await self._finish(ends, now=now), now=now)
        if len(ends) < len(ordered):
            written |= await self._finish_others(ordered, now=now)
        return written

    async def _finish_others(self, ordered: Sequence[Finish], *, now: datetime | None) -> dict[JobId, State]:
        """Those that are more than the ends of their jobs."""
        runs = [finish for finish in ordered if finish.follows is not None and finish.outcome not in GOING_ON]
        others = [finish for finish in ordered if finish.follows is None or finish.outcome in GOING_ON]
        returns = [_returned(one) for one in others if not one.follow_ups and one.outcome in GOING_ON]
        following = [finish for finish in others if finish.follow_ups]
        written: dict[JobId, State] = {}
        if returns:
            written |= await self._return(returns, now=now)
        if following:
            written |= await self._follow(following, now=now)
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
            unless([finish.outcome for finish in ends], Outcome.DONE),
            unless([finish.error for finish in ends], None),
            unless([finish.result for finish in ends], None),
            unless([finish.progress for finish in ends], None),
            now,
            unless([finish.how for finish in ends], None),
            self.holder,
            conn=conn,
        )

    async def _follow(self, finishes: Sequence[Finish], *, now: datetime | None) -> dict[JobId, State]:
        """Ends with the jobs that follow from them, in one transaction: all of it or nothing."""
        async with self._apart_if(any(job.dedupe for finish in finishes for job in finish.follow_ups)) as conn:
            rows = await self._follow_on(conn, finishes, now=now)
        return await self._closing(rows, now=now)

    async def _follow_on(self, conn: Connection, finishes: Sequence[Finish], *, now: datetime | None) -> list[Any]:
        """The same in the transaction of `conn`; what was written.

        A job that somebody asked to cancel before its end was written ends cancelled, and nothing follows from it.
        """
        held = {
            row["id"]: row["cancel_asked"]
            for row in await self._fetch(
                "hold.sql",
                [f.lease.job_id for f in finishes],
                [f.lease.epoch for f in finishes],
                self.holder,
                conn=conn,
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
        async with self._apart_if(True) as conn:
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
                rows = await self._fetch("finish_one.sql", *one_end(finish, holder=self.holder, now=now), conn=conn)
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

    async def unstart(self, leases: Iterable[Lease], *, per_s: float) -> list[JobId]:
        """Takes back that jobs of a kind with a rate per so many seconds started; for jobs that are given back unbegun.

        Returns: those whose start no longer counts; once each.
        """
        ordered = sorted(leases)
        rows = await self._fetch(
            "unstart.sql", [lease.job_id for lease in ordered], [lease.epoch for lease in ordered], per_s,
            self.holder,
        )  # fmt: skip
        return [JobId(row["id"]) for row in rows]

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
            unless([entry.counted for entry in batch], False),
            [entry.wait_s for entry in batch],
            [entry.reason for entry in batch],
            unless([entry.progress for entry in batch], None),
            unless([entry.afresh for entry in batch], False),
            now,
            unless([entry.how for entry in batch], None),
            TRIES_KEPT,
            self.holder,
            # Within a transaction there is no second try: the whole of it is tried again.
            alone=len(batch) == 1 and conn is None,
            apart=batch[0].keyed,
            conn=conn,
        )

    async def held_rows(self, ids: Sequence[JobId]) -> set[JobId]:
        """Which of these open jobs somebody's transaction holds, so that writing their ends would wait for it."""
        return {JobId(row["id"]) for row in await self._fetch("held_rows.sql", list(ids))}

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
        keyed = [row["id"] for row in rows if row["state"] == State.LEASED]
        in_vain = 0
        # They may have to wait for an uncommitted twin. Those that do in vain must not keep the next sweep from others.
        for job_id in sorted(keyed, key=lambda job_id: (job_id <= self._swept_to, job_id)):
            if in_vain >= SWEEP_WAITS_MAX:
                break
            self._swept_to = job_id
            try:
                over += await self._write("sweep.sql", 1, grace_s, job_id, now, alone=True, apart=True)
            except (DatabaseAway, asyncpg.UniqueViolationError):
                in_vain += 1
        else:
            self._swept_to = NONE_SWEPT
        await self._closing([(row["id"], row["state"], row["batch_id"]) for row in over], now=now)
        return [swept_of(row) for row in over]

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

    async def _write(
        self, name: str, *args: Any, alone: bool, apart: bool, conn: Connection | None = None
    ) -> list[Any]:
        """A statement that may meet a twin of a queued-scope key at the same moment; by the next try it is a fact.
        `apart`: it may also have to wait for a transaction with such a twin."""
        for _ in range(KEYED_TRIES if alone else 1):
            try:
                if not (alone and apart):
                    return await self._fetch(name, *args, conn=conn)
                async with self._apart_if(True) as own:
                    return await self._fetch(name, *args, conn=own)
            except asyncpg.UniqueViolationError as error:
                met = error
        raise met

    def _apart_if(self, apart: bool) -> AbstractAsyncContextManager[Connection]:
        """A transaction; one that may have to wait for somebody else's gives up soon."""
        return self.database.transaction(lock_timeout_ms=KEYED_WAIT_MS if apart else LOCK_TIMEOUT_MS)


def _returned(finish: Finish) -> Return:
    """The end of a try after which the job goes on."""
    again = finish.outcome is Outcome.AGAIN
    return Return(finish.lease, True, finish.wait_s, finish.error, finish.progress, finish.keyed, again, finish.how)


def _id_of(write: Finish | Release) -> JobId:
    return write.lease.job_id
