"""Times to come, each under a key, the earliest first. Pure.

A time may be asked for again and again as it moves: what fires is looked at anew by whoever set it, so a time that only
moved later costs nothing until it fires.
"""

import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Timers(Generic[K]):
    """For each key at most one time."""

    _at: dict[K, float] = field(default_factory=dict)
    _heap: list[tuple[float, int, K]] = field(default_factory=list)
    _count: int = 0

    def set(self, key: K, at: float) -> None:
        """Fires no later than this. One that is set for an earlier time stays: it fires, and is set again."""
        held = self._at.get(key)
        if held is not None and held <= at:
            return
        self._at[key] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))

    def drop(self, key: K) -> None:
        """Never fires, until it is set again."""
        self._at.pop(key, None)

    def next_at(self) -> float | None:
        """The earliest time; None if there is none."""
        while self._heap and self._at.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[K]:
        """The keys whose time has come, in its order; they are not set any more."""
        keys: list[K] = []
        while (at := self.next_at()) is not None and at <= now:
            key = heapq.heappop(self._heap)[2]
            del self._at[key]
            keys.append(key)
        return keys
