"""How many CPUs this process may use: what the system lets it run on, not what the machine has."""

import os


def cpu_count() -> int:
    """CPUs of this process, 1 or more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
