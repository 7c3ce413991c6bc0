"""The want-book against a model that is too simple to be wrong, fairness (I7), and positions that come true."""

import copy
from collections import Counter
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rota.slots import place
from rota.slots.wantbook import Parked, WantBook

PARTIES = st.sampled_from(["ann", "bob", "cy", "dee"])
SERVICES = st.sampled_from(["cut", "mix", "print"])
PRIORITIES = st.integers(0, 2)
CLOSED = st.sets(SERVICES, max_size=2)


class Model:
    """The grant rule as one would say it, with a list for everything."""

    def __init__(self, floor: int | None) -> None:
        self.floor = floor
        self.wants: list[Parked] = []
        self.lines: dict[int, list[list]] = {}  # priority: [party, grants left in this turn], the next first
        self.waited: list[int] = []
        self.since_floor = 0
        self.weights: dict[str, int] = {}

    def park(self, want: Parked) -> None:
        self.wants.append(want)
        if want.priority not in self.lines:
            self.lines[want.priority] = []
            self.waited.append(want.priority)
        if want.party not in [party for party, _ in self.lines[want.priority]]:
            self.lines[want.priority].append([want.party, self.weights.get(want.party, 1)])

    def remove(self, want: Parked) -> None:
        self.wants.remove(want)
        if not [other for other in self.wants if (other.priority, other.party) == (want.priority, want.party)]:
            self.lines[want.priority] = [place for place in self.lines[want.priority] if place[0] != want.party]
            if not self.lines[want.priority]:
                del self.lines[want.priority]
                self.waited.remove(want.priority)

    def take(self, closed: set[str]) -> Parked | None:
        by_floor = self.floor is not None and len(self.lines) > 1 and self.since_floor >= self.floor - 1
        for priority in list(self.waited) if by_floor else sorted(self.lines, reverse=True):
            line = self.lines[priority]
            for turn in line:
                mine = [w for w in self.wants if (w.priority, w.party) == (priority, turn[0])]
                open_to = [w for w in mine if w.service not in closed]
                if not open_to:
                    continue
                self.since_floor = 0 if by_floor or len(self.lines) == 1 else self.since_floor + 1
                self.waited.append(self.waited.pop(self.waited.index(priority)))
                turn[1] -= 1
                if turn[1] == 0:
                    line.append(line.pop(line.index(turn)))
                    turn[1] = self.weights.get(turn[0], 1)
                self.remove(open_to[0])
                return open_to[0]
        return None

    def order(self) -> list[Parked]:
        later = copy.copy(self)
        later.wants = list(self.wants)
        later.lines = {priority: [list(turn) for turn in line] for priority, line in self.lines.items()}
        later.waited = list(self.waited)
        dealt = []
        while (want := later.take(set())) is not None:
            dealt.append(want)
        return dealt


class BookAgainstModel(RuleBasedStateMachine):
    """Whatever is parked, taken out, dropped, weighed and dealt: the same wants in the same order."""

    @initialize(floor=st.sampled_from([None, None, 2, 3]))
    def begin(self, floor: int | None) -> None:
        self.book, self.model = WantBook(floor=floor), Model(floor)

    @rule(party=PARTIES, service=SERVICES, priority=PRIORITIES, count=st.integers(1, 4))
    def park(self, party: str, service: str, priority: int, count: int) -> None:
        for _ in range(count):
            want = Parked(party, service, priority)
            self.book.park(want)
            self.model.park(want)

    @precondition(lambda self: self.model.wants)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        want = data.draw(st.sampled_from(self.model.wants))
        self.book.remove(want)
        self.model.remove(want)

    @rule(party=PARTIES)
    def drop(self, party: str) -> None:
        for want in [want for want in self.model.wants if want.party == party]:
            self.book.remove(want)
            self.model.remove(want)

    @rule(party=PARTIES, weight=st.integers(1, 3))
    def weigh(self, party: str, weight: int) -> None:
        # A weight counts from the next turn on; both sides read it when a turn begins.
        self.book.weigh(party, weight)
        self.model.weights[party] = weight

    @rule(closed=CLOSED, count=st.integers(1, 5))
    def take(self, closed: set[str], count: int) -> None:
        for _ in range(count):
            assert self.book.take(closed) is self.model.take(closed)

    @invariant()
    def the_same_wants_stand_in_it(self) -> None:
        if not hasattr(self, "book"):
            return
        assert len(self.book) == len(self.model.wants)
        assert set(self.book) == set(self.model.wants)
        assert self.book.waiting() == Counter(want.service for want in self.model.wants)

    @invariant()
    def positions_are_what_then_happens(self) -> None:
        if not hasattr(self, "book"):
            return
        order = self.model.order()
        assert list(place.replay(self.book)) == order
        for number, want in enumerate(order):
            assert place.ahead(self.book, want) == number


TestBookAgainstModel = BookAgainstModel.TestCase
TestBookAgainstModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@settings(max_examples=60, deadline=None)
@given(
    steady=st.integers(2, 6),
    comers=st.lists(st.tuples(st.integers(0, 80), st.integers(6, 9), st.integers(1, 5)), max_size=12),
    grants=st.integers(10, 90),
)
def test_connections_that_always_have_wants_differ_by_at_most_one_grant(
    steady: int, comers: list[tuple[int, int, int]], grants: int
) -> None:
    """I7, in each stretch of time and whoever else comes and goes."""
    book = WantBook()
    for party in range(steady):
        for _ in range(3 + party * 40):  # how much one parks ahead changes nothing
            book.park(Parked(party, "cut", 0))
    sums: list[Counter[object]] = [Counter()]
    for number in range(grants):
        for at, party, count in comers:
            if at == number:
                for _ in range(count):
                    book.park(Parked(party, "cut", 0))
        dealt = book.take()
        assert dealt is not None
        sums.append(sums[-1] + Counter([dealt.party]))
        if dealt.party in range(steady):
            book.park(Parked(dealt.party, "cut", 0))
    for end in range(len(sums)):
        for begin in range(end):
            got = [sums[end][party] - sums[begin][party] for party in range(steady)]
            assert max(got) - min(got) <= 1


@given(weights=st.lists(st.integers(1, 5), min_size=2, max_size=5), rounds=st.integers(1, 6))
def test_weights_are_shares(weights: list[int], rounds: int) -> None:
    book = WantBook()
    for party, weight in enumerate(weights):
        book.weigh(party, weight)
        for _ in range(weight * rounds + 7):
            book.park(Parked(party, "cut", 0))
    dealt = Counter(want.party for want in islice(iter(book.take, None), sum(weights) * rounds) if want)
    assert dealt == {party: weight * rounds for party, weight in enumerate(weights)}


@given(floor=st.integers(2, 8), lower=st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True))
def test_a_floor_bounds_how_long_a_busy_priority_starves_another(floor: int, lower: list[int]) -> None:
    book = WantBook(floor=floor)
    for priority in (*lower, 10):
        for _ in range(3):
            book.park(Parked("ann", "cut", priority))
    waits = dict.fromkeys(lower, 0)
    for _ in range(floor * (len(lower) + 1) * 3):
        dealt = book.take()
        assert dealt is not None
        book.park(Parked("ann", "cut", dealt.priority))
        for priority in waits:
            waits[priority] = 0 if priority == dealt.priority else waits[priority] + 1
            assert waits[priority] <= floor * (len(lower) + 1)


def test_a_book_that_is_used_for_long_does_not_grow() -> None:
    book = WantBook()
    keep = [Parked(party, "cut", 0) for party in ("ann", "bob")]
    for want in keep:
        book.park(want)
    for number in range(3000):
        for service in ("cut", "mix"):
            passing = Parked(f"p{number % 5}", service, 0)
            book.park(passing)
            book.remove(passing)
    middle = [Parked("ann", "cut", 0) for _ in range(3000)]
    for want in middle:
        book.park(want)
    book.park(last := Parked("ann", "cut", 0))
    for want in middle:
        book.remove(want)
    (line,) = book.lines
    assert max(map(len, line.heaps.values())) < 200
    assert sum(len(queue) for turn in line.turns.values() for queue in turn.queues.values()) < 200
    assert list(place.replay(book)) == [*keep, last]
