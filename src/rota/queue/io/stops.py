"""Says when runs really stopped whose leases this holder had lost, and counts how long they ran beside others (I2).

A run that ends under its lease needs no word: the end that is written says it. What is told here is the proof that a
holder stops in time, so the figure has to stay 0. A word that cannot be said for long is dropped: it changes no job.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from rota.errors import RotaError
from rota.ids import Holder
from rota.io.clock import lease_clock
from rota.io.log import get_logger
from rota.lease import Lease
from rota.queue.history import Stopped
from rota.queue.io.store import Store

PENDING_MAX: Final = 1000
"""Words that wait to be said; of more, the oldest are dropped."""
AGAIN_S: Final = 0.5
"""How soon a word is said again, to a database that was away or has not yet swept the lease."""
GIVE_UP_S: Final = 120.0
"""How long a word is tried: until every sweep has come by, and a database is back from a restart."""

log = get_logger("rota.worker")


class Stops:
    """One background task of a worker.

    Args:
        store: where to say it.
        holder: who says it.
        overlapped: told of seconds of overlap, for metrics.

    Attributes:
        overlap_seconds_total: how long runs of this process went on beside runs of the same job by other holders.
        told: how many runs the database has noted.
    """

    def __init__(self, store: Store, *, holder: Holder, overlapped: Callable[[float], None] | None = None) -> None:
        self._store = store
        self._overlapped = overlapped
        self._holder = holder
        self._pending: dict[Lease, float] = {}
        self._news = asyncio.Event()
        self.overlap_seconds_total = 0.0
        self.told = 0

    @property
    def waiting(self) -> int:
        """Words that are not said yet."""
        return len(self._pending)

    def add(self, lease: Lease, *, stopped_at: float) -> None:
        """Takes a run that stopped at this time of the lease clock; returns at once."""
        while len(self._pending) >= PENDING_MAX:
            del self._pending[next(iter(self._pending))]
        self._pending[lease] = stopped_at
        self._news.set()

    async def run(self) -> None:
        """Says what there is to say, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._pending:
                await self.say()
                if self._pending:
                    await asyncio.sleep(AGAIN_S)

    async def say(self) -> None:
        """Says all once; what the database does not take stays for a while."""
        if not self._pending:
            return
        with contextlib.suppress(RotaError, OSError):
            async with self._store.database.acquire() as conn:
                # Read only now: the time that it took to get a connection is no time that the run went on.
                now = lease_clock()
                stops = [Stopped(lease, max(0.0, now - stopped_at)) for lease, stopped_at in self._pending.items()]
                noted = await self._store.stopped(stops, holder=self._holder, conn=conn)
            for lease, overlap_s in noted.items():
                self._pending.pop(lease, None)
                self.told += 1
                if overlap_s > 0:
                    self.overlap_seconds_total += overlap_s
                    if self._overlapped is not None:
                        self._overlapped(overlap_s)
                    log.error(
                        "a run went on beside another of its job", job_id=str(lease.job_id), epoch=lease.epoch,
                        overlap_s=round(overlap_s, 3),
                    )  # fmt: skip
        given_up = lease_clock() - GIVE_UP_S
        self._pending = {lease: stopped_at for lease, stopped_at in self._pending.items() if stopped_at > given_up}
