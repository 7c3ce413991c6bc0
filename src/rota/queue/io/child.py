"""A child process that runs jobs of `isolation="process"`, one at a time: `python -m rota.queue.io.child FD PARENT`.

It speaks to its worker over a socket, imports handlers by name, and ends when the worker does. It decides nothing: the
worker does, and kills it when it must. One thing it sees to alone, because its worker may stand still (SIGSTOP, a
machine that swaps): when the job's lease is over it kills itself with all that it started (I2). Where the handler keeps
it from doing so, the system does, by a timer.
"""

import ctypes
import importlib
import os
import runpy
import signal
import socket
import sys
import threading
import traceback
from contextvars import copy_context
from math import inf
from typing import Any, TypeVar

from msgspec import structs

from rota.commands import Call, Commands, Completed
from rota.errors import ExecRefused, LeaseLost, NotNow, PayloadError, SettingsError
from rota.ids import BatchId, Holder
from rota.io import forks, log, tracing
from rota.io.clock import lease_clock
from rota.io.death_timer import DeathTimer
from rota.io.kill import kill_own_tree
from rota.queue import dispatcher
from rota.queue.child_calls import Answered, Asks, asks, completed
from rota.queue.child_messages import (
    MOVES_S,
    START_S_MAX,
    Begin,
    Closing,
    Ended,
    Frames,
    Moved,
    Ready,
    Run,
    Said,
    Stop,
    Target,
    Until,
    Waiting,
    frame,
    last_frame,
    outcome_message,
)
from rota.queue.handler import PAYLOAD_TYPE, Handler, make_handler
from rota.queue.history import JobLog, LogLine
from rota.queue.io.context import NO_SESSIONS_IN_A_CHILD, NOT_IN_A_CHILD, Context, Yielded
from rota.queue.job import Finish, NewJob
from rota.queue.kind import Kind
from rota.queue.outcomes import GiveBack, HandlerOutcome, Yield
from rota.queue.payload import cut_text, encode
from rota.sessions import Sessions

PR_SET_PDEATHSIG = 1
READ_BYTES = 1 << 20
GUARD_STEP_S = 0.25
TREE_S = 0.1
"""How long before the end of a lease a child begins to kill what it has started, and then itself."""
T = TypeVar("T")
_handlers: dict[tuple[Target, str], Handler] = {}


class Host:
    """What a handler's context speaks to, in a child."""

    def __init__(self, wire: socket.socket, stopping: threading.Event, guard: "_Guard") -> None:
        self._wire = wire
        self._stopping = stopping
        self._guard = guard
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._log: JobLog | None = None
        self._answers = threading.Condition()
        self._open: set[int] = set()
        self._told: dict[int, Answered] = {}
        self._calls = 0
        self._forget("rota", None)

    def _forget(self, schema: str, holder: Holder | None) -> None:
        self.told = False
        """The handler has seen that it should stop."""
        self.yield_asked = False
        self.schema = schema
        self.holder = holder
        self.follow_ups: list[NewJob] = []
        self.written = False
        self.sure = False
        self.batch_id: BatchId | None = None

    def begin(self, order: Run) -> None:
        """Begins another job."""
        self._forget(order.schema, order.holder)
        self._log = JobLog(order.job().lease)

    def end(self) -> None:
        """Says how many lines were dropped, if any were."""
        with self._counting:
            if self._log is not None:
                self._say(self._log.close(now=lease_clock()))
            self._log = None

    def follow(self, job: NewJob) -> None:
        """Keeps a job that is to be added with the success."""
        self.follow_ups.append(job)

    def closing(self) -> bool:
        """Tells the worker that the handler writes the job's end itself; False if it has to stop."""
        if self.told_to_stop():
            return False
        self.send(Closing())
        return True

    def takes(self, finish: Finish) -> bool:
        """Nothing: the queue is in the database."""
        return False

    def ended(self, *, batch_id: BatchId | None, sure: bool) -> None:
        """Notes that the handler has written the job's success."""
        self.written, self.sure = True, sure
        self.batch_id = batch_id or self.batch_id

    def with_all(self, ended: Ended) -> Ended:
        """The last message of a job, with what goes beside the handler's end."""
        return structs.replace(
            ended, told=self.told, follow_ups=tuple(self.follow_ups), written=self.written, sure=self.sure,
            batch_id=self.batch_id,
        )  # fmt: skip

    def told_to_stop(self) -> bool:
        """Whether the worker wants the job to end. Where its lease is over this process ends here: one that stood still
        may come here before its guard does."""
        self._guard.look()
        self.told = self.told or self._stopping.is_set()
        return self.told

    def progressed(self, progress: Any | None) -> bool:
        """Tells the worker that the job moved."""
        self.send(Moved(progress))
        return True

    def commands(self) -> Commands:
        """Nobody with an event loop: a child process speaks to its worker alone."""
        raise SettingsError(NOT_IN_A_CHILD)

    def sessions(self) -> Sessions:
        """Nobody: a child process speaks to its worker alone."""
        raise SettingsError(NO_SESSIONS_IN_A_CHILD)

    def run_call(self, call: Call) -> Completed:
        """Has the worker run a command, and waits for its answer."""
        with self._answers:
            self._calls += 1
            number = self._calls
            self._open.add(number)
        try:
            try:
                self.send(asks(number, call))
            except (TypeError, ValueError, OverflowError) as error:
                raise ExecRefused(f"{call.service!r} was not run: its arguments cannot be sent ({error}).") from None
            with self._answers:
                self._answers.wait_for(lambda: number in self._told or self.told_to_stop())
                answer = self._told.get(number)
        finally:
            with self._answers:
                self._open.discard(number)
                self._told.pop(number, None)
        if answer is None:
            raise LeaseLost(f"Job {call.name} must stop: its lease is over, or somebody cancelled it.")
        return completed(answer)

    def answer(self, answer: Answered | None = None) -> None:
        """Hands an answer to the thread that waits for it; None: all who wait should look whether to stop."""
        with self._answers:
            if answer is not None and answer.number in self._open:
                self._told[answer.number] = answer
            self._answers.notify_all()

    def said(self, level: str, event: str, fields: dict[str, Any]) -> None:
        """Tells the worker a line that the handler logged."""
        with self._counting:
            # A thread that a job left behind speaks for nobody.
            if self._log is not None:
                self._say(self._log.say(level, event, fields, now=lease_clock()))

    def _say(self, line: LogLine | None) -> None:
        if line is not None:
            self.send(Said(line.number, line.said_at, line.level, line.event, line.fields))

    def send(self, message: Moved | Said | Closing | Ready | Asks) -> None:
        """Sends a message; the handler's threads may do so at once."""
        self._send(frame(message))

    def send_last(self, ended: Ended) -> None:
        """Sends how the job ended."""
        self._send(last_frame(ended))

    def _send(self, data: bytes) -> None:
        with self._lock:
            self._wire.sendall(data)


def main(fd: int, parent: int) -> None:
    """Serves until the worker closes the socket."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            return
    # The worker alone decides when this process stops, whoever signals its group.
    forks.take_no_notice()
    wire = socket.socket(fileno=fd)
    stopping, orders, guard = threading.Event(), _Orders(), _Guard()
    host = Host(wire, stopping, guard)
    threading.Thread(target=_read, args=(wire, stopping, host, orders, guard), name="rota-orders", daemon=True).start()
    threading.Thread(target=guard.run, name="rota-guard", daemon=True).start()
    host.send(Ready())
    while (order := orders.next()) is not None:
        stopping.clear()
        host.begin(order)
        guard.set(order.deadline)
        ended = host.with_all(_run(order, host))
        guard.set(None)
        host.end()
        host.send_last(ended)


class _Orders:
    """The order that the reading thread hands to the main thread."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._order: Run | None = None
        self._closed = False

    def put(self, order: Run | None) -> None:
        with self._condition:
            self._order, self._closed = order, order is None
            self._condition.notify()

    def next(self) -> Run | None:
        with self._condition:
            self._condition.wait_for(lambda: self._order is not None or self._closed)
            order, self._order = self._order, None
            return order


class _Guard:
    """Ends this process when the lease of its job is over, whatever its worker does."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._deadline: float | None = None
        self._timer = DeathTimer()

    def set(self, deadline: float | None) -> None:
        """A job begins, or ends (None)."""
        with self._condition:
            self._deadline = deadline
            self._timer.set(inf if deadline is None else deadline)
            self._condition.notify()

    def move(self, deadline: float) -> None:
        """The lease of the job that runs was extended."""
        with self._condition:
            if self._deadline is not None:
                self._deadline = deadline
                self._timer.set(deadline)

    def look(self) -> None:
        """Ends this process if the lease of the job that runs is over."""
        deadline = self._deadline
        if deadline is not None and lease_clock() >= deadline:
            kill_own_tree()

    def run(self) -> None:
        with self._condition:
            while True:
                self._condition.wait_for(lambda: self._deadline is not None)
                while self._deadline is not None:
                    left = self._deadline - TREE_S - lease_clock()
                    if left <= 0:
                        kill_own_tree()
                    # In short steps: a wait does not count while the machine sleeps, and the lease does.
                    self._condition.wait(min(left, GUARD_STEP_S))


def _read(wire: socket.socket, stopping: threading.Event, host: Host, orders: _Orders, guard: _Guard) -> None:
    frames = Frames()
    while data := wire.recv(READ_BYTES):
        for message in frames.feed(data):
            match message:
                case Begin():
                    sys.path[:] = message.sys_path
                    if message.log_format is not None:
                        log.setup_as(message.log_format, message.log_level)
                case Run():
                    orders.put(message)
                case Until():
                    guard.move(message.deadline)
                case Stop():
                    stopping.set()
                    host.answer()
                case Answered():
                    host.answer(message)
                case Waiting():
                    host.yield_asked = message.asked
                case _:
                    pass
    # The worker is gone. What runs here has no lease any more.
    os._exit(0)


def _run(order: Run, host: Host) -> Ended:
    try:
        handler = _loaded(order, host)
    except BaseException as error:
        return _failed(error, f"The handler of kind {order.kind!r} cannot be loaded in a child process: ")
    try:
        payload = handler.decode(order.payload)
    except PayloadError as error:
        return Ended(error=str(error), final=True)
    try:
        variables = copy_context()
        tracing.stand_in(order.trace, variables)
        returned = variables.run(handler.call, Context(order.job(), payload, host=host), payload)
    except Yielded:
        return outcome_message(Yield())
    except NotNow as error:
        return outcome_message(GiveBack(str(error), error.after_s))
    except ExecRefused as error:
        # The same call never goes better.
        return structs.replace(_failed(error), final=True)
    except BaseException as error:
        return _failed(error)
    if isinstance(returned, HandlerOutcome):
        return outcome_message(returned)
    try:
        return Ended(result=None if returned is None else encode(returned, what="result"))
    except PayloadError as error:
        return Ended(error=str(error), final=True)


def _failed(error: BaseException, head: str = "") -> Ended:
    return Ended(error=head + dispatcher.describe_error(error), traceback=_traceback(error))


def _traceback(error: BaseException) -> str:
    try:
        return cut_text(log.redact_whole("".join(traceback.format_exception(error))), bytes_max=4 * log.CHARS_MAX)
    except BaseException as unsayable:
        return f"It cannot be read, because that raises {type(unsayable).__name__}"


def _loaded(order: Run, host: Host) -> Handler:
    """The handler; while its program is loaded, which may take long, the job counts as one that moves."""
    key = order.target, order.kind
    if key not in _handlers:
        there = threading.Event()
        threading.Thread(target=_move_until, args=(there, host), name="rota-loading", daemon=True).start()
        try:
            _handlers[key] = _handler(*key)
        finally:
            there.set()
    return _handlers[key]


def _move_until(there: threading.Event, host: Host) -> None:
    for _ in range(round(START_S_MAX / MOVES_S)):
        host.progressed(None)
        if there.wait(MOVES_S):
            return


def _handler(target: Target, kind: str) -> Handler:
    if target.main_path is not None:
        # As multiprocessing does it: the main file under another name, so that its `if __name__` part does not run.
        found: Any = runpy.run_path(target.main_path, run_name="__rota_child__")[target.name]
    else:
        found = importlib.import_module(target.module)
        for part in target.name.split("."):
            found = getattr(found, part)
    payload_type = getattr(found, PAYLOAD_TYPE, Any)
    return make_handler(found, kind=Kind(name=kind, isolation="process", payload_type=payload_type))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)
