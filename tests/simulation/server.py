"""A worker process in the simulation: the real rules, with virtual time in place of asyncio and threads.

What to claim (`Slots`), what a holder may still do (`LeaseBook`) and what becomes of a job (`dispatcher`) are the
program's own. What stands here is the part of `claim_loop`, `look_loop`, `crew`, `completer` and `heart`:
one loop that handlers can block, a heart beside it that they cannot, writes that are tried again until they are
answered, and a process that ends itself when a job can be stopped in no other way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from rota.errors import DatabaseAway
from rota.ids import Holder, JobId
from rota.lease import Held, Lease, LeaseBook, Loss, Renewal
from rota.queue import dispatcher
from rota.queue.dispatcher import Slots, Stop
from rota.queue.job import ClaimedJob, Finish, Outcome, Release
from rota.queue.pause import paused_of
from rota.queue.periodic import Put, reconcile
from tests.simulation.checks import Checks
from tests.simulation.scripts import Program, Script
from tests.simulation.world import World

LOOK_S = 1.0
PASSES_S = 15.0
LOOP_BLOCKED_S = 0.2
LATE_LOOK_S = 4.0
CANCEL_GRACE_S = 6.0
FENCE_WAIT_S = 2.0
STANDS_STILL = 0.3
"""How often a process is stopped between its last words and its end."""
LAST_WORDS = 0.8
BLOCKED_STEP_S = 0.25
RESUMED_S = 0.5
"""Code that asks nobody goes on when its stopped process does, until the heart has ended the process: fencing (I3)
alone holds for that moment, and no program can do better."""
STOP_GRACE_S = 10.0
HEART_MIN_S = 0.05

Write = Finish | Release


@dataclass(slots=True, eq=False)
class Run:
    """One claimed job and its handler."""

    job: ClaimedJob
    script: Script
    held: Held
    started: bool = False
    loss: Loss | None = None
    cancel_asked: bool = False
    given_back: bool = False
    stop_seen_at: float | None = None
    over: bool = False


class Server:
    """One process of a worker, from its start to its end.

    Args:
        world: time, chance and the database.
        checks: told of each step that a handler takes.
        holder: who it is; every start has a new one.
        offset_s: what its clock shows at the world's start.
        program: its kinds, handlers and passes.
    """

    def __init__(self, world: World, *, checks: Checks, holder: Holder, offset_s: float, program: Program) -> None:
        self.world = world
        self.holder = holder
        self.alive = True
        self.paused_until = -RESUMED_S
        self._checks = checks
        self._offset_s = offset_s
        self._random = Random(world.random.getrandbits(32))
        self._program = program
        self._kinds = program.kinds
        self._slots = Slots(program.kinds)
        self._limits_next = False
        self._book = LeaseBook()
        self._runs: dict[JobId, Run] = {}
        self._blocked_until = 0.0
        self._pending: list[Write] = []
        self._writing: list[Write] = []
        self._claiming = False
        self._claim_failed = False
        self._renewing = False
        self._stopping = False
        self._looked_at = self.clock()
        self._told: dict[Lease, float] = {}
        self._on_loop(0, self._look)
        self._on_heart(0, self._beat)
        self._on_heart(LOOK_S, self._ask)
        if program.passes:
            self._on_loop(0, self._tend_passes)

    def clock(self) -> float:
        """This machine's clock for leases: it never steps, and it goes on while the process is stopped."""
        return self.world.now_s + self._offset_s

    # Faults

    def crash(self) -> None:
        """The process is gone, with all it knew."""
        self.alive = False

    def pause(self, seconds: float) -> None:
        """The process is stopped as by SIGSTOP; no thread of it takes a step until then."""
        self.paused_until = max(self.paused_until, self.world.now_s + seconds)

    def stop(self) -> None:
        """It is asked to stop in good order."""
        if not self._stopping:
            self._stopping = True
            self._slots.open = False
            self._on_loop(self._random.uniform(0, STOP_GRACE_S), self._give_back_all)
            self._on_loop(0, self._end_if_idle)

    def _give_back_all(self) -> None:
        for run in list(self._runs.values()):
            run.given_back = True
            self._stop_run(run)

    def _end_if_idle(self) -> None:
        if self._runs or self._pending or self._writing or self._claiming:
            self._on_loop(0.2, self._end_if_idle)
        else:
            self.alive = False

    # Who may act when

    def _on_heart(self, delay_s: float, event: Callable[[], None]) -> None:
        """An event of the heart's thread: only the end or a stop of the process keeps it."""

        def happen() -> None:
            if not self.alive:
                return
            if self.world.now_s < self.paused_until:
                self.world.after(self.paused_until - self.world.now_s, happen)
            else:
                event()

        self.world.after(delay_s, happen)

    def _on_loop(self, delay_s: float, event: Callable[[], None]) -> None:
        """An event of the event loop, which a handler may block."""

        def happen() -> None:
            if self.world.now_s < self._blocked_until:
                self._on_heart(self._blocked_until - self.world.now_s, happen)
            else:
                event()

        self._on_heart(delay_s, happen)

    # Claiming and looking

    def _look(self) -> None:
        if not self._stopping:
            self._claim()
            self.world.call(
                "poll", list(self._kinds), holder=self.holder,
                answer=lambda seen: self._on_loop(0, lambda: self._seen(seen)),
            )  # fmt: skip
        self._on_loop(LOOK_S * self._random.uniform(0.9, 1.1), self._look)

    def _seen(self, seen: Any) -> None:
        self._looked_at = self.clock()
        if isinstance(seen, DatabaseAway):
            return
        self._slots.paused = paused_of(seen.paused)
        for job_id in seen.cancels:
            run = self._runs.get(job_id)
            if run is not None:
                self._cancel(job_id)
        if seen.expired:
            self.world.call("sweep", answer=lambda _: self._on_loop(0, self._claim))

    def _claim(self) -> None:
        asks = self._slots.asks()
        if self._claiming or not asks:
            return
        self._claiming = True
        if self._claim_failed:
            self.world.call("clock", answer=lambda before: self._on_loop(0, lambda: self._disown(before)))
            return
        sent_at = self.clock()
        # As a worker does it: one claim at a time, kinds with limits on all servers by a statement of their own.
        self._limits_next = not self._limits_next
        asks = [ask for ask in asks if bool(ask.limits) is self._limits_next] or asks
        part = [ask for ask in asks if bool(ask.limits) is bool(asks[0].limits)]
        self.world.call(
            "claim_turns" if part[0].limits else "claim", part, holder=self.holder,
            answer=lambda claimed: self._on_loop(0, lambda: self._claimed(claimed, sent_at=sent_at)),
        )  # fmt: skip

    def _disown(self, before: Any) -> None:
        if isinstance(before, DatabaseAway):
            self._claiming = False
            return
        known = [lease.job_id for lease in self._book]
        self.world.call(
            "disown", self.holder, known=known, before=before,
            answer=lambda a: self._on_loop(0, lambda: self._disowned(a)),
        )  # fmt: skip

    def _disowned(self, answer: Any) -> None:
        self._claiming = False
        if not isinstance(answer, DatabaseAway):
            self._claim_failed = False
            self._claim()

    def _claimed(self, claimed: Any, *, sent_at: float) -> None:
        self._claiming = False
        if isinstance(claimed, DatabaseAway):
            self._claim_failed = True
            return
        self._slots.took(claimed)
        for job in claimed:
            kind = self._kinds[job.kind]
            held = self._book.grant(job.lease, lease_s=kind.lease_s, heartbeat_s=kind.heartbeat_s, sent_at=sent_at)
            run = self._runs[job.id] = Run(job, self._program.script_of(job), held)
            run.given_back = self._stopping
            self._on_loop(0, lambda run=run: self._begin(run))

    # Passes

    def _tend_passes(self) -> None:
        if not self._stopping:
            self.world.call("passes", answer=lambda rows: self._on_loop(0, lambda: self._reconcile(rows)))
            self._on_loop(PASSES_S * self._random.uniform(0.9, 1.1), self._tend_passes)

    def _reconcile(self, rows: Any) -> None:
        if isinstance(rows, DatabaseAway):
            return
        now = rows[0].now if rows else self.world.clock()
        for step in reconcile(rows, declared=self._program.passes, now=now):
            if isinstance(step, Put):
                self.world.call("put_pass", step, answer=lambda _: None)

    # Running

    def _begin(self, run: Run) -> None:
        if self._must_stop(run):
            self._stopped(run)
            return
        run.started = True
        self._checks.acted(run.job.lease)
        if run.script.style == "blocking":
            self._blocked_until = self.world.now_s + run.script.pauses_s[0]
            self._block(run)
        else:
            self._next_step(run, 0)

    def _block(self, run: Run) -> None:
        """It acts all the while, asks nobody, and nobody but the heart's last measure ends it."""
        if self.world.now_s - self.paused_until > RESUMED_S:
            self._checks.acted(run.job.lease)
        left_s = self._blocked_until - self.world.now_s
        if left_s > BLOCKED_STEP_S:
            self._on_heart(BLOCKED_STEP_S, lambda: self._block(run))
        else:
            self._on_loop(left_s, lambda: self._return(run))

    def _next_step(self, run: Run, number: int) -> None:
        if number == len(run.script.pauses_s):
            self._return(run)
            return
        later = self._on_heart if run.script.style == "thread" else self._on_loop
        later(run.script.pauses_s[number], lambda: self._step(run, number))

    def _step(self, run: Run, number: int) -> None:
        if run.over:
            return
        if self._must_stop(run):
            self._stopped(run)
            return
        self._checks.acted(run.job.lease)
        if run.script.moves:
            self._checks.moved(run.job.lease)
            self._book.progressed(run.job.lease)
        self._next_step(run, number + 1)

    def _must_stop(self, run: Run) -> bool:
        return run.loss is not None or run.cancel_asked or run.given_back or self._over(run)

    def _over(self, run: Run) -> bool:
        return self.clock() >= run.held.deadline - (run.held.rest_s if run.script.style == "coroutine" else 0.0)

    def _return(self, run: Run) -> None:
        if run.over:
            return
        kind = self._kinds[run.job.kind]
        if run.script.raises:
            if self._must_stop(run):
                self._stopped(run)
                return
            self._ended(run, dispatcher.failed_try(run.job, kind=kind, error="raised", random=self._random))
        else:
            self._ended(run, dispatcher.settle(run.job, kind=kind, returned=run.script.returned, random=self._random))

    def _stop_run(self, run: Run) -> None:
        """The order to stop, on the loop: a coroutine ends at once, a thread when it asks."""
        run.stop_seen_at = self.clock()
        if run.script.style != "thread" and not run.over:
            self._on_loop(0, lambda: self._stopped(run))

    def _stopped(self, run: Run) -> None:
        if run.over:
            return
        if self._book.abandoned:
            self._ended(run, None)
            return
        why = Stop(
            loss=run.loss, cancel_asked=run.cancel_asked, given_back=run.given_back,
            over=self._over(run), started=run.started,
        )  # fmt: skip
        self._ended(run, dispatcher.stopped(run.job, kind=self._kinds[run.job.kind], why=why, random=self._random))

    def _ended(self, run: Run, write: Write | None) -> None:
        run.over = True
        if self._runs.get(run.job.id) is run:
            del self._runs[run.job.id]
        self._slots.left(run.job.kind)
        if write is None:
            self._book.drop(run.job.lease)
        else:
            write = dispatcher.with_follow_ups(write, run.script.follow_ups)
            self._pending.append(dispatcher.of_pass(write, self._kinds[run.job.kind]))
            self._write()
        self._claim()

    # Writing ends

    def _write(self) -> None:
        if self._writing or not self._pending:
            return
        self._writing, self._pending = self._pending, []
        finishes = [write for write in self._writing if isinstance(write, Finish)]
        releases = [write for write in self._writing if isinstance(write, Release)]
        left: list[str] = []
        for name, writes in (("finish", finishes), ("release", releases)):
            if writes:
                left.append(name)
                self.world.call(
                    name, writes,
                    answer=lambda a, n=name, w=writes: self._on_loop(0, lambda: self._written(a, n, w, left)),
                )  # fmt: skip

    def _written(self, answer: Any, name: str, writes: list[Any], left: list[str]) -> None:
        left.remove(name)
        if isinstance(answer, DatabaseAway):
            self._pending.extend(writes)
        else:
            for write in writes:
                self._book.drop(write.lease)
        if not left:
            self._writing = []
            self._on_loop(0.5 if isinstance(answer, DatabaseAway) else 0, self._write)

    # The heart

    def _beat(self) -> None:
        now = self.clock()
        overdue = self._book.overdue(now=now)
        ending = self._book.ending(now=now) if overdue else []
        due = self._book.due(now=now) if not self._renewing else []
        if due:
            self._renewing = True
            self.world.call("renew", due, answer=lambda kept: self._on_heart(0, lambda: self._renewed(due, kept)))
        self._told = {lease: self._told.get(lease, now) for lease, _ in overdue}
        for lease, loss in overdue:
            self._on_loop(0, lambda lease=lease, loss=loss: self._lose(lease, loss))
        for lease in ending:
            if self._is_stuck(lease):
                self._end_process(lease)
                return
        look, pace_s = self._book.next_look(), self._book.pace_s()
        pause_s = 0.25 if look is None or pace_s is None else min(0.5, pace_s, max(HEART_MIN_S, look - self.clock()))
        self._on_heart(pause_s, self._beat)

    def _renewed(self, due: list[Renewal], kept: Any) -> None:
        self._renewing = False
        if isinstance(kept, DatabaseAway):
            self._book.unanswered(due, now=self.clock())
            return
        for lease in self._book.renewed(due, kept=kept, now=self.clock()):
            self._on_loop(0, lambda lease=lease: self._lose(lease, Loss.TAKEN))
        for job_id, cancel_asked in kept.items():
            if cancel_asked:
                self._cancelled(job_id)

    def _ask(self) -> None:
        """The heart asks for cancelled jobs where the loop does not."""
        if self.clock() - self._looked_at > LATE_LOOK_S:
            self.world.call(
                "poll", [], holder=self.holder, answer=lambda seen: self._on_heart(0, lambda: self._told_cancels(seen))
            )
        self._on_heart(LOOK_S, self._ask)

    def _told_cancels(self, seen: Any) -> None:
        for job_id in () if isinstance(seen, DatabaseAway) else seen.cancels:
            self._cancelled(job_id)

    def _cancelled(self, job_id: JobId) -> None:
        self._note_cancel(job_id)
        self._on_loop(0, lambda: self._cancel(job_id))

    def _note_cancel(self, job_id: JobId) -> None:
        run = self._runs.get(job_id)
        if run is not None and not run.cancel_asked:
            run.cancel_asked = True
            self._book.cancelled(job_id, ends_at=self.clock() + CANCEL_GRACE_S)

    def _cancel(self, job_id: JobId) -> None:
        self._note_cancel(job_id)
        run = self._runs.get(job_id)
        if run is not None and run.stop_seen_at is None:
            self._stop_run(run)

    def _lose(self, lease: Lease, loss: Loss) -> None:
        run = self._runs.get(lease.job_id)
        if run is not None and run.job.lease == lease:
            run.loss = run.loss or loss
            self._stop_run(run)

    def _is_stuck(self, lease: Lease) -> bool:
        run = self._runs.get(lease.job_id)
        if run is None or run.job.lease != lease:
            return False
        if run.script.style == "thread":
            return run.started
        seen = self._told.get(lease, self.clock()) if run.stop_seen_at is None else run.stop_seen_at
        return self.clock() - seen > LOOP_BLOCKED_S

    def _end_process(self, lease: Lease) -> None:
        """The last measure: no job takes another step, innocent ones are given back, and the process is gone before
        the lease is."""
        left_s = max(0.0, self._book.deadline(lease) - self.clock())
        self._book.abandon(now=self.clock())
        self._slots.open = False
        releases, finishes = [], []
        for run in self._runs.values():
            if run.job.lease == lease and run.cancel_asked:
                finishes.append(Finish(run.job.lease, Outcome.CANCELLED))
            elif run.job.lease == lease:
                finishes.append(dispatcher.could_not_stop(run.job, kind=self._kinds[run.job.kind], random=self._random))
            else:
                releases.append(dispatcher.give_back(run.job, wait_s=FENCE_WAIT_S))
        self.world.call("release", releases, answer=lambda _: None)
        self.world.call("finish", finishes, answer=lambda _: None)
        if self._random.random() < STANDS_STILL:
            # The worst moment to be stopped: others may run what it gave back, and it goes on before it ends.
            self.pause(self._random.uniform(0, 4 * FENCE_WAIT_S))
        self._on_heart(left_s * LAST_WORDS * self._random.random(), self.crash)
