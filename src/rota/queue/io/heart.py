"""The heart of a worker: a thread of its own that renews leases and sees that no job outlives its lease.

It shares nothing with the handlers but a lock, so neither a blocked event loop nor a busy thread can starve it (I4).
Whom it cannot stop in any other way it stops by ending the process (I2): first it gives back what else the process
runs, to be taken up a moment after the process is gone.

The rules are those of `rota.lease.LeaseBook`; this file only watches the clock, speaks to the database and shouts.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from rota.errors import RotaError
from rota.ids import JobId
from rota.io.clock import lease_clock
from rota.io.log import get_logger
from rota.io.postgres import Database, Target
from rota.lease import Lease, Loss, Renewal
from rota.queue.io.leases import GuardedBook
from rota.queue.io.store import Store
from rota.queue.job import Finish, Release

FENCE_EXIT: Final = 70
"""The exit status of a process that ended itself to keep I2 (EX_SOFTWARE of sysexits.h)."""
FENCE_WAIT_S: Final = 2.0
"""Jobs given back by a process that is about to end may start again after this: it must be gone by then."""
LOG_EVERY: Final = 10
"""Of renewals that fail in a row, one in so many is logged."""
LAST_WORDS: Final = 0.8
"""The part of what is left of a lease in which a process that is about to end may still write."""
LOOK_MAX_S: Final = 0.5
LOOK_MIN_S: Final = 0.01

log = get_logger("rota.worker")


@dataclass(frozen=True, slots=True)
class Last:
    """What a process writes before it ends itself: how jobs ended, among them the stuck one, and what it gives back."""

    finishes: list[Finish]
    releases: list[Release]


class Heart:
    """The thread. Its callbacks are called from it.

    Args:
        leases: the book that the worker fills.
        target: the database; the heart has a connection of its own.
        stop: told which job has to be stopped, and why; may be told again.
        cancelled: told which job somebody wants cancelled.
        stuck: asked, at the end of a lease, whether its job, first told to stop at this time, still runs in a way that
            only ending the process stops.
        last: asked what to write before the process ends.
        random: for the jitter of waits.
    """

    def __init__(
        self,
        leases: GuardedBook,
        *,
        target: Target,
        stop: Callable[[Lease, Loss], None],
        cancelled: Callable[[JobId], None],
        stuck: Callable[[Lease, float], bool],
        last: Callable[[Lease], Last],
        random: Random,
    ) -> None:
        self._leases = leases
        self._target = replace(target, application="rota heart")
        self._stop = stop
        self._cancelled = cancelled
        self._stuck = stuck
        self._last = last
        self._random = random
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._renewing: asyncio.Task[None] | None = None
        self._failures = 0

    def start(self) -> None:
        """Starts the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rota-heart", daemon=True)
            self._thread.start()

    def stop_beating(self) -> None:
        """Ends the thread; safe before start and twice."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
            self._thread = None

    def _run(self) -> None:
        try:
            asyncio.run(self._beat())
        except Exception:
            log.critical("the heart failed; this process ends", exc_info=True)
            # Nobody would end jobs before their leases do.
            os._exit(FENCE_EXIT)

    async def _beat(self) -> None:
        database = Database(self._target, size=1)
        store = Store(database)
        told: dict[Lease, float] = {}
        try:
            while not self._ending.is_set():
                now = lease_clock()
                with self._leases.lock:
                    overdue = self._leases.book.overdue(now=now)
                    ending = self._leases.book.ending(now=now) if overdue else []
                    due = self._leases.book.due(now=now) if self._renewing is None else []
                if due:
                    self._renewing = asyncio.create_task(self._renew(store, due))
                told = {lease: told.get(lease, now) for lease, _ in overdue}
                for lease, loss in overdue:
                    self._stop(lease, loss)
                for lease in ending:
                    if self._stuck(lease, told.get(lease, now)):
                        await self._end_process(store, lease)
                await asyncio.sleep(self._pause())
        finally:
            if self._renewing is not None:
                self._renewing.cancel()
            await database.stop()

    def _pause(self) -> float:
        with self._leases.lock:
            look, pace_s = self._leases.book.next_look(), self._leases.book.pace_s()
        if look is None or pace_s is None:
            return LOOK_MAX_S / 2
        return min(LOOK_MAX_S, pace_s, max(LOOK_MIN_S, look - lease_clock()))

    async def _renew(self, store: Store, renewals: list[Renewal]) -> None:
        try:
            kept = await store.renew(renewals)
        except (RotaError, OSError) as error:
            if self._failures % LOG_EVERY == 0:
                log.warning("heartbeats could not be written", jobs=len(renewals), error=str(error))
            self._failures += 1
            with self._leases.lock:
                self._leases.book.unanswered(renewals, now=lease_clock())
        except Exception:
            # Whatever it is: the heart goes on, and the leases end on time.
            log.exception("heartbeats failed", jobs=len(renewals))
            with self._leases.lock:
                self._leases.book.unanswered(renewals, now=lease_clock())
        else:
            self._failures = 0
            with self._leases.lock:
                lost = self._leases.book.renewed(renewals, kept=kept, now=lease_clock())
            for lease in lost:
                self._stop(lease, Loss.TAKEN)
            for job_id, cancel_asked in kept.items():
                if cancel_asked:
                    self._cancelled(job_id)
        finally:
            self._renewing = None

    async def _end_process(self, store: Store, lease: Lease) -> None:
        last = self._last(lease)
        with self._leases.lock:
            left = self._leases.book.deadline(lease) - lease_clock()
        log.critical(
            "a job could not be stopped before its lease ends; this process ends",
            job_id=str(lease.job_id), given_back=len(last.releases),
        )  # fmt: skip
        try:
            async with asyncio.timeout(max(0.0, left * LAST_WORDS)):
                # First what is innocent: the try of the stuck job is counted anyway.
                await store.release(last.releases)
                await store.finish(last.finishes)
        except (RotaError, OSError) as error:
            # The leases run out by themselves; what may not happen is that this process lives on.
            log.error("jobs could not be given back before the end", error=str(error) or "no time was left")
        finally:
            sys.stderr.flush()
            os._exit(FENCE_EXIT)
