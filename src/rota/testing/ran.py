"""One run of a handler in a test: what its context speaks to, and what became of it.

It decides nothing: a handler's end is settled by `rota.queue.dispatcher`, as on a worker. What differs is who steps the
handler: it runs in the test's own thread, whatever its isolation.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

from rota.commands import Call as ExecCall
from rota.commands import Commands, Completed
from rota.errors import PayloadError, SettingsError
from rota.ids import BatchId, Holder
from rota.io.commands import run_whole
from rota.lease import Loss
from rota.queue import dispatcher
from rota.queue.child_calls import asks, call_of
from rota.queue.handler import Handler
from rota.queue.io.context import NO_SESSIONS_IN_A_CHILD, NOT_IN_A_CHILD, ONLY_IN_A_THREAD, Context, Yielded
from rota.queue.job import ClaimedJob, Finish, NewJob, Outcome, Release, State
from rota.queue.kind import Kind
from rota.queue.outcomes import HandlerOutcome, Yield
from rota.sessions import Sessions

Call = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]
"""How the coroutine of an async handler is run."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A line that a handler logged with `ctx.log`, from `info` up."""

    level: str
    event: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one run.

    Attributes:
        job: the job, as its handler saw it.
        returned: what the handler returned: an outcome such as `rota.Snooze(60)`, or its result.
        error: what it raised; a payload that does not fit is one, too.
        state: the job's state afterwards.
        result: the job's result, as JSON values.
        reason: why it did not go well, as it stands in `last_error`.
        wait_s: how long it waits if it goes on; None if it ended, or keeps its place in line.
        progress: what it said with `ctx.progress`, in order.
        logs: what it said with `ctx.log`.
        follow_ups: the jobs that were added with its success.
    """

    job: ClaimedJob
    returned: Any
    error: BaseException | None
    state: State
    result: Any
    reason: str | None
    wait_s: float | None
    progress: list[dict[str, Any]]
    logs: list[Logged]
    follow_ups: tuple[NewJob, ...]


@dataclass(slots=True)
class Seat:
    """What a handler's context speaks to, in a test.

    Args:
        handler: the handler of the job's kind.
        clock: says when its lease is over.
        answers: who answers its commands.
        cancel_asked: says whether somebody cancelled the job.
        moved: told of progress, which may be None; False if the lease is gone.
        opens: gives whoever opens its sessions on runners.
        yield_asked: somebody more urgent waits.
        schema: where Rota's tables would be.
        holder: nobody: there is no table with leases.
    """

    handler: Handler
    clock: Callable[[], datetime]
    answers: Commands
    cancel_asked: Callable[[], bool]
    moved: Callable[[Any], bool]
    opens: Callable[[], Sessions]
    yield_asked: bool = False
    schema: str = "rota"
    holder: Holder | None = None
    follow_ups: list[NewJob] = field(default_factory=list)
    progress: list[dict[str, Any]] = field(default_factory=list)
    logs: list[Logged] = field(default_factory=list)
    told: bool = False
    own_end: Finish | None = None
    """The success that the handler wrote itself."""
    lease_until: datetime = field(init=False)

    def __post_init__(self) -> None:
        self.lease_until = self.clock() + timedelta(seconds=self.kind.lease_s)

    @property
    def kind(self) -> Kind:
        """The settings of the job's kind."""
        return self.handler.kind

    @property
    def over(self) -> bool:
        """Whether the lease ran out while the handler had the clock moved, without progress."""
        return self.clock() >= self.lease_until

    def must_stop(self) -> bool:
        """Whether the job may not go on."""
        return self.over or self.cancel_asked()

    def told_to_stop(self) -> bool:
        """The same, asked by the handler: what it returns afterwards is no result."""
        self.told = self.told or self.must_stop()
        return self.told

    def progressed(self, progress: Any | None) -> bool:
        """Notes that the job moved."""
        if self.must_stop() or not self.moved(progress):
            return False
        self.lease_until = self.clock() + timedelta(seconds=self.kind.lease_s)
        if progress is not None:
            self.progress.append(progress)
        return True

    def said(self, level: str, event: str, fields: dict[str, Any]) -> None:
        """Keeps a line that the handler logged."""
        self.logs.append(Logged(level, event, fields))

    def follow(self, job: NewJob) -> None:
        """Keeps a job that is to be added with the success."""
        self.follow_ups.append(job)

    def closing(self) -> bool:
        """Whether the handler may write the job's end."""
        return not self.must_stop()

    def takes(self, finish: Finish) -> bool:
        """Keeps the success: there is no table to write it to."""
        self.own_end = finish
        return True

    def ended(self, *, batch_id: BatchId | None, sure: bool) -> None:
        """Nothing: whether the handler raised says whether it was committed."""

    def commands(self) -> Commands:
        """Who runs commands for the handler; nobody where it would run in a child process."""
        if self.kind.isolation == "process":
            raise SettingsError(NOT_IN_A_CHILD)
        return self.answers

    def sessions(self) -> Sessions:
        """Who opens sessions on runners: what the test gave to `app.use_sessions`."""
        if self.kind.isolation == "process":
            raise SettingsError(NO_SESSIONS_IN_A_CHILD)
        return self.opens()

    def run_call(self, call: ExecCall) -> Completed:
        """Runs a command whole beside the handler, which may stand in an event loop."""
        if self.handler.is_async:
            raise SettingsError(ONLY_IN_A_THREAD)
        if self.kind.isolation == "process":
            # As it would come to the worker: what cannot be handed over is refused here too.
            call = call_of(asks(1, call), name=call.name or "", moved=call.moved)
        with ThreadPoolExecutor(1) as beside:
            return beside.submit(asyncio.run, run_whole(self.answers, call)).result()


async def run_handler(
    job: ClaimedJob, seat: Seat, *, call: Call, random: Random
) -> tuple[Finish | Release, Any, BaseException | None]:
    """Runs a handler and decides what its end means.

    Returns: what to write; what it returned; what it raised.
    """
    handler, kind = seat.handler, seat.kind
    try:
        payload = handler.decode(job.payload)
    except PayloadError as unfit:
        return dispatcher.of_pass(dispatcher.unfit(job, unfit), kind), None, unfit
    returned: Any = None
    error: BaseException | None = None
    try:
        given = handler.call(Context(job, payload, host=seat), payload)
        returned = await call(given) if handler.is_async else given
    except Yielded:
        returned = Yield()
    except (Exception, SystemExit) as raised:
        error = raised
    write = _own_end(job, seat, error, random) or _settled(job, seat, returned, error, random)
    write = dispatcher.with_follow_ups(write, seat.follow_ups)
    return dispatcher.of_pass(write, kind), returned, error


def _own_end(job: ClaimedJob, seat: Seat, error: BaseException | None, random: Random) -> Finish | Release | None:
    if seat.own_end is None or error is None:
        return seat.own_end
    # An error that leaves the handler has left its transaction, too.
    return dispatcher.not_committed(job, kind=seat.kind, write=None, random=random)


def _settled(
    job: ClaimedJob, seat: Seat, returned: Any, error: BaseException | None, random: Random
) -> Finish | Release:
    kind = seat.kind
    ignored = error is not None or (seat.told and not isinstance(returned, HandlerOutcome))
    if seat.over or (ignored and seat.must_stop()):
        loss = Loss.STALLED if seat.over else None
        why = dispatcher.Stop(loss=loss, cancel_asked=seat.cancel_asked())
        stopped = dispatcher.stopped(job, kind=kind, why=why, random=random)
        assert stopped is not None, "this lease is not taken"
        return stopped
    if error is not None:
        return dispatcher.raised(job, kind=kind, error=error, random=random)
    return dispatcher.settle(job, kind=kind, returned=returned, random=random)


def ran_of(
    job: ClaimedJob, seat: Seat, write: Finish | Release, *, returned: Any, error: BaseException | None, state: State
) -> Ran:
    """What became of a run, once its end is written."""
    result = write.result if isinstance(write, Finish) else None
    return Ran(
        job,
        returned,
        error,
        state,
        None if result is None else json.loads(result),
        write.error if isinstance(write, Finish) else write.reason,
        write.wait_s if state is State.QUEUED else None,
        seat.progress,
        seat.logs,
        write.follow_ups if isinstance(write, Finish) and state is not State.CANCELLED else (),
    )


def state_of(write: Finish | Release) -> State:
    """The state that this end gives to a job that nobody else touches."""
    if isinstance(write, Release) or write.outcome in (Outcome.RETRY, Outcome.AGAIN):
        return State.QUEUED
    return State(write.outcome)
