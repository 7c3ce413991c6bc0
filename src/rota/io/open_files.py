"""How many files, and so how many connections, this process may have open.

Many systems start a program with a soft limit of 1,024, for the sake of old ones, and let it raise it: a server has to.
It is for programs that start no others, which would inherit the limit.
"""

try:
    import resource
except ImportError:  # not on every platform
    resource = None  # type: ignore[assignment]


def raise_limit() -> int | None:
    """Raises the soft limit to the hard one.

    Returns: how many files this process may have open now; None: any number, or as many as the system lets it.
    """
    if resource is None:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # a hard limit that is not to be had, as on macOS
            pass
    return None if soft == resource.RLIM_INFINITY else soft
