"""The machine that is measured on: what it is, and how much of it others use meanwhile.

Others are all processes but this one and what it started (the database server is its child). What the hypervisor took
counts as theirs too. The reading is the whole machine's busy time less our own, so it needs no list of who they are.
"""

import asyncio
import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psutil

LOOK_S: Final = 0.5
"""How long one look at a waiting machine takes: 50 clock ticks, so its error is a few hundredths."""
PATIENCE_IN_ALL_S: Final = 600.0
SYNCS: Final = 200
LIBRARIES: Final = ("rota", "asyncpg", "uvloop", "msgspec")


def facts(folder: Path) -> dict[str, Any]:
    """What somebody needs to know to judge the figures.

    Args:
        folder: where the database lies; how long one sync to its disk takes is part of the answer.
    """
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{library: version(library) for library in LIBRARIES},
        "sync_ms": round(_sync_ms(folder), 3),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _sync_ms(folder: Path) -> float:
    """The median time to write one page and to have it on the disk: the least that a durable commit takes."""
    block, taken = bytes(8192), []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            start = time.perf_counter()
            os.pwrite(file.fileno(), block, 0)
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - start)
    return 1000 * statistics.median(taken)


@dataclass(frozen=True, slots=True)
class Reading:
    """A moment: seconds of the clock, and CPU seconds that others had used by then."""

    at: float
    others: float


@dataclass(slots=True)
class Bystanders:
    """Watches what others use.

    Attributes:
        limit: the share of all cores (0 to 1) from which a measurement counts as disturbed.
        patience_s: how long to wait for a quiet machine before measuring anyway.
        patience_left_s: the same for the whole run; on a machine that is never quiet, waiting ends some time.
    """

    limit: float
    patience_s: float
    patience_left_s: float = PATIENCE_IN_ALL_S

    def reading(self) -> Reading:
        """Begins to watch; give it to `share` at the end."""
        return Reading(time.monotonic(), _busy_s() - _tree_s(psutil.Process()))

    def share(self, since: Reading) -> float:
        """The share of all cores that others have used since then."""
        now = self.reading()
        return max(0.0, (now.others - since.others) / (now.at - since.at) / (os.cpu_count() or 1))

    async def wait(self) -> None:
        """Waits until the machine is quiet, or patience ends."""
        begun = time.monotonic()
        while time.monotonic() - begun < min(self.patience_s, self.patience_left_s):
            since = self.reading()
            await asyncio.sleep(LOOK_S)
            if self.share(since) < self.limit:
                break
        self.patience_left_s -= time.monotonic() - begun


def _busy_s() -> float:
    times = psutil.cpu_times()
    # Guests are counted in user already.
    idle = ("idle", "iowait", "guest", "guest_nice")
    return float(sum(spent for name, spent in times._asdict().items() if name not in idle))


def _tree_s(process: psutil.Process) -> float:
    """CPU seconds of a process, of its children that have ended, and of all that run below it."""
    try:
        times = process.cpu_times()
        own = times.user + times.system + times.children_user + times.children_system
        return float(own) + sum(_tree_s(child) for child in process.children())
    except psutil.NoSuchProcess:
        return 0.0
