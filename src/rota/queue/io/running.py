"""One job while it runs: in a coroutine or in a thread, with a way to stop it.

A coroutine is stepped by hand, so that its lease is looked at before every step: a process that was stopped for
longer than the lease (SIGSTOP, a sleeping machine) does not take one more step of a job that another server may run
by now (I2). A thread cannot be stopped from outside: it is told, and if it does not end in time its process is ended
by the heart.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from typing import Any

from rota.io.clock import lease_clock
from rota.lease import Loss
from rota.queue.handler import Handler
from rota.queue.io.context import Context
from rota.queue.job import ClaimedJob


class Stopped(BaseException):
    """Thrown into a handler whose lease is over. No `except Exception` of a handler catches it."""


class Running:
    """A claimed job and what runs it.

    Attributes:
        job: the job.
        handler: its handler.
        loss: why it has to stop, once it has to.
        cancel_asked: somebody cancelled the job.
        given_back: the worker is stopping and wants the job back in the queue.
        stop_seen_at: when the event loop last took up an order to stop it; the heart reads whether the loop lives.
    """

    __slots__ = (
        "cancel_asked", "deadline", "given_back", "handler", "in_thread", "job", "loss", "stop_seen_at", "task",
    )  # fmt: skip

    def __init__(self, job: ClaimedJob, handler: Handler, *, deadline: Callable[[], float]) -> None:
        self.job = job
        self.handler = handler
        self.deadline = deadline
        self.loss: Loss | None = None
        self.cancel_asked = False
        self.given_back = False
        self.stop_seen_at: float | None = None
        self.in_thread = False
        self.task: asyncio.Task[None] | None = None

    @property
    def must_stop(self) -> bool:
        """Whether the handler may take no further step of its own accord."""
        return self.loss is not None or self.cancel_asked or self.given_back

    def stop(self) -> None:
        """Stops the coroutine, or leaves a thread to notice; call from the loop's thread. Safe to repeat."""
        self.stop_seen_at = lease_clock()
        if self.task is not None and not self.in_thread and not self.task.done():
            self.task.cancel()

    async def call(self, context: Context, *, threads: Executor) -> Any:
        """Runs the handler and returns what it returned.

        Raises: whatever the handler raises; Stopped if its lease ended before it did.
        """
        if self.handler.is_async:
            return await _Stepped(self.handler.call(context, context.payload), self)
        self.in_thread = True
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(threads, self.handler.call, context, context.payload)
        # A thread goes on whatever is cancelled here, so its end is awaited.
        return await asyncio.shield(call)


class _Stepped:
    """Steps a handler's coroutine, and looks at its lease before each step but the first."""

    __slots__ = ("_coroutine", "_running")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], running: Running) -> None:
        self._coroutine = coroutine
        self._running = running

    def __await__(self) -> Generator[Any, Any, Any]:
        step, value, told = self._coroutine.send, None, False
        while True:
            try:
                awaited = step(value)
            except StopIteration as end:
                return end.value
            if told:
                # It was told to stop and wants to go on: it never gets another step.
                raise Stopped
            try:
                value = yield awaited
                step = self._coroutine.send
            except BaseException as thrown:
                step, value = self._coroutine.throw, thrown
            if lease_clock() >= self._running.deadline():
                step, value, told = self._coroutine.throw, Stopped(), True
