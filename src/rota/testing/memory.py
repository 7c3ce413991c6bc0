"""A queue in memory for the tests of a program: what the app enqueues is there, and runs when the test says so.

It is `rota.queue.reference`, the oracle that Rota's own SQL is tested against, with a clock that the test moves. Jobs
run one at a time in the test's own thread, and what becomes of them is decided by the rules of a worker. Nothing runs
by itself, and nothing reaches a database, an exec server or another process.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from random import Random
from typing import Any, Final, TypeVar, Unpack
from uuid import UUID

from rota.app import App
from rota.declarations import KindOrHandler
from rota.errors import EnqueueError
from rota.ids import JobId
from rota.lease import Lease, Renewal
from rota.queue.handler import Handler
from rota.queue.job import ClaimedJob, Finish, JobRow, Release, State
from rota.queue.new_job import kind_of
from rota.queue.payload import encode
from rota.queue.periodic import Put, reconcile
from rota.queue.reference import Reference
from rota.testing.added import Added, Wanted, check_enqueued, check_not_enqueued
from rota.testing.answers import Answers, Asked, NoAnswer, Output
from rota.testing.clock import FakeClock
from rota.testing.desk import MemoryDesk
from rota.testing.ran import Call, Ran, Seat, ran_of, run_handler, state_of
from rota.testing.turns import Turns, rows_of

T = TypeVar("T")

RUNS_MAX: Final = 1000
"""Runs in one `drain`: more are taken for a job that always puts itself back at once."""


class Memory:
    """The queue in memory; `in_memory` makes one.

    Attributes:
        clock: its clock.
        ran: every run so far, in order.
        sync: `drain` and `run_one` for tests without asyncio.
    """

    def __init__(self, app: App, *, clock: FakeClock, runs_at_once: bool) -> None:
        self.clock = clock
        self.ran: list[Ran] = []
        self.sync = SyncMemory(self)
        self.answers = Answers()
        self._app = app
        self._runs_at_once = runs_at_once
        self._random = Random(0)  # noqa: S311 - jitter, the same each time
        self._reference = Reference(clock=clock, random=self._random)
        self._turns = Turns(self._reference, app.handlers)
        self._draining = False
        self.desk = MemoryDesk(self._reference, added=self._on_added, added_sync=self._on_added_sync)

    # Running

    async def drain(
        self,
        *,
        kinds: Collection[KindOrHandler] | None = None,
        for_s: float | None = None,
        runs_max: int = RUNS_MAX,
        reraise: bool = False,
    ) -> list[Ran]:
        """Runs what is due, one job at a time in the queue's order, until nothing is: also what follows from it.

        Args:
            kinds: only these, by handler or by name.
            for_s: goes on for so many seconds of the queue's clock: it is moved to each next due time in turn (retries,
                snoozes, runs of passes), and at last by the whole of it.
            runs_max: more runs fail the test: some job puts itself back at once, again and again.
            reraise: an exception of a handler is raised here, after what it means for its job was written.

        Returns: the runs, in order.

        Raises: AssertionError after `runs_max` runs, or for an exec call without an answer; RuntimeError inside a
            handler that is being drained.
        """
        return await self._drain(_awaited, kinds, for_s, runs_max, reraise=reraise)

    async def run_one(
        self,
        handler: KindOrHandler,
        payload: Any = None,
        *,
        tenant: str | None = None,
        priority: int = 0,
        tries: int = 1,
        progress: dict[str, Any] | None = None,
        yield_asked: bool = False,
        stop_asked: bool = False,
        reraise: bool = False,
    ) -> Ran:
        """Runs a handler once, without the queue: nothing is added, and no job is there afterwards.

        Args:
            handler: the handler, or its kind by name.
            payload: as for `enqueue`.
            tenant, priority: the job's.
            tries: which try this is.
            progress: what an earlier try left behind.
            yield_asked: somebody more urgent waits: `ctx.should_yield`.
            stop_asked: somebody cancelled the job: `ctx.should_stop`.
            reraise: an exception of the handler is raised here.

        Returns: what became of it.

        Raises: EnqueueError for a kind without a handler in this app; PayloadError.
        """
        return await self._run_one(
            _awaited, handler, payload, tenant=tenant, priority=priority, tries=tries, progress=progress,
            yield_asked=yield_asked, stop_asked=stop_asked, reraise=reraise,
        )  # fmt: skip

    # Looking

    @property
    def jobs(self) -> list[JobRow]:
        """All jobs, whole, in the order in which they were added."""
        return rows_of(self._reference)

    def job(self, job_id: JobId) -> JobRow:
        """One job. Raises: AssertionError if there is none."""
        for row in self._reference.show(job_id):
            return row
        raise AssertionError(f"There is no job {job_id} in this queue.")

    def assert_enqueued(
        self, kind: KindOrHandler, *, count: int | None = None, **wanted: Unpack[Wanted]
    ) -> list[Added]:
        """Asserts that jobs of a kind were added, whether they have run or not.

        Args:
            kind: a handler, or a kind by name.
            count: exactly so many; None: at least one.
            wanted: what they are, such as `payload=…` or `tenant=…`; see `Wanted`.

        Returns: the jobs, in the order in which they were added.

        Raises: AssertionError that lists what was added.
        """
        return check_enqueued(self._added, kind, count=count, wanted=wanted)

    def assert_not_enqueued(self, kind: KindOrHandler, **wanted: Unpack[Wanted]) -> None:
        """Asserts that no job of a kind was added that is as described.

        Raises: AssertionError that lists those that were.
        """
        check_not_enqueued(self._added, kind, wanted=wanted)

    @property
    def _added(self) -> list[Added]:
        return [
            Added(
                row.id, row.kind, row.tenant, row.priority, row.state, json.loads(row.payload or "{}"), row.dedupe_key,
                row.run_after, row.created_at,
            )
            for row in self.jobs
        ]  # fmt: skip

    # Exec calls

    def answer(self, service: str, *, output: Output = b"", **how: Any) -> None:
        """Says what a service of exec servers answers; see `Answers.answer`."""
        self.answers.answer(service, output=output, **how)

    @property
    def asked(self) -> list[Asked]:
        """The exec calls so far, in order."""
        return self.answers.asked

    # Passes

    def add_passes(self) -> None:
        """Adds the passes of the app, as a worker does: the first run of each waits for its time."""
        for step in reconcile(self._reference.passes(), declared=self._app.passes, now=self.clock()):
            if isinstance(step, Put):
                self._reference.put_pass(step)

    # Parts

    async def _drain(
        self,
        call: Call,
        kinds: Collection[KindOrHandler] | None = None,
        for_s: float | None = None,
        runs_max: int = RUNS_MAX,
        *,
        reraise: bool = False,
    ) -> list[Ran]:
        if self._draining:
            raise RuntimeError("This queue is being drained: a handler's own jobs run when it has ended.")
        among = None if kinds is None else [kind_of(kind) for kind in kinds]
        until = None if for_s is None else self.clock() + timedelta(seconds=for_s)
        done: list[Ran] = []
        self._draining = True
        try:
            while True:
                job = self._turns.next(among, now=self.clock())
                if job is not None:
                    self._check_runs(job, done, runs_max)
                    done.append(await self._run(job, call, reraise=reraise))
                    continue
                if until is None:
                    return done
                at = self._turns.next_at(among, now=self.clock())
                if at is None or at > until:
                    self.clock.advance_to(until)
                    return done
                self.clock.advance_to(at)
        finally:
            self._draining = False

    def _check_runs(self, job: ClaimedJob, done: list[Ran], runs_max: int) -> None:
        if len(done) >= runs_max:
            self._reference.release([Release(job.lease)])
            raise AssertionError(
                f"{runs_max:,} jobs ran, and one of kind {job.kind!r} is still due. A handler that puts its job back "
                "without a wait is never done; if there are really so many, give runs_max=…"
            )

    async def _run(self, job: ClaimedJob, call: Call, *, reraise: bool) -> Ran:
        handler, lease = self._app.handlers[job.kind], job.lease
        seat = self._seat(
            handler,
            cancel_asked=lambda: self._reference.show(lease.job_id)[0].cancel_asked_at is not None,
            moved=lambda progress: bool(self._reference.renew([Renewal(lease, handler.kind.lease_s, progress)])),
        )
        write, returned, error = await run_handler(job, seat, call=call, random=self._random)
        ran = ran_of(job, seat, write, returned=returned, error=error, state=self._write(write))
        self.ran.append(ran)
        _raise(error, every=reraise)
        return ran

    async def _run_one(
        self,
        call: Call,
        kind: KindOrHandler,
        payload: Any,
        *,
        tenant: str | None = None,
        priority: int = 0,
        tries: int = 1,
        progress: dict[str, Any] | None = None,
        yield_asked: bool = False,
        stop_asked: bool = False,
        reraise: bool = False,
    ) -> Ran:
        handler = self._handler(kind_of(kind))
        new = self._app.new(kind, payload, tenant=tenant, priority=priority)
        now = self.clock()
        job = ClaimedJob(
            Lease(JobId(UUID(int=len(self.ran) + 1)), tries), new.kind, new.tenant, new.payload, priority, tries,
            new.max_tries or handler.kind.max_tries, now, now, None, None if progress is None else encode(progress),
            new.trace,
        )  # fmt: skip
        seat = self._seat(handler, cancel_asked=lambda: stop_asked, moved=lambda _progress: True)
        seat.yield_asked = yield_asked
        write, returned, error = await run_handler(job, seat, call=call, random=self._random)
        ran = ran_of(job, seat, write, returned=returned, error=error, state=state_of(write))
        self.ran.append(ran)
        _raise(error, every=reraise)
        return ran

    def _handler(self, kind: str) -> Handler:
        handler = self._app.handlers.get(kind)
        if handler is None:
            known = ", ".join(sorted(self._app.handlers)) or "none"
            raise EnqueueError(f"This app has no handler for the kind {kind!r}. Its kinds: {known}.")
        return handler

    def _seat(self, handler: Handler, *, cancel_asked: Callable[[], bool], moved: Callable[[Any], bool]) -> Seat:
        return Seat(handler, self.clock, self.answers, cancel_asked, moved, lambda: self._app.sessions)

    def _write(self, write: Finish | Release) -> State:
        if isinstance(write, Finish):
            return self._reference.finish([write])[write.lease.job_id]
        return self._reference.release([write])[write.lease.job_id]

    async def _on_added(self) -> None:
        if self._runs_at_once and not self._draining:
            await self._drain(_awaited)

    def _on_added_sync(self) -> None:
        if self._runs_at_once and not self._draining:
            self.sync.drain()


class SyncMemory:
    """`queue.sync`: the same for tests without asyncio. Plain handlers run in the test's thread, outside of any event
    loop; each run of an async one has a loop of its own."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def drain(
        self,
        *,
        kinds: Collection[KindOrHandler] | None = None,
        for_s: float | None = None,
        runs_max: int = RUNS_MAX,
        reraise: bool = False,
    ) -> list[Ran]:
        """Runs what is due; see `Memory.drain`."""
        return _at_once(self._memory._drain(_in_a_loop, kinds, for_s, runs_max, reraise=reraise))

    def run_one(self, handler: KindOrHandler, payload: Any = None, **options: Any) -> Ran:
        """Runs a handler once, without the queue; see `Memory.run_one`."""
        return _at_once(self._memory._run_one(_in_a_loop, handler, payload, **options))


@contextmanager
def in_memory(
    app: App, *, clock: FakeClock | None = None, passes: bool = False, runs_at_once: bool = False
) -> Iterator[Memory]:
    """Puts a queue in memory in the place of the app's database, until the block is left.

    Whatever the app enqueues, cancels, moves or pauses meanwhile is there, also with `conn` and by `app.sync`. The
    transaction of a connection decides nothing: a job is there as soon as it is added.

    Args:
        app: the program.
        clock: the queue's clock; else a new one.
        passes: adds the app's passes, so that `drain(for_s=…)` runs them.
        runs_at_once: runs jobs as soon as they are added, before `enqueue` returns.

    Raises: SettingsError for handlers or settings that are no good.
    """
    queue = Memory(app, clock=clock or FakeClock(), runs_at_once=runs_at_once)
    if passes:
        queue.add_passes()
    desk, servers = app.use_queue(queue.desk), app.use_exec_servers(queue.answers)
    try:
        yield queue
    finally:
        app.use_queue(desk)
        app.use_exec_servers(servers)


async def _awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return await coroutine


async def _in_a_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine to its end, where nothing can be awaited."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_awaited(coroutine))
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, _awaited(coroutine)).result()


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """Steps a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    work.close()
    raise AssertionError("this coroutine waits for something")


def _raise(error: BaseException | None, *, every: bool) -> None:
    """A call without an answer is a fault of the test, and never passes for a failed try."""
    if error is not None and (every or isinstance(error, NoAnswer)):
        raise error
