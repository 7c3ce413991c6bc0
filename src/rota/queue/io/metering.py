"""How a worker counts: what happened is put on a heap, and worked into its meters once a second.

A job costs two appends to a list. The once-a-second beat also measures how late the event loop is, and writes the
meters to a file where a parent process reads them: plain files outlive the process that wrote them, whatever ended it.

The rules of counting are those of `rota.queue.meters`.
"""

import asyncio
import contextlib
import os
import threading
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from rota.errors import RotaError
from rota.io.clock import lease_clock
from rota.io.log import get_logger
from rota.queue.job import ClaimedJob
from rota.queue.meters import Meters
from rota.tallies import ExecTally

BEAT_S: Final = 1.0
"""How old the numbers of a process may be; also how often the event loop's lateness is measured."""
LAG_BEATS: Final = 15
"""The lateness shown is the worst of so many beats: of one usual scrape interval."""
CLOCK_EVERY_S: Final = 60.0
"""How often the database is asked for its time, by which waits are counted (I5)."""

log = get_logger("rota.worker")


class Metering:
    """The meters of one worker and what fills them. All methods but the heart's are called from its event loop.

    Args:
        file: where to write them for a parent process; None keeps them here.

    Attributes:
        meters: the numbers as they were last brought up to date.
        exec_tally: gives those of the program's client of exec servers, where it has one.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.meters = Meters()
        self.exec_tally: Callable[[], ExecTally | None] = _none
        self._file = file
        self._ahead = timedelta()
        self._waits: dict[str, list[float]] = defaultdict(list)
        self._runs: dict[str, list[float]] = defaultdict(list)
        self._lags: deque[float] = deque(maxlen=LAG_BEATS)
        self._lock = threading.Lock()
        """Held for moments only: the heart must not wait."""
        self._ends = False

    @property
    def is_for_parent(self) -> bool:
        """Whether the numbers go to a parent process."""
        return self._file is not None

    def claimed(self, jobs: Sequence[ClaimedJob], *, took_s: float) -> None:
        """Notes a claim: how long it took, and what each of its jobs had waited."""
        self.meters.claim.observe((took_s,))
        if jobs:
            now = datetime.now(UTC) + self._ahead
            waits = self._waits
            for job in jobs:
                waits[job.kind].append((now - job.run_after).total_seconds())

    def ran(self, kind: str, seconds: float) -> None:
        """Notes how long a handler took."""
        self._runs[kind].append(seconds)

    def fenced(self, kind: str) -> None:
        """Notes, from the heart, that this process is about to end because of a job of this kind."""
        self.meters.stalled(kind, how="fenced")
        self.write(last=True)

    def failed_last(self, kinds: Iterable[str]) -> None:
        """Notes, from the heart, that the process's last words made jobs of these kinds fail."""
        for kind in kinds:
            self.meters.failed(kind)
        self.write(last=True)

    async def run(self, ahead_s: Callable[[], Awaitable[float]]) -> None:
        """Beats until cancelled.

        Args:
            ahead_s: asks how far the database's clock is ahead of this machine's.
        """
        ask_at = lease_clock()
        while True:
            self.write()
            due = lease_clock() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self._lags.append(max(0.0, lease_clock() - due))
            if lease_clock() >= ask_at:
                ask_at = lease_clock() + CLOCK_EVERY_S
                with contextlib.suppress(RotaError, OSError):
                    self._ahead = timedelta(seconds=await ahead_s())

    def snapshot(self) -> Meters:
        """The meters, up to date."""
        with self._lock:
            for lists, note in ((self._waits, self.meters.waited), (self._runs, self.meters.ran)):
                for kind in list(lists):
                    note(kind, lists.pop(kind))
        self.meters.loop_lag_s = max(self._lags, default=0.0)
        self.meters.exec = self.exec_tally()
        return self.meters

    def write(self, *, last: bool = False) -> None:
        """Writes the meters to the file, whole or not at all. `last`: the heart does, and nobody else does after it:
        what the event loop is about to write at that moment is older."""
        self._ends = self._ends or last
        if self._file is None:
            return
        text = msgspec.json.encode(self.snapshot())
        # The heart may write at the same moment.
        new = self._file.with_suffix(f".{threading.get_ident()}")
        try:
            new.write_bytes(text)
            with self._lock:
                if last or not self._ends:
                    os.replace(new, self._file)
        except OSError as error:
            log.warning("the numbers of this process cannot be written", error=str(error))


def _none() -> None:
    """There is no client of exec servers."""
