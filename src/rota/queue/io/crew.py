"""The jobs that run in this process: who runs which, how each is stopped, and what is said of it at its end.

Every job's handler is called by a task of the line. A task takes the next job when one ends; only a job that waits for
something brings another task into being, so a thousand jobs that never wait share one task.

All methods are called from the event loop's thread, but for those that the heart calls.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from math import inf
from random import Random
from typing import Final

from rota.commands import Commands
from rota.errors import NotNow, PayloadError, RotaError
from rota.ids import BatchId, JobId
from rota.io import tracing
from rota.io.clock import lease_clock
from rota.io.log import get_logger
from rota.lease import Lease, Loss
from rota.queue import dispatcher
from rota.queue.child_messages import Ended
from rota.queue.handler import Handler
from rota.queue.history import TryEnd
from rota.queue.io.children import ChildDied, Children, kill_all
from rota.queue.io.completer import Write
from rota.queue.io.context import Yielded
from rota.queue.io.heart import FENCE_WAIT_S, Last
from rota.queue.io.job_lines import JobLines
from rota.queue.io.leases import GuardedBook
from rota.queue.io.metering import Metering
from rota.queue.io.running import KILL_GRACE_S, Running, Stopped, Surroundings, Written, run_in_child
from rota.queue.io.store import Store
from rota.queue.job import ClaimedJob, Finish, Full, Outcome, State
from rota.queue.outcomes import HandlerOutcome, Yield
from rota.sessions import Sessions

TURN_S: Final = 0.005
"""How long jobs that never wait may keep the event loop before others get a turn."""
LOOP_BLOCKED_S: Final = 0.2
"""An event loop that has not answered for so long, when a lease is about to end, is taken for blocked."""
THREADS_MAX: Final = 1000
"""Threads of one process, whatever its limits add up to; each is made when it is needed first."""
CHILDREN_IDLE_MAX: Final = 16
"""Warm child processes that are kept; each takes the memory of one Python with the program's imports."""

LOSS_WORDS: Final = {
    Loss.STALLED: "job stalled: the worker stopped a job that made no progress",
    Loss.UNWRITTEN: "job heartbeat not written for the lease time; stopped here",
    Loss.TAKEN: "job lost its lease to another server; stopped here",
    Loss.CANCELLED: "job did not end by itself when it was cancelled; stopped here",
}

log = get_logger("rota.worker")


class Crew:
    """The running jobs of one worker.

    Args:
        handlers: by kind.
        leases: where their leases stand.
        lines: where what they log goes.
        random: for the jitter of waits.
        store: asked what became of jobs that their handlers ended themselves.
        cancel_grace_s: how long a job that somebody cancelled may take to stop.
        ended: told of a job's end: its kind, and what to write; None where the lease is gone.
        lost: told of runs that ended after their leases were lost, and when they ended.
        metering: counts, if anybody does.
        commands: gives whoever runs commands for the handlers; None where nobody does.
        sessions: gives whoever opens sessions on runners for them; None where nobody does.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        leases: GuardedBook,
        lines: JobLines,
        random: Random,
        store: Store,
        cancel_grace_s: float,
        ended: Callable[[str, Write | None], None],
        lost: Callable[[Lease, float], None],
        metering: Metering | None = None,
        commands: Callable[[], Commands] | None = None,
        sessions: Callable[[], Sessions] | None = None,
    ) -> None:
        self._handlers = handlers
        self._leases = leases
        self._random = random
        self._ended = ended
        self._lines = lines
        self._lost = lost
        self._metering = metering
        self._tracer = tracing.tracer()
        self._surroundings = Surroundings(leases, lines, store.database.target.schema, store.holder, commands, sessions)
        self._store = store
        self._cancel_grace_s = cancel_grace_s
        self._running: dict[JobId, Running] = {}
        self._asked_to_yield: set[str] = set()
        """Kinds of which some job was asked to yield."""
        self._line: deque[Running] = deque()
        """Jobs whose handlers have not been called yet."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        threads = sum(h.kind.limit for h in handlers.values() if not h.is_async and h.kind.isolation != "process")
        in_children = sum(h.kind.limit for h in handlers.values() if h.kind.isolation == "process")
        self._children = Children(idle_max=min(in_children, CHILDREN_IDLE_MAX))
        self._threads = ThreadPoolExecutor(min(max(threads, 1), THREADS_MAX), thread_name_prefix="rota-job")

    def __len__(self) -> int:
        return len(self._running)

    def start(self, claimed: Iterable[ClaimedJob], *, sent_at: float) -> None:
        """Runs claimed jobs, in their order. `sent_at`: the clock before the claim was sent."""
        book, handlers, running, line = self._leases.book, self._handlers, self._running, self._line
        first_s, seen = inf, None
        with self._leases.lock:
            for job in claimed:
                handler = handlers[job.kind]
                kind = handler.kind
                held = book.grant(job.lease, lease_s=kind.lease_s, heartbeat_s=kind.heartbeat_s, sent_at=sent_at)
                running[job.lease.job_id] = started = Running(job, handler, held, self._surroundings)
                line.append(started)
                if kind is not seen:
                    first_s, seen = min(first_s, book.first_look_s(kind.lease_s, kind.heartbeat_s)), kind
            self._leases.granted(look_by=sent_at + first_s)
        self._idle.clear()
        self._add_task()

    async def wait_idle(self) -> None:
        """Returns when no job runs."""
        await self._idle.wait()

    def give_back(self, jobs: Iterable[ClaimedJob]) -> None:
        """Stops these jobs; those that have not ended by themselves go back to the queue without a try."""
        for job in jobs:
            running = self._running.get(job.id)
            if running is not None:
                running.given_back = True
                running.stop()

    def give_back_all(self) -> None:
        """The same with every job."""
        self.give_back(self.unstoppable())

    def unstoppable(self) -> list[ClaimedJob]:
        """The jobs that still run, because their threads do not end."""
        return [running.job for running in self._running.values()]

    def lose(self, lease: Lease, loss: Loss) -> None:
        """Stops a job that may not go on; safe to repeat."""
        running = self._running.get(lease.job_id)
        if running is None or running.job.lease != lease:
            return
        if running.loss is None:
            running.loss = loss
            log.warning(LOSS_WORDS[loss], job_id=str(lease.job_id), kind=running.job.kind, epoch=lease.epoch)
            if self._metering is not None and loss is not Loss.STALLED:
                self._metering.meters.lost(loss)
        running.stop()

    def cancel(self, job_id: JobId) -> None:
        """Stops a job that somebody cancelled: told once, it has the grace to end by itself. Safe to repeat."""
        self.note_cancel(job_id)
        running = self._running.get(job_id)
        if running is not None and running.stop_seen_at is None:
            running.stop()

    def full(self, free: Collection[str]) -> list[Full]:
        """The kinds that run and are not among those with a free slot, with the least urgent job of each."""
        running: dict[str, list[int]] = {}
        for one in self._running.values():
            if one.job.kind not in free:
                running.setdefault(one.job.kind, []).append(one.job.priority)
        return [Full(kind, len(priorities), min(priorities)) for kind, priorities in running.items()]

    def make_room(self, urgent: Mapping[str, Sequence[int]]) -> None:
        """Asks jobs to yield to more urgent ones that wait, by kind, and takes back what was asked of others."""
        for kind in urgent.keys() | self._asked_to_yield:
            jobs = [one for one in self._running.values() if one.job.kind == kind]
            asked = dispatcher.yielding(urgent.get(kind, ()), [one.job for one in jobs])
            for one in jobs:
                one.ask_to_yield(one.job.id in asked)
        self._asked_to_yield = set(urgent)

    async def shut(self) -> None:
        """Ends the child processes, and lets go of the threads; those that are busy end with the process."""
        await self._children.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # For the heart

    def note_cancel(self, job_id: JobId) -> None:
        """Notes that somebody cancelled a job, so that its time runs also while the event loop is blocked. Nothing
        stops a thread but the end of its process, and it has the same grace. Safe to repeat."""
        running = self._running.get(job_id)
        if running is None or running.cancel_asked:
            return
        running.kill_after_s = self._cancel_grace_s
        running.cancel_asked = True
        self._leases.cancelled(job_id, ends_at=lease_clock() + self._cancel_grace_s + KILL_GRACE_S)

    def is_stuck(self, lease: Lease, *, since: float) -> bool:
        """Whether a job that was told to stop, first at `since`, runs in a way that only ending the process ends."""
        running = self._running.get(lease.job_id)
        if running is None or running.job.lease != lease:
            return False
        if running.in_thread:
            return True
        # A process that stood still finds its leases over, and its event loop wants a moment to take up the order.
        seen = since if running.stop_seen_at is None else running.stop_seen_at
        return lease_clock() - seen > LOOP_BLOCKED_S

    def last_words(self, stuck: Lease) -> Last:
        """What to write before this process ends because of that job. No job takes another step after this, in child
        processes neither: they would go on under jobs that are given back."""
        # First who runs: whoever finds its lease abandoned ends without a word.
        everybody = list(self._running.values())
        self._leases.abandon()
        children = [child for running in everybody if (child := running.child) is not None]
        for child in children:
            child.hold()
        # A tree takes a while to be killed, and what it started would outlive this process.
        killing = threading.Thread(target=kill_all, args=(children,), name="rota-kill", daemon=True)
        killing.start()
        last = Last([], [], killing)
        named = self._running.get(stuck.job_id)
        stepping = self._leases.slate.stepping
        if named is not None and not named.in_thread and stepping is not None:
            # The event loop is blocked, and not by the job whose lease happens to end first.
            stuck = next((one.job.lease for one in everybody if one.job.id.bytes == stepping), stuck)
        for running in everybody:
            job = running.job
            if job.lease == stuck and running.cancel_asked:
                last.finishes.append(Finish(job.lease, Outcome.CANCELLED, how=TryEnd.FENCED))
            elif job.lease == stuck:
                kind = running.handler.kind
                last.finishes.append(
                    dispatcher.could_not_stop(job, kind=kind, random=self._random, gone_in_s=FENCE_WAIT_S)
                )
            else:
                last.releases.append(dispatcher.give_back(job, wait_s=FENCE_WAIT_S))
            if job.lease == stuck and self._metering is not None:
                self._metering.fenced(job.kind)
        return last

    def kind_of(self, job_id: JobId) -> str | None:
        """The kind of a job that runs here."""
        running = self._running.get(job_id)
        return None if running is None else running.job.kind

    # Running

    def _add_task(self) -> None:
        """One more task for the line, if it has jobs."""
        if self._line:
            task = asyncio.get_running_loop().create_task(self._work_off())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work_off(self) -> None:
        task, line, began = asyncio.current_task(), self._line, lease_clock()
        assert task is not None, "this is a task"
        turn_ends = began + TURN_S
        while line:
            running = line.popleft()
            running.task = task
            ended = await self._run(running, now=began)
            if self._metering is not None:
                self._metering.ran(running.job.kind, ended - began)
            began = ended
            while task.cancelling():
                # The order was for that job; the task goes on with the next.
                task.uncancel()
            if ended > turn_ends:
                await asyncio.sleep(0)
                began = lease_clock()
                turn_ends = began + TURN_S

    async def _run(self, running: Running, *, now: float) -> float:
        """Runs one job. Returns: the clock at its end."""
        write: Write | None = None
        try:
            try:
                write = await self._outcome(running, now=now)
            except Exception as error:
                # The program's own types may raise while a payload is read or a result is written: the jobs behind in
                # the line have no part in it.
                job = running.job
                log.exception("try failed around its handler", job_id=str(job.id), kind=job.kind, tries=job.tries)
                write = dispatcher.raised(job, kind=running.handler.kind, error=error, random=self._random)
            self._surroundings.end_if_forked()
            if running.written is not None:
                write = await self._unless_ended(running, running.written, write)
            if write is not None:
                kind = running.handler.kind
                write = dispatcher.completed(
                    write, kind=kind, progress=running.held.progress, follow_ups=running.follow_ups
                )
        finally:
            running.task = None
            lease = running.job.lease
            if self._running.get(lease.job_id) is running:
                # Else its lease was lost, and this worker has claimed the job anew before the handler came to its end.
                del self._running[lease.job_id]
            # The run is over now, whenever that is written.
            now = lease_clock()
            if running.started:
                ended_at = running.held.ends(now=now)
                self._lines.close(lease)
                if running.held.deadline == 0.0:
                    self._lost(lease, ended_at)
            if running.span is not None:
                self._end_span(running.span, write)
            if write is None:
                self._leases.drop([lease])
            self._ended(running.job.kind, write)
            if not self._running:
                self._idle.set()
        return now

    def _begin_span(self, tracer: tracing.Tracer, job: ClaimedJob) -> tracing.RunSpan:
        facts: dict[str, str | int] = {"messaging.message.id": str(job.id), "rota.epoch": job.lease.epoch}
        return tracer.begin(job.kind, traceparent=job.trace, tries=job.tries, facts=facts)

    def _end_span(self, span: tracing.RunSpan, write: Write | None) -> None:
        if isinstance(write, Finish):
            went_wrong = write.outcome in (Outcome.FAILED, Outcome.RETRY)
            span.end(write.outcome, error=(write.error or "") if went_wrong else None)
        else:
            span.end("lost" if write is None else "returned", error="The lease was lost" if write is None else None)

    async def _outcome(self, running: Running, *, now: float) -> Write | None:
        job, handler = running.job, running.handler
        left_s = running.held.deadline - now
        if left_s <= 0 or running.ordered_to_stop:
            return self._stopped(running)
        if dispatcher.begins_too_late(left_s=left_s, lease_s=handler.kind.lease_s):
            log.warning(
                "job given back unbegun: little of its lease was left", job_id=str(job.id), kind=job.kind, left_s=left_s
            )
            return dispatcher.give_back_unbegun(job, kind=handler.kind)
        running.started = True
        running.span = None if self._tracer is None else self._begin_span(self._tracer, job)
        if handler.kind.isolation == "process":
            return await self._child_outcome(running)
        try:
            payload = handler.decode(job.payload)
        except PayloadError as error:
            return dispatcher.unfit(job, error)
        variables = copy_context()
        if running.span is not None:
            running.span.around(variables)
        try:
            returned = await running.call(payload, variables=variables, threads=self._threads, waits=self._add_task)
        except (asyncio.CancelledError, Stopped):
            return self._stopped(running)
        except Yielded:
            returned = Yield()
        except GeneratorExit:
            # The event loop closes, and this with it.
            raise
        except BaseException as error:
            return self._raised(running, error)
        if running.told and not isinstance(returned, HandlerOutcome):
            return self._stopped(running)
        return dispatcher.settle(job, kind=handler.kind, returned=returned, random=self._random)

    def _raised(self, running: Running, error: BaseException) -> Write | None:
        job = running.job
        if running.must_stop():
            return self._stopped(running)
        if isinstance(error, NotNow):
            log.info("job goes back: it cannot run now", job_id=str(job.id), kind=job.kind, reason=str(error))
        else:
            log.warning(
                "try failed", job_id=str(job.id), kind=job.kind, tries=job.tries, max_tries=job.max_tries,
                error=dispatcher.describe_error(error), exc_info=error,
            )  # fmt: skip
        return dispatcher.raised(job, kind=running.handler.kind, error=error, random=self._random)

    async def _unless_ended(self, running: Running, written: Written, write: Write | None) -> Write | None:
        """What is left to write of a job whose success its handler wrote: nothing, if that was committed."""
        lease = running.job.lease
        try:
            if not written.sure:
                (row,) = await self._store.show(lease.job_id)
                if row.state is State.LEASED and row.lease_epoch == lease.epoch:
                    kind = running.handler.kind
                    return dispatcher.not_committed(running.job, kind=kind, write=write, random=self._random)
            if written.batch_id is not None:
                await self._store.close_batches([written.batch_id])
        except (RotaError, OSError, ValueError, asyncio.CancelledError) as error:
            # If it was not committed, its lease runs out.
            log.warning("the end of a job could not be looked at", job_id=str(lease.job_id), error=str(error))
        return None

    async def _child_outcome(self, running: Running) -> Write | None:
        job, kind = running.job, running.handler.kind
        self._add_task()
        noted = self._leases.slate.begins_apart(job.id)
        try:
            ended = await run_in_child(running, self._children)
        except (asyncio.CancelledError, ChildDied) as error:
            if running.must_stop():
                return self._stopped(running)
            ended = Ended(error=str(error) or "The job was cancelled by its worker")
        finally:
            self._leases.slate.ended_apart(noted)
        running.follow_ups = ended.follow_ups
        if ended.written:
            running.ended(batch_id=None if ended.batch_id is None else BatchId(ended.batch_id), sure=ended.sure)
        if running.must_stop() and (ended.error is not None or ended.told):
            return self._stopped(running)
        if ended.error is not None and not ended.final:
            log.warning(
                "try failed", job_id=str(job.id), kind=job.kind, tries=job.tries, max_tries=job.max_tries,
                error=ended.error, traceback=ended.traceback,
            )  # fmt: skip
        return dispatcher.settle_child(job, kind=kind, ended=ended, random=self._random)

    def _stopped(self, running: Running) -> Write | None:
        if self._leases.book.abandoned:
            # The heart has given it back, and writes alone.
            return None
        if self._metering is not None and running.loss is Loss.STALLED:
            self._metering.meters.stalled(running.job.kind, how="killed" if running.killed else "stopped")
        return dispatcher.stopped(
            running.job,
            kind=running.handler.kind,
            why=dispatcher.Stop(
                loss=running.loss,
                cancel_asked=running.cancel_asked,
                given_back=running.given_back,
                over=lease_clock() >= running.held.deadline - running.held.rest_s,
                started=running.started,
                killed=running.killed,
            ),
            random=self._random,
        )
