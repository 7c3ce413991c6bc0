"""Waits between tries to reach something that is away: doubling, capped, with full jitter so that many do not march
in step."""

from dataclasses import dataclass
from random import Random


@dataclass(slots=True)
class Backoff:
    """Waits of one loop; `reset` after a success.

    Attributes:
        first_s: upper bound of the first wait.
        cap_s: upper bound of any wait.
    """

    random: Random
    first_s: float = 0.2
    cap_s: float = 5.0
    failures: int = 0

    def next_s(self) -> float:
        """How long to wait now: between a tenth of the bound and the bound."""
        bound = min(self.cap_s, self.first_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return bound * (0.1 + 0.9 * self.random.random())

    def reset(self) -> None:
        """The thing answered."""
        self.failures = 0
