"""Writes how jobs ended, many in one statement: whatever has ended while the last statement ran goes into the next.

Nothing that ended is dropped while the database is away: it is written when the database is back, or refused then
because the lease was lost meanwhile. One write that the database will not take does not hold up the others.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from random import Random
from typing import Any, Final, TypeGuard

import asyncpg

from rota.errors import RotaError
from rota.io.backoff import Backoff
from rota.io.clock import lease_clock
from rota.io.log import get_logger
from rota.queue.io.ends import GOING_ON
from rota.queue.io.store import Store
from rota.queue.job import Finish, Outcome, Release, State

BATCH_MAX: Final = 1000
"""Ends in one statement, as many as one claim brings."""
PENDING_MAX: Final = 10_000
"""Ends that may wait to be written; beyond it the worker claims nothing new."""

KEYED_AT_ONCE: Final = 2
"""Connections that writes may have which may have to wait for somebody's transaction."""

SINGLES_MAX: Final = 64
"""Such ends in one call: those behind wait for the call's end before their worker knows that they are on disk."""

LATE_S: Final = 3.0
"""A statement that takes so long shows that the database is in trouble."""

Write = Finish | Release
log = get_logger("rota.worker")


def is_single(write: Write) -> TypeGuard[Finish]:
    """Whether this is an end that finish_each.sql can write."""
    return (
        isinstance(write, Finish) and write.outcome not in GOING_ON and not write.follow_ups and write.follows is None
    )


def waits(write: Write) -> bool:
    """Whether this may have to wait for a transaction of somebody else's, because of a key."""
    if write.keyed:
        return True
    return isinstance(write, Finish) and any(job.dedupe is not None for job in write.follow_ups)


def _met_a_lock(error: BaseException) -> bool:
    """Whether a statement gave up waiting for a row or a key of somebody's open transaction."""
    return isinstance(error.__cause__, asyncpg.exceptions.LockNotAvailableError)


class Completer:
    """One background task that owns the writes of one worker.

    Args:
        store: where to write.
        written: told of ends with their new states, or None where the database refused one: the lease was lost.
        random: for the jitter of waits.
        singles_writers: connections that write ends which are commits of their own: their commits wait for the disk
            together, so more of them write more in a second.
    """

    def __init__(
        self,
        store: Store,
        *,
        written: Callable[[list[tuple[Write, State | None]]], None],
        random: Random,
        singles_writers: int = 1,
    ) -> None:
        self._store = store
        self._written = written
        self._random = random
        self._pending: list[Write] = []
        self._writing = 0
        self._began: float | None = None
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._alone: set[asyncio.Task[None]] = set()
        self._singles: deque[Finish] = deque()
        """Ends that are commits of their own."""
        self._singles_writers = 0
        self._singles_writers_max = singles_writers
        self._held: list[Write] = []
        """Ends whose rows somebody's transaction holds."""
        self._looks_after_held = False
        self._keyed = asyncio.Semaphore(KEYED_AT_ONCE)

    @property
    def waiting(self) -> int:
        """Ends that are not written yet."""
        return len(self._pending) + self._writing

    @property
    def late(self) -> bool:
        """Whether ends have not been written for a while: the leases of new jobs could run out behind them."""
        return self._began is not None and lease_clock() - self._began > LATE_S

    def add(self, write: Write) -> None:
        """Takes an end to write; returns at once."""
        self._pending.append(write)
        self._idle.clear()
        self._news.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._pending:
                batch, self._pending = self._pending[:BATCH_MAX], self._pending[BATCH_MAX:]
                self._writing += len(batch)
                plain: list[Write] = []
                following: list[Write] = []
                for write in batch:
                    if write.alone and is_single(write):
                        self._singles.append(write)
                    elif write.alone or waits(write):
                        # One that may have to wait for somebody's open transaction does so apart from the others.
                        self._apart(self._write_all([write]))
                    elif isinstance(write, Finish) and write.follow_ups:
                        following.append(write)
                    else:
                        plain.append(write)
                while self._singles_writers < min(self._singles_writers_max, len(self._singles)):
                    self._singles_writers += 1
                    self._apart(self._write_singles())
                for part in (plain, following):
                    if part:
                        self._began = lease_clock()
                        await self._write_all(part)
                        self._began = None

    async def flush(self, *, timeout_s: float) -> bool:
        """Waits until everything is written. Returns: False if the time ran out first."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _apart(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._alone.add(task)
        task.add_done_callback(self._alone.discard)

    async def _write_singles(self) -> None:
        """Writes ends that are commits of their own, for as long as there are some."""
        taken: list[Finish] = []
        try:
            async with self._store.database.acquire() as conn:
                while self._singles:
                    # The writers share what waits: each commit waits for the disk, and those of others go with it.
                    count = min(SINGLES_MAX, -(-len(self._singles) // self._singles_writers_max))
                    taken = [self._singles.popleft() for _ in range(count)]
                    states = await self._store.finish_each(taken, conn=conn)
                    self._written([(finish, states.get(finish.lease.job_id)) for finish in taken])
                    self._writing -= len(taken)
                    taken = []
                    if not self.waiting:
                        self._idle.set()
        except Exception:
            # The way for batches knows what to do about every trouble.
            if taken:
                self._apart(self._write_all([*taken], unsure=True))
            if self._singles:
                rest: list[Write] = [*self._singles]
                self._singles.clear()
                self._apart(self._write_all(rest))
        finally:
            self._singles_writers -= 1

    async def _write_all(self, batch: list[Write], *, unsure: bool = False) -> None:
        backoff, count = Backoff(self._random), len(batch)
        try:
            while True:
                try:
                    # Such a write is the only one of its batch.
                    async with self._keyed if waits(batch[0]) else nullcontext():
                        await self._write_once(batch, unsure=unsure)
                    return
                except (RotaError, OSError) as error:
                    # The statement may have been taken although its answer was lost.
                    unsure = True
                    free = await self._put_off_held(batch) if _met_a_lock(error) else batch
                    if len(free) < len(batch):
                        batch = free
                        if not batch:
                            return
                        continue
                    if backoff.failures % 10 == 0:
                        log.warning("ends of jobs wait for the database", count=len(batch), error=str(error))
                    await asyncio.sleep(backoff.next_s())
                except asyncpg.exceptions.PostgresError as error:
                    if len(batch) > 1:
                        half = len(batch) // 2
                        await self._write_parts(batch[:half], batch[half:])
                        return
                    batch = self._without_what_is_refused(batch[0], error)
                    if not batch:
                        return
                except Exception:
                    # A bug, ours or a library's: the jobs' work is done, and must not be lost to it.
                    unsure = True
                    log.exception("ends of jobs could not be written; trying again", count=len(batch))
                    await asyncio.sleep(backoff.next_s())
        finally:
            self._writing -= count
            if not self.waiting:
                self._idle.set()

    async def _write_parts(self, *parts: list[Write]) -> None:
        for part in parts:
            # The parent batch is still counted, and takes its own share off when it returns.
            self._writing += len(part)
            await self._write_all(part)

    async def _put_off_held(self, batch: list[Write]) -> list[Write]:
        """Takes out what would wait for somebody's open transaction; that is written when the transaction is over."""
        free, held = await self._by_hold(batch)
        if held:
            log.warning("ends of jobs wait for a transaction that holds their rows", count=len(held))
            # The batch that they were of is still counted, and takes its own share off when it returns.
            self._writing += len(held)
            self._held += held
            if not self._looks_after_held:
                self._looks_after_held = True
                self._apart(self._write_held())
        return free

    async def _write_held(self) -> None:
        backoff = Backoff(self._random)
        while self._held:
            await asyncio.sleep(backoff.next_s())
            waiting, self._held = self._held, []
            free, held = await self._by_hold(waiting, else_free=False)
            self._held += held
            if free:
                backoff.reset()
            for write in filter(waits, free):
                self._apart(self._write_all([write]))
            if plain := [write for write in free if not waits(write)]:
                await self._write_all(plain)
        self._looks_after_held = False

    async def _by_hold(self, batch: list[Write], *, else_free: bool = True) -> tuple[list[Write], list[Write]]:
        """Those whose rows are free, and the others; where the database does not say, all are what `else_free` says."""
        try:
            held = await self._store.held_rows([write.lease.job_id for write in batch])
        except Exception as error:
            # Whatever it is: no end may be lost to it.
            if not isinstance(error, (RotaError, OSError)):
                log.exception("rows of jobs could not be looked at", count=len(batch))
            return (batch, []) if else_free else ([], batch)
        return (
            [write for write in batch if write.lease.job_id not in held],
            [write for write in batch if write.lease.job_id in held],
        )

    async def _write_once(self, batch: list[Write], *, unsure: bool) -> None:
        finishes = [write for write in batch if isinstance(write, Finish)]
        releases = [write for write in batch if isinstance(write, Release)]
        states = await self._store.finish(finishes) if finishes else {}
        if releases:
            states |= await self._store.release(releases)
        written = [(write, states.get(write.lease.job_id)) for write in batch]
        if unsure:
            # What is refused now may have been written before, by the statement whose answer was lost.
            written = [(write, state or State.DONE) for write, state in written]
        self._written(written)

    def _without_what_is_refused(self, write: Write, error: Exception) -> list[Write]:
        """The job fails with the reason; if even that is refused, its lease is left to run out."""
        log.error("the end of a job cannot be written", job_id=str(write.lease.job_id), error=str(error))
        if isinstance(write, Finish) and write.result is not None and not write.follow_ups:
            reason = f"The result cannot be stored: {error}"
            return [Finish(write.lease, Outcome.FAILED, error=reason)]
        if isinstance(write, Finish) and write.follow_ups:
            reason = f"The jobs that follow cannot be added: {error}"
            return [Finish(write.lease, Outcome.FAILED, error=reason)]
        self._written([(write, None)])
        return []
