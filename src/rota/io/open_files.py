"""How many files, and so how many connections, this process may have open.

Many systems start a program with a soft limit of 1,024, for the sake of old ones, and let it raise it: a server has to.
It is for programs that start no others, which would inherit the limit.
"""

import contextlib
import sys

if sys.platform != "win32":
    import resource


def limit() -> int | None:
    """How many files this process may have open now; None: as many as the system has."""
    if sys.platform == "win32":
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Raises the soft limit to the hard one, where that can be had."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS names a hard limit that it does not give
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
