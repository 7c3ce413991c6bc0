"""Which job of a queue in memory runs next, and when the next one is due.

One job at a time, in the queue's order over all kinds: priority, time, id. Pauses, limits and turns of tenants hold as
on a worker: the claims are those of `rota.queue.reference`, and what may be asked for is said by `Slots`.
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from msgspec import structs

from rota.ids import Holder, JobId
from rota.queue.dispatcher import Slots
from rota.queue.handler import Handler
from rota.queue.job import ClaimedJob, JobRow, State
from rota.queue.limits import SLICES, last_turn
from rota.queue.pause import paused_of
from rota.queue.reference import Reference

HOLDER: Final = Holder("rota.testing")
ALL_JOBS: Final = (JobId(UUID(int=0)), JobId(UUID(int=2**128 - 1)))
NO_LIMIT: Final = 2**31


class Turns:
    """Takes jobs one by one.

    Args:
        reference: the queue.
        handlers: those of the kinds that may run.
    """

    def __init__(self, reference: Reference, handlers: Mapping[str, Handler]) -> None:
        self._reference = reference
        self._handlers = handlers
        self._last: dict[str, str | None] = {}

    def next(self, among: Collection[str] | None, *, now: datetime) -> ClaimedJob | None:
        """Claims the job whose turn it is; None if none is due that may run."""
        paused = paused_of(self._reference.poll([], holder=HOLDER).paused)
        slots = Slots({name: handler.kind for name, handler in self._handlers.items()}, paused=paused)
        asks = {ask.kind: ask for ask in slots.asks(among)}
        due = sorted(
            (row for row in self._queued() if row.kind in asks and row.run_after <= now),
            key=lambda row: (-row.priority, row.run_after, row.id),
        )
        for kind in dict.fromkeys(row.kind for row in due):
            ask = structs.replace(asks[kind], free=1, after=self._last.get(kind))
            claim = self._reference.claim_turns if ask.limits else self._reference.claim
            for job in claim([ask], holder=HOLDER):
                self._last[kind] = last_turn([job.tenant], after=ask.after)
                return job
        return None

    def next_at(self, among: Collection[str] | None, *, now: datetime) -> datetime | None:
        """The first time after now at which another job may be due; None: never, as things are."""
        kinds = self._handlers.keys() if among is None else self._handlers.keys() & set(among)
        rows = [row for row in self._queued() if row.kind in kinds]
        times = [row.run_after for row in rows]
        if rows:
            times += [pause.until for pause in self._reference.pauses() if pause.until is not None]
        for kind in {row.kind for row in rows if row.run_after <= now}:
            rate = self._handlers[kind].kind.limits.rate
            if rate is not None:
                times.append(now + timedelta(seconds=rate.per_s / SLICES))
        return min((at for at in times if at > now), default=None)

    def _queued(self) -> list[JobRow]:
        return [row for row in rows_of(self._reference) if row.state is State.QUEUED]


def rows_of(reference: Reference) -> list[JobRow]:
    """All jobs, whole, in the order in which they were added."""
    return reference.show(*ALL_JOBS, limit=NO_LIMIT)[::-1]
