"""Whether this machine slept: one clock counts on in sleep, another does not, and they drift apart by as much.

A connection is worth nothing after a sleep: its other end has given it up, and the first byte into it takes minutes to
fail. Where a system has no clock that stops, a sleep is noticed as silence.
"""

import time
from collections.abc import Callable
from typing import Final

from rota.io.clock import lease_clock

SLEPT_S_MIN: Final = 2.0
"""Shorter ones a connection survives; it is far more than two clocks are read apart."""


class SuspendWatch:
    """Looks at two clocks.

    Args:
        counting: seconds that count on in sleep.
        awake: seconds that do not.
    """

    def __init__(
        self, counting: Callable[[], float] = lease_clock, awake: Callable[[], float] = time.monotonic
    ) -> None:
        self._counting = counting
        self._awake = awake
        self._apart = counting() - awake()

    def slept_s(self) -> float | None:
        """For how long the machine slept since the last look; None: it did not."""
        apart = self._counting() - self._awake()
        slept, self._apart = apart - self._apart, apart
        return slept if slept >= SLEPT_S_MIN else None
