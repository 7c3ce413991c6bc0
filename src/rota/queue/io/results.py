"""Waits for the results of jobs: one question at a time for all that a program waits for.

It asks, with a pause that widens while nothing ends. A notification for each end would make every end pay, also of
the jobs for which nobody waits.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import msgspec

from rota.errors import DatabaseAway, JobCancelled, JobFailed, JobNotFound, ResultTimeout
from rota.ids import JobId
from rota.queue.job import ENDED, Answer, State

PAUSE_MIN_S: Final = 0.02
"""The pause after the first question; it grows, for a job that took long may take longer."""
PAUSE_MAX_S: Final = 1.0
PAUSE_GROWTH: Final = 1.5
ASK_MAX: Final = 1000
"""Jobs in one question."""

Ask = Callable[[Iterable[JobId]], Awaitable[dict[JobId, Answer]]]


class Results:
    """The jobs whose results a program waits for.

    Args:
        ask: says how jobs stand; those that do not exist are missing.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiters: dict[JobId, asyncio.Future[Answer | None]] = {}
        self._waited: dict[JobId, int] = {}
        self._asking: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many jobs are waited for."""
        return len(self._waiters)

    async def wait(self, job_id: JobId, *, timeout_s: float | None) -> Any:
        """Waits until the job has ended; with 0 it only looks.

        Returns: its result; None if it has none.

        Raises: JobFailed, JobCancelled with the job's last error; ResultTimeout; JobNotFound; what `ask` raises for
            good.
        """
        if timeout_s is not None and timeout_s <= 0:
            answer = (await self._ask([job_id])).get(job_id)
            if answer is None or answer.state in ENDED:
                return result_of(job_id, answer)
            raise _timeout(job_id, 0)
        future = self._waiters.get(job_id)
        if future is None:
            future = self._waiters[job_id] = asyncio.get_running_loop().create_future()
        self._waited[job_id] = self._waited.get(job_id, 0) + 1
        self._news.set()
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_on())
        try:
            async with asyncio.timeout(timeout_s):
                answer = await asyncio.shield(future)
        except TimeoutError:
            raise _timeout(job_id, timeout_s or 0) from None
        finally:
            self._waited[job_id] -= 1
            if not self._waited[job_id]:
                del self._waited[job_id]
                if self._waiters.get(job_id) is future:
                    del self._waiters[job_id]
        return result_of(job_id, answer)

    async def stop(self) -> None:
        """Stops asking; whoever still waits is told that the program stops."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
        self._fail(DatabaseAway("The program is stopping."))

    async def _ask_on(self) -> None:
        pause_s = PAUSE_MIN_S
        try:
            while self._waiters:
                if self._news.is_set():
                    # Somebody new may wait for a job that ends soon.
                    self._news.clear()
                    pause_s = PAUSE_MIN_S
                await self._ask_once()
                if self._waiters:
                    await asyncio.sleep(pause_s)
                    pause_s = min(PAUSE_MAX_S, pause_s * PAUSE_GROWTH)
        except Exception as error:
            self._fail(error)

    async def _ask_once(self) -> None:
        wanted = list(self._waiters)
        for first in range(0, len(wanted), ASK_MAX):
            part = wanted[first : first + ASK_MAX]
            try:
                found = await self._ask(part)
            except DatabaseAway:
                # It may be back before the time is up.
                continue
            for job_id in part:
                answer = found.get(job_id)
                if answer is None or answer.state in ENDED:
                    self._settle(job_id, answer)

    def _settle(self, job_id: JobId, answer: Answer | None) -> None:
        future = self._waiters.pop(job_id, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def _fail(self, error: Exception) -> None:
        waiters, self._waiters = self._waiters, {}
        for future in waiters.values():
            if not future.done():
                future.set_exception(error)
                # One that nobody waits for any more is no fault to report.
                future.exception()


def _timeout(job_id: JobId, timeout_s: float) -> ResultTimeout:
    return ResultTimeout(
        f"Job {job_id} has not ended within {timeout_s:g} s. It goes on: `rota jobs show {job_id}` says how."
    )


def result_of(job_id: JobId, answer: Answer | None) -> Any:
    """The result of a job that has ended.

    Raises: JobFailed, JobCancelled, JobNotFound.
    """
    if answer is None:
        raise JobNotFound(
            f"There is no job {job_id}. Its enqueue has not committed, or it ended longer ago than its retention."
        )
    if answer.state is State.CANCELLED:
        raise JobCancelled(f"Job {job_id} was cancelled: {answer.error or 'no reason was given'}", job_id=job_id)
    if answer.state is not State.DONE:
        raise JobFailed(f"Job {job_id} {answer.state}: {answer.error or 'no reason was given'}", job_id=job_id)
    return None if answer.result is None else msgspec.json.decode(answer.result)
