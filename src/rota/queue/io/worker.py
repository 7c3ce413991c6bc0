"""The worker: claims jobs for free slots, looks after the queue, and stops in good order. Effects only.

What to claim and what becomes of a job is decided in `rota.queue.dispatcher`; when a lease ends, in `rota.lease`.
Here are the loops: one claims, one looks once a second, one removes what is old; beside them the crew runs the jobs
(`crew`), the completer writes how they ended (`completer`), a connection listens for wake-ups (`wakeup`), and a thread,
the heart, renews leases (`heart`).

Spec: job queue, "How a server takes a job" and "Leases, heartbeats and the stall kill".
"""

import asyncio
import contextlib
import os
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final
from uuid import UUID

from rota.commands import Call, Commands, Standing
from rota.errors import DatabaseAway, RotaError
from rota.ids import Holder, JobId, new_holder
from rota.io import collecting
from rota.io.backoff import Backoff
from rota.io.clock import lease_clock
from rota.io.cpus import cpu_count
from rota.io.log import get_logger
from rota.io.postgres import Database, Target
from rota.lease import Lease, Loss
from rota.queue import dispatcher
from rota.queue.dispatcher import Slots
from rota.queue.handler import Handler
from rota.queue.history import TryEnd
from rota.queue.io.adding import BATCHES_MAX
from rota.queue.io.calls_in_line import CallsInLine
from rota.queue.io.claims import Claims
from rota.queue.io.completer import PENDING_MAX, Completer, Write
from rota.queue.io.crew import Crew
from rota.queue.io.heart import FENCE_EXIT, FENCE_WAIT_S, LAST_WORDS, Heart, Last
from rota.queue.io.job_lines import JobLines
from rota.queue.io.leases import GuardedBook
from rota.queue.io.metering import Metering
from rota.queue.io.pruner import Pruner
from rota.queue.io.registry import Registry
from rota.queue.io.stops import Stops
from rota.queue.io.store import Store
from rota.queue.io.wakeup import Wakeup
from rota.queue.io.watch import Watch
from rota.queue.job import Ask, ClaimedJob, Finish, Release, State
from rota.queue.pause import paused_of
from rota.queue.periodic import Declared
from rota.queue.role import ALL_ROLES
from rota.queue.server import Server
from rota.queue.standing import ServerFacts, kinds_of
from rota.sessions import Sessions
from rota.version import __version__

WAITING_S: Final = 30.0
"""How long a sleeping worker's wish to be woken stands; it is said again in good time."""
BUSY_S: Final = 0.25
"""A worker that finds full batches for so long does not want to be woken: it looks anyway."""
ROOM_S: Final = 0.002
"""How long a freed slot waits for others before a claim, where more is due: about as long as a claim takes."""
BUSY_CONNECTIONS: Final = 2
"""Of the pool, those that a busy worker uses all the time: one claims while the other writes ends."""
WARM_S: Final = 2.0
"""How long a worker waits for these at its start."""
BATCHES_EVERY_S: Final = 15.0
"""How often each worker looks for batches that nobody has closed."""
CANCEL_MARGIN_S: Final = 5.0
"""A holder has this long after the grace to kill what was cancelled and to say so, before others end the job."""
LATE_LOOK_S: Final = 2.0
"""A look that is so late, beside twice its usual time, shows an event loop that may be blocked."""
CLAIM_PATIENCE_S: Final = 5.0
CANCEL_PATIENCE_S: Final = 5.0
"""How long a stopping worker waits for coroutines that it has cancelled."""
FLUSH_S: Final = 10.0
GONE_S: Final = 0.2
"""How long the process may take beyond that to end itself; one that cannot is ended by its warden."""
UNKNOWN: Final = ("", None)
CANCEL_AGAIN_S: Final = 1.0
"""How long a loop may take to end before it is told again."""

log = get_logger("rota.worker")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What a worker can be told; see `rota.settings.Settings` for each."""

    poll_s: float = 1.0
    stop_grace_s: float = 25.0
    keep_s: float = 7 * 86_400.0
    keep_failed_s: float = 7 * 86_400.0
    job_pool_size: int = 6
    cancel_grace_s: float = 10.0
    ends_process: bool = False
    """The process is the worker's own and ends right after `run`: threads that do not stop end with it."""
    metering: Metering | None = None
    """What counts; nothing is counted without it."""
    role: str = ALL_ROLES
    settings_digest: str = ""
    passes: Mapping[str, Declared] = field(default_factory=dict)
    """All passes of the program, also those whose runs this server leaves to others."""


class Worker:
    """Runs the handlers' kinds on this server.

    `run` works until `stop`; both may be called twice and in any order.

    Args:
        handlers: by kind.
        target: the database.
        options: limits and waits.
        random: for jitter.
        commands: gives whoever runs commands for the handlers; None where nobody does.
        sessions: gives whoever opens sessions on runners for them; None where nobody does.

    Attributes:
        holder: the name under which this worker leases jobs.
        ready: set once the worker has looked for work.
        ends: how many tries ended how that did not end by themselves: stopped, killed, snoozed, yielded.
        stops: says when lost runs really stopped; `overlap_seconds_total` has to stay 0.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        target: Target,
        options: WorkerOptions | None = None,
        random: Random | None = None,
        commands: Callable[[], Commands] | None = None,
        sessions: Callable[[], Sessions] | None = None,
    ) -> None:
        host = socket.gethostname()
        self.holder: Holder = new_holder(host=host, pid=os.getpid())
        self._handlers = handlers
        self._options = options or WorkerOptions()
        self._random = random or Random()  # noqa: S311 - jitter
        self._target = target
        self._database = Database(target, size=self._options.job_pool_size)
        self._store = Store(self._database, holder=self.holder)
        self._claims = Claims(self._store, holder=self.holder)
        self._slots = Slots({name: handler.kind for name, handler in handlers.items()}, cpus=cpu_count(), paused=None)
        server = Server(
            self.holder, host, os.getpid(), __version__, self._options.role, self._options.settings_digest,
            kinds={name: handler.kind.limit for name, handler in handlers.items() if handler.kind.limit},
            passes=self._options.passes,
            limits={name: handler.kind.limits.said() for name, handler in handlers.items() if handler.kind.limits},
        )  # fmt: skip
        self._registry = Registry(self._store, server, random=self._random)
        self._leases = GuardedBook()
        self._lines = JobLines(self._store, random=self._random)
        self.stops = Stops(self._store, holder=self.holder, overlapped=self._on_overlap)
        self.ends: Counter[TryEnd] = Counter()
        self._metering = self._options.metering
        self._crew = Crew(
            handlers, leases=self._leases, lines=self._lines, random=self._random, store=self._store,
            cancel_grace_s=self._options.cancel_grace_s, ended=self._on_ended, metering=self._metering,
            commands=None if commands is None else lambda: CallsInLine(commands(), self._unclaimed),
            sessions=sessions, lost=lambda lease, at: self.stops.add(lease, stopped_at=at),
        )  # fmt: skip
        self._ending: dict[JobId, tuple[str, Write]] = {}
        """The ends that are on their way to the database, each with its job's kind. The heart reads it."""
        self._completer = Completer(
            self._store, written=self._on_written, random=self._random,
            # The others of the pool are for claims, and for looks and ends that share a commit.
            singles_writers=max(1, self._options.job_pool_size - 2),
        )  # fmt: skip
        self._standing: Callable[[], Standing] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kick = asyncio.Event()
        self._more = set(handlers)
        """Kinds of which more may be due than the last claim took."""
        self._after_ends: set[str] = set()
        """Kinds with limits beyond one server of which jobs have ended that may not be written yet."""
        self._soon: asyncio.TimerHandle | None = None
        self._claim_failed = False
        self._looked_at = lease_clock()
        self._said_waiting_at: float | None = None
        self._busy_since: float | None = None
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self.ready = asyncio.Event()

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
        self._looked_at = lease_clock()
        await self._database.start()
        await self._warm()
        if self._options.ends_process:
            # A process of its own may do without looking through the program's modules at every collection.
            collecting.settle()
        heart = Heart(
            self._leases,
            target=self._target,
            holder=self.holder,
            stop=lambda lease, loss: self._from_heart(self._crew.lose, lease, loss),
            cancelled=self._cancelled,
            loop_late=lambda: lease_clock() - self._looked_at > LATE_LOOK_S + 2 * self._options.poll_s,
            stuck=lambda lease, since: self._crew.is_stuck(lease, since=since),
            last=self._last_words,
            wrote_last=self._wrote_last,
            random=self._random,
        )
        heart.start()
        completing = asyncio.create_task(self._completer.run())
        pruner = Pruner(
            self._store, [handler.kind for handler in self._handlers.values()],
            keep_s=self._options.keep_s, keep_failed_s=self._options.keep_failed_s, random=self._random,
        )  # fmt: skip
        claiming = asyncio.create_task(self._supervised("claim", self._claim_loop))
        loops = [
            claiming,
            asyncio.create_task(self._supervised("look", self._look_loop)),
            asyncio.create_task(self._supervised("prune", pruner.run)),
            asyncio.create_task(self._supervised("batches", self._batches_loop)),
            asyncio.create_task(self._lines.run()),
            asyncio.create_task(self.stops.run()),
        ]
        if self._target.pooler == "none":
            wakeup = Wakeup(self._target, heard=self._on_heard, connected=self._kick_all, random=self._random)
            loops.append(asyncio.create_task(wakeup.run()))
        if self._metering is not None:
            loops.append(asyncio.create_task(self._metering.run(Watch(self._database).clock_ahead_s)))
        log.info("worker started", holder=self.holder, kinds=len(self._handlers), database=self._target.shown)
        try:
            await self._stopping.wait()
            drains = self._registry.beat(self._slots.running, facts=self._facts(), draining=True, now=True)
            loops.append(asyncio.create_task(self._quietly(drains)))
            await self._drain(claiming)
        except asyncio.CancelledError:
            self.stop(now=True)
            await self._drain(claiming)
            raise
        finally:
            await _cancelled({*loops, completing})
            await heart.stop_beating()
            with contextlib.suppress(RotaError, TimeoutError):
                async with asyncio.timeout(2):
                    await self._lines.write()
                    await self.stops.say()
                    await self._store.awake(self.holder)
                    await self._registry.leave()
            await self._database.stop()
            await self._crew.shut()
            log.info("worker stopped", holder=self.holder)

    async def _warm(self) -> None:
        try:
            async with asyncio.timeout(WARM_S):
                await self._store.warm(self.holder, connections=BUSY_CONNECTIONS)
        except Exception as error:
            # The loops meet the same trouble; they say so, and try again.
            log.info("the worker starts with cold connections", error=str(error) or type(error).__name__)

    # Claiming

    async def _claim_loop(self, backoff: Backoff) -> None:
        while not self._stopping.is_set():
            await self._kick.wait()
            self._kick.clear()
            while await self._claim_once():
                backoff.reset()
            backoff.reset()

    async def _claim_once(self) -> bool:
        """One claim. Returns: whether to claim again at once."""
        if self._completer.waiting >= PENDING_MAX or self._completer.late:
            return False
        asks = self._slots.asks(self._more)
        if not asks:
            return False
        if self._claim_failed:
            # Its statement may have been taken although its answer was lost: those jobs are nobody's otherwise.
            before = await self._store.clock()
            with self._leases.lock:
                known = [lease.job_id for lease in self._leases.book]
            await self._store.disown(self.holder, known=known, before=before)
            self._claim_failed = False
        got: Counter[str] = Counter()
        for group in ([ask for ask in asks if not ask.limits], [ask for ask in asks if ask.limits]):
            if group:
                got += Counter(job.kind for job in await self._take(group))
        full = got.total() >= sum(ask.free for ask in asks)
        self._note_business(full=full)
        if not full and await self._say_waiting():
            # Somebody may have added a job before the wish to be woken stood: look once more.
            self._more.update(ask.kind for ask in asks)
        return self._claims_again()

    async def _take(self, asks: list[Ask]) -> list[ClaimedJob]:
        """Claims, and starts what it got."""
        self._more.difference_update(ask.kind for ask in asks)
        sent_at = lease_clock()
        try:
            claimed = await self._claims.take(asks)
        except BaseException:
            self._claim_failed = True
            self._more.update(ask.kind for ask in asks)
            raise
        self.ready.set()
        if self._metering is not None:
            self._metering.claimed(claimed, took_s=lease_clock() - sent_at)
        claimed = self._not_begun(claimed)
        if claimed:
            self._slots.took(claimed)
            self._crew.start(claimed, sent_at=sent_at)
            if self._stopping.is_set():
                # What ran before may still come to its own end.
                self._crew.give_back(claimed)
        got = Counter(job.kind for job in claimed)
        for ask in asks:
            self._slots.answered(ask, got[ask.kind])
            # Where only urgent jobs were asked for, others may be due.
            if got[ask.kind] >= ask.free or ask.lowest is not None:
                self._more.add(ask.kind)
            elif got[ask.kind] and ask.limits.rate is not None and self._loop is not None:
                self._loop.call_later(ask.limits.rate.slice_s, self._want, ask.kind)
        return claimed

    def _not_begun(self, claimed: list[ClaimedJob]) -> list[ClaimedJob]:
        """Those whose runs have not begun here. A database that lost its last commits, as a standby that was behind and
        took over, gives out again, under the same epoch, what this holder had taken: the run that is under way goes on
        under that lease, or its end is still to be written under it."""
        ids = [job.lease.job_id for job in claimed]
        if self._crew.runs_none_of(ids) and self._ending.keys().isdisjoint(ids):
            return claimed
        ending = {write.lease for _, write in self._ending.values()}
        return [job for job in claimed if job.lease not in ending and not self._crew.runs(job.lease)]

    def _want(self, kind: str) -> None:
        self._more.add(kind)
        self._slots.heard([kind])
        self._kick.set()

    def _claims_again(self) -> bool:
        """Whether to claim at once what more is due; with little room it waits a moment for more slots to be free."""
        if any(self._slots.roomy(kind) for kind in self._more):
            return True
        if self._more:
            self._kick_soon()
        return False

    def _kick_soon(self) -> None:
        if self._soon is None and self._loop is not None:
            self._soon = self._loop.call_later(ROOM_S, self._kick_now)

    def _kick_now(self) -> None:
        self._soon = None
        self._kick.set()

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
        if said == f"!{self.holder}":
            asyncio.ensure_future(self._quietly(self._look()))  # noqa: RUF006 - ends by itself
        elif said in self._handlers:
            self._want(said)

    def _kick_all(self) -> None:
        self._more.update(self._handlers)
        self._slots.heard(self._handlers)
        self._kick.set()

    @property
    def running(self) -> Mapping[str, int]:
        """How many jobs of each kind run here now."""
        return self._slots.running

    def allow(self, kind: str, allowance: Callable[[], int]) -> None:
        """Bounds how many jobs of a kind may run here by more than its slots; asked before each claim, so the answer
        may change at any time. Call `look_again` when it grows."""
        self._slots.allowances[kind] = allowance

    def stands(self, standing: Callable[[], Standing]) -> None:
        """Tells this worker how it stands with exec servers; asked once a second, and said to people with its row."""
        self._standing = standing

    def _facts(self) -> ServerFacts:
        bound = {name: one.kind.urgent_priority for name, one in self._handlers.items() if one.kind.cpu_bound}
        return ServerFacts(
            self._slots.cpus if bound else 0, self._slots.cpus_kept, bound,
            None if self._standing is None else self._standing(),
        )  # fmt: skip

    async def _unclaimed(self, call: Call) -> int:
        """How many jobs that no worker has claimed go before a call of a job of this worker."""
        kinds = [] if self._standing is None else kinds_of(call.service, self._standing())
        if not kinds or call.name is None:
            return 0
        try:
            return sum((await self._store.unclaimed(JobId(UUID(call.name)), kinds=kinds)).values())
        except (RotaError, OSError):
            # The place in the want-books alone is better than none.
            return 0

    def look_again(self) -> None:
        """Asks the queue again what is due, because something here has changed. From the loop's thread."""
        self._kick_all()

    # Looking

    async def _look_loop(self, backoff: Backoff) -> None:
        while not self._stopping.is_set():
            await self._look()
            await self._registry.beat(self._slots.running, facts=self._facts())
            backoff.reset()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.poll_s * (0.9 + 0.2 * self._random.random())):
                    await self._stopping.wait()

    async def _look(self) -> None:
        """The one query of an idle server (I8), and what follows from its answer."""
        self._looked_at = lease_clock()
        if self._said_waiting_at is not None and lease_clock() - self._said_waiting_at > WAITING_S / 2:
            await self._say_waiting()
        self._slots.heard(self._handlers)
        free = self._slots.free_kinds()
        # A job makes no room for one that nobody may claim.
        full = self._crew.full([*free, *self._slots.paused_kinds()])
        seen = await self._claims.look(free, full=full, grace_s=self._unanswered_s)
        self.ready.set()
        self._crew.make_room(seen.urgent)
        for job_id in seen.cancels:
            self._crew.cancel(job_id)
        paused = paused_of(seen.paused)
        if paused != self._slots.paused:
            # At the start it is the first that is known of pauses, and nothing was claimed before.
            self._slots.paused = paused
            # Jobs of a tenant that is not paused any more stand where claims have passed.
            self._claims.returned(self._handlers)
            self._kick_all()
        if seen.expired:
            await self._sweep()
        if seen.next_due_s is None:
            return
        if seen.next_due_s <= 0:
            self._kick_all()
        elif seen.next_due_s < self._options.poll_s and self._loop is not None:
            self._loop.call_later(seen.next_due_s, self._kick_all)

    @property
    def _unanswered_s(self) -> float:
        """How long after a cancel a job ends without its holder, which should have killed it by then."""
        return self._options.cancel_grace_s + CANCEL_MARGIN_S

    async def _sweep(self) -> None:
        ended = await self._store.sweep(grace_s=self._unanswered_s)
        self._claims.returned(swept.kind for swept in ended)
        for swept in ended:
            facts = {
                "job_id": str(swept.lease.job_id), "kind": swept.kind, "epoch": swept.lease.epoch,
                "holder": swept.holder,
            }  # fmt: skip
            if swept.state is State.FAILED:
                self._count_failure(swept.kind)
                log.warning("job failed: its lease ran out on its last try", **facts)
            else:
                log.warning("lease ran out", state=swept.state.value, **facts)
        self._kick_all()

    async def _batches_loop(self, backoff: Backoff) -> None:
        """Closes batches whose last job ended with the process that ran it."""
        while True:
            await asyncio.sleep(BATCHES_EVERY_S * (0.5 + self._random.random()))
            while len(await self._store.close_batches()) >= BATCHES_MAX:
                pass
            backoff.reset()

    # Ends

    def _on_ended(self, kind: str, write: Write | None) -> None:
        self._slots.left(kind)
        if write is not None:
            self._ending[write.lease.job_id] = (kind, write)
            self._completer.add(write)
            if isinstance(write, Release) and write.wait_s is None:
                self._claims.returned([kind])
        settings = self._handlers[kind].kind
        if settings.limits.ends_make_room:
            self._after_ends.add(kind)
        if not self._kick.is_set() and (kind in self._more or settings.cpu_bound):
            if self._slots.roomy(kind):
                self._kick.set()
            else:
                self._kick_soon()

    def _on_written(self, written: list[tuple[Write, State | None]]) -> None:
        for write, state in written:
            if write.how is not None:
                self.ends[write.how] += 1
            kind, _ = self._ending.pop(write.lease.job_id, UNKNOWN)
            if state is State.FAILED and isinstance(write, Finish):
                self._count_failure(kind)
                log.warning("job failed", job_id=str(write.lease.job_id), kind=kind, error=write.error)
            if state is None:
                if self._metering is not None:
                    self._metering.meters.lost(Loss.TAKEN)
                log.warning(
                    "job lost its lease to another server; stopped here",
                    job_id=str(write.lease.job_id), kind=kind, epoch=write.lease.epoch,
                )  # fmt: skip
                ended_at = self._leases.ended_at(write.lease)
                if ended_at is not None:
                    self.stops.add(write.lease, stopped_at=ended_at)
        self._leases.drop([write.lease for write, _ in written])
        # A lease counts until its end is written: only now may another job of such a kind start.
        self._more.update(self._after_ends)
        if not self._completer.waiting:
            self._after_ends.clear()
        if self._claims_again():
            self._kick.set()

    def _count_failure(self, kind: str) -> None:
        if self._metering is not None:
            self._metering.meters.failed(kind)

    def _on_overlap(self, overlap_s: float) -> None:
        if self._metering is not None:
            self._metering.meters.overlap_s += overlap_s

    # Stopping

    def _from_heart(self, call: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call, *args)

    def _cancelled(self, job_id: JobId) -> None:
        self._crew.note_cancel(job_id)
        self._from_heart(self._crew.cancel, job_id)

    def _last_words(self, stuck: Lease) -> Last:
        self._slots.open = False
        last = self._crew.last_words(stuck)
        # A statement that has taken one of these up may not have been sent, where the event loop is blocked. If it was,
        # another write changes nothing.
        ends = [write for _, write in list(self._ending.values())]
        ended = {write.lease for write in ends}
        return Last(
            [
                *(one for one in last.finishes if one.lease not in ended),
                *(one for one in ends if isinstance(one, Finish)),
            ],
            [
                *(one for one in last.releases if one.lease not in ended),
                *(one for one in ends if isinstance(one, Release)),
            ],
            last.killing,
        )

    def _wrote_last(self, states: Mapping[JobId, State]) -> None:
        if self._metering is not None:
            failed = [job_id for job_id, state in states.items() if state is State.FAILED]
            self._metering.failed_last(
                self._crew.kind_of(job_id) or self._ending.get(job_id, UNKNOWN)[0] for job_id in failed
            )

    async def _drain(self, claiming: asyncio.Task[None]) -> None:
        """Three phases: nothing new is claimed; what runs may end; what does not is given back without a try."""
        # A claim that is under way brings jobs, and they want to be given back; on a dead line it may never end.
        await asyncio.wait({claiming}, timeout=CLAIM_PATIENCE_S)
        if len(self._crew):
            log.info("worker stops: waiting for its jobs", jobs=len(self._crew), at_most_s=self._options.stop_grace_s)
        hurry = asyncio.create_task(self._hurry.wait())
        idle = asyncio.create_task(self._crew.wait_idle())
        await asyncio.wait({hurry, idle}, timeout=self._options.stop_grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        self._crew.give_back_all()
        await asyncio.wait({idle}, timeout=CANCEL_PATIENCE_S)
        if not self._options.ends_process:
            # A program that goes on keeps its leases until the threads have ended; the heart sees to it.
            await idle
        idle.cancel()
        await self._completer.flush(timeout_s=FLUSH_S)
        left = self._crew.unstoppable()
        if left:
            # Threads that go on. Their jobs may start elsewhere a moment after this process has ended, and it ends
            # before that however long the rest of the stop takes.
            end = threading.Timer(FENCE_WAIT_S * LAST_WORDS, os._exit, (FENCE_EXIT,))
            end.daemon = True
            end.start()
            self._leases.gone_by(lease_clock() + FENCE_WAIT_S * LAST_WORDS + GONE_S)
            for job in left:
                self._completer.add(dispatcher.give_back(job, wait_s=FENCE_WAIT_S))
            await self._completer.flush(timeout_s=FENCE_WAIT_S)

    async def _supervised(self, name: str, loop: Callable[[Backoff], Awaitable[None]]) -> None:
        """Runs a loop for as long as the worker does, whatever it meets. The loop resets the waits when it got through:
        a network that fails now and then is no reason to wait for as long as for one that is down."""
        backoff = Backoff(self._random)
        while not self._stopping.is_set():
            try:
                await loop(backoff)
                return
            except (DatabaseAway, OSError) as error:
                if backoff.failures % 10 == 0:
                    log.warning("the database is away; trying again", loop=name, error=str(error))
            except Exception:
                log.exception("a loop of the worker failed; it starts again", loop=name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_s()):
                    await self._stopping.wait()
            self._kick.set()

    async def _quietly(self, work: Awaitable[object]) -> None:
        with contextlib.suppress(RotaError, OSError):
            await work


async def _cancelled(tasks: set[asyncio.Task[None]]) -> None:
    """Cancels tasks until all have ended. While the database is away one may miss it: a wait for a connection that
    fails in the same moment takes the cancellation for its own."""
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=CANCEL_AGAIN_S)
