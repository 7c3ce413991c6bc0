"""A clock that stands still until a test moves it.

It is the database's clock of a queue in memory: what is due, how long a lease lasts and when a pass runs follow it. The
program's own clocks go on as ever.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

START: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)
"""Where a clock stands when nothing else is said: a noon, far from where days and zones change."""


class FakeClock:
    """A clock that a test moves. Calling it gives its time.

    Args:
        now: where it stands at first, with a time zone.

    Raises: ValueError for a time without a zone.
    """

    def __init__(self, now: datetime = START) -> None:
        if now.tzinfo is None:
            raise ValueError("A FakeClock needs a time zone, such as datetime(2030, 1, 1, tzinfo=UTC).")
        self._now = now

    def __call__(self) -> datetime:
        return self._now

    @property
    def now(self) -> datetime:
        """Where it stands."""
        return self._now

    def advance(self, seconds: float) -> datetime:
        """Moves it ahead.

        Args:
            seconds: 0 or more. A clock never goes back: nothing in a queue is ready for that.

        Returns: the new time.

        Raises: ValueError for less than 0.
        """
        if seconds < 0:
            raise ValueError(f"A clock cannot advance by {seconds!r} s: give 0 or more.")
        self._now += timedelta(seconds=seconds)
        return self._now

    def advance_to(self, at: datetime) -> datetime:
        """Moves it ahead to a time; it stays where it is if that has passed. Returns: the new time."""
        self._now = max(self._now, at)
        return self._now
