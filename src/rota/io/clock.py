"""The clock by which a process trusts its own leases: it never steps, and it counts while the machine sleeps."""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

lease_clock: Final[Callable[[], float]] = partial(
    time.clock_gettime, time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC
)
"""Seconds since the machine started, suspend included where the system has such a clock (I2: a lease runs out while a
laptop sleeps). On macOS its monotonic clock stands still in sleep. It is asked several times for every job."""
