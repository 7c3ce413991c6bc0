"""The lease book of a worker, shared by its event loop and its heart: the book is pure, the lock is here."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rota.ids import JobId
from rota.io.clock import lease_clock
from rota.lease import Lease, LeaseBook


@dataclass(slots=True)
class GuardedBook:
    """A lease book and the lock that its two threads share."""

    book: LeaseBook = field(default_factory=LeaseBook)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stepping: Lease | None = None
    """The job whose coroutine the event loop steps at this moment."""

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
