"""How many files, and so how many connections, this process may have open.

Many systems start a program with a soft limit of 1,024, for the sake of old ones, and let it raise it: a server has to.
It is for programs that start no others, which would inherit the limit.
"""

import contextlib
import sys

if sys.platform != "win32":
    import resource


def raise_limit() -> int | None:
    """Raises the soft limit to the hard one.

    Returns: how many files this process may have open now; None: as many as the system has.
    """
    if sys.platform == "win32":
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # a hard limit that is not to be had, as on macOS
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return None if soft == resource.RLIM_INFINITY else soft
