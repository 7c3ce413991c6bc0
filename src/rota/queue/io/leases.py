"""The lease book of a worker, shared by its event loop and its heart: the book is pure, the lock is here."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from rota.ids import JobId
from rota.io.clock import lease_clock
from rota.lease import Held, Lease, LeaseBook
from rota.queue.io.slate import Slate


@dataclass(slots=True)
class GuardedBook:
    """A lease book and the lock that its two threads share."""

    book: LeaseBook = field(default_factory=LeaseBook)
    lock: threading.Lock = field(default_factory=threading.Lock)
    slate: Slate = field(default_factory=Slate)
    """Whose coroutine the event loop steps at this moment, and what runs apart from it."""
    warned: Callable[[float], None] = lambda _look_by: None
    """Told by when somebody has to look at the book again, or the process has to end; the warden."""
    look_by: float = inf
    """What it was told last."""
    timed: Callable[[float], None] = lambda _end_by: None
    """Told by when this process has to end, even if it stands still; the system's timer."""
    end_by: float = inf
    """What that was told last."""

    def granted(self, *, look_by: float) -> None:
        """Notes that leases were granted, and by when somebody has to look for the first of them, before any of their
        jobs begins: one that holds the interpreter lets nobody look. Call it with the lock held."""
        if look_by < self.look_by:
            self.tell(look_by)

    def begins_in_thread(self, held: Held) -> None:
        """Notes that a run begins in a thread."""
        with self.lock:
            held.in_thread = True
            if held.deadline < self.end_by:
                self._set_timer(held.deadline)

    def looked(self) -> None:
        """Notes that somebody has looked at the book. Call it with the lock held."""
        now = lease_clock()
        look_by, end_by = self.book.look_by(now=now), self.book.end_by(now=now)
        if look_by != self.look_by:
            self.tell(look_by)
        if end_by != self.end_by:
            self._set_timer(end_by)

    def gone_by(self, at: float) -> None:
        """Notes that this process gives back jobs that go on in it, and has to be gone at this time."""
        with self.lock:
            self.book.gone_by = at
            self.looked()

    def _set_timer(self, end_by: float) -> None:
        self.end_by = end_by
        self.timed(end_by)

    def tell(self, look_by: float) -> None:
        """Tells the warden. Call it with the lock held."""
        self.look_by = look_by
        self.warned(look_by)

    def progressed(self, lease: Lease, progress: Any | None) -> bool:
        """See LeaseBook.progressed."""
        with self.lock:
            return self.book.progressed(lease, progress=progress)

    def ended_at(self, lease: Lease) -> float | None:
        """See LeaseBook.ended_at."""
        with self.lock:
            return self.book.ended_at(lease)

    def close(self, lease: Lease) -> bool:
        """See LeaseBook.close."""
        with self.lock:
            return self.book.close(lease)

    def cancelled(self, job_id: JobId, *, ends_at: float) -> None:
        """See LeaseBook.cancelled."""
        with self.lock:
            self.book.cancelled(job_id, ends_at=ends_at)

    def abandon(self) -> None:
        """See LeaseBook.abandon."""
        with self.lock:
            self.book.abandon(now=lease_clock())

    def drop(self, leases: Iterable[Lease]) -> None:
        """See LeaseBook.drop."""
        with self.lock:
            for lease in leases:
                self.book.drop(lease)
