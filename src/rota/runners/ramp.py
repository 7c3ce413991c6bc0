"""How many runners may begin to connect: so many a second, and those that are too many are told when. Pure.

After a restart of a gateway all its runners come at once. Each hello costs a signature and a share of a few
statements, so they are let in at a rate; who is refused is told another time than the one before, so that they do not
come back at once either. Whose hello says that it holds jobs is counted by a ramp of its own: its leases run.

Spec: runners, "Transport and envelope" (4429).
"""

from math import ceil
from typing import Final

RETRY_MAX_S: Final = 60.0
"""No runner is told to wait longer: others may have gone meanwhile."""
RETRY_MIN_S: Final = 1.0


def told_s(wait_s: float) -> int:
    """A wait as it is told, in whole seconds: never a shorter one, or who obeys would come too early."""
    return max(1, ceil(wait_s))


class Ramp:
    """Lets in `per_s` a second, and a second's worth at once.

    Args:
        per_s: more than 0.
        retry_max_s: the longest wait that is told.
    """

    def __init__(self, per_s: float, *, retry_max_s: float = RETRY_MAX_S) -> None:
        self._per_s = per_s
        self._retry_max_s = retry_max_s
        self._room = per_s
        self._seen_at = 0.0
        self._told_at = 0.0

    def admit(self, now: float) -> float | None:
        """Lets one in, or not.

        Args:
            now: seconds of a clock that never steps.

        Returns: None if it may come in; else after how many seconds it should try again.
        """
        self._room = min(max(1.0, self._per_s), self._room + max(0.0, now - self._seen_at) * self._per_s)
        self._seen_at = now
        if self._room >= 1:
            self._room -= 1
            return None
        # Each one that is refused gets a time of its own, at the rate at which they are let in.
        self._told_at = max(now + RETRY_MIN_S, self._told_at + 1 / self._per_s)
        if self._told_at > now + self._retry_max_s:
            self._told_at = now + RETRY_MIN_S
        return self._told_at - now
