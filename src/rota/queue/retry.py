"""How long a failed try waits before the next one. Pure: the random source is an argument.

Spec: job queue, "Leases, heartbeats and the stall kill" (a wait of 30 seconds; doubling waits with a cap).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from rota.queue.checks import is_number

WAIT_S_MAX: Final = 100 * 365.25 * 24 * 3600.0
"""A hundred years, as in `enqueue`. The database takes no wait without an end, and one would hold up its batch."""


class RetryWaits(Protocol):
    """Anything with this method can be a kind's `retry`."""

    def wait_s(self, tries: int, *, random: Random) -> float:
        """Seconds to wait after the try with this number (1 for the first) has failed."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same wait after each failed try: 0 seconds to a hundred years."""

    seconds: float = 30.0

    def wait_s(self, tries: int, *, random: Random) -> float:
        return self.seconds

    def faults(self) -> Iterable[tuple[bool, str]]:
        """What must hold, and what is said where it does not."""
        yield is_number(self.seconds, 0, WAIT_S_MAX), f"has retry={self!r}; give seconds from 0 to {WAIT_S_MAX:,.0f}"


@dataclass(frozen=True, slots=True)
class Exponential:
    """Waits that double from `first_s` to `cap_s`, 0 seconds to a hundred years, each moved by up to `jitter` of itself
    (0 to 1) either way."""

    first_s: float = 30.0
    cap_s: float = 12 * 3600.0
    jitter: float = 0.1

    def wait_s(self, tries: int, *, random: Random) -> float:
        # The exponent is bounded so that the power of a job with a thousand tries is still a number.
        wait = min(self.cap_s, self.first_s * 2.0 ** min(max(tries, 1) - 1, 60))
        return min(self.cap_s, wait * (1 + self.jitter * (2 * random.random() - 1)))

    def faults(self) -> Iterable[tuple[bool, str]]:
        """What must hold, and what is said where it does not."""
        waits = is_number(self.first_s, 0, WAIT_S_MAX) and is_number(self.cap_s, 0, WAIT_S_MAX)
        yield waits, f"has retry={self!r}; give first_s and cap_s from 0 to {WAIT_S_MAX:,.0f} seconds"
        yield is_number(self.jitter, 0, 1), f"has retry={self!r}; give a jitter from 0 to 1"
