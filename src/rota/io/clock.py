"""The clock by which a process trusts its own leases: it never steps, and it counts while the machine sleeps."""

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def lease_clock() -> float:
        """Seconds since the machine started, suspend included (I2: a lease runs out while a laptop sleeps)."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # macOS: its monotonic clock stops in sleep, CLOCK_MONOTONIC_RAW's sibling below does not

    def lease_clock() -> float:
        """Seconds of a clock that never steps (I2)."""
        return time.clock_gettime(getattr(time, "CLOCK_MONOTONIC", 1))
