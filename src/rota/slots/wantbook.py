"""The want-book of one waitgroup: who is dealt the next free slot (I7). Pure.

The grant rule: the highest priority first; within a priority in turn across parties, each dealing as many wants as its
weight; within a party first in, first out. A party is a connection, or a tenant where slots are shared by tenants. A
party whose turn is over goes to the end of the line, and so does one that comes with its first want; one that has no
want left is out of the line.

A slot may be closed to some services (`take(closed)`): then the first want in this order that may have it is dealt it,
and those before it keep their places. That is why a party has one queue for each service, and each service a heap of
the parties that want it, by their place in the line (`stamp`). What a heap holds of places that are given up is skipped
when it is met, and cleared away when it is most of the heap.

With a floor, one grant in so many goes to the priority that has waited longest, so that a busy high one cannot starve
the others for ever. Position is told by the same rule: see `place`.
"""

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Iterator
from heapq import heappop, heappush, heapreplace
from typing import Final

WEIGHT_MAX: Final = 1000
"""More would let one party take the whole waitgroup for minutes before the next is asked."""
STALE_MIN: Final = 64
"""A heap with fewer places than this is never worth clearing away."""
_NONE: Final[frozenset[str]] = frozenset()


class Parked:
    """One want in the book. `owner` is whatever the caller keeps with it."""

    __slots__ = ("number", "owner", "party", "priority", "service", "turn")

    def __init__(self, party: Hashable, service: str, priority: int, owner: object = None) -> None:
        self.party = party
        self.service = service
        self.priority = priority
        self.owner = owner
        self.number = 0  # the order of arrival
        self.turn: Turn | None = None  # None: it stands in no book


Queue = deque[Parked]


class Turn:
    """The place of one party in the line of one priority, and its wants there.

    A want that is taken out of the middle of a queue stays there without a turn until it comes to an end of the queue,
    so that a queue is never without a live want.
    """

    __slots__ = ("credit", "queues", "removed", "stamp")

    def __init__(self, stamp: int, credit: int) -> None:
        self.stamp = stamp  # places are dealt in the order of stamps
        self.credit = credit  # grants left before the turn is over
        self.queues: dict[str, Queue] = {}  # by service
        self.removed = 0  # wants without a turn that are still in a queue

    @property
    def count(self) -> int:
        """How many wants the party has here."""
        return sum(map(len, self.queues.values())) - self.removed

    def in_order(self) -> list[Parked]:
        """All wants of the party here, first in first."""
        wants = [want for queue in self.queues.values() for want in queue if want.turn is not None]
        if len(self.queues) > 1:
            wants.sort(key=lambda want: want.number)
        return wants


Heap = list[tuple[int, Turn]]


class Line:
    """The line of one priority: its parties, and for each service who wants it."""

    __slots__ = ("heaps", "priority", "turns")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.turns: dict[Hashable, Turn] = {}
        self.heaps: dict[str, Heap] = {}

    def head(self, closed: Collection[str]) -> tuple[str, Turn] | None:
        """Who is next for a slot that is closed to these services, and for which service; None: nobody may have it."""
        best: tuple[int, Turn] | None = None
        best_service = ""
        for service, heap in self.heaps.items():
            if closed and service in closed:
                continue
            while heap:
                place = heap[0]
                stamp, turn = place
                if turn.stamp == stamp and service in turn.queues:
                    if best is None or place < best:
                        best_service, best = service, place
                    elif stamp == best[0] and turn.queues[service][0].number < turn.queues[best_service][0].number:
                        best_service = service
                    break
                heappop(heap)
        return None if best is None else (best_service, best[1])


class WantBook:
    """The wants of one waitgroup.

    Args:
        floor: one grant in this many goes to the priority that has waited longest; None: priority is strict.
    """

    def __init__(self, *, floor: int | None = None) -> None:
        assert floor is None or floor >= 2, "a floor of one grant in one would turn priority off"
        self.floor = floor
        self.since_floor = 0  # grants by priority while another priority waited, since the last one by the floor
        self._lines: dict[int, Line] = {}
        self._order: list[Line] = []  # the lowest priority first
        self._waited: OrderedDict[int, Line] = OrderedDict()  # the longest without a grant first
        self._weights: dict[Hashable, int] = {}
        self._numbers = 0
        self._stamps = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Parked]:
        """All wants, the highest priority first; within one in no order that means anything."""
        for line in self.lines:
            for turn in line.turns.values():
                yield from turn.in_order()

    @property
    def lines(self) -> list[Line]:
        """The lines with wants, the highest priority first."""
        return self._order[::-1]

    @property
    def waited(self) -> list[Line]:
        """The lines with wants, the longest without a grant first."""
        return list(self._waited.values())

    def waiting(self) -> dict[str, int]:
        """How many wants of each service stand here."""
        counts: dict[str, int] = {}
        for line in self._order:
            for turn in line.turns.values():
                for service, queue in turn.queues.items():
                    live = sum(want.turn is not None for want in queue) if turn.removed else len(queue)
                    counts[service] = counts.get(service, 0) + live
        return counts

    def weight(self, party: Hashable) -> int:
        """How many wants in a row this party is dealt."""
        return self._weights.get(party, 1)

    def weigh(self, party: Hashable, weight: int) -> None:
        """From its next turn on this party is dealt `weight` (1 to 1,000) wants in a row; all have 1 unless told."""
        assert 1 <= weight <= WEIGHT_MAX, weight
        if weight == 1:
            self._weights.pop(party, None)
        else:
            self._weights[party] = weight

    def park(self, want: Parked) -> None:
        """Puts a want at the end of its party's queue."""
        assert want.turn is None, "it stands in a book already"
        line = self._lines.get(want.priority) or self._new_line(want.priority)
        turn = line.turns.get(want.party)
        if turn is None:
            self._stamps += 1
            turn = line.turns[want.party] = Turn(self._stamps, self._weights.get(want.party, 1))
        queue = turn.queues.get(want.service)
        if queue is None:
            queue = turn.queues[want.service] = deque()
            self._line_up(line, turn, want.service)
        self._numbers = want.number = self._numbers + 1
        want.turn = turn
        queue.append(want)
        self._count += 1

    def remove(self, want: Parked) -> None:
        """Takes a want out that is not dealt a slot: given up, or its connection is gone. Others keep their places."""
        turn, line = want.turn, self._lines[want.priority]
        assert turn is not None, "it stands in no book"
        want.turn = None
        self._count -= 1
        turn.removed += 1
        queue = turn.queues[want.service]
        while queue and queue[-1].turn is None:
            queue.pop()
            turn.removed -= 1
        while queue and queue[0].turn is None:
            queue.popleft()
            turn.removed -= 1
        if not queue:
            del turn.queues[want.service]
            if not turn.queues:
                self._leave(line, want.party)
        elif turn.removed > STALE_MIN and turn.removed > sum(map(len, turn.queues.values())) // 2:
            # What was taken out in the middle is cleared away when it is half of all.
            turn.removed = 0
            turn.queues = {
                service: deque(want for want in queue if want.turn is not None)
                for service, queue in turn.queues.items()
            }

    def take(self, closed: Collection[str] = _NONE) -> Parked | None:
        """Deals the next slot.

        Args:
            closed: services that may not have it.

        Returns: the want, which is out of the book now; None if no want may have it.
        """
        if self.floor is not None:
            return self._take_with_floor(self.floor, closed)
        for line in reversed(self._order):
            head = line.head(closed)
            if head is not None:
                return self._deal(line, *head)
        return None

    def _take_with_floor(self, floor: int, closed: Collection[str]) -> Parked | None:
        by_floor = len(self._order) > 1 and self.since_floor >= floor - 1
        for line in self.waited if by_floor else self.lines:
            head = line.head(closed)
            if head is not None:
                self.since_floor = 0 if by_floor or len(self._order) == 1 else self.since_floor + 1
                self._waited.move_to_end(line.priority)
                return self._deal(line, *head)
        return None

    def _deal(self, line: Line, service: str, turn: Turn) -> Parked:
        queues = turn.queues
        queue = queues[service]
        want = queue.popleft()
        want.turn = None
        self._count -= 1
        while queue and queue[0].turn is None:
            queue.popleft()
            turn.removed -= 1
        if not queue:
            del queues[service]
            if not queues:
                self._leave(line, want.party)
                return want
        if turn.credit > 1:
            turn.credit -= 1
            return want
        self._stamps = turn.stamp = self._stamps + 1
        if self._weights:
            turn.credit = self._weights.get(want.party, 1)
        if queue:
            heapreplace(line.heaps[service], (turn.stamp, turn))
        if len(queues) > 1 or not queue:
            for name in queues:
                if name != service:
                    self._line_up(line, turn, name)
        return want

    def _new_line(self, priority: int) -> Line:
        line = self._lines[priority] = self._waited[priority] = Line(priority)
        insort(self._order, line, key=lambda other: other.priority)
        return line

    def _line_up(self, line: Line, turn: Turn, service: str) -> None:
        heap = line.heaps.get(service)
        if heap is None:
            heap = line.heaps[service] = []
        elif len(heap) > STALE_MIN and len(heap) > 2 * len(line.turns):
            places = {stamp: (stamp, turn) for stamp, turn in heap if turn.stamp == stamp and service in turn.queues}
            heap[:] = sorted(places.values(), key=lambda place: place[0])
        heappush(heap, (turn.stamp, turn))

    def _leave(self, line: Line, party: Hashable) -> None:
        del line.turns[party]
        if not line.turns:
            del self._lines[line.priority], self._waited[line.priority]
            self._order.remove(line)
