"""What an exec server learns of its services: how long each one takes. Pure.

It serves two things. A position becomes a time. And short work need not wait behind long: of a waitgroup that several
services share, a *fast reserve* of slots is closed to services that are long, or that were never measured. Learning can
be switched off; then nothing is closed and no time is told.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rota.slots.messages import EndedBy

RUNS_MIN: Final = 3
"""Runs before a service counts as measured: one may be a fluke."""
NEWEST_SHARE: Final = 0.2
"""How much the newest run moves the mean: about the last ten count."""
QUICK_S: Final = 5.0
"""A service whose runs take no longer, spread included, is quick: a person waits for that without going away."""
RESERVE_SHARE: Final = 4
"""One slot in so many is kept for quick services. With fewer slots than this there is no reserve: it would cost more
than it gives."""
MEASURED: Final = frozenset({EndedBy.EXIT, EndedBy.TIMEOUT, EndedBy.STALL, EndedBy.MEMORY})
"""What ends a run that used its slot as its service does. One that was cancelled or refused says nothing."""
_NONE: Final[frozenset[str]] = frozenset()


class Learned(msgspec.Struct, frozen=True):
    """What is known of one service; also how it is stored."""

    runs: int
    mean_s: float
    spread_s: float  # mean distance from the mean


@dataclass(frozen=True, slots=True)
class Reserve:
    """How a waitgroup's slots are shared by quick and long services.

    Attributes:
        services: that draw from the waitgroup.
        processes: its slots.
        slots: how many are kept for quick ones; None: a share of them.
    """

    services: frozenset[str]
    processes: int
    slots: int | None = None

    @property
    def size(self) -> int:
        """The slots that long services may not take."""
        if len(self.services) < 2:
            return 0
        slots = self.processes // RESERVE_SHARE if self.slots is None else self.slots
        # One slot stays open to all, or long services would never run.
        return min(slots, self.processes - 1)


class Load:
    """Learned run times.

    Args:
        known: what `data` gave before a restart; what is no such thing is left out.
        learns: whether to learn at all.
        quick_s: which services are quick.
    """

    def __init__(
        self, known: Mapping[str, Any] | None = None, *, learns: bool = True, quick_s: float = QUICK_S
    ) -> None:
        self.learns = learns
        self.quick_s = quick_s
        self._services: dict[str, Learned] = {}
        for service, entry in (known or {}).items() if learns else ():
            try:
                learned = msgspec.convert(entry, Learned)
            except msgspec.ValidationError:
                continue
            if learned.runs > 0 and 0 <= learned.mean_s < float("inf") and 0 <= learned.spread_s < float("inf"):
                self._services[service] = learned

    def data(self) -> dict[str, Any]:
        """All that is known, as plain data for a file."""
        return {service: msgspec.to_builtins(learned) for service, learned in sorted(self._services.items())}

    def observe(self, service: str, ended_by: str, duration_s: float) -> None:
        """A run of this service ended."""
        if not self.learns or ended_by not in MEASURED:
            return
        known = self._services.get(service)
        if known is None:
            self._services[service] = Learned(1, duration_s, 0.0)
            return
        # While there are few runs each counts alike.
        share = max(NEWEST_SHARE, 1 / (known.runs + 1))
        off = duration_s - known.mean_s
        self._services[service] = Learned(
            known.runs + 1, known.mean_s + share * off, known.spread_s + share * (abs(off) - known.spread_s)
        )

    def of(self, service: str) -> Learned | None:
        """What is known of a service; None: it never ran."""
        return self._services.get(service)

    def range_s(self, service: str) -> tuple[float, float] | None:
        """How long a run takes, from and to; None: nobody knows."""
        known = self._services.get(service)
        if known is None:
            return None
        return max(0.0, known.mean_s - known.spread_s), known.mean_s + 2 * known.spread_s

    def quick(self, service: str) -> bool:
        """Whether a service is measured, and short."""
        known = self._services.get(service)
        return known is not None and known.runs >= RUNS_MIN and known.mean_s + known.spread_s <= self.quick_s

    def measured(self, service: str) -> bool:
        """Whether enough runs of a service have ended."""
        known = self._services.get(service)
        return known is not None and known.runs >= RUNS_MIN

    def closed(self, reserve: Reserve, in_use: Mapping[str, int]) -> frozenset[str]:
        """The services that may not have the next slot.

        Args:
            reserve: of the waitgroup.
            in_use: slots by service, of those that have some.

        A service that is long is closed out of the reserve as soon as some other service is known to be quick. One that
        was not measured is closed out of it in any case: it may be long.
        """
        if not self.learns or not (kept := reserve.size):
            return _NONE
        longs = sum(count for service, count in in_use.items() if not self.quick(service))
        if longs < reserve.processes - kept:
            return _NONE
        quick = self._quick_of(reserve.services)
        return frozenset(service for service in reserve.services - quick if quick or not self.measured(service))

    def _quick_of(self, services: Iterable[str]) -> frozenset[str]:
        return frozenset(service for service in services if self.quick(service))
