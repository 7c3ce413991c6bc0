"""The heart of a worker: a thread of its own that renews leases and sees that no job outlives its lease.

It shares nothing with the handlers but a lock and the interpreter, so neither a blocked event loop nor a busy thread
can starve it (I4). Where one holds the interpreter itself, the warden, a process of its own, ends this one (`warden`).
Whom it cannot stop in any other way it stops by ending the process (I2): first no job of the process takes another
step, then it gives back what else the process runs, to be taken up a moment after the process is gone. It also asks
which jobs somebody cancelled where the event loop, which usually does, has not asked for long.

The rules are those of `rota.lease.LeaseBook`; this file only watches the clock, speaks to the database and shouts.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from rota.errors import RotaError
from rota.ids import Holder, JobId
from rota.io.clock import lease_clock
from rota.io.death_timer import DeathTimer
from rota.io.log import get_logger
from rota.io.postgres import Database, Target
from rota.lease import Lease, Loss, Renewal
from rota.queue.io.leases import GuardedBook
from rota.queue.io.store import Store
from rota.queue.io.warden import Warden
from rota.queue.job import Finish, Release, State

FENCE_EXIT: Final = 70
"""The exit status of a process that ended itself to keep I2 (EX_SOFTWARE of sysexits.h)."""
FENCE_WAIT_S: Final = 2.0
"""Jobs given back by a process that is about to end may start again after this: it must be gone by then."""
LOG_EVERY: Final = 10
"""Of renewals that fail in a row, one in so many is logged."""
LAST_WORDS: Final = 0.8
"""The part of what is left of a lease in which a process that is about to end may still write."""
TAKEN_GRACE_S: Final = 3.0
"""How long a job may take to stop whose lease is another's already."""
TAKEN_LEFT_S: Final = 1.0
"""What counts as left of such a lease, for the sake of the other jobs."""
LAST_LEFT_S: Final = 0.5
"""And what counts as left of one that was over when its process went on."""
ASK_EVERY_S: Final = 1.0
"""How often it asks for cancelled jobs in place of an event loop that does not."""
STOP_MAX_S: Final = 10.0
"""How long its thread may take to end; a statement that is under way is given up with its connection."""
STOP_LOOK_S: Final = 0.01
"""Between two looks whether it has."""
LOOK_MAX_S: Final = 0.5
"""Between two looks at the book: the shortest lease is a second."""
LOOK_MIN_S: Final = 0.01
"""The shortest pause before a look that is due: it leaves the interpreter to others."""

log = get_logger("rota.worker")


@dataclass(frozen=True, slots=True)
class Last:
    """What a process writes before it ends itself: how jobs ended, among them the stuck one, and what it gives back.
    `killing`: a thread that kills child processes meanwhile."""

    finishes: list[Finish]
    releases: list[Release]
    killing: threading.Thread


class Heart:
    """The thread. Its callbacks are called from it.

    Args:
        leases: the book that the worker fills.
        target: the database; the heart has a connection of its own.
        holder: who holds the leases.
        stop: told which job has to be stopped, and why; may be told again.
        cancelled: told which job somebody wants cancelled; may be told again.
        loop_late: whether the event loop has not asked for cancelled jobs for long.
        stuck: asked, at the end of a lease, whether its job, first told to stop at this time, still runs in a way that
            only ending the process stops.
        last: asked what to write before the process ends; no job takes a step after it, should the process stand still.
        wrote_last: told which states the jobs have that such words ended.
        random: for the jitter of waits.
    """

    def __init__(
        self,
        leases: GuardedBook,
        *,
        target: Target,
        holder: Holder,
        stop: Callable[[Lease, Loss], None],
        cancelled: Callable[[JobId], None],
        loop_late: Callable[[], bool],
        stuck: Callable[[Lease, float], bool],
        last: Callable[[Lease], Last],
        wrote_last: Callable[[Mapping[JobId, State]], None],
        random: Random,
    ) -> None:
        self._leases = leases
        self._target = replace(target, application="rota heart")
        self._holder = holder
        self._stop = stop
        self._cancelled = cancelled
        self._loop_late = loop_late
        self._stuck = stuck
        self._last = last
        self._wrote_last = wrote_last
        self._random = random
        self._thread: threading.Thread | None = None
        self._warden = Warden(leases.slate, target=replace(target, application="rota warden"), holder=holder)
        self._timer = DeathTimer()
        self._ending = threading.Event()
        self._renewing: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._taken: dict[Lease, float] = {}
        """Leases that are another's, which the book has forgotten, and since when: their jobs may go on."""
        self._failures = 0

    def start(self) -> None:
        """Starts the warden and the thread."""
        if self._thread is None:
            self._warden.start()
            self._leases.warned = self._warden.tell
            self._leases.timed = self._timer.set
            self._thread = threading.Thread(target=self._run, name="rota-heart", daemon=True)
            self._thread.start()

    async def stop_beating(self) -> None:
        """Ends the thread and the warden; safe before start and twice."""
        self._ending.set()
        thread, self._thread = self._thread, None
        # Not in a thread that waits for this one: handlers may keep all of those that an event loop has.
        gives_up_at = lease_clock() + STOP_MAX_S
        try:
            while thread is not None and thread.is_alive() and lease_clock() < gives_up_at:  # noqa: ASYNC110 - a thread
                await asyncio.sleep(STOP_LOOK_S)
        finally:
            # Nobody tells them any more by when somebody looks: both would end this process.
            self._warden.close()
            self._timer.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._beat())
        except Exception:
            log.critical("the heart failed; this process ends", exc_info=True)
            # Nobody would end jobs before their leases do.
            os._exit(FENCE_EXIT)

    async def _beat(self) -> None:
        database = Database(self._target, size=1)
        store = Store(database, holder=self._holder)
        told: dict[Lease, float] = {}
        try:
            while not self._ending.is_set():
                now = lease_clock()
                with self._leases.lock:
                    overdue = self._leases.book.overdue(now=now)
                    ending = self._leases.book.ending(now=now) if overdue else []
                    due = self._leases.book.due(now=now) if self._renewing is None else []
                    self._leases.looked()
                if self._warden.gone:
                    self._start_warden()
                if due:
                    self._renewing = asyncio.create_task(self._renew(store, due))
                if self._asking is None and now - self._asked_at >= ASK_EVERY_S and self._loop_late():
                    self._asked_at = now
                    self._asking = asyncio.create_task(self._ask(store))
                told = {lease: told.get(lease, now) for lease, _ in overdue}
                for lease, loss in overdue:
                    self._stop(lease, loss)
                for lease in ending:
                    if self._stuck(lease, told.get(lease, now)):
                        await self._end_process(store, lease)
                await self._end_if_taken(store, now)
                await asyncio.sleep(self._pause())
        finally:
            for task in (self._renewing, self._asking):
                if task is not None:
                    task.cancel()
            await database.stop()

    def _start_warden(self) -> None:
        self._warden.start()
        with self._leases.lock:
            self._leases.tell(self._leases.look_by)

    async def _end_if_taken(self, store: Store, now: float) -> None:
        for lease in [lease for lease, since in self._taken.items() if now - since >= TAKEN_GRACE_S]:
            if self._stuck(lease, self._taken.pop(lease)):
                await self._end_process(store, lease)

    def _pause(self) -> float:
        with self._leases.lock:
            look, pace_s = self._leases.book.next_look(), self._leases.book.pace_s()
        if look is None or pace_s is None:
            return LOOK_MAX_S / 2
        return min(LOOK_MAX_S, pace_s, max(LOOK_MIN_S, look - lease_clock()))

    async def _renew(self, store: Store, renewals: list[Renewal]) -> None:
        try:
            answers = await store.renew(renewals)
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
            kept = {job_id: asked for job_id, asked in answers.items() if asked is not None}
            # The others of the answer are no refusals: somebody's transaction holds their rows.
            passed = answers.keys() - kept.keys()
            answered = [one for one in renewals if one.lease.job_id not in passed]
            with self._leases.lock:
                unanswered = [one for one in renewals if one.lease.job_id in passed]
                self._leases.book.unanswered(unanswered, now=lease_clock())
                lost = self._leases.book.renewed(answered, kept=kept, now=lease_clock())
                # The next look may come after the old end, if the answer was late.
                self._leases.looked()
            for lease in lost:
                self._taken[lease] = lease_clock()
                self._stop(lease, Loss.TAKEN)
            for job_id, cancel_asked in kept.items():
                if cancel_asked:
                    self._cancelled(job_id)
        finally:
            self._renewing = None

    async def _ask(self, store: Store) -> None:
        """The part of the worker's look that cannot wait for a blocked event loop."""
        try:
            with self._leases.lock:
                held = len(self._leases.book)
            if held:
                seen = await store.poll([], holder=self._holder, none_expired_s=0.0)
                for job_id in seen.cancels:
                    self._cancelled(job_id)
        except (RotaError, OSError):
            # The event loop says that the database is away, if it can; the leases end on time.
            pass
        except Exception:
            log.exception("cancelled jobs could not be asked for")
        finally:
            self._asking = None

    async def _end_process(self, store: Store, lease: Lease) -> None:
        with self._leases.lock:
            now, known = lease_clock(), [held.job_id for held in self._leases.book]
            ends_at = self._leases.book.deadline(lease) or now + TAKEN_LEFT_S
        last = self._last(lease)
        # No lease counts any more, but the moment by which none of their jobs may run here.
        self._leases.gone_by(ends_at if ends_at > now else now + LAST_LEFT_S)
        left = ends_at - lease_clock()
        log.critical(
            "a job could not be stopped before its lease ends; this process ends",
            job_id=str(lease.job_id), given_back=len(last.releases),
        )  # fmt: skip
        try:
            async with asyncio.timeout(max(0.0, left * LAST_WORDS)):
                # First what is innocent: the try of the stuck job is counted anyway.
                await store.release(last.releases)
                self._wrote_last(await store.finish(last.finishes))
                # And what a claim has brought since, or brings now: nothing of it will start here.
                await store.disown(self._holder, known=known, before=await store.clock())
        except (RotaError, OSError) as error:
            # The leases run out by themselves; what may not happen is that this process lives on.
            log.error("jobs could not be given back before the end", error=str(error) or "no time was left")
        finally:
            with contextlib.suppress(AttributeError, OSError, ValueError):
                sys.stderr.flush()
            last.killing.join(max(0.0, ends_at - lease_clock()))
            os._exit(FENCE_EXIT)
