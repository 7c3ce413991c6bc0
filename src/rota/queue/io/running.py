"""One job while it runs: in a coroutine or in a thread, with a way to stop it.

A coroutine is stepped by hand, so that its lease is looked at before every step but the first: a process that was
stopped for longer than the lease (SIGSTOP, a sleeping machine) does not take one more step of a job that another
server may run by now (I2). A thread cannot be stopped from outside: it is told, and if it does not end in time its
process is ended by the heart.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context as Variables
from typing import Any

from rota.io.clock import lease_clock
from rota.lease import Held, Loss
from rota.queue.handler import Handler
from rota.queue.io.context import Context
from rota.queue.io.leases import GuardedBook
from rota.queue.job import ClaimedJob


class Stopped(BaseException):
    """Thrown into a handler whose lease is over. No `except Exception` of a handler catches it."""


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
        started: its handler has been called.
        stop_seen_at: when the event loop last took up an order to stop it; the heart reads whether the loop lives.
        task: the task that steps it now.
    """

    __slots__ = (
        "_leases", "cancel_asked", "given_back", "handler", "held", "in_thread", "job", "loss", "started",
        "stop_seen_at", "task",
    )  # fmt: skip

    def __init__(self, job: ClaimedJob, handler: Handler, *, held: Held, leases: GuardedBook) -> None:
        self.job = job
        self.handler = handler
        self.held = held
        self._leases = leases
        self.loss: Loss | None = None
        self.cancel_asked = False
        self.given_back = False
        self.in_thread = False
        self.started = False
        self.stop_seen_at: float | None = None
        self.task: asyncio.Task[None] | None = None

    def must_stop(self) -> bool:
        """Whether the handler may take no further step of its own accord."""
        return self.loss is not None or self.cancel_asked or self.given_back

    def progressed(self, progress: Any | None) -> bool:
        """Notes that the job moved; False if its lease is gone."""
        return self._leases.progressed(self.job.lease, progress)

    def stop(self) -> None:
        """Stops the coroutine, or leaves a thread to notice; call from the loop's thread. Safe to repeat."""
        self.stop_seen_at = lease_clock()
        if self.task is not None and not self.in_thread:
            self.task.cancel()

    async def call(self, payload: Any, *, variables: Variables, threads: Executor, waits: Callable[[], None]) -> Any:
        """Runs the handler and returns what it returned.

        Args:
            payload: what it is called with.
            variables: the context variables that are its own.
            threads: where plain functions run.
            waits: called when it first waits for something.

        Raises: whatever the handler raises; Stopped if its lease ended before it did.
        """
        context = Context(self.job, payload, host=self)
        if self.handler.is_async:
            return await _Stepped(variables.run(self.handler.call, context, payload), self.held, variables, waits)
        self.in_thread = True
        waits()
        call = asyncio.get_running_loop().run_in_executor(
            threads, variables.run, self.handler.call, context, payload
        )  # fmt: skip
        # A thread goes on whatever is cancelled here, so its end is awaited.
        return await asyncio.shield(call)


class _Stepped:
    """Steps a handler's coroutine, and looks at its lease before each step but the first."""

    __slots__ = ("_coroutine", "_held", "_variables", "_waits")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], held: Held, variables: Variables, waits: Callable[[], None]
    ) -> None:
        self._coroutine = coroutine
        self._held = held
        self._variables = variables
        self._waits = waits

    def __await__(self) -> Generator[Any, Any, Any]:
        run, step, value, told = self._variables.run, self._coroutine.send, None, False
        try:
            awaited = run(step, value)
        except StopIteration as end:
            return end.value
        self._waits()
        while True:
            try:
                value = yield awaited
                step = self._coroutine.send
            except BaseException as thrown:
                step, value = self._coroutine.throw, thrown
            if lease_clock() >= self._held.deadline:
                step, value, told = self._coroutine.throw, Stopped(), True
            try:
                awaited = run(step, value)
            except StopIteration as end:
                return end.value
            if told:
                # It was told to stop and wants to go on: it never gets another step.
                raise Stopped
