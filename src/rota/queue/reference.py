"""The queue in memory: what the statements under `io/sql/` do, over two dicts of rows.

It is the oracle for the SQL (one suite, `tests/conformance`, runs against both), the store of the simulation, and a
test double for users. It has the methods of `rota.queue.io.store.Store` without their `await`. Each call is atomic
and takes one caller at a time; of transactions that are still open it knows nothing, and it forgets all at its end.

Keeps I1 (a job leaves only by `prune`, after it ended), I3, I5 (one clock decides) and I6: `check_invariants` says so.
Rows are frozen and `_write` is the one place that replaces them, along the table NEXT_STATES.

Spec: job queue, "The table", "How a server takes a job", "Leases, heartbeats and the stall kill".
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from msgspec import structs

from rota.errors import BatchNotFound, EnqueueError, JobNotFound
from rota.ids import BatchId, Holder, JobId, uuid_v7s
from rota.lease import Lease, Renewal
from rota.queue.history import LOG_LINES_MAX, KeptLine, LogLine, Stopped, Try, TryEnd
from rota.queue.job import (
    ENDED,
    NEXT_STATES,
    Answer,
    Ask,
    BatchStatus,
    ClaimedJob,
    Dedupe,
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
    Twin,
)
from rota.queue.limits import Rate
from rota.queue.marks import MARGIN_S, Mark
from rota.queue.payload import encode
from rota.queue.reference_fleet import ReferenceFleet
from rota.queue.reference_history import History
from rota.queue.reference_limits import Starts, by_turns
from rota.queue.retention import Keep, Pruned, Rule
from rota.queue.standing import UNCLAIMED_MAX

CANCEL_GRACE_S: Final = 30.0
DELAY_S_MAX: Final = 3_155_760_000.0
"""A hundred years."""
LAST_TRY: Final = "The lease ran out on the last try"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Reference(ReferenceFleet):
    """The queue in memory.

    Args:
        clock: the database's clock, as times with a zone; every method also takes a `now` for one call.
        random: for the random half of ids.

    Attributes:
        notices: what a LISTEN would have brought, oldest first: a kind that somebody waits for, or `!` and a holder
            with a job to cancel. Whoever reads it clears it.
    """

    def __init__(self, *, clock: Callable[[], datetime], random: Random) -> None:
        super().__init__()
        self.notices: list[str] = []
        self._clock = clock
        self._random = random
        self._last_us = 0
        self._open: dict[JobId, JobRow] = {}
        self._ended: dict[JobId, JobRow] = {}
        self._forever: dict[str, JobId] = {}
        self._throttled: dict[str, tuple[JobId, datetime]] = {}
        self._batches: dict[BatchId, BatchStatus] = {}
        self._thens: dict[BatchId, NewJob | None] = {}
        self._runs_until: dict[JobId, datetime] = {}
        """Until when a cancelled job may still run, whose holder did not answer."""
        self._waiting: dict[Holder, tuple[frozenset[str], datetime]] = {}
        self._history = History()
        self._starts = Starts()
        self._turns: set[JobId] = set()
        """Jobs whose last claim counted leases."""

    # Adding

    def enqueue(self, job: NewJob, *, now: datetime | None = None) -> Enqueued:
        """Adds one job. Raises: EnqueueError for one that the database would refuse."""
        return self.enqueue_many([job], now=now)[0]

    def enqueue_many(self, jobs: Sequence[NewJob], *, now: datetime | None = None) -> list[Enqueued]:
        """Adds jobs, all or none; the answers come in the order of `jobs`."""
        at = self._at(now)
        for number, job in enumerate(jobs, 1):
            fault = _fault(job)
            if fault is not None:
                raise EnqueueError(f"rota: job {number} of this enqueue {fault}")
        ids = self._new_ids(len(jobs), at)
        added = {n: self._add(job, ids[n], at) for n, job in sorted(enumerate(jobs), key=_turn)}
        self._wake([job.kind for job in jobs if _due_at(job, at) <= at], at)
        return [added[n] for n in range(len(jobs))]

    def _add(self, job: NewJob, job_id: JobId, at: datetime) -> Enqueued:
        if job.dedupe is not None:
            holder = self._key_holder(job.dedupe, at)
            if holder is not None:
                if job.dedupe.twin is not Twin.KEEP:
                    self._change_twin(self._open[holder], job, job.dedupe, at)
                return Enqueued(holder, created=False)
            if job.dedupe.scope is Scope.FOREVER:
                self._forever[job.dedupe.key] = job_id
            elif job.dedupe.scope is Scope.THROTTLE:
                self._throttled[job.dedupe.key] = (job_id, _after(at, job.dedupe.window_s or 0.0))
        self._open[job_id] = JobRow(
            id=job_id,
            kind=job.kind,
            tenant=job.tenant,
            priority=job.priority or 0,
            state=State.QUEUED,
            place="worker",
            tries=0,
            max_tries=job.max_tries,
            run_after=_due_at(job, at),
            created_at=at,
            started_at=None,
            finished_at=None,
            heartbeat_at=None,
            lease_until=None,
            lease_epoch=0,
            leased_by=None,
            dedupe_key=None if job.dedupe is None else job.dedupe.key,
            dedupe_scope=None if job.dedupe is None else job.dedupe.scope,
            last_error=None,
            progress=None,
            cancel_asked_at=None,
            now=at,
            payload=job.payload,
            trace=job.trace,
            parent_id=job.parent_id,
            batch_id=job.batch_id,
        )
        return Enqueued(job_id, created=True)

    def _change_twin(self, twin: JobRow, job: NewJob, dedupe: Dedupe, at: datetime) -> None:
        """What a new job does to the queued one that holds its key."""
        due, payload = _due_at(job, at), job.payload
        if dedupe.twin is Twin.DEBOUNCE:
            run_after = due if dedupe.window_s is None else min(due, _after(twin.created_at, dedupe.window_s))
        else:
            run_after = min(twin.run_after, due)
        if dedupe.twin is Twin.MERGE:
            payload = _merged(twin.payload or "{}", payload)
        self._write(
            twin, payload=payload, run_after=run_after, priority=max(twin.priority, job.priority or 0), tries=0,
            last_error=None,
        )  # fmt: skip

    # Running

    def claim(
        self, asks: Sequence[Ask], *, holder: Holder, marks: Sequence[Mark] = (), now: datetime | None = None
    ) -> list[ClaimedJob]:
        """Takes due jobs of the kinds asked for (each kind once), in the queue's order; those behind the marks."""
        at = self._at(now)
        claimed = [
            self._lease(row, ask, holder, at)
            for ask in asks
            for row in [row for row in self._due(ask, at) if not _is_before(row, marks, at)][: ask.free]
        ]
        return sorted(claimed, key=lambda job: job.order)

    def claim_turns(self, asks: Sequence[Ask], *, holder: Holder, now: datetime | None = None) -> list[ClaimedJob]:
        """The same for kinds that have limits beyond one server."""
        at = self._at(now)
        claimed = []
        for ask in asks:
            limits, room = ask.limits, ask.free
            live = [row for row in self._counted() if row.kind == ask.kind and _lease_end(row) > at]
            if limits.fleet is not None:
                room = min(room, limits.fleet - len(live))
            if limits.rate is not None:
                room = min(room, self._starts.room(ask.kind, limits.rate, at))
            due, room = self._due(ask, at), max(room, 0)
            if limits.by_turns:
                tenants = Counter(row.tenant or "" for row in live)
                due = by_turns(due, room=room, after=ask.after, tenant_limit=limits.tenant, live=tenants)
            jobs = [self._lease(row, ask, holder, at) for row in due[:room]]
            self._turns.difference_update(job.id for job in jobs)
            if limits.ends_make_room:
                self._turns.update(job.id for job in jobs)
            if limits.rate is not None:
                self._starts.add(ask.kind, limits.rate, at, len(jobs))
            claimed += jobs
        return sorted(claimed, key=lambda job: job.order)

    def unstart(self, leases: Iterable[Lease], *, per_s: float) -> list[JobId]:
        """Takes back that jobs of a kind with a rate started; those whose start no longer counts, once each."""
        taken_back = []
        for lease in sorted(leases):
            row = self._held(lease)
            if row is not None and row.started_at is not None:
                self._starts.add(row.kind, Rate(1, per_s), row.started_at, -1)
                self._write(row, started_at=None)
                taken_back.append(row.id)
        return taken_back

    def _due(self, ask: Ask, at: datetime) -> list[JobRow]:
        lowest = float("-inf") if ask.lowest is None else ask.lowest
        paused = self._paused_tenants(at)
        due = [
            row
            for row in self._queued()
            if row.kind == ask.kind and row.run_after <= at and row.priority >= lowest and row.tenant not in paused
        ]
        return sorted(due, key=_place_in_line)

    def _lease(self, row: JobRow, ask: Ask, holder: Holder, at: datetime) -> ClaimedJob:
        leased = self._write(
            row,
            state=State.LEASED,
            leased_by=holder,
            lease_epoch=row.lease_epoch + 1,
            lease_until=_after(at, ask.lease_s),
            heartbeat_at=at,
            started_at=at,
            tries=row.tries + 1,
            max_tries=ask.max_tries if row.max_tries is None else row.max_tries,
        )
        return _claimed(leased)

    def _counted(self) -> list[JobRow]:
        rows = [self._open[job_id] for job_id in self._turns if job_id in self._open]
        return [row for row in rows if row.state is State.LEASED]

    def renew(self, renewals: Iterable[Renewal], *, now: datetime | None = None) -> dict[JobId, bool]:
        """Extends leases; the ids of those that hold, each with whether somebody asked to cancel the job."""
        at = self._at(now)
        kept = {}
        for renewal in renewals:
            row = self._held(renewal.lease)
            if row is not None and row.lease_until is not None and row.lease_until > at:
                progress = row.progress if renewal.progress is None else encode(renewal.progress)
                self._write(row, lease_until=_after(at, renewal.lease_s), heartbeat_at=at, progress=progress)
                kept[row.id] = row.cancel_asked_at is not None
        return kept

    def finish(self, finishes: Iterable[Finish], *, now: datetime | None = None) -> dict[JobId, State]:
        """Writes how tries ended; the ids that were written, with their state. One that is missing was refused."""
        at = self._at(now)
        written = {}
        for asked in sorted(finishes, key=lambda finish: finish.lease):
            row = self._held(asked.lease)
            if row is None:
                continue
            unwanted = bool(asked.follow_ups) and row.cancel_asked_at is not None
            finish = Finish(asked.lease, Outcome.CANCELLED, progress=asked.progress) if unwanted else asked
            goes_on = finish.outcome in (Outcome.RETRY, Outcome.AGAIN)
            again = finish.outcome is Outcome.AGAIN
            state = self._returned(row) if goes_on else State(finish.outcome)
            following = []
            if asked.follows is not None and not goes_on:
                following = self._next_runs(asked.follows, ends=row.id, at=at)
            error, progress = _or(finish.error, row.last_error), _or(finish.progress, row.progress)
            if not again and (row.lease_epoch > 1 or finish.outcome is not Outcome.DONE):
                how = finish.how or TryEnd(finish.outcome)
                self._history.tried(row, ended=how, error=finish.error, ended_at=at)
            if goes_on:
                self._history.forget_runs(row)
            if state is State.QUEUED:
                self._back(
                    row, run_after=_after(at, finish.wait_s), last_error=None if again else error, progress=progress,
                    tries=0 if again else row.tries,
                )  # fmt: skip
            else:
                result = None if goes_on else finish.result
                self._end(row, state, at, last_error=error, progress=progress, result=result)
            for put in following:
                self.put_pass(put, now=at)
            if finish.follow_ups and finish.outcome in (Outcome.DONE, Outcome.AGAIN):
                self.enqueue_many(finish.follow_ups, now=at)
            written[row.id] = state
        return written

    def finish_each(self, finishes: Sequence[Finish], *, now: datetime | None = None) -> dict[JobId, State]:
        """Writes ends, each by itself; answers like `finish`."""
        return self.finish(finishes, now=now)

    def release(self, releases: Iterable[Release], *, now: datetime | None = None) -> dict[JobId, State]:
        """Returns jobs to the queue without counting the try; answers like `finish`."""
        at = self._at(now)
        written = {}
        for release in sorted(releases, key=lambda release: release.lease):
            if release.unstart_s is not None:
                self.unstart([release.lease], per_s=release.unstart_s)
            row = self._held(release.lease)
            if row is None:
                continue
            state, tries, error = self._returned(row), max(row.tries - 1, 0), _or(release.reason, row.last_error)
            progress = _or(release.progress, row.progress)
            self._history.tried(row, ended=release.how or TryEnd.GIVEN_BACK, error=release.reason, ended_at=at)
            self._history.forget_runs(row)
            if state is State.QUEUED:
                run_after = row.run_after if release.wait_s is None else _after(at, release.wait_s)
                self._back(row, run_after=run_after, tries=tries, last_error=error, progress=progress)
            else:
                self._end(row, state, at, tries=tries, last_error=error, progress=progress)
            written[row.id] = state
        return written

    def clock(self) -> datetime:
        """The database's clock."""
        return self._clock()

    def disown(self, holder: Holder, *, known: Sequence[JobId], before: datetime, now: datetime | None = None) -> int:
        """Lets the leases run out, without a try, that this holder claimed until `before` and does not know. Returns:
        how many."""
        at = self._at(now)
        lost = [
            row
            for row in self._open.values()
            if row.leased_by == holder
            and row.lease_until is not None
            and row.lease_until > at
            and row.id not in known
            and row.started_at is not None
            and row.started_at <= before
        ]
        for row in lost:
            self._write(row, lease_until=at - timedelta(microseconds=1), tries=max(row.tries - 1, 0))
        return len(lost)

    def sweep(self, *, grace_s: float = CANCEL_GRACE_S, limit: int = 1000, now: datetime | None = None) -> list[Swept]:
        """Ends leases that ran out, at most `limit`; jobs with a queued-scope key behind the others."""
        at = self._at(now)
        leased = [row for row in self._open.values() if row.state is State.LEASED]
        ran_out = sorted((row for row in leased if row.lease_until and row.lease_until < at), key=_lease_end)[:limit]
        asked_before = _after(at, -grace_s)
        unanswered = [row for row in leased if row.cancel_asked_at and row.cancel_asked_at < asked_before][:limit]
        over = {row.id: row for row in (*ran_out, *unanswered)}
        return [
            self._end_lease(row, at)
            for row in sorted(over.values(), key=lambda row: (row.dedupe_scope is Scope.QUEUED, row.id))
        ]

    def _end_lease(self, row: JobRow, at: datetime) -> Swept:
        assert row.lease_until is not None and row.leased_by is not None, f"{row.id} is leased without a lease"
        state = self._returned(row)
        if state is State.CANCELLED:
            error = _or(row.last_error, "Cancelled")
        elif row.tries >= (row.max_tries or 1):
            state, error = State.FAILED, LAST_TRY
        else:
            error = (
                f"The lease ran out: {row.leased_by} wrote nothing until "
                f"{row.lease_until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
            )
        self._history.tried(row, ended=TryEnd.LOST, error=error, ended_at=min(row.lease_until, at))
        if state is State.QUEUED:
            self._back(row, last_error=error)
        else:
            runs_until = row.lease_until if state is State.CANCELLED and row.lease_until > at else None
            self._end(row, state, at, last_error=error)
            if runs_until is not None:
                self._runs_until[row.id] = runs_until
        return Swept(Lease(row.id, row.lease_epoch), row.kind, row.leased_by, state, row.tries)

    # Watching

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
                when = _after(at, delay_s) if delay_s is not None else row.run_after if run_after is None else run_after
                moved = self._write(row, run_after=when, priority=row.priority if priority is None else priority)
                due += [moved.kind] if moved.run_after <= at else []
        self._wake(due, at)
        return states

    # Batches

    def begin_batch(self, batch_id: BatchId, *, jobs: int, then: NewJob | None, now: datetime | None = None) -> None:
        """Begins a batch; its jobs name it."""
        self._batches[batch_id] = BatchStatus(
            batch_id, self._at(now), None, jobs, 0, 0, 0, 0, 0, None if then is None else then.kind, None
        )
        self._thens[batch_id] = then

    def close_batches(
        self, ids: Iterable[BatchId] | None = None, *, limit: int = 100, now: datetime | None = None
    ) -> dict[BatchId, JobId | None]:
        """Closes batches (None: any) without an open job, and adds their follow-ups."""
        at = self._at(now)
        closed: dict[BatchId, JobId | None] = {}
        for batch_id in sorted(self._batches if ids is None else ids):
            status = self._batches.get(batch_id)
            if status is None or status.ended_at is not None or len(closed) == limit or self.batch(batch_id).open:
                continue
            status = self.batch(batch_id)
            then, then_id = self._thens[batch_id], None
            if then is not None:
                payload = json.loads(then.payload)
                if isinstance(payload, dict):
                    payload["batch"] = {
                        "id": str(batch_id), "jobs": status.jobs, "done": status.done, "failed": status.failed,
                        "cancelled": status.cancelled, "expired": status.expired,
                    }  # fmt: skip
                then_id = self.enqueue(structs.replace(then, payload=json.dumps(payload)), now=at).id
            self._batches[batch_id] = structs.replace(status, ended_at=at, then_id=then_id)
            closed[batch_id] = then_id
        return closed

    def batch(self, batch_id: BatchId) -> BatchStatus:
        """How a batch stands. Raises: BatchNotFound."""
        status = self._batches.get(batch_id)
        if status is None:
            raise BatchNotFound(f"There is no batch {batch_id}. It may have ended longer ago than its retention.")
        still_open = sum(row.batch_id == batch_id for row in self._open.values())
        if status.ended_at is not None:
            return structs.replace(status, open=still_open)
        counts = Counter(row.state.value for row in self._ended.values() if row.batch_id == batch_id)
        return structs.replace(status, open=still_open, **{state.value: counts[state.value] for state in sorted(ENDED)})

    def prune_batches(self, *, keep_s: float, limit: int = 1000, now: datetime | None = None) -> int:
        """Removes at most `limit` ended batches, and as many windows of throttle keys, that are over."""
        at = self._at(now)
        ended_before = _after(at, -keep_s)
        old = [one.id for one in self._batches.values() if one.ended_at and one.ended_at < ended_before][:limit]
        over = [key for key, (_, until) in self._throttled.items() if until < at][:limit]
        for batch_id in old:
            del self._batches[batch_id], self._thens[batch_id]
        for key in over:
            del self._throttled[key]
        return len(old) + len(over)

    # Looking

    def poll(
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
        """What a server needs to know; writes nothing."""
        at = self._at(now)
        paused = self._paused_tenants(at)
        waiting = [row for row in self._queued() if row.tenant not in paused and not _is_before(row, marks, at)]
        urgent = {}
        for one in full:
            due = [row.priority for row in waiting if row.kind == one.kind and row.run_after <= at]
            above = sorted((priority for priority in due if priority > one.lowest), reverse=True)[: one.running]
            if above:
                urgent[one.kind] = above
        next_due = min((row.run_after for row in waiting if row.kind in kinds), default=None)
        asked_before = _after(at, -grace_s)
        expired_after = None if none_expired_s is None else _after(at, -none_expired_s - MARGIN_S)
        return Poll(
            next_due_s=None if next_due is None else (next_due - at).total_seconds(),
            expired=any(
                (
                    row.lease_until is not None
                    and row.lease_until < at
                    and (expired_after is None or row.lease_until > expired_after)
                )
                or (row.cancel_asked_at is not None and row.cancel_asked_at < asked_before)
                for row in self._open.values()
            ),
            cancels=tuple(
                sorted(
                    row.id for row in self._open.values() if row.cancel_asked_at is not None and row.leased_by == holder
                )
            ),
            urgent=urgent,
            paused=tuple(f"{pause.scope}:{pause.name}" for pause in self.pauses(now=at)),
        )

    def wait(self, holder: Holder, *, kinds: Sequence[str], seconds: float) -> None:
        """Says that this holder sleeps, so that enqueueing leaves a notice."""
        self._waiting[holder] = (frozenset(kinds), _after(self._clock(), seconds))

    def awake(self, holder: Holder) -> None:
        """Takes back what `wait` said, and what dead holders said."""
        left_before = _after(self._clock(), -60)
        self._waiting = {
            other: (kinds, until)
            for other, (kinds, until) in self._waiting.items()
            if other != holder and until >= left_before
        }

    # History

    def keep(self, rules: Sequence[Keep]) -> list[Keep]:
        """Says how long the ended jobs of these kinds stay. Returns: what all programs have said."""
        return self._history.keep(rules)

    def prune(
        self, rule: Rule, *, since: datetime | None = None, limit: int = 1000, now: datetime | None = None
    ) -> Pruned:
        """Removes at most `limit` ended jobs that have stayed as long as this rule says."""
        before = _after(self._at(now), -rule.keep_s)
        old = [
            row
            for row in self._ended.values()
            if row.finished_at is not None and (since or _EPOCH) <= row.finished_at < before
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
        ended_since = _EPOCH if since_s is None else _after(at, -since_s)
        return sorted(
            (
                row
                for row in self._ended.values()
                if row.state is State.FAILED and row.finished_at is not None and row.finished_at >= ended_since
                if kinds is None or row.kind in kinds
            ),
            key=lambda row: row.id,
        )

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

    def unclaimed(self, job_id: JobId, *, kinds: Sequence[str], now: datetime | None = None) -> int:
        """How many due jobs of these kinds that no worker has claimed go before this one."""
        at, job = self._at(now), self._open.get(job_id)
        if job is None:
            return 0
        due = [row for row in self._queued() if row.place == "worker" and row.kind in kinds and row.run_after <= at]
        before = [
            row
            for row in due
            if row.priority > job.priority
            or (job.state is State.QUEUED and row.priority == job.priority
                and (row.run_after, row.id) < (job.run_after, job.id))
        ]  # fmt: skip
        return min(len(before), UNCLAIMED_MAX)

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

    # What holds at all times

    def check_invariants(self) -> None:
        """Asserts what must hold between any two calls. How one row may follow another, `_write` has checked."""
        assert not self._open.keys() & self._ended.keys(), "a job is open and ended"
        keys = [
            (row.dedupe_scope, row.dedupe_key)
            for row in self._open.values()
            if row.dedupe_scope is Scope.OPEN or (row.dedupe_scope is Scope.QUEUED and row.state is State.QUEUED)
        ]
        assert len(keys) == len(set(keys)), f"I6: a key is held twice: {keys}"
        for row in (*self._open.values(), *self._ended.values()):
            leased = row.state is State.LEASED
            assert (row.state in ENDED) == (row.id in self._ended), f"{row.id} is {row.state} in the wrong table"
            assert (row.finished_at is not None) == (row.state in ENDED), f"{row.id}: finished_at and {row.state}"
            assert (row.lease_until is not None) == leased, f"{row.id}: lease_until and {row.state}"
            assert leased or row.cancel_asked_at is None, f"{row.id} is {row.state} and asked to stop"
            assert row.state is State.DONE or row.result is None, f"{row.id} is {row.state} with a result"
            assert 0 <= row.tries <= row.lease_epoch, f"{row.id}: {row.tries} tries, epoch {row.lease_epoch}"
            assert not leased or row.leased_by, f"{row.id} is leased to nobody"
            if row.dedupe_scope is Scope.FOREVER:
                assert self._forever.get(row.dedupe_key or "") == row.id, f"I6: {row.id} has another job's forever key"

    # Parts

    def _write(self, row: JobRow, **changes: Any) -> JobRow:
        after = replace(row, **changes)
        assert after.state is row.state or after.state in NEXT_STATES[row.state], (
            f"{row.id} goes from {row.state} to {after.state}"
        )
        assert after.state is not row.state or row.state not in ENDED, f"{row.id} has ended and is changed"
        claimed = row.state is State.QUEUED and after.state is State.LEASED
        assert after.lease_epoch == row.lease_epoch + int(claimed), (
            f"I3: the epoch of {row.id} goes from {row.lease_epoch} to {after.lease_epoch}"
        )
        self._open.pop(row.id, None)
        self._ended.pop(row.id, None)
        (self._ended if after.state in ENDED else self._open)[row.id] = after
        return after

    def _back(self, row: JobRow, **changes: Any) -> None:
        self._write(row, state=State.QUEUED, lease_until=None, **changes)

    def _end(self, row: JobRow, state: State, at: datetime, **changes: Any) -> None:
        self._write(row, state=state, finished_at=at, lease_until=None, cancel_asked_at=None, **changes)
        if row.batch_id is not None:
            self.close_batches([row.batch_id], now=at)

    def _held(self, lease: Lease) -> JobRow | None:
        """The row, if this lease is still its lease (I3)."""
        row = self._open.get(lease.job_id)
        return row if row is not None and row.state is State.LEASED and row.lease_epoch == lease.epoch else None

    def _returned(self, row: JobRow) -> State:
        """What becomes of a leased job that goes back: a queued twin does the work of a queued-scope key."""
        if row.cancel_asked_at is not None:
            return State.CANCELLED
        if row.dedupe_scope is Scope.QUEUED and self._key_holder(
            Dedupe(row.dedupe_key or "", Scope.QUEUED), row.created_at
        ):
            return State.DONE
        return State.QUEUED

    def _key_holder(self, dedupe: Dedupe, at: datetime) -> JobId | None:
        """The job whose key keeps others with this key out (I6)."""
        if dedupe.scope is Scope.FOREVER:
            return self._forever.get(dedupe.key)
        if dedupe.scope is Scope.THROTTLE:
            job_id, until = self._throttled.get(dedupe.key, (None, at))
            return job_id if until > at else None
        rows = self._open.values() if dedupe.scope is Scope.OPEN else self._queued()
        return next((row.id for row in rows if (row.dedupe_key, row.dedupe_scope) == (dedupe.key, dedupe.scope)), None)

    def _wake(self, kinds: Sequence[str], at: datetime) -> None:
        if any(until > at and not waited.isdisjoint(kinds) for waited, until in self._waiting.values()):
            self.notices += sorted(set(kinds))

    def _new_ids(self, count: int, at: datetime) -> list[JobId]:
        # Every id is above the ones before, so that "oldest" is what it says even where the clock stands still.
        first_us = max((at - _EPOCH) // timedelta(microseconds=1), self._last_us + 1)
        self._last_us = first_us + count - 1
        return [JobId(new) for new in uuid_v7s(count, unix_us=first_us, random_bits=self._random.getrandbits(62))]


def _fault(job: NewJob) -> str | None:
    """What the database would say about a job that it refuses."""
    if not 1 <= len(job.kind) <= 200:
        return "has no usable kind: give a name of 1 to 200 characters"
    if job.max_tries is not None and not 1 <= job.max_tries <= 1000:
        return "has a max_tries outside 1 to 1000"
    if job.delay_s is not None and not 0 <= job.delay_s <= DELAY_S_MAX:
        return "has a delay_s outside 0 to 3155760000 (a hundred years)"
    return None if job.dedupe is None else _key_fault(job.dedupe)


def _key_fault(dedupe: Dedupe) -> str | None:
    if not 1 <= len(dedupe.key) <= 500:
        return "needs a dedupe_key of 1 to 500 characters together with a dedupe_scope"
    if dedupe.window_s is None and dedupe.scope is Scope.THROTTLE:
        return "needs a dedupe_window_s: throttle adds at most one job in so many seconds"
    if dedupe.window_s is not None and dedupe.word not in (Scope.THROTTLE, Twin.DEBOUNCE):
        return "has a dedupe_window_s, which only throttle and debounce know"
    if dedupe.window_s is not None and not 0 < dedupe.window_s <= DELAY_S_MAX:
        return "has a dedupe_window_s outside 0 to 3155760000 (a hundred years)"
    return None


def _turn(numbered: tuple[int, NewJob]) -> tuple[bool, str, int]:
    """Jobs that may change others are added behind the rest, in the order of their keys."""
    n, job = numbered
    changes = job.dedupe is not None and job.dedupe.twin is not Twin.KEEP
    return (changes, job.dedupe.key if changes and job.dedupe is not None else "", n)


def _merged(old: str, new: str) -> str:
    """What the SQL function of this name does."""
    sooner, later = json.loads(old), json.loads(new)
    if isinstance(sooner, list) and isinstance(later, list):
        return json.dumps(sooner + later)
    if isinstance(sooner, dict) and isinstance(later, dict):
        joined = {
            key: sooner[key] + value
            for key, value in later.items()
            if isinstance(value, list) and isinstance(sooner.get(key), list)
        }
        return json.dumps(sooner | later | joined)
    return new


def _due_at(job: NewJob, at: datetime) -> datetime:
    return _after(at, job.delay_s or 0.0) if job.run_after is None else job.run_after


def _is_wanted(row: JobRow, wanted: JobFilter, at: datetime) -> bool:
    return (
        (wanted.kinds is None or row.kind in wanted.kinds)
        and (wanted.states is None or row.state in wanted.states)
        and (wanted.tenant is None or row.tenant == wanted.tenant)
        and (wanted.older_s is None or row.created_at <= _after(at, -wanted.older_s))
        and (wanted.newer_s is None or row.created_at >= _after(at, -wanted.newer_s))
    )


def _claimed(row: JobRow) -> ClaimedJob:
    assert row.payload is not None and row.max_tries is not None, f"{row.id} is claimed incomplete"
    return ClaimedJob(
        lease=Lease(row.id, row.lease_epoch),
        kind=row.kind,
        tenant=row.tenant,
        payload=row.payload,
        priority=row.priority,
        tries=row.tries,
        max_tries=row.max_tries,
        run_after=row.run_after,
        created_at=row.created_at,
        dedupe_scope=row.dedupe_scope,
        progress=row.progress,
        trace=row.trace,
    )


def _is_before(row: JobRow, marks: Sequence[Mark], at: datetime) -> bool:
    """Whether a mark of its level is behind this job, so that a claim from there does not see it."""
    for mark in marks:
        if (mark.kind, mark.priority) == (row.kind, row.priority):
            begin = _after(at, -MARGIN_S - (mark.age_s or 0.0))
            begin = begin if mark.run_after is None else min(begin, mark.run_after)
            return (row.run_after, row.id.int) <= (begin, mark.job_id.int if mark.job_id else 0)
    return False


def _place_in_line(row: JobRow) -> tuple[int, datetime, JobId]:
    return (-row.priority, row.run_after, row.id)


def _lease_end(row: JobRow) -> datetime:
    assert row.lease_until is not None, f"{row.id} has no lease"
    return row.lease_until


def _after(at: datetime, seconds: float) -> datetime:
    return at + timedelta(seconds=seconds)


def _or(text: str | None, other: str | None) -> str | None:
    return other if text is None else text
