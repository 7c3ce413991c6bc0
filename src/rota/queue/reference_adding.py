"""How jobs come into the queue in memory: what `rota.enqueue_many` does, with its refusals, keys and twins.

A key keeps others out for as long as its scope says (I6); a twin that waits may take over what a new job brings.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from random import Random
from typing import Final

from rota.errors import EnqueueError
from rota.ids import JobId
from rota.queue.job import Dedupe, Enqueued, JobRow, NewJob, Scope, State, Twin
from rota.queue.reference_rows import ReferenceRows, after

DELAY_S_MAX: Final = 3_155_760_000.0
"""A hundred years."""


class ReferenceAdding(ReferenceRows):
    """Jobs in memory, and how they are added."""

    def __init__(self, *, clock: Callable[[], datetime], random: Random) -> None:
        super().__init__(clock=clock, random=random)
        self._throttled: dict[str, tuple[JobId, datetime]] = {}

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
                self._throttled[job.dedupe.key] = (job_id, after(at, job.dedupe.window_s or 0.0))
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
            run_after = due if dedupe.window_s is None else min(due, after(twin.created_at, dedupe.window_s))
        else:
            run_after = min(twin.run_after, due)
        if dedupe.twin is Twin.MERGE:
            payload = _merged(twin.payload or "{}", payload)
        self._write(
            twin, payload=payload, run_after=run_after, priority=max(twin.priority, job.priority or 0), tries=0,
            last_error=None,
        )  # fmt: skip

    def _key_holder(self, dedupe: Dedupe, at: datetime) -> JobId | None:
        """The job whose key keeps others with this key out (I6)."""
        if dedupe.scope is Scope.FOREVER:
            return self._forever.get(dedupe.key)
        if dedupe.scope is Scope.THROTTLE:
            job_id, until = self._throttled.get(dedupe.key, (None, at))
            return job_id if until > at else None
        rows = self._open.values() if dedupe.scope is Scope.OPEN else self._queued()
        return next((row.id for row in rows if (row.dedupe_key, row.dedupe_scope) == (dedupe.key, dedupe.scope)), None)


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
    return after(at, job.delay_s or 0.0) if job.run_after is None else job.run_after
