"""The want-book beside `heapq`: what one want costs that is parked and one that is dealt, with many standing in line.

Both hold the same wants with the same priority, and both make what they put in. heapq knows no fairness and no way to
take a want out of the middle; it is the least that an order of priority and arrival can cost.
"""

import gc
import heapq
import time
from collections.abc import Callable
from typing import Final

from bench.machine import Bystanders
from bench.report import Sample
from rota.slots.wantbook import Parked, WantBook

SIZES: Final = {"small": (1000, 10), "large": (100_000, 1000)}
"""Wants and connections."""
REPEATS: Final = 7
"""The best of these counts: what disturbs a loop of 50 ms only ever makes it longer."""


async def measure(bystanders: Bystanders, pairs: int, *, repeats: int) -> list[Sample]:
    """Both sizes of both, in turn, as pairs a second and as microseconds."""
    since = bystanders.reading()
    best: dict[str, float] = {}
    for _ in range(repeats):
        for size, (wants, connections) in SIZES.items():
            for name, work in (("book", _book), ("heapq", _heap)):
                key = f"{name}.{size}"
                best[key] = min(best.get(key, float("inf")), _timed(work(wants, connections, pairs)) / pairs)
    others = bystanders.share(since)
    samples = [Sample(key, 1 / seconds, others) for key, seconds in best.items()]
    return samples + [Sample(f"{key}_us", seconds * 1e6, others) for key, seconds in best.items()]


def _book(wants: int, connections: int, pairs: int) -> Callable[[], None]:
    book = WantBook()
    for number in range(wants):
        book.park(Parked(number % connections, "cut", 0))
    # The parties come in an order that has nothing to do with whose turn it is.
    parties = [number * 7919 % connections for number in range(pairs)]

    def work() -> None:
        park, take = book.park, book.take
        for party in parties:
            park(Parked(party, "cut", 0))
            take()

    return work


def _heap(wants: int, connections: int, pairs: int) -> Callable[[], None]:
    heap = [(0, number, Parked(number % connections, "cut", 0)) for number in range(wants)]
    heapq.heapify(heap)
    parties = [number * 7919 % connections for number in range(pairs)]

    def work() -> None:
        push, pop, number = heapq.heappush, heapq.heappop, wants
        for party in parties:
            push(heap, (0, number, Parked(party, "cut", 0)))
            number += 1
            pop(heap)

    return work


def _timed(work: Callable[[], None]) -> float:
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    finally:
        gc.enable()
