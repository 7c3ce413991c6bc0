"""A timer of the system that kills its own process, whatever the process does or does not do (Linux).

No thread of the process has to run for it: not even one that waits for an interpreter that C code holds. It counts
while the machine sleeps, and it also ends a process that stands still.
"""

import ctypes
import signal
import sys
from math import inf
from typing import Final

CLOCK_BOOTTIME: Final = 7
"""The clock of `rota.io.clock`, by the number that Linux gives it."""
SIGEV_SIGNAL: Final = 0
TIMER_ABSTIME: Final = 1
NS: Final = 1_000_000_000


class _Event(ctypes.Structure):
    """`struct sigevent`, which has 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p), ("number", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_char * 48),
    )  # fmt: skip


class _Times(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns"))


class DeathTimer:
    """One timer of this process; what it forks does not inherit it. Where the system has none it does nothing."""

    def __init__(self) -> None:
        self._timer = ctypes.c_void_p()
        self._libc: ctypes.CDLL | None = None
        if sys.platform == "linux":
            libc, event = ctypes.CDLL(None), _Event(None, signal.SIGKILL, SIGEV_SIGNAL)
            # An old C library has it in another part.
            if hasattr(libc, "timer_create"):
                made = libc.timer_create(CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._timer))
                self._libc = libc if made == 0 else None

    def set(self, at: float) -> None:
        """Sets it to a time of the clock of leases; inf: to none."""
        if self._libc is not None:
            at_ns = 0 if at == inf else max(1, int(at * NS))
            times = _Times(0, 0, at_ns // NS, at_ns % NS)
            self._libc.timer_settime(self._timer, TIMER_ABSTIME, ctypes.byref(times), None)

    def close(self) -> None:
        """Gives it back to the system, which has so many for each user; safe to repeat."""
        libc, self._libc = self._libc, None
        if libc is not None:
            libc.timer_delete(self._timer)
