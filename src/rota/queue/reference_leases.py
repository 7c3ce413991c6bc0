"""How jobs of the queue in memory are leased, renewed, ended and given back, and what ends leases that ran out.

A claim alone raises the epoch, and whatever is said under another one changes nothing (I3).

Spec: job queue, "How a server takes a job", "Leases, heartbeats and the stall kill".
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from rota.ids import Holder, JobId
from rota.lease import Lease, Renewal
from rota.queue.history import TryEnd
from rota.queue.job import (
    CANCEL_GRACE_S,
    ENDED,
    Ask,
    ClaimedJob,
    Dedupe,
    Finish,
    Full,
    JobRow,
    Outcome,
    Poll,
    Release,
    Scope,
    State,
    Swept,
)
from rota.queue.limits import Rate
from rota.queue.marks import MARGIN_S, Mark
from rota.queue.payload import encode
from rota.queue.reference_fleet import ReferenceFleet
from rota.queue.reference_history import History
from rota.queue.reference_limits import Starts, by_turns
from rota.queue.reference_rows import after
from rota.queue.server import CLOCK_AHEAD_S

LAST_TRY: Final = "The lease ran out on the last try"


class ReferenceLeases(ReferenceFleet):
    """Jobs in memory, and their leases."""

    def __init__(self, *, clock: Callable[[], datetime], random: Random) -> None:
        super().__init__(clock=clock, random=random)
        self._history = History()
        self._runs_until: dict[JobId, datetime] = {}
        """Until when a cancelled job may still run, whose holder did not answer."""
        self._starts = Starts()
        self._turns: set[JobId] = set()
        """Jobs whose last claim counted leases."""

    def claim(
        self, asks: Sequence[Ask], *, holder: Holder, marks: Sequence[Mark] = (), now: datetime | None = None
    ) -> list[ClaimedJob]:
        """Takes due jobs of the kinds asked for (each kind once), in the queue's order; those behind the marks."""
        at = self._at(now)
        claimed = [
            self._lease(row, ask, holder, at)
            for ask in asks
            for row in [row for row in self._due(ask, at) if not is_before(row, marks, at)][: ask.free]
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
                self._starts.take_back(row.kind, Rate(1, per_s), row.started_at)
                self._write(row, started_at=None)
                taken_back.append(row.id)
        return taken_back

    def renew(self, renewals: Iterable[Renewal], *, now: datetime | None = None) -> dict[JobId, bool]:
        """Extends leases; the ids of those that hold, each with whether somebody asked to cancel the job."""
        at = self._at(now)
        kept = {}
        for renewal in renewals:
            row = self._held(renewal.lease)
            if row is not None and row.lease_until is not None and row.lease_until > at:
                progress = row.progress if renewal.progress is None else encode(renewal.progress)
                self._write(row, lease_until=after(at, renewal.lease_s), heartbeat_at=at, progress=progress)
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
                    row, run_after=after(at, finish.wait_s), last_error=None if again else error, progress=progress,
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
                run_after = row.run_after if release.wait_s is None else after(at, release.wait_s)
                self._back(row, run_after=run_after, tries=tries, last_error=error, progress=progress)
            else:
                self._end(row, state, at, tries=tries, last_error=error, progress=progress)
            written[row.id] = state
        return written

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
        asked_before = after(at, -grace_s)
        unanswered = [row for row in leased if row.cancel_asked_at and row.cancel_asked_at < asked_before][:limit]
        over = {row.id: row for row in (*ran_out, *unanswered)}
        return [
            self._end_lease(row, at)
            for row in sorted(over.values(), key=lambda row: (row.dedupe_scope is Scope.QUEUED, row.id))
        ]

    def set_back(self, *, ahead_s: float = CLOCK_AHEAD_S, now: datetime | None = None) -> tuple[int, int]:
        """Brings back to now what was written more than `ahead_s` seconds later than now: the clock has been set back.
        Returns: how many leases, and how many jobs that are due."""
        at = self._at(now)
        ahead = after(at, ahead_s)
        leased = [
            (row, row.lease_until - row.heartbeat_at)
            for row in self._open.values()
            if row.lease_until is not None and row.heartbeat_at is not None and row.heartbeat_at > ahead
        ]
        due = [
            row
            for row in self._open.values()
            if row.state is State.QUEUED and row.created_at > ahead and row.run_after == row.created_at
        ]
        for row, lease in leased:
            self._write(row, lease_until=at + lease, heartbeat_at=at)
        for row in due:
            self._write(row, run_after=at)
        self._starts.forget(ahead)
        self._see_again(at, ahead)
        return len(leased), len(due)

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
        waiting = [row for row in self._queued() if row.tenant not in paused and not is_before(row, marks, at)]
        urgent = {}
        for one in full:
            due = [row.priority for row in waiting if row.kind == one.kind and row.run_after <= at]
            above = sorted((priority for priority in due if priority > one.lowest), reverse=True)[: one.running]
            if above:
                urgent[one.kind] = above
        next_due = min((row.run_after for row in waiting if row.kind in kinds), default=None)
        asked_before = after(at, -grace_s)
        expired_after = None if none_expired_s is None else after(at, -none_expired_s - MARGIN_S)
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
            lease_until=after(at, ask.lease_s),
            heartbeat_at=at,
            started_at=at,
            tries=row.tries + 1,
            max_tries=ask.max_tries if row.max_tries is None else row.max_tries,
        )
        return _claimed(leased)

    def _write(self, row: JobRow, **changes: Any) -> JobRow:
        written = super()._write(row, **changes)
        if written.state in ENDED:
            self._turns.discard(written.id)  # who puts it back into the queue has a job that nothing has counted yet
        return written

    def _counted(self) -> list[JobRow]:
        rows = [self._open[job_id] for job_id in self._turns if job_id in self._open]
        return [row for row in rows if row.state is State.LEASED]

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

    def _returned(self, row: JobRow) -> State:
        """What becomes of a leased job that goes back: a queued twin does the work of a queued-scope key."""
        if row.cancel_asked_at is not None:
            return State.CANCELLED
        if row.dedupe_scope is Scope.QUEUED and self._key_holder(
            Dedupe(row.dedupe_key or "", Scope.QUEUED), row.created_at
        ):
            return State.DONE
        return State.QUEUED


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


def is_before(row: JobRow, marks: Sequence[Mark], at: datetime) -> bool:
    """Whether a mark of its level is behind this job, so that a claim from there does not see it."""
    for mark in marks:
        if (mark.kind, mark.priority) == (row.kind, row.priority):
            begin = after(at, -MARGIN_S - (mark.age_s or 0.0))
            begin = begin if mark.run_after is None else min(begin, mark.run_after)
            return (row.run_after, row.id.int) <= (begin, mark.job_id.int if mark.job_id else 0)
    return False


def _place_in_line(row: JobRow) -> tuple[int, datetime, JobId]:
    return (-row.priority, row.run_after, row.id)


def _lease_end(row: JobRow) -> datetime:
    assert row.lease_until is not None, f"{row.id} has no lease"
    return row.lease_until


def _or(text: str | None, other: str | None) -> str | None:
    return other if text is None else text
