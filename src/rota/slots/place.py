"""A want's position, by replaying the grant rule, and a guess of how long that takes. Pure.

`replay` is the rule of the want-book without its bookkeeping. `ahead` gives the same number without dealing one by one,
where priority is strict. Both say what happens if nothing comes or goes and each slot is open to every service; the
fast reserve can let quick services go earlier.
"""

from collections.abc import Collection, Iterator
from heapq import heapify, heapreplace
from itertools import islice
from typing import Final

from rota.slots.wantbook import Line, Parked, Turn, WantBook

STEPS_MAX: Final = 2000
"""How many grants a guess of time deals one by one; beyond, the pace of these goes on."""


def replay(book: WantBook) -> Iterator[Parked]:
    """All wants in the order in which they are dealt slots. The book must not change meanwhile."""
    order = [_deals(line, book) for line in book.lines]
    upcoming = [next(deals) for deals in order]
    waited = [book.lines.index(line) for line in book.waited]
    since_floor = book.since_floor
    lines = list(range(len(order)))  # those that still have wants, the highest priority first
    while lines:
        by_floor = book.floor is not None and len(lines) > 1 and since_floor >= book.floor - 1
        chosen = waited[0] if by_floor else lines[0]
        since_floor = 0 if by_floor or len(lines) == 1 else since_floor + 1
        yield upcoming[chosen]
        waited.remove(chosen)
        following = next(order[chosen], None)
        if following is None:
            lines.remove(chosen)
        else:
            upcoming[chosen] = following
            waited.append(chosen)


def ahead(book: WantBook, want: Parked) -> int:
    """How many wants are dealt a slot before this one."""
    assert want.turn is not None, "it stands in no book"
    if book.floor is not None:
        return next(number for number, other in enumerate(replay(book)) if other is want)
    before = 0
    for line in book.lines:
        if line.priority == want.priority:
            return before + _ahead_in_line(line, want, want.turn, book)
        before += sum(turn.count for turn in line.turns.values())
    raise AssertionError("a want stands in a line of its book")


def eta(
    before: int, slots: int, running: Collection[tuple[float, float, float]], low_s: float, high_s: float
) -> tuple[float, float]:
    """When the want after so many others is dealt a slot; see `etas`.

    Returns: from, to, in seconds from now; from is never more than to.
    """
    steps = min(before, STEPS_MAX)
    low, high = next(islice(etas(slots, running, low_s, high_s), steps, None))
    more = (before - steps) / slots
    return low + more * low_s, high + more * high_s


def etas(
    slots: int, running: Collection[tuple[float, float, float]], low_s: float, high_s: float
) -> Iterator[tuple[float, float]]:
    """When the first want, the second, and so on without end, is dealt a slot, each from and to in seconds from now.

    Args:
        slots: of the waitgroup, at least 1.
        running: for each slot in use how long it has been, and how long its command takes from and to.
        low_s, high_s: how long the commands of the wants take, from and to.
    """
    lows = _starts(slots, [max(0.0, low - so_far) for so_far, low, _ in running], low_s)
    highs = _starts(slots, [max(0.0, high - so_far) for so_far, _, high in running], high_s)
    for low, high in zip(lows, highs, strict=False):
        yield low, max(low, high)


def _starts(slots: int, left_s: list[float], each_s: float) -> Iterator[float]:
    # Where a waitgroup was made smaller, those that end first free nothing.
    free_at = [*sorted(left_s)[max(0, len(left_s) - slots) :], *[0.0] * (slots - len(left_s))]
    heapify(free_at)
    while True:
        yield free_at[0]
        heapreplace(free_at, free_at[0] + each_s)


def _deals(line: Line, book: WantBook) -> Iterator[Parked]:
    places = [(turn.stamp, turn.credit, party, iter(turn.in_order())) for party, turn in line.turns.items()]
    # Stamps differ, and each turn moves its party behind all others: rounds need no more than an order.
    places.sort(key=lambda place: place[0])
    turns = [(credit, book.weight(party), wants) for _, credit, party, wants in places]
    while turns:
        following = []
        for credit, weight, wants in turns:
            dealt = list(islice(wants, credit))
            yield from dealt
            if len(dealt) == credit:
                following.append((weight, weight, wants))
        turns = following


def _ahead_in_line(line: Line, want: Parked, own: Turn, book: WantBook) -> int:
    index = sum(other.number < want.number for queue in own.queues.values() for other in queue if other.turn is own)
    weight = book.weight(want.party)
    rounds = 0 if index < own.credit else 1 + (index - own.credit) // weight  # turns of its party that end before
    before = index
    for party, turn in line.turns.items():
        if turn is own:
            continue
        turns = rounds + (turn.stamp < own.stamp)
        if turns:
            before += min(turn.count, turn.credit + (turns - 1) * book.weight(party))
    return before
