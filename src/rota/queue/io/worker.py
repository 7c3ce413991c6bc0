"""The worker: what one server process runs of the queue, from its start to a stop in good order. Effects only.

What to claim and what becomes of a job is decided in `rota.queue.dispatcher`; when a lease ends, in `rota.lease`.
Here the parts are put together, and stopped in their order: one loop claims (`claim_loop`), one looks once a second
(`look_loop`), one removes what is old (`pruner`); beside them the crew runs the jobs (`crew`), the completer writes how
they ended (`completer`, `ends_under_way`), a connection listens for wake-ups (`wakeup`), and a thread, the heart,
renews leases (`heart`).

Spec: job queue, "How a server takes a job" and "Leases, heartbeats and the stall kill".
"""

import asyncio
import contextlib
import os
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final
from uuid import UUID

from rota.commands import Call, Commands, Standing
from rota.errors import RotaError
from rota.ids import Holder, JobId, new_holder
from rota.io import collecting
from rota.io.backoff import Backoff
from rota.io.clock import lease_clock
from rota.io.cpus import cpu_count
from rota.io.log import get_logger
from rota.io.postgres import Database, Target
from rota.lease import Lease
from rota.queue import dispatcher
from rota.queue.dispatcher import Slots
from rota.queue.handler import Handler
from rota.queue.history import TryEnd
from rota.queue.io.calls_in_line import CallsInLine
from rota.queue.io.claim_loop import ClaimLoop
from rota.queue.io.claims import Claims
from rota.queue.io.completer import Completer, Write
from rota.queue.io.crew import Crew
from rota.queue.io.ends_under_way import EndsUnderWay
from rota.queue.io.heart import FENCE_EXIT, FENCE_WAIT_S, LAST_WORDS, Heart, Last
from rota.queue.io.job_lines import JobLines
from rota.queue.io.leases import GuardedBook
from rota.queue.io.look_loop import LookLoop
from rota.queue.io.loops import Asides, cancelled, supervised
from rota.queue.io.metering import Metering
from rota.queue.io.pruner import Pruner
from rota.queue.io.registry import Registry
from rota.queue.io.stops import Stops
from rota.queue.io.store import Store
from rota.queue.io.wakeup import Wakeup
from rota.queue.io.watch import Watch
from rota.queue.job import State
from rota.queue.periodic import Declared
from rota.queue.role import ALL_ROLES
from rota.queue.server import Server
from rota.queue.standing import ServerFacts, kinds_of
from rota.sessions import Sessions
from rota.version import __version__

BUSY_CONNECTIONS: Final = 2
"""Of the pool, those that a busy worker uses all the time: one claims while the other writes ends."""
WARM_S: Final = 2.0
"""How long a worker waits for these at its start."""
LATE_LOOK_S: Final = 2.0
"""A look that is so late, beside twice its usual time, shows an event loop that may be blocked."""
CLAIM_PATIENCE_S: Final = 5.0
"""How long a stopping worker waits for the answer to a claim; without it, these jobs' leases run out."""
CANCEL_PATIENCE_S: Final = 5.0
"""How long a stopping worker waits for coroutines that it has cancelled."""
FLUSH_S: Final = 10.0
"""And how long for the ends of its jobs to be written, should the database be away."""
FAREWELL_S: Final = 2.0
"""How long a worker that has stopped may take to write what its jobs logged, and to take its row away."""
GONE_S: Final = 0.2
"""How long the process may take beyond that to end itself; one that cannot is ended by its warden."""

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
        self._metering = self._options.metering
        self._crew = Crew(
            handlers, leases=self._leases, lines=self._lines, random=self._random, store=self._store,
            cancel_grace_s=self._options.cancel_grace_s, ended=self._on_ended, metering=self._metering,
            commands=None if commands is None else lambda: CallsInLine(commands(), self._unclaimed),
            sessions=sessions, lost=lambda lease, at: self.stops.add(lease, stopped_at=at),
        )  # fmt: skip
        self._completer = Completer(
            self._store, written=self._on_written, random=self._random,
            # The others of the pool are for claims, and for looks and ends that share a commit.
            singles_writers=max(1, self._options.job_pool_size - 2),
        )  # fmt: skip
        self._standing: Callable[[], Standing] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self.ready = asyncio.Event()
        self._asides = Asides()
        self._claiming = ClaimLoop(
            handlers, holder=self.holder, store=self._store, claims=self._claims, slots=self._slots, crew=self._crew,
            completer=self._completer, leases=self._leases, stopping=self._stopping, ready=self.ready,
            wakes=target.pooler == "none", asides=self._asides, metering=self._metering,
        )  # fmt: skip
        self._looking = LookLoop(
            handlers, store=self._store, claims=self._claims, slots=self._slots, crew=self._crew,
            registry=self._registry, claiming=self._claiming, facts=self._facts, poll_s=self._options.poll_s,
            cancel_grace_s=self._options.cancel_grace_s, stopping=self._stopping, ready=self.ready,
            random=self._random, metering=self._metering,
        )  # fmt: skip
        self._ending = EndsUnderWay(
            handlers, slots=self._slots, claims=self._claims, claiming=self._claiming, completer=self._completer,
            leases=self._leases, stops=self.stops, metering=self._metering,
        )  # fmt: skip
        self.ends: Counter[TryEnd] = self._ending.counts

    def stop(self, *, now: bool = False) -> None:
        """Asks the worker to stop: it claims nothing new, waits for what runs, and gives back what does not end in
        time. Call it from the loop's thread; a second call, or `now`, skips the wait."""
        if now or self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()
        self._slots.open = False
        self._claiming.kick()

    async def run(self) -> None:
        """Works until `stop`.

        Raises: DatabaseError, SettingsError if it cannot start.
        """
        self._loop = asyncio.get_running_loop()
        self._looking.looked_at = lease_clock()
        await self._database.start()
        heart = self._heart()
        try:
            await self._warm()
            if self._options.ends_process:
                # A process of its own may do without looking through the program's modules at every collection.
                collecting.settle()
            heart.start()
            await self._work()
        finally:
            try:
                await self._say_farewell(heart)
            finally:
                await self._database.stop()
                await self._crew.shut()
                log.info("worker stopped", holder=self.holder)

    def _heart(self) -> Heart:
        return Heart(
            self._leases,
            target=self._target,
            holder=self.holder,
            stop=lambda lease, loss: self._from_heart(self._crew.lose, lease, loss),
            cancelled=self._cancelled,
            loop_late=lambda: lease_clock() - self._looking.looked_at > LATE_LOOK_S + 2 * self._options.poll_s,
            stuck=lambda lease, since: self._crew.is_stuck(lease, since=since),
            last=self._last_words,
            wrote_last=self._wrote_last,
            random=self._random,
        )

    async def _work(self) -> None:
        completing = asyncio.create_task(self._completer.run())
        pruner = Pruner(
            self._store, [handler.kind for handler in self._handlers.values()],
            keep_s=self._options.keep_s, keep_failed_s=self._options.keep_failed_s, random=self._random,
        )  # fmt: skip
        claiming = asyncio.create_task(self._supervised("claim", self._claiming.run))
        loops = [
            claiming,
            asyncio.create_task(self._supervised("look", self._looking.run)),
            asyncio.create_task(self._supervised("prune", pruner.run)),
            asyncio.create_task(self._supervised("batches", self._looking.close_batches)),
            asyncio.create_task(self._lines.run()),
            asyncio.create_task(self.stops.run()),
        ]
        if self._target.pooler == "none":
            wakeup = Wakeup(self._target, heard=self._on_heard, connected=self._claiming.want_all, random=self._random)
            loops.append(asyncio.create_task(wakeup.run()))
        if self._metering is not None:
            loops.append(asyncio.create_task(self._metering.run(Watch(self._database).clock_ahead_s)))
        log.info("worker started", holder=self.holder, kinds=len(self._handlers), database=self._target.shown)
        try:
            await self._stopping.wait()
            self._asides.begin(self._registry.beat(self._slots.running, facts=self._facts(), draining=True, now=True))
            await self._drain(claiming)
        except asyncio.CancelledError:
            self.stop(now=True)
            await self._drain(claiming)
            raise
        finally:
            await cancelled({*loops, completing, *self._asides.tasks})

    async def _say_farewell(self, heart: Heart) -> None:
        if len(self._crew) and not self._options.ends_process:
            # Whoever cancelled this had no patience with threads that go on. They may not outlive their leases (I2).
            log.warning("the worker was cut off while jobs run; its heart stays with them", jobs=len(self._crew))
        else:
            await heart.stop_beating()
        with contextlib.suppress(RotaError, OSError):
            async with asyncio.timeout(FAREWELL_S):
                await self._lines.write()
                await self.stops.say()
                await self._store.awake(self.holder)
                await self._registry.leave()

    async def _warm(self) -> None:
        try:
            async with asyncio.timeout(WARM_S):
                await self._store.warm(self.holder, connections=BUSY_CONNECTIONS)
        except Exception as error:
            # The loops meet the same trouble; they say so, and try again.
            log.info("the worker starts with cold connections", error=str(error) or type(error).__name__)

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
        self._claiming.want_all()

    def _supervised(self, name: str, loop: Callable[[Backoff], Awaitable[None]]) -> Coroutine[None, None, None]:
        return supervised(name, loop, stopping=self._stopping, random=self._random, failed=self._claiming.kick)

    def _on_heard(self, said: str) -> None:
        if said == f"!{self.holder}":
            self._asides.begin(self._looking.look())
        elif said in self._handlers:
            self._claiming.want(said)

    def _on_ended(self, kind: str, write: Write | None) -> None:
        self._ending.begins(kind, write)

    def _on_written(self, written: list[tuple[Write, State | None]]) -> None:
        self._ending.arrived(written)

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
        return self._ending.with_these(self._crew.last_words(stuck))

    def _wrote_last(self, states: Mapping[JobId, State]) -> None:
        if self._metering is not None:
            failed = [job_id for job_id, state in states.items() if state is State.FAILED]
            self._metering.failed_last(self._crew.kind_of(job_id) or self._ending.kind_of(job_id) for job_id in failed)

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
