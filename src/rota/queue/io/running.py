"""One job while it runs: in a coroutine, in a thread or in a child process, with a way to stop it.

A coroutine is stepped by hand, so that its lease is looked at before every step but the first: a process that was
stopped for longer than the lease (SIGSTOP, a sleeping machine) does not take one more step of a job that another
server may run by now (I2). A child process is asked to stop, and soon after killed with all that it started. A thread
cannot be stopped from outside: it is told, and if it does not end in time its process is ended by the heart.
"""

import asyncio
import os
import sys
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import Executor
from contextvars import Context as Variables
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from msgspec import Struct, structs

from rota.commands import Call, Commands, Completed
from rota.errors import LeaseLost, SettingsError
from rota.ids import BatchId, Holder
from rota.io.clock import lease_clock
from rota.io.commands import run_whole
from rota.io.tracing import RunSpan
from rota.lease import Held, Loss
from rota.queue.child_calls import Asks, answered, call_of, failed
from rota.queue.child_messages import Closing, Ended, Message, Moved, Said, Target, Until, Waiting, run_message
from rota.queue.handler import Handler
from rota.queue.history import LogLine
from rota.queue.io.children import Child, ChildDied, Children
from rota.queue.io.context import ONLY_IN_A_THREAD, Context
from rota.queue.io.job_lines import JobLines
from rota.queue.io.leases import GuardedBook
from rota.queue.io.warden_process import ID_BYTES
from rota.queue.job import ClaimedJob, Finish, NewJob
from rota.sessions import Sessions

LOOK_S: Final = 0.2
"""How often a thread that waits for a command looks whether its job must stop."""
KILL_GRACE_S: Final = 3.0
"""How long a child process that was asked to stop its job may take before it is killed."""
FORKED_EXIT: Final = 70
"""EX_SOFTWARE: the exit status of a process that a handler forked and let run on into its worker's code."""


T = TypeVar("T")


class _Process:
    """Which process this is, without asking the system for every job."""

    pid = os.getpid()

    @classmethod
    def forked(cls) -> None:
        """Notes that this is a new one."""
        cls.pid = os.getpid()


os.register_at_fork(after_in_child=_Process.forked)


class Written(Struct, frozen=True):
    """A success that a handler wrote in a transaction of its own. `sure`: it is known to be committed."""

    batch_id: BatchId | None = None
    sure: bool = False


class Stopped(BaseException):
    """Thrown into a handler whose lease is over. No `except Exception` of a handler catches it."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all running jobs of a worker share.

    Attributes:
        leases: the worker's leases.
        lines: keeps what handlers log.
        schema: where Rota's tables live.
        holder: whose leases they are.
        commands: gives whoever runs commands for handlers; None where nobody does.
        sessions: gives whoever opens sessions on runners for them; None where nobody does.
        pid: the worker's process.
    """

    leases: GuardedBook
    lines: JobLines
    schema: str
    holder: Holder | None
    commands: Callable[[], Commands] | None = None
    sessions: Callable[[], Sessions] | None = None
    pid: int = field(default_factory=os.getpid)

    def end_if_forked(self) -> None:
        """Ends this process if a handler made it by os.fork and then came back from its code: it would go on as a
        second worker on the same connections."""
        if _Process.pid != self.pid:
            os._exit(FORKED_EXIT)


class Running:
    """A claimed job and what runs it.

    Attributes:
        job: the job.
        handler: its handler.
        held: its lease, with the deadline.
        loss: why it has to stop, once it has to.
        cancel_asked: somebody cancelled the job.
        given_back: the worker is stopping and wants the job back in the queue.
        in_thread: it runs in a thread.
        child: the child process that runs it.
        calls: the commands that run for that.
        killed: its child process was killed.
        started: its handler has been called.
        told: its handler has seen that it should stop.
        yield_asked: a more urgent job of its kind waits for its slot.
        follow_ups: the jobs that are added with its success.
        written: its handler has written its success itself.
        kill_after_s: how long its child process may take to stop.
        stop_seen_at: when the event loop last took up an order to stop it; the heart reads whether the loop lives.
        task: the task that steps it now.
        span: its try in the program's traces, if that has any.
    """

    __slots__ = (
        "_loop", "_worker", "calls", "cancel_asked", "child", "follow_ups", "given_back", "handler", "held",
        "in_thread", "job", "kill_after_s", "killed", "loss", "span", "started", "stop_seen_at", "task", "told",
        "written", "yield_asked",
    )  # fmt: skip

    def __init__(self, job: ClaimedJob, handler: Handler, held: Held, worker: Surroundings) -> None:
        self.job = job
        self.handler = handler
        self.held = held
        self._worker = worker
        self.loss: Loss | None = None
        self.cancel_asked = False
        self.given_back = False
        self.in_thread = False
        self.child: Child | None = None
        self.killed = False
        self.started = False
        self.told = False
        self.yield_asked = False
        self.follow_ups: Sequence[NewJob] = ()
        self.written: Written | None = None
        self.kill_after_s = KILL_GRACE_S
        self.calls: set[asyncio.Task[None]] | None = None
        self.stop_seen_at: float | None = None
        self.task: asyncio.Task[None] | None = None
        self.span: RunSpan | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def schema(self) -> str:
        """Where Rota's tables live."""
        return self._worker.schema

    @property
    def holder(self) -> Holder | None:
        """Whose lease it is."""
        return self._worker.holder

    @property
    def ordered_to_stop(self) -> bool:
        """Whether somebody has said that it has to stop."""
        return self.loss is not None or self.cancel_asked or self.given_back

    def must_stop(self) -> bool:
        """Whether the handler may take no further step of its own accord.

        Its lease may be over before anybody has told it so: a thread goes on at once when its process does.
        """
        return self.ordered_to_stop or lease_clock() >= self.held.deadline

    def told_to_stop(self) -> bool:
        """The same, asked by the handler: what it returns afterwards is no result."""
        self.told = self.told or self.must_stop()
        return self.told

    def progressed(self, progress: Any | None) -> bool:
        """Notes that the job moved; False if its lease is gone."""
        return self._worker.leases.progressed(self.job.lease, progress)

    def said(self, level: str, event: str, fields: dict[str, Any]) -> None:
        """Keeps a line that the handler logged; what it has left behind when its run ended speaks for nobody."""
        if self.held.ended_at is None:
            self._worker.lines.say(self.job.lease, level, event, fields)

    def heard_from(self, child: Child, message: Message) -> None:
        """Does what the handler in a child process asks for on its way."""
        match message:
            case Moved(progress):
                self.progressed(progress)
            case Said():
                self._said_by_child(message)
            case Closing():
                self.closing()
            case Asks():
                self._call_in_task(message, child)
            case _:
                pass

    def _said_by_child(self, said: Said) -> None:
        self._worker.lines.keep(LogLine(self.job.lease, said.number, said.said_at, said.level, said.event, said.fields))

    def commands(self) -> Commands:
        """Who runs commands for the handler."""
        if self._worker.commands is None:
            raise SettingsError("This worker has no exec servers: it was not made by an app.")
        return self._worker.commands()

    def sessions(self) -> Sessions:
        """Who opens sessions on runners for the handler."""
        if self._worker.sessions is None:
            raise SettingsError("This worker has no gateway: it was not made by an app.")
        return self._worker.sessions()

    def run_call(self, call: Call) -> Completed:
        """Runs a command whole in the worker's loop, from the handler's thread."""
        if not self.in_thread or self._loop is None:
            raise SettingsError(ONLY_IN_A_THREAD)
        future = asyncio.run_coroutine_threadsafe(run_whole(self.commands(), call), self._loop)
        while True:
            try:
                return future.result(timeout=LOOK_S)
            except TimeoutError:
                if future.done():
                    raise
            if self.told_to_stop():
                future.cancel()
                raise LeaseLost(f"Job {self.job.id} must stop: its lease is over, or somebody cancelled it.")

    def follow(self, job: NewJob) -> None:
        """Keeps a job that is to be added with the success."""
        if not isinstance(self.follow_ups, list):
            # Most jobs have none, and make no list.
            self.follow_ups = []
        self.follow_ups.append(job)

    def closing(self) -> bool:
        """Renews the lease no more, because the handler writes the job's end; False if it may not."""
        return not self.must_stop() and self._worker.leases.close(self.job.lease)

    def takes(self, finish: Finish) -> bool:
        """Nothing: the queue is in the database."""
        return False

    def ended(self, *, batch_id: BatchId | None, sure: bool) -> None:
        """Notes that the handler has written the job's success."""
        before = self.written or Written()
        self.written = Written(batch_id=batch_id or before.batch_id, sure=sure)

    def ask_to_yield(self, asked: bool) -> None:
        """Tells the handler whether somebody more urgent waits; call from the loop's thread."""
        if asked is not self.yield_asked and self.child is not None:
            self.child.say(Waiting(asked))
        self.yield_asked = asked

    def _call_in_task(self, asked: Asks, child: Child) -> None:
        task = asyncio.get_running_loop().create_task(self._call_for_child(asked, child))
        if self.calls is None:
            # Most jobs make no calls, and have no set.
            self.calls = set()
        self.calls.add(task)
        task.add_done_callback(self.calls.discard)
        if self.must_stop():
            task.cancel()

    def drop_calls(self) -> None:
        """Ends the commands that run for the child process; safe to repeat."""
        for task in list(self.calls or ()):
            task.cancel()

    async def _call_for_child(self, asked: Asks, child: Child) -> None:
        call = call_of(asked, name=str(self.job.id), moved=lambda: _ignore(self.progressed(None)))
        try:
            answer = answered(asked.number, await run_whole(self.commands(), call))
        except Exception as error:
            answer = failed(asked.number, error)
        if self.child is child:
            child.say(answer)

    def stop(self) -> None:
        """Stops the coroutine, or the child, or leaves a thread to notice; call from the loop's thread, repeatedly."""
        first, self.stop_seen_at = self.stop_seen_at is None, lease_clock()
        if self.child is not None:
            if first:
                self.child.ask_to_stop()
                self.drop_calls()
                # What then is left of the lease is for the kill itself, and it is over before the heart looks whether
                # the job is stuck, which it does in the last half.
                left_s = max(0.0, self.held.deadline - self.stop_seen_at)
                grace_s = min(self.kill_after_s, max(left_s / 4, left_s - KILL_GRACE_S))
                asyncio.get_running_loop().call_later(grace_s, self._kill, self.child)
            return
        if self.task is not None and not self.in_thread:
            self.task.cancel()

    def _kill(self, child: Child) -> None:
        self.killed = self.killed or (self.child is child and child.alive)
        child.kill()

    def call(
        self, payload: Any, *, variables: Variables, threads: Executor, waits: Callable[[], None]
    ) -> Awaitable[Any]:
        """Runs the handler; await it for what it returned.

        Args:
            payload: what it is called with.
            variables: the context variables that are its own.
            threads: where plain functions run.
            waits: called when it first waits for something.

        Raises: whatever the handler raises; Stopped if its lease ended before it did.
        """
        context = Context(self.job, payload, host=self)
        if self.handler.is_async:
            coroutine = variables.run(self.handler.call, context, payload)
            return _stepped(coroutine, self.held, variables, waits, self._worker)
        return self._call_outside(context, variables, threads, waits)

    async def _call_outside(
        self, context: Context, variables: Variables, threads: Executor, waits: Callable[[], None]
    ) -> Any:
        self.in_thread = True
        self._worker.leases.begins_in_thread(self.held)
        self._loop = asyncio.get_running_loop()
        waits()
        call = asyncio.get_running_loop().run_in_executor(threads, variables.run, self._call_in_thread, context)
        # A thread goes on whatever is cancelled here, so its end is awaited.
        return await asyncio.shield(call)

    def _call_in_thread(self, context: Context) -> Any:
        if self.must_stop():
            raise Stopped
        slate = self._worker.leases.slate
        noted = slate.begins_apart(self.job.id, thread=threading.get_native_id())
        try:
            return self.handler.call(context, context.payload)
        except (StopIteration, GeneratorExit) as error:
            # asyncio lets no future hold the one, and would wait for ever; the other means that a coroutine is closed.
            raise RuntimeError(f"The handler raised {type(error).__name__}") from error
        finally:
            self._worker.end_if_forked()
            slate.ended_apart(noted)


def _ignore(_kept: bool) -> None:
    """Who lost its lease is stopped in other ways."""


async def run_in_child(running: Running, children: Children) -> Ended:
    """Runs a job in a child process, and returns what the child says at its end.

    Raises: ChildDied.
    """
    child = await children.take(starting=lambda: _ignore(running.progressed(None)))
    running.child = child
    telling: asyncio.Task[None] | None = None
    try:
        if running.must_stop():
            raise ChildDied("The job had to stop while its child process was started")
        target = target_of(running.handler.function)
        job = running.job if running.span is None else structs.replace(running.job, trace=running.span.traceparent)
        order = run_message(job, target, deadline=running.held.deadline, schema=running.schema, holder=running.holder)
        child.say(order)
        telling = asyncio.create_task(_tell_deadlines(running.held, child))
        while True:
            for message in await child.messages():
                if isinstance(message, Ended):
                    return message
                running.heard_from(child, message)
    except ChildDied:
        # If nobody killed it, and its lease is over, it has kept that lease itself.
        running.held.guarded = not running.killed and lease_clock() >= running.held.deadline - running.held.rest_s
        running.killed = running.killed or running.held.guarded
        raise
    except asyncio.CancelledError:
        # Its task ends, so nobody would see to the child any more.
        running.killed = True
        child.kill()
        raise
    finally:
        if telling is not None:
            telling.cancel()
        running.child = None
        running.drop_calls()
        if running.stop_seen_at is not None:
            # A kill may be on its way, and must not meet the next job.
            child.kill()
        await children.give_back(child)


async def _tell_deadlines(held: Held, child: Child) -> None:
    """Tells a child of each extension of its lease, soon after it was written."""
    told = held.deadline
    while True:
        await asyncio.sleep(min(1.0, held.lease_s / 20))
        # A lease that was lost is over, and the child is being stopped.
        if held.deadline > told:
            told = held.deadline
            child.say(Until(told))


def target_of(function: Callable[..., Any]) -> Target:
    """How a child process finds a handler's function."""
    if function.__module__ != "__main__":
        return Target(function.__module__, function.__qualname__)
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return Target(main.__spec__.name, function.__qualname__)
    return Target("__main__", function.__qualname__, main.__file__)


@types.coroutine
def _stepped(
    coroutine: Coroutine[Any, Any, Any],
    held: Held,
    variables: Variables,
    waits: Callable[[], None],
    worker: Surroundings,
) -> Generator[Any, Any, Any]:
    """Steps a handler's coroutine, and looks at its lease before each step but the first."""
    run, slate = variables.run, worker.leases.slate
    # A method for each of the two would cost every job as much again.
    memory, begin, its_id = slate.memory, slate.begin, held.lease.job_id.bytes
    step, value, told, first = coroutine.send, None, False, True
    while True:
        # If this step never ends, the heart or the warden reads there whose it is.
        memory[:ID_BYTES] = its_id
        try:
            awaited = run(step, value)
        except StopIteration as end:
            return end.value
        except GeneratorExit as error:
            if error is not value:
                raise RuntimeError("The handler raised GeneratorExit") from error
            raise
        finally:
            begin[0] = 0
        worker.end_if_forked()
        if told:
            # It was told to stop and wants to go on: it never gets another step.
            raise Stopped
        if first:
            first = False
            waits()
        try:
            value = yield awaited
            step = coroutine.send
        except BaseException as thrown:
            step, value = coroutine.throw, thrown
        if lease_clock() >= held.deadline - held.rest_s:
            held.guarded = True
            step, value, told = coroutine.throw, Stopped(), True
