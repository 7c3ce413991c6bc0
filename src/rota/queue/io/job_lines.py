"""The lines that handlers log, on their way to the database: many in one statement, a moment after they were said.

Handlers say them from the event loop, from threads and, through their workers, from child processes. Nothing waits for
them and nothing fails with them: where the database is away for long, the oldest are dropped.
"""

import asyncio
import threading
from collections import deque
from random import Random
from typing import Any, Final

import asyncpg

from rota.errors import RotaError
from rota.io.backoff import Backoff
from rota.io.clock import lease_clock
from rota.io.log import get_logger
from rota.lease import Lease
from rota.queue.history import JobLog, LogLine
from rota.queue.io.store import Store

GATHER_S: Final = 0.25
"""How long lines are gathered for a statement."""
BATCH_MAX: Final = 1000
"""Lines in one statement."""
PENDING_MAX: Final = 20_000
"""Lines that wait while the database is away: some ten megabytes at most."""

log = get_logger("rota.worker")


class JobLines:
    """The lines of one worker's jobs. `say`, `keep` and `close` may be called from any thread.

    Args:
        store: where they are kept.
        random: for the jitter of waits.
    """

    def __init__(self, store: Store, *, random: Random) -> None:
        self._store = store
        self._random = random
        self._lock = threading.Lock()
        self._logs: dict[Lease, JobLog] = {}
        self._pending: deque[LogLine] = deque(maxlen=PENDING_MAX)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()

    def say(self, lease: Lease, level: str, event: str, fields: dict[str, Any]) -> None:
        """Takes a line of a handler that runs in this process."""
        with self._lock:
            job_log = self._logs.get(lease)
            if job_log is None:
                job_log = self._logs[lease] = JobLog(lease)
            line = job_log.say(level, event, fields, now=lease_clock())
        if line is not None:
            self.keep(line)

    def keep(self, line: LogLine) -> None:
        """Takes a line as it is to be kept."""
        with self._lock:
            first = not self._pending
            self._pending.append(line)
        if first and self._loop is not None:
            # The loop may have closed: a thread that nobody waits for.
            try:
                self._loop.call_soon_threadsafe(self._news.set)
            except RuntimeError:
                self._loop = None

    def close(self, lease: Lease) -> None:
        """Notes that a job's run has ended; almost all of them have said nothing."""
        if self._logs and lease in self._logs:
            with self._lock:
                line = self._logs.pop(lease).close(now=lease_clock())
            if line is not None:
                self.keep(line)

    async def run(self) -> None:
        """Writes until cancelled."""
        self._loop = asyncio.get_running_loop()
        backoff = Backoff(self._random)
        while True:
            if not self._pending:
                await self._news.wait()
                self._news.clear()
                await asyncio.sleep(GATHER_S)
            if await self.write():
                backoff.reset()
            else:
                await asyncio.sleep(backoff.next_s())

    async def write(self) -> bool:
        """Writes what there is. Returns: False if the database did not take it now."""
        while batch := self._next():
            try:
                await self._store.log(batch, clock=lease_clock())
            except (RotaError, OSError) as error:
                with self._lock:
                    room = PENDING_MAX - len(self._pending)
                    self._pending.extendleft(reversed(batch[-room:] if room < len(batch) else batch))
                log.debug("lines of jobs wait for the database", count=len(batch), error=str(error))
                return False
            except asyncpg.exceptions.PostgresError as error:
                log.warning("lines of jobs cannot be kept", count=len(batch), error=str(error))
        return True

    def _next(self) -> list[LogLine]:
        with self._lock:
            return [self._pending.popleft() for _ in range(min(BATCH_MAX, len(self._pending)))]
