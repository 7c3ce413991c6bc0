"""The queue in memory: what the statements under `io/sql/` do, over two dicts of rows.

It is the oracle for the SQL (one suite, `tests/conformance`, runs against both), the store of the simulation, and a
test double for users. It has the methods of `rota.queue.io.store.Store` without their `await`. Each call is atomic
and takes one caller at a time; of transactions that are still open it knows nothing, and it forgets all at its end.
Each of its layers knows those below it: `reference_rows`, `_adding`, `_batches`, `_fleet`, `_leases`, and here what
people and programs ask of jobs, and their history.

Keeps I1 (a job leaves only by `prune`, after it ended), I3, I5 (one clock decides) and I6: `check_invariants` says so.

Spec: job queue, "The table".
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from rota.errors import JobNotFound
from rota.ids import Holder, JobId
from rota.lease import Lease
from rota.queue.history import LOG_LINES_MAX, KeptLine, LogLine, Stopped, Try
from rota.queue.job import ENDED, Answer, Dedupe, FailedJob, JobFilter, JobRow, Retried, Scope, State
from rota.queue.reference_leases import ReferenceLeases
from rota.queue.reference_rows import EPOCH, after
from rota.queue.retention import Keep, Pruned, Rule
from rota.queue.standing import UNCLAIMED_MAX


class Reference(ReferenceLeases):
    """The queue in memory.

    Args:
        clock: the database's clock, as times with a zone; every method also takes a `now` for one call.
        random: for the random half of ids.
    """

    # What is asked of open jobs

    def cancel(
        self, ids: Iterable[JobId], *, children: bool = False, reason: str = "Cancelled", now: datetime | None = None
    ) -> dict[JobId, State]:
        """Cancels open jobs, and with `children` what they added: CANCELLED at once, or LEASED where the holder was
        asked to stop."""
        at = self._at(now)
        states = {}
        told = set()
        wanted = set(ids)
        while children:
            rows = (*self._open.values(), *self._ended.values())
            found = {row.id for row in rows if row.parent_id in wanted} - wanted
            if not found:
                break
            wanted |= found
        for job_id in sorted(wanted):
            row = self._open.get(job_id)
            if row is None:
                continue
            if row.state is State.QUEUED:
                self._end(row, State.CANCELLED, at, last_error=reason)
                states[job_id] = State.CANCELLED
            else:
                if row.cancel_asked_at is None:
                    self._write(row, cancel_asked_at=at, last_error=reason)
                told.add(f"!{row.leased_by}")
                states[job_id] = State.LEASED
        self.notices += sorted(told)
        return states

    def move(
        self,
        ids: Iterable[JobId],
        *,
        priority: int | None = None,
        run_after: datetime | None = None,
        delay_s: float | None = None,
        now: datetime | None = None,
    ) -> dict[JobId, State]:
        """Gives queued jobs another priority or time; the open ones, LEASED where one runs and was left as it is."""
        at = self._at(now)
        states, due = {}, []
        for job_id in sorted(ids):
            row = self._open.get(job_id)
            if row is None:
                continue
            states[job_id] = row.state
            if row.state is State.QUEUED:
                when = after(at, delay_s) if delay_s is not None else row.run_after if run_after is None else run_after
                moved = self._write(row, run_after=when, priority=row.priority if priority is None else priority)
                due += [moved.kind] if moved.run_after <= at else []
        self._wake(due, at)
        return states

    # History

    def keep(self, rules: Sequence[Keep]) -> list[Keep]:
        """Says how long the ended jobs of these kinds stay. Returns: what all programs have said."""
        return self._history.keep(rules)

    def prune(
        self, rule: Rule, *, since: datetime | None = None, limit: int = 1000, now: datetime | None = None
    ) -> Pruned:
        """Removes at most `limit` ended jobs that have stayed as long as this rule says."""
        before = after(self._at(now), -rule.keep_s)
        old = [
            row
            for row in self._ended.values()
            if row.finished_at is not None and (since or EPOCH) <= row.finished_at < before
            if (row.state is State.FAILED) == rule.failed
            and (row.kind not in rule.others if rule.kind is None else row.kind == rule.kind)
            and (row.batch_id not in self._batches or self._batches[row.batch_id].ended_at)
        ][:limit]
        for row in old:
            del self._ended[row.id]
            self._history.removed(row.id)
        return Pruned(len(old), before)

    def tries(self, ids: Iterable[JobId], *, now: datetime | None = None) -> list[Try]:
        """The tries that are kept of these jobs, by job and epoch."""
        return self._history.of(set(ids), at=self._at(now), running=list(self._open.values()))

    def stopped(self, stops: Iterable[Stopped], *, holder: Holder, now: datetime | None = None) -> dict[Lease, float]:
        """Notes when this holder really stopped runs whose leases it had lost; how long each ran beside others."""
        return self._history.stopped(stops, holder=holder, at=self._at(now), running=self._open.values())

    def overlap_s(self, *, now: datetime | None = None) -> float:
        """How long runs of one job by different holders have overlapped, in all that is kept."""
        rows, at = list(self._open.values()), self._at(now)
        return sum(self._history.overlap_s(lease, at=at, running=rows) for lease in self._history.tries)

    def log(self, lines: Sequence[LogLine], *, clock: float, now: datetime | None = None) -> None:
        """Keeps lines that handlers logged, of jobs that exist."""
        known = [line for line in lines if line.lease.job_id in self._open or line.lease.job_id in self._ended]
        self._history.log(known, clock=clock, at=self._at(now))

    def logs(self, ids: Iterable[JobId], *, limit: int = LOG_LINES_MAX) -> list[KeptLine]:
        """The lines that are kept of these jobs, of each the last `limit`."""
        wanted = sorted(set(ids))
        lines = [line for _, line in sorted(self._history.lines.items())]
        return [line for job_id in wanted for line in [line for line in lines if line.job_id == job_id][-limit:]]

    # Results, and what failed

    def results(self, ids: Iterable[JobId]) -> dict[JobId, Answer]:
        """How these jobs stand; one that does not exist is missing."""
        found = {job_id: self._open.get(job_id) or self._ended.get(job_id) for job_id in ids}
        return {
            job_id: Answer(row.state, row.result, row.last_error if row.state in ENDED else None)
            for job_id, row in found.items()
            if row is not None
        }

    def failed_count(
        self, *, kinds: Sequence[str] | None = None, since_s: float | None = None, now: datetime | None = None
    ) -> dict[str, int]:
        """How many failed jobs there are of each kind."""
        found = [row.kind for row in self._failed(kinds, since_s, self._at(now))]
        return {kind: found.count(kind) for kind in sorted(set(found))}

    def failed(
        self,
        *,
        kinds: Sequence[str] | None = None,
        since_s: float | None = None,
        above: JobId | None = None,
        limit: int = 1000,
        now: datetime | None = None,
    ) -> list[FailedJob]:
        """One page of failed jobs, by id."""
        rows = self._failed(kinds, since_s, self._at(now))
        return [
            FailedJob(row.id, row.dedupe_scope in (Scope.OPEN, Scope.QUEUED))
            for row in rows
            if above is None or row.id > above
        ][:limit]

    def retry(self, job_id: JobId, *, now: datetime | None = None) -> Retried:
        """Puts an ended job back into the queue, or makes a queued one due now. Raises: JobNotFound."""
        at = self._at(now)
        row = self._open.get(job_id) or self._ended.get(job_id)
        if row is None:
            raise JobNotFound(f"There is no job {job_id}. It may have ended longer ago than its retention.")
        if row.state in (State.LEASED, State.DONE):
            return Retried(job_id, row.state.value)
        if row.state is State.QUEUED:
            self._write(row, run_after=min(row.run_after, at))
        else:
            holder = None
            if row.dedupe_key is not None and row.dedupe_scope in (Scope.OPEN, Scope.QUEUED):
                holder = self._key_holder(Dedupe(row.dedupe_key, row.dedupe_scope), at)
            if holder is not None:
                return Retried(job_id, "held", holder)
            run_after = max(at, self._runs_until.pop(job_id, at))
            self._write(row, state=State.QUEUED, run_after=run_after, tries=0, finished_at=None, result=None)
        self._wake([row.kind], at)
        return Retried(job_id, State.QUEUED.value)

    def retry_many(self, ids: Iterable[JobId], *, now: datetime | None = None) -> list[JobId]:
        """Puts failed jobs without a key back into the queue; the ids of those that are queued now."""
        at, queued = self._at(now), []
        for job_id in sorted(ids):
            row = self._ended.get(job_id)
            if row is None or row.state is not State.FAILED or row.dedupe_scope in (Scope.OPEN, Scope.QUEUED):
                continue
            self._write(row, state=State.QUEUED, run_after=at, tries=0, finished_at=None, result=None)
            self._wake([row.kind], at)
            queued.append(job_id)
        return queued

    def _failed(self, kinds: Sequence[str] | None, since_s: float | None, at: datetime) -> list[JobRow]:
        ended_since = EPOCH if since_s is None else after(at, -since_s)
        return sorted(
            (
                row
                for row in self._ended.values()
                if row.state is State.FAILED and row.finished_at is not None and row.finished_at >= ended_since
                if kinds is None or row.kind in kinds
            ),
            key=lambda row: row.id,
        )

    # Looking

    def page(
        self, wanted: JobFilter, *, limit: int, below: JobId | None = None, now: datetime | None = None
    ) -> list[JobRow]:
        """One page of jobs, newest first; the next page is `below` the last id of this one."""
        at = self._at(now)
        found = [
            replace(row, now=at, payload=None, result=None, trace=None, execution_id=None)
            for row in (*self._open.values(), *self._ended.values())
            if (below is None or row.id < below) and _is_wanted(row, wanted, at)
        ]
        return sorted(found, key=lambda row: row.id, reverse=True)[:limit]

    def forever_holder(self, key: str) -> JobId | None:
        """The job that was added under a forever-scope key, which may be gone."""
        return self._forever.get(key)

    def show(self, lowest: JobId, highest: JobId | None = None, *, limit: int = 10) -> list[JobRow]:
        """Jobs whole, by id, or all whose ids lie from `lowest` to `highest`; newest first."""
        at = self._clock()
        found = [
            replace(row, now=at)
            for row in (*self._open.values(), *self._ended.values())
            if lowest <= row.id <= (highest or lowest)
        ]
        return sorted(found, key=lambda row: row.id, reverse=True)[:limit]

    def unclaimed(self, job_id: JobId, *, kinds: Sequence[str], now: datetime | None = None) -> dict[str, int]:
        """How many due jobs of each of these kinds that no worker has claimed go before this one."""
        at, job = self._at(now), self._open.get(job_id)
        if job is None:
            return {}
        due = [row for row in self._queued() if row.place == "worker" and row.kind in kinds and row.run_after <= at]
        before = [
            row.kind
            for row in due
            if row.priority > job.priority
            or (job.state is State.QUEUED and row.priority == job.priority
                and (row.run_after, row.id) < (job.run_after, job.id))
        ]  # fmt: skip
        return dict(Counter(before[:UNCLAIMED_MAX]))

    def unclaimed_above(self, priority: int, *, kinds: Sequence[str], now: datetime | None = None) -> int:
        """How many due jobs of these kinds that no worker has claimed are more urgent."""
        at = self._at(now)
        due = [row for row in self._queued() if row.place == "worker" and row.kind in kinds and row.run_after <= at]
        return min(UNCLAIMED_MAX, sum(row.priority > priority for row in due))


def _is_wanted(row: JobRow, wanted: JobFilter, at: datetime) -> bool:
    return (
        (wanted.kinds is None or row.kind in wanted.kinds)
        and (wanted.states is None or row.state in wanted.states)
        and (wanted.tenant is None or row.tenant == wanted.tenant)
        and (wanted.older_s is None or row.created_at <= after(at, -wanted.older_s))
        and (wanted.newer_s is None or row.created_at >= after(at, -wanted.newer_s))
    )
