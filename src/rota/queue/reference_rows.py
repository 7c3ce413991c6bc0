"""The rows of the queue in memory: the tables `open_jobs`, `ended_jobs` and `forever_keys`, and who waits for a notice.

Rows are frozen, and `_write` is the one place that replaces them, along the table NEXT_STATES; `check_invariants` says
what holds between any two calls. What adds, leases or ends jobs is in the classes over this one, up to
`rota.queue.reference`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from rota.ids import Holder, JobId, uuid_v7s
from rota.lease import Lease
from rota.queue.job import ENDED, NEXT_STATES, JobRow, Scope, State

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ReferenceRows:
    """Jobs in memory, and who waits for some.

    Args:
        clock: the database's clock, as times with a zone; every method also takes a `now` for one call.
        random: for the random half of ids.

    Attributes:
        notices: what a LISTEN would have brought, oldest first: a kind that somebody waits for, or `!` and a holder
            with a job to cancel. Whoever reads it clears it.
    """

    def __init__(self, *, clock: Callable[[], datetime], random: Random) -> None:
        self.notices: list[str] = []
        self._clock = clock
        self._random = random
        self._last_us = 0
        self._open: dict[JobId, JobRow] = {}
        self._ended: dict[JobId, JobRow] = {}
        self._forever: dict[str, JobId] = {}
        self._waiting: dict[Holder, tuple[frozenset[str], datetime]] = {}

    def clock(self) -> datetime:
        """The database's clock."""
        return self._clock()

    def wait(self, holder: Holder, *, kinds: Sequence[str], seconds: float) -> None:
        """Says that this holder sleeps, so that enqueueing leaves a notice."""
        self._waiting[holder] = (frozenset(kinds), after(self._clock(), seconds))

    def awake(self, holder: Holder) -> None:
        """Takes back what `wait` said, and what dead holders said."""
        left_before = after(self._clock(), -60)
        self._waiting = {
            other: (kinds, until)
            for other, (kinds, until) in self._waiting.items()
            if other != holder and until >= left_before
        }

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

    # For the classes over this one

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

    def _held(self, lease: Lease) -> JobRow | None:
        """The row, if this lease is still its lease (I3)."""
        row = self._open.get(lease.job_id)
        return row if row is not None and row.state is State.LEASED and row.lease_epoch == lease.epoch else None

    def _queued(self) -> list[JobRow]:
        return [row for row in self._open.values() if row.state is State.QUEUED]

    def _wake(self, kinds: Sequence[str], at: datetime) -> None:
        if any(until > at and not waited.isdisjoint(kinds) for waited, until in self._waiting.values()):
            self.notices += sorted(set(kinds))

    def _new_ids(self, count: int, at: datetime) -> list[JobId]:
        # Every id is above the ones before, so that "oldest" is what it says even where the clock stands still.
        first_us = max((at - EPOCH) // timedelta(microseconds=1), self._last_us + 1)
        self._last_us = first_us + count - 1
        return [JobId(new) for new in uuid_v7s(count, unix_us=first_us, random_bits=self._random.getrandbits(62))]

    def _at(self, now: datetime | None) -> datetime:
        return self._clock() if now is None else now


def after(at: datetime, seconds: float) -> datetime:
    """The time so many seconds later."""
    return at + timedelta(seconds=seconds)
