"""The worker: claims jobs for free slots, runs their handlers, writes how they ended. Effects only.

What to claim and what becomes of a job is decided in `rota.queue.dispatcher`; when a lease ends, in `rota.lease`.
Here are the tasks that do it: one claims, one looks once a second, one listens for wake-ups, one writes ends; and a
thread, the heart, renews leases (`rota.queue.io.heart`).

Spec: job queue, "How a server takes a job" and "Leases, heartbeats and the stall kill".
"""

import asyncio
import contextlib
import os
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from random import Random
from typing import Final

from rota.errors import DatabaseAway, PayloadError, RotaError
from rota.ids import Holder, JobId, new_holder
from rota.io.backoff import Backoff
from rota.io.clock import lease_clock
from rota.io.log import get_logger
from rota.io.postgres import Database, Target
from rota.lease import Lease, Loss
from rota.queue import dispatcher
from rota.queue.dispatcher import Slots
from rota.queue.handler import Handler
from rota.queue.io.completer import PENDING_MAX, Completer, Write
from rota.queue.io.heart import FENCE_WAIT_S, Heart, Last
from rota.queue.io.leases import GuardedBook
from rota.queue.io.running import Running, Stopped
from rota.queue.io.store import Store
from rota.queue.io.wakeup import Wakeup
from rota.queue.job import ClaimedJob, Finish, Release, State

WAITING_S: Final = 30.0
"""How long a sleeping worker's wish to be woken stands; it is said again in good time."""
BUSY_S: Final = 0.25
"""A worker that finds full batches for so long does not want to be woken: it looks anyway."""
PRUNE_EVERY_S: Final = 60.0
PRUNE_BATCH: Final = 5000
CANCEL_PATIENCE_S: Final = 5.0
"""How long a stopping worker waits for coroutines that it has cancelled."""
FLUSH_S: Final = 10.0
TURN_S: Final = 0.005
"""How long jobs that never wait may keep the event loop before others get a turn."""
LOOP_BLOCKED_S: Final = 0.2
"""An event loop that has not answered for so long, when a lease is about to end, is taken for blocked."""
STEADY_S: Final = 30.0
"""A loop that ran for so long is taken for well again."""

LOSS_WORDS: Final = {
    Loss.STALLED: "job stalled: the worker stopped a job that made no progress",
    Loss.UNWRITTEN: "job heartbeat not written for the lease time; stopped here",
    Loss.TAKEN: "job lost its lease to another server; stopped here",
}

log = get_logger("rota.worker")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What a worker can be told; see `rota.settings.Settings` for each."""

    poll_s: float = 1.0
    stop_grace_s: float = 25.0
    keep_s: float = 7 * 86_400.0
    job_pool_size: int = 6
    ends_process: bool = False
    """The process is the worker's own and ends right after `run`: threads that do not stop end with it."""


class Worker:
    """Runs the handlers' kinds on this server.

    `run` works until `stop`; both may be called twice and in any order.

    Args:
        handlers: by kind.
        target: the database.
        options: limits and waits.
        random: for jitter.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        target: Target,
        options: WorkerOptions | None = None,
        random: Random | None = None,
    ) -> None:
        self.holder: Holder = new_holder(host=socket.gethostname(), pid=os.getpid())
        self._handlers = handlers
        self._options = options or WorkerOptions()
        self._random = random or Random()  # noqa: S311 - jitter
        self._target = target
        self._database = Database(target, size=self._options.job_pool_size)
        self._store = Store(self._database)
        self._slots = Slots({name: handler.kind for name, handler in handlers.items()})
        self._leases = GuardedBook()
        self._running: dict[JobId, Running] = {}
        self._line: deque[Running] = deque()
        """Claimed jobs whose handlers have not been called yet."""
        self._runners: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._completer: Completer | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._kick = asyncio.Event()
        self._more = set(handlers)
        """Kinds of which more may be due than the last claim took."""
        self._said_waiting_at: float | None = None
        self._busy_since: float | None = None
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._none_running = asyncio.Event()
        self._none_running.set()
        self.ready = asyncio.Event()
        """Set once the worker has looked for work."""

    def stop(self, *, now: bool = False) -> None:
        """Asks the worker to stop: it claims nothing new, waits for what runs, and gives back what does not end in
        time. Call it from the loop's thread; a second call, or `now`, skips the wait."""
        if now or self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()
        self._slots.open = False
        self._kick.set()

    async def run(self) -> None:
        """Works until `stop`.

        Raises: DatabaseError, SettingsError if it cannot start.
        """
        self._loop = asyncio.get_running_loop()
        await self._database.start()
        threads = sum(h.kind.limit for h in self._handlers.values() if not h.is_async)
        self._threads = ThreadPoolExecutor(max_workers=max(1, min(threads, 1000)), thread_name_prefix="rota-job")
        self._completer = Completer(self._store, written=self._on_written, random=self._random)
        heart = Heart(
            self._leases,
            target=self._target,
            stop=lambda lease, loss: self._from_heart(self._on_loss, lease, loss),
            cancelled=lambda job_id: self._from_heart(self._on_cancel, job_id),
            stuck=self._is_stuck,
            last=self._last_words,
            random=self._random,
        )
        heart.start()
        completing = asyncio.create_task(self._completer.run())
        loops = [
            asyncio.create_task(self._supervised(name, loop))
            for name, loop in (("claim", self._claim_loop), ("look", self._look_loop), ("prune", self._prune_loop))
        ]
        if self._target.pooler == "none":
            wakeup = Wakeup(self._target, heard=self._on_heard, connected=self._kick_all, random=self._random)
            loops.append(asyncio.create_task(wakeup.run()))
        log.info("worker started", holder=self.holder, kinds=len(self._handlers), database=self._target.shown)
        try:
            await self._stopping.wait()
            await self._drain()
        except asyncio.CancelledError:
            self.stop(now=True)
            await self._drain()
            raise
        finally:
            for task in [*loops, completing]:
                task.cancel()
            await asyncio.gather(*loops, completing, return_exceptions=True)
            await asyncio.to_thread(heart.stop_beating)
            with contextlib.suppress(RotaError, TimeoutError):
                async with asyncio.timeout(2):
                    await self._store.awake(self.holder)
            await self._database.stop()
            self._threads.shutdown(wait=False, cancel_futures=True)
            log.info("worker stopped", holder=self.holder)

    # Claiming

    async def _claim_loop(self) -> None:
        while not self._stopping.is_set():
            await self._kick.wait()
            self._kick.clear()
            while await self._claim_once():
                pass

    async def _claim_once(self) -> bool:
        """One claim. Returns: whether to claim again at once."""
        if self._completer is not None and self._completer.waiting >= PENDING_MAX:
            return False
        asks = [ask for ask in self._slots.asks() if ask.kind in self._more]
        if not asks:
            return False
        self._more.difference_update(ask.kind for ask in asks)
        sent_at = lease_clock()
        try:
            claimed = await self._store.claim(asks, holder=self.holder)
        except BaseException:
            self._more.update(ask.kind for ask in asks)
            raise
        self.ready.set()
        if claimed:
            self._start(claimed, sent_at=sent_at)
        got = Counter(job.kind for job in claimed)
        full = len(claimed) >= sum(ask.free for ask in asks)
        self._more.update(ask.kind for ask in asks if got[ask.kind] >= ask.free)
        self._note_business(full=full)
        if not full and await self._say_waiting():
            # Somebody may have added a job before the wish to be woken stood: look once more.
            self._more.update(ask.kind for ask in asks)
        return bool(self._more)

    def _start(self, claimed: list[ClaimedJob], *, sent_at: float) -> None:
        book, handlers, running = self._leases.book, self._handlers, self._running
        self._slots.took(claimed)
        self._none_running.clear()
        with self._leases.lock:
            for job in claimed:
                handler = handlers[job.kind]
                kind = handler.kind
                held = book.grant(job.lease, lease_s=kind.lease_s, heartbeat_s=kind.heartbeat_s, sent_at=sent_at)
                started = Running(job, handler, held=held, leases=self._leases)
                running[job.lease.job_id] = started
                self._line.append(started)
        self._add_runner()

    def _add_runner(self) -> None:
        """One more task that runs jobs, if there is one to run. A task takes the next job when one ends; only a job
        that waits for something brings another task into being, so jobs that never wait share one."""
        if self._line and self._loop is not None:
            task = self._loop.create_task(self._run_line())
            self._runners.add(task)
            task.add_done_callback(self._runners.discard)

    async def _run_line(self) -> None:
        task, line, turn_ends = asyncio.current_task(), self._line, lease_clock() + TURN_S
        assert task is not None, "this is a task"
        while line:
            running = line.popleft()
            running.task = task
            await self._run_job(running)
            while task.cancelling():
                # The order was for that job; the task goes on with the next.
                task.uncancel()
            if lease_clock() > turn_ends:
                # Others on this event loop want a turn too.
                await asyncio.sleep(0)
                turn_ends = lease_clock() + TURN_S

    def _note_business(self, *, full: bool) -> None:
        """While batches come back full there is no need to be woken, and enqueueing need not pay for it."""
        now = lease_clock()
        if not full:
            self._busy_since = None
            return
        if self._busy_since is None:
            self._busy_since = now
        elif now - self._busy_since > BUSY_S and self._said_waiting_at is not None:
            self._said_waiting_at = None
            asyncio.ensure_future(self._quietly(self._store.awake(self.holder)))  # noqa: RUF006 - ends by itself

    async def _say_waiting(self) -> bool:
        """Says, at most now and then, that this worker wants to be woken. Returns: whether it had to."""
        now = lease_clock()
        if self._target.pooler != "none":
            return False
        if self._said_waiting_at is not None and now - self._said_waiting_at < WAITING_S / 2:
            return False
        fresh = self._said_waiting_at is None or now - self._said_waiting_at > WAITING_S
        await self._store.wait(self.holder, kinds=list(self._handlers), seconds=WAITING_S)
        self._said_waiting_at = now
        return fresh

    def _on_heard(self, said: str) -> None:
        if said.startswith("!"):
            if said[1:] == self.holder:
                asyncio.ensure_future(self._quietly(self._look()))  # noqa: RUF006 - ends by itself
        elif said in self._handlers:
            self._more.add(said)
            self._kick.set()

    def _kick_all(self) -> None:
        self._more.update(self._handlers)
        self._kick.set()

    # Looking

    async def _look_loop(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.poll_s * (0.9 + 0.2 * self._random.random())):
                    await self._stopping.wait()
                    return
            await self._look()

    async def _look(self) -> None:
        """The one query of an idle server (I8), and what follows from its answer."""
        if self._said_waiting_at is not None and lease_clock() - self._said_waiting_at > WAITING_S / 2:
            await self._say_waiting()
        seen = await self._store.poll(self._slots.free_kinds(), holder=self.holder)
        self.ready.set()
        for job_id in seen.cancels:
            self._on_cancel(job_id)
        if seen.expired:
            await self._sweep()
        if seen.next_due_s is None:
            return
        if seen.next_due_s <= 0:
            self._kick_all()
        elif seen.next_due_s < self._options.poll_s and self._loop is not None:
            self._loop.call_later(seen.next_due_s, self._kick_all)

    async def _sweep(self) -> None:
        for swept in await self._store.sweep():
            facts = {"job_id": str(swept.lease.job_id), "kind": swept.kind, "holder": swept.holder}
            if swept.state is State.FAILED:
                log.warning("job failed: its lease ran out on its last try", **facts)
            else:
                log.warning("lease ran out", state=swept.state.value, **facts)
        self._kick_all()

    async def _prune_loop(self) -> None:
        while True:
            await asyncio.sleep(PRUNE_EVERY_S * (0.5 + self._random.random()))
            removed = PRUNE_BATCH
            while removed >= PRUNE_BATCH:
                removed = await self._store.prune(keep_s=self._options.keep_s, limit=PRUNE_BATCH)

    # Running

    async def _run_job(self, running: Running) -> None:
        try:
            write = await self._outcome(running)
        finally:
            # Also when the loop itself is torn down; the lease then runs out.
            running.task = None
            self._forget(running)
        if write is None:
            self._leases.drop([running.job.lease])
        else:
            assert self._completer is not None, "jobs end on a running worker"
            self._completer.add(write)
        if running.job.kind in self._more:
            self._kick.set()

    async def _outcome(self, running: Running) -> Write | None:
        job, handler = running.job, running.handler
        if running.must_stop() or lease_clock() >= running.held.deadline:
            return self._stopped_write(running)
        running.started = True
        try:
            payload = handler.decode(job.payload)
        except PayloadError as error:
            return dispatcher.unfit(job, error)
        assert self._threads is not None, "jobs run on a running worker"
        try:
            returned = await running.call(
                payload, variables=copy_context(), threads=self._threads, waits=self._add_runner
            )
        except (asyncio.CancelledError, Stopped):
            return self._stopped_write(running)
        except (Exception, SystemExit) as error:
            if running.must_stop():
                return self._stopped_write(running)
            described = dispatcher.describe_error(error)
            log.warning(
                "try failed", job_id=str(job.id), kind=job.kind, tries=job.tries, max_tries=job.max_tries,
                error=described, exc_info=error,
            )  # fmt: skip
            return dispatcher.failed_try(job, kind=handler.kind, error=described, random=self._random)
        return dispatcher.settle(job, kind=handler.kind, returned=returned, random=self._random)

    def _stopped_write(self, running: Running) -> Write | None:
        return dispatcher.stopped(
            running.job,
            kind=running.handler.kind,
            why=dispatcher.Stop(
                loss=running.loss,
                cancel_asked=running.cancel_asked,
                given_back=running.given_back,
                over=lease_clock() >= running.held.deadline,
                started=running.started,
            ),
            random=self._random,
        )

    def _forget(self, running: Running) -> None:
        del self._running[running.job.id]
        self._slots.left(running.job.kind)
        if not self._running:
            self._none_running.set()

    def _on_written(self, written: list[tuple[Write, State | None]]) -> None:
        self._leases.drop([write.lease for write, _ in written])
        for write, state in written:
            if state is None:
                log.warning("job lost its lease to another server; stopped here", job_id=str(write.lease.job_id))
        if self._more:
            self._kick.set()

    # Stopping jobs

    def _from_heart(self, call: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call, *args)

    def _on_loss(self, lease: Lease, loss: Loss) -> None:
        running = self._running.get(lease.job_id)
        if running is None or running.job.lease != lease:
            return
        if running.loss is None:
            running.loss = loss
            log.warning(LOSS_WORDS[loss], job_id=str(lease.job_id), kind=running.job.kind, epoch=lease.epoch)
        running.stop()

    def _on_cancel(self, job_id: JobId) -> None:
        running = self._running.get(job_id)
        if running is not None:
            running.cancel_asked = True
            running.stop()

    def _is_stuck(self, lease: Lease) -> bool:
        running = self._running.get(lease.job_id)
        if running is None or running.job.lease != lease:
            return False
        if running.in_thread:
            return True
        seen = running.stop_seen_at
        return seen is None or lease_clock() - seen > LOOP_BLOCKED_S

    def _last_words(self, stuck: Lease) -> Last:
        finishes: list[Finish] = []
        releases: list[Release] = []
        for running in list(self._running.values()):
            job = running.job
            if job.lease == stuck:
                finishes.append(dispatcher.could_not_stop(job, kind=running.handler.kind, random=self._random))
            else:
                releases.append(dispatcher.give_back(job, wait_s=FENCE_WAIT_S))
        for write in self._completer.unwritten() if self._completer is not None else []:
            if isinstance(write, Finish):
                finishes.append(write)
            else:
                releases.append(write)
        return Last(finishes, releases)

    async def _drain(self) -> None:
        """Three phases: nothing new is claimed; what runs may end; what does not is given back without a try."""
        assert self._completer is not None, "a running worker drains"
        if self._running:
            log.info(
                "worker stops: waiting for its jobs", jobs=len(self._running), at_most_s=self._options.stop_grace_s
            )
        hurry = asyncio.create_task(self._hurry.wait())
        idle = asyncio.create_task(self._none_running.wait())
        await asyncio.wait({hurry, idle}, timeout=self._options.stop_grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        for running in list(self._running.values()):
            running.given_back = True
            running.stop()
        await asyncio.wait({idle}, timeout=CANCEL_PATIENCE_S)
        if self._running and self._options.ends_process:
            # Threads that go on. Their jobs may start elsewhere a moment after this process has ended.
            for running in list(self._running.values()):
                self._completer.add(dispatcher.give_back(running.job, wait_s=FENCE_WAIT_S))
        else:
            # A program that goes on keeps its leases until the threads have ended; the heart sees to it.
            await idle
        idle.cancel()
        await self._completer.flush(timeout_s=FLUSH_S)

    async def _supervised(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Runs a loop for as long as the worker does, whatever it meets."""
        backoff = Backoff(self._random)
        while not self._stopping.is_set():
            started = lease_clock()
            try:
                await loop()
                return
            except (DatabaseAway, OSError) as error:
                if backoff.failures % 10 == 0:
                    log.warning("the database is away; trying again", loop=name, error=str(error))
            except Exception:
                log.exception("a loop of the worker failed; it starts again", loop=name)
            if lease_clock() - started > STEADY_S:
                backoff.reset()
            await asyncio.sleep(backoff.next_s())
            self._kick.set()

    async def _quietly(self, work: Awaitable[object]) -> None:
        with contextlib.suppress(RotaError, OSError):
            await work
