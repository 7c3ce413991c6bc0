"""The gate of executions: at most one session of an execution is outstanding, and the next queues behind it.

It is held from before the job is created, since a runner may be assigned it at any instant, until the job has ended.
Executions are independent of each other. The gate stands in one process: a queue job is an execution, and its handler
runs in one.

Spec: runners, "Job types" (One open session per execution, and the ENGINE serialises it).
"""

import asyncio
from collections import deque

from rota.errors import SessionError


class Gates:
    """The gates of one event loop; an execution without sessions costs nothing."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._openers: dict[str, asyncio.Task[object] | None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def take(self, execution_id: str) -> None:
        """Waits until no session of the execution is outstanding, first in first out; then it is this caller's turn.

        Raises: SessionError if this task has the session itself that it would wait for, for ever.
        """
        task = asyncio.current_task()
        queue = self._waiting.get(execution_id)
        if queue is None:
            self._waiting[execution_id] = deque()
            self._openers[execution_id] = task
            return
        if self._openers[execution_id] is task:
            raise SessionError(
                "A session of this job is open, and a second one waits until it has ended: this would wait for itself. "
                "Leave the first `async with` block, or give the other session to a job of its own."
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.free(execution_id)
            elif turn in queue:
                # Else the gate was freed meanwhile, and this one was passed over.
                queue.remove(turn)
            raise
        self._openers[execution_id] = task

    def closing(self, execution_id: str) -> None:
        """Its session is being closed: the task that opened it may wait for that in `take`."""
        self._openers[execution_id] = None

    def free(self, execution_id: str) -> None:
        """The session of this execution has ended: the next one goes."""
        queue = self._waiting[execution_id]
        self._openers[execution_id] = None
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[execution_id], self._openers[execution_id]
