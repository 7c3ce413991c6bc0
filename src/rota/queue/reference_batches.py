"""Batches in memory: the table `batches` and its statements.

A batch is closed when none of its jobs is open, with its follow-up in the same step.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from random import Random
from typing import Any

from msgspec import structs

from rota.errors import BatchNotFound
from rota.ids import BatchId, JobId
from rota.queue.job import ENDED, BatchStatus, JobRow, NewJob, State
from rota.queue.reference_adding import ReferenceAdding
from rota.queue.reference_rows import after


class ReferenceBatches(ReferenceAdding):
    """Jobs in memory, and the batches that they are of."""

    def __init__(self, *, clock: Callable[[], datetime], random: Random) -> None:
        super().__init__(clock=clock, random=random)
        self._batches: dict[BatchId, BatchStatus] = {}
        self._thens: dict[BatchId, NewJob | None] = {}

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
        ended_before = after(at, -keep_s)
        old = [one.id for one in self._batches.values() if one.ended_at and one.ended_at < ended_before][:limit]
        over = [key for key, (_, until) in self._throttled.items() if until < at][:limit]
        for batch_id in old:
            del self._batches[batch_id], self._thens[batch_id]
        for key in over:
            del self._throttled[key]
        return len(old) + len(over)

    # For the classes over this one

    def _end(self, row: JobRow, state: State, at: datetime, **changes: Any) -> None:
        self._write(row, state=state, finished_at=at, lease_until=None, cancel_asked_at=None, **changes)
        if row.batch_id is not None:
            self.close_batches([row.batch_id], now=at)
