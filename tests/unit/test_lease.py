"""The lease book: when its holder may act (I2), what it renews (I4), when it has to stop."""

import math
import os
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from rota.ids import JobId
from rota.lease import Lease, LeaseBook, Loss, Renewal

LEASE_S = 300.0
BEAT_S = 30.0
DETERMINED = settings(
    deadline=None, database=None, derandomize="CI" in os.environ, suppress_health_check=list(HealthCheck)
)


def lease(number: int = 1, *, epoch: int = 1) -> Lease:
    return Lease(JobId(UUID(int=number)), epoch)


def granted(*leases: Lease, sent_at: float = 0.0, lease_s: float = LEASE_S, heartbeat_s: float = BEAT_S) -> LeaseBook:
    book = LeaseBook()
    for each in leases or (lease(),):
        book.grant(each, lease_s=lease_s, heartbeat_s=heartbeat_s, sent_at=sent_at)
    return book


def renew(book: LeaseBook, *, now: float, answered_at: float | None = None) -> list[Lease]:
    """Renews what is due, and gives what was renewed."""
    due = book.due(now=now)
    kept = [renewal.lease.job_id for renewal in due]
    assert book.renewed(due, kept=kept, now=answered_at or now) == []
    return [renewal.lease for renewal in due]


# Holding


def test_a_holder_may_act_until_the_lease_ends_counted_from_before_the_claim() -> None:
    book = granted(sent_at=100.0)
    assert book.holds(lease(), now=100.0)
    assert book.holds(lease(), now=399.999)
    assert not book.holds(lease(), now=400.0)
    assert book.deadline(lease()) == 400.0


@pytest.mark.parametrize("other", [lease(2), lease(epoch=0), lease(epoch=2)])
def test_another_lease_is_not_held(other: Lease) -> None:
    book = granted()
    assert not book.holds(other, now=1.0)
    assert not book.progressed(other)
    assert book.deadline(other) == 0.0
    book.drop(other)
    assert list(book) == [lease()]


def test_those_that_are_held_are_told_of_many() -> None:
    book = granted(lease(1), lease(2, epoch=3))
    assert book.held_of([lease(4), lease(5)], now=1.0) == set()
    assert book.held_of([lease(1), lease(2), lease(4)], now=1.0) == {lease(1)}
    assert book.held_of([lease(1), lease(2, epoch=3)], now=LEASE_S) == set()


def test_a_dropped_lease_is_over() -> None:
    book = granted(lease(1), lease(2))
    book.drop(lease(1))
    book.drop(lease(1))
    assert (list(book), len(book)) == ([lease(2)], 1)
    assert not book.holds(lease(1), now=1.0)
    assert not book.progressed(lease(1))


def test_a_new_lease_of_the_same_job_takes_the_place_of_the_old() -> None:
    book = granted(lease(epoch=1))
    book.grant(lease(epoch=2), lease_s=LEASE_S, heartbeat_s=BEAT_S, sent_at=50.0)
    assert list(book) == [lease(epoch=2)]
    assert not book.holds(lease(epoch=1), now=51.0)


# Renewing


def test_without_progress_nothing_is_renewed() -> None:
    book = granted()
    assert [book.due(now=now) for now in range(0, 300, 10)] == [[]] * 30


def test_progress_is_written_at_the_next_beat_and_once() -> None:
    book = granted()
    book.progressed(lease(), progress={"n": 1})
    book.progressed(lease(), progress={"n": 2})
    book.progressed(lease())
    assert book.due(now=29.999) == []
    assert book.due(now=30.0) == [Renewal(lease(), LEASE_S, {"n": 2})]
    assert book.due(now=31.0) == []


def test_a_renewal_counts_from_when_it_was_sent() -> None:
    book = granted()
    book.progressed(lease())
    due = book.due(now=30.0)
    assert book.holds(lease(), now=299.0)
    assert book.renewed(due, kept=[lease().job_id], now=55.0) == []
    assert book.deadline(lease()) == 330.0
    book.progressed(lease())
    assert book.due(now=59.0) == []
    assert len(book.due(now=60.0)) == 1


def test_a_late_answer_does_not_bring_beats_in_a_row() -> None:
    book = granted()
    book.progressed(lease())
    due = book.due(now=30.0)
    book.progressed(lease())
    book.renewed(due, kept=[lease().job_id], now=75.0)
    assert len(book.due(now=75.0)) == 1


def test_renewals_go_in_the_order_of_ids() -> None:
    leases = [lease(number) for number in (3, 1, 2)]
    book = granted(*leases)
    for each in leases:
        book.progressed(each)
    assert [renewal.lease for renewal in book.due(now=30.0)] == sorted(leases)


def test_progress_during_a_renewal_waits_for_the_next() -> None:
    book = granted()
    book.progressed(lease(), progress=1)
    due = book.due(now=30.0)
    book.progressed(lease(), progress=2)
    book.renewed(due, kept=[lease().job_id], now=31.0)
    assert book.due(now=60.0) == [Renewal(lease(), LEASE_S, 2)]


def test_what_does_not_come_back_is_lost() -> None:
    book = LeaseBook()
    first = book.grant(lease(1), lease_s=LEASE_S, heartbeat_s=BEAT_S, sent_at=0.0)
    book.grant(lease(2), lease_s=LEASE_S, heartbeat_s=BEAT_S, sent_at=0.0)
    for each in (lease(1), lease(2)):
        book.progressed(each)
    assert book.renewed(book.due(now=30.0), kept=[lease(2).job_id], now=31.0) == [lease(1)]
    assert list(book) == [lease(2)]
    assert not book.holds(lease(1), now=31.0)
    assert first.deadline == 0.0


def test_a_failed_renewal_is_tried_again_soon_with_what_is_newest() -> None:
    book = granted()
    book.progressed(lease(), progress=1)
    book.unanswered(book.due(now=30.0), now=40.0)
    assert book.deadline(lease()) == 300.0
    assert book.due(now=40.5) == []
    assert book.due(now=41.0) == [Renewal(lease(), LEASE_S, 1)]
    book.progressed(lease(), progress=2)
    book.unanswered([Renewal(lease(), LEASE_S, 1)], now=42.0)
    assert book.due(now=43.0) == [Renewal(lease(), LEASE_S, 2)]


def test_a_short_heartbeat_is_tried_again_sooner() -> None:
    book = granted(lease_s=4.0, heartbeat_s=0.4)
    book.progressed(lease())
    book.unanswered(book.due(now=0.4), now=0.5)
    assert book.due(now=0.59) == []
    assert len(book.due(now=0.61)) == 1


def test_answers_for_leases_that_are_gone_change_nothing() -> None:
    book = granted(lease(1), lease(2))
    for each in (lease(1), lease(2)):
        book.progressed(each)
    due = book.due(now=30.0)
    book.drop(lease(1))
    book.grant(lease(2, epoch=2), lease_s=LEASE_S, heartbeat_s=BEAT_S, sent_at=31.0)
    assert book.renewed(due, kept=[], now=32.0) == []
    book.unanswered(due, now=32.0)
    assert list(book) == [lease(2, epoch=2)]
    assert book.due(now=61.0) == []


def test_a_lease_that_is_over_is_not_renewed() -> None:
    book = granted()
    book.progressed(lease())
    assert book.due(now=300.0) == []


# Stopping


def test_a_stalled_job_is_stopped_one_heartbeat_before_its_lease_ends() -> None:
    book = granted()
    assert book.overdue(now=269.999) == []
    assert book.overdue(now=270.0) == [(lease(), Loss.STALLED)]
    assert book.overdue(now=280.0) == [(lease(), Loss.STALLED)]
    book.drop(lease())
    assert book.overdue(now=281.0) == []


def test_the_stop_moves_with_the_lease() -> None:
    book = granted()
    book.progressed(lease())
    assert renew(book, now=30.0) == [lease()]
    assert book.overdue(now=299.0) == []
    assert book.overdue(now=300.0) == [(lease(), Loss.STALLED)]


def test_a_job_that_moved_before_its_stop_is_renewed_and_not_stopped() -> None:
    """Beats come a little late each time, so the last one would fall behind the stop: 9 × 30.1 s is over 270 s."""
    book = granted()
    for number in range(1, 9):
        assert book.due(now=number * 30.1) == []
    book.progressed(lease())
    assert book.overdue(now=270.0) == []
    assert renew(book, now=270.0) == [lease()]
    assert book.overdue(now=300.0) == []
    assert book.deadline(lease()) == 570.0


def test_a_job_whose_renewals_fail_is_given_up_half_a_heartbeat_before_the_end() -> None:
    book = granted()
    now = 30.0
    book.progressed(lease())
    while now < 284.0:
        book.unanswered(book.due(now=now), now=now + 0.5)
        assert book.overdue(now=now + 0.5) == []
        now += 2.0
    assert book.overdue(now=284.999) == []
    assert book.overdue(now=285.0) == [(lease(), Loss.UNWRITTEN)]


def test_a_renewal_that_hangs_is_given_up_too() -> None:
    book = granted()
    book.progressed(lease())
    assert len(book.due(now=260.0)) == 1
    assert book.overdue(now=284.0) == []
    assert book.overdue(now=285.0) == [(lease(), Loss.UNWRITTEN)]


@pytest.mark.parametrize(
    ("lease_s", "heartbeat_s", "margin_s", "stalled_at", "unwritten_at"),
    [
        (300.0, 30.0, 1.0, 270.0, 285.0),
        (10.0, 5.0, 1.0, 5.0, 7.5),
        (10.0, 0.1, 1.0, 9.0, 9.0),  # the margin is more than the heartbeat
        (2.0, 0.1, 1.0, 1.5, 1.5),  # and never more than a quarter of the lease
        (2.0, 1.0, 1.0, 1.0, 1.5),
        (10.0, 9.0, 1.0, 5.0, 7.5),  # nor the heartbeat more than half of it
    ],
)
def test_the_notice(
    lease_s: float, heartbeat_s: float, margin_s: float, stalled_at: float, unwritten_at: float
) -> None:
    for moved, at in ((False, stalled_at), (True, unwritten_at)):
        book = LeaseBook(margin_s=margin_s)
        book.grant(lease(), lease_s=lease_s, heartbeat_s=heartbeat_s, sent_at=0.0)
        if moved:
            book.progressed(lease())
        assert book.overdue(now=at - 0.001) == []
        assert len(book.overdue(now=at)) == 1


def test_the_last_moment_comes_before_the_end() -> None:
    book = granted()
    assert book.ending(now=299.49) == []
    assert book.ending(now=299.5) == [lease()]
    assert book.holds(lease(), now=299.5)


# Looking


def test_the_next_look() -> None:
    book = LeaseBook()
    assert book.next_look() is None
    assert book.pace_s() is None
    book.grant(lease(1), lease_s=LEASE_S, heartbeat_s=BEAT_S, sent_at=0.0)
    book.grant(lease(2), lease_s=20.0, heartbeat_s=5.0, sent_at=0.0)
    assert book.pace_s() == 2.5  # a job may move at any time
    assert book.next_look() == 15.0  # until one does, the next is to stop the second
    book.progressed(lease(2))
    assert book.next_look() == 5.0
    due = book.due(now=5.0)
    assert book.next_look() == 17.5  # its renewal is under way: the next is to give it up
    book.renewed(due, kept=[lease(2).job_id], now=6.0)
    assert book.next_look() == 20.0
    book.drop(lease(2))
    assert book.next_look() == LEASE_S - BEAT_S
    assert book.pace_s() == BEAT_S / 2


def test_a_late_move_is_written_at_once() -> None:
    """The beats before it had nothing to write; the one that was due stays due."""
    book = LeaseBook()
    book.grant(lease(), lease_s=LEASE_S, heartbeat_s=BEAT_S, sent_at=0.0)
    for now in range(30, 200, 30):
        assert book.due(now=now) == []
    book.progressed(lease(), progress="late")
    (renewal,) = book.due(now=200.5)
    assert renewal.progress == "late"
    book.renewed([renewal], kept=[lease().job_id], now=200.6)
    assert book.deadline(lease()) == 200.5 + LEASE_S
    book.progressed(lease())
    assert book.due(now=210.0) == [], "once for each heartbeat is enough"


beats = st.floats(0.1, 0.5).flatmap(lambda share: st.tuples(st.sampled_from([1.0, 10.0, 300.0]), st.just(share)))


@settings(DETERMINED, max_examples=200)
@given(
    sizes=beats,
    gaps=st.lists(st.floats(0.01, 0.98), min_size=1, max_size=30),
    late=st.floats(0.0, 0.02),
    answer=st.floats(0.0, 0.1),
)
def test_a_job_that_moves_in_time_is_never_stopped(
    sizes: tuple[float, float], gaps: list[float], late: float, answer: float
) -> None:
    """Whatever its rhythm, while it moves within lease minus heartbeat and the database answers."""
    lease_s, share = sizes
    heartbeat_s = share * lease_s
    longest = lease_s - max(heartbeat_s, min(1.0, lease_s / 4))
    moves = [gap * longest for gap in gaps]
    times = [sum(moves[: number + 1]) for number in range(len(moves))]
    book = granted(lease_s=lease_s, heartbeat_s=heartbeat_s)
    now, coming = 0.0, [*times]
    while coming:
        look = book.next_look()
        assert look is not None
        look = max(look + late * heartbeat_s, now)
        if coming[0] <= look:
            now = coming.pop(0)
            assert book.progressed(lease())
            continue
        now = max(look, math.nextafter(now, math.inf))
        assert book.overdue(now=now) == []
        if due := book.due(now=now):
            now += answer * heartbeat_s
            book.renewed(due, kept=[lease().job_id], now=now)
        while coming and coming[0] <= now:  # it moved while the answer was under way
            coming.pop(0)
            book.progressed(lease())
    assert all(later > earlier for earlier, later in pairwise(times))


# Against a database


@dataclass
class Stored:
    """A job as the database has it."""

    epoch: int
    until: float


@dataclass
class OnItsWay:
    renewal: Renewal
    applied: bool | None = None


delays = st.sampled_from([0.0, 0.5, 3.0])


class Holding(RuleBasedStateMachine):
    """A holder, its database, and messages that are late or lost. The clock of both is one, as their rates are."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.book = LeaseBook()
        self.stored: dict[JobId, Stored] = {}
        self.on_its_way: list[OnItsWay] = []
        self.moved: set[Lease] = set()

    @rule(number=st.integers(1, 3), lease_s=st.sampled_from([8.0, 20.0]), on_its_way_s=delays, back_s=delays)
    def claim(self, number: int, lease_s: float, on_its_way_s: float, back_s: float) -> None:
        job_id = JobId(UUID(int=number))
        sent_at = self.now
        self.now += on_its_way_s
        stored = self.stored.get(job_id)
        if stored is None or stored.until < self.now:
            claimed = Lease(job_id, 1 if stored is None else stored.epoch + 1)
            self.stored[job_id] = Stored(claimed.epoch, self.now + lease_s)
            self.now += back_s
            self.book.grant(claimed, lease_s=lease_s, heartbeat_s=lease_s / 4, sent_at=sent_at)

    @rule(number=st.integers(1, 3))
    def taken_by_another(self, number: int) -> None:
        stored = self.stored.get(JobId(UUID(int=number)))
        if stored is not None and self.now > stored.until:
            stored.epoch += 1
            stored.until = self.now + 8.0

    def progress(self, data: st.DataObject) -> None:
        held = list(self.book)
        if held:
            moved = data.draw(st.sampled_from(held))
            assert self.book.progressed(moved, progress=self.now)
            self.moved.add(moved)

    @rule(data=st.data())
    def progress_until_the_next_beat(self, data: st.DataObject) -> None:
        self.progress(data)
        look = self.book.next_look()
        if look is not None:
            self.now = max(self.now, look)
            self.look()

    @rule()
    def look(self) -> None:
        for overdue, loss in self.book.overdue(now=self.now):
            under_way = any(sent.renewal.lease == overdue for sent in self.on_its_way)
            assert (loss is Loss.UNWRITTEN) == (overdue in self.moved or under_way)
        for renewal in self.book.due(now=self.now):
            assert renewal.lease in self.moved, "I4: a lease follows progress"
            assert not any(sent.renewal.lease == renewal.lease for sent in self.on_its_way), "sent twice"
            self.moved.discard(renewal.lease)
            self.on_its_way.append(OnItsWay(renewal))

    @precondition(lambda self: self.on_its_way)
    @rule(data=st.data())
    def taken_up(self, data: st.DataObject) -> None:
        sent = data.draw(st.sampled_from(self.on_its_way))
        if sent.applied is None:
            stored = self.stored[sent.renewal.lease.job_id]
            sent.applied = stored.epoch == sent.renewal.lease.epoch and stored.until > self.now
            if sent.applied:
                stored.until = self.now + sent.renewal.lease_s

    @precondition(lambda self: self.on_its_way)
    @rule(data=st.data(), lost=st.booleans())
    def answered(self, data: st.DataObject, lost: bool) -> None:
        sent = data.draw(st.sampled_from(self.on_its_way))
        self.on_its_way.remove(sent)
        if lost or sent.applied is None:
            self.book.unanswered([sent.renewal], now=self.now)
            if sent.renewal.lease in list(self.book):
                self.moved.add(sent.renewal.lease)
        else:
            kept = [sent.renewal.lease.job_id] if sent.applied else []
            self.book.renewed([sent.renewal], kept=kept, now=self.now)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        held = list(self.book)
        if held:
            over = data.draw(st.sampled_from(held))
            self.book.drop(over)
            self.on_its_way = [sent for sent in self.on_its_way if sent.renewal.lease != over]

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.0, 5.0, 10.0]))
    def later(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def one_running_holder(self) -> None:
        for held in self.book:
            if self.book.holds(held, now=self.now):
                stored = self.stored[held.job_id]
                assert stored.epoch == held.epoch, "I2: two holders of one job"
                assert stored.until >= self.now, "I2: another could have begun"
                assert self.book.deadline(held) <= stored.until

    @invariant()
    def stops_come_before_the_end(self) -> None:
        overdue = {held for held, _ in self.book.overdue(now=self.now)}
        for held in self.book:
            if self.book.deadline(held) - self.now < 0.5:
                assert held in overdue
        assert set(self.book.ending(now=self.now)) <= overdue

    @invariant()
    def the_next_look_misses_nothing(self) -> None:
        look = self.book.next_look()
        assert (look is None) == (len(self.book) == 0)
        if look is not None and look > self.now:
            assert self.book.overdue(now=self.now) == []


def test_a_holder_against_a_database() -> None:
    run_state_machine_as_test(Holding, settings=settings(DETERMINED, max_examples=150, stateful_step_count=60))


# --- closing and cancelled ---


def test_a_lease_whose_end_is_being_written_is_renewed_no_more() -> None:
    book = LeaseBook()
    lease = Lease(JobId(UUID(int=1)), 1)
    book.grant(lease, lease_s=60, heartbeat_s=10, sent_at=0)
    assert book.progressed(lease)
    assert book.close(lease)
    assert book.due(now=20) == []
    assert book.overdue(now=40) == []
    assert book.overdue(now=57) == [(lease, Loss.UNWRITTEN)], "its handler has until the lease ends"
    assert not book.close(Lease(lease.job_id, 2))
    assert not book.close(Lease(JobId(UUID(int=2)), 1))


def test_a_cancelled_job_has_its_grace_whatever_its_lease_says() -> None:
    book = LeaseBook(margin_s=1.0)
    lease = Lease(JobId(UUID(int=1)), 1)
    held = book.grant(lease, lease_s=60, heartbeat_s=10, sent_at=0)
    book.progressed(lease)
    (renewal,) = book.due(now=10)
    book.cancelled(lease.job_id, ends_at=20)
    # A renewal that was on its way does not move its end.
    assert book.renewed([renewal], kept=[lease.job_id], now=11) == []
    assert held.deadline == 20
    book.progressed(lease)
    assert book.due(now=19) == []
    assert book.overdue(now=18.9) == [] and book.ending(now=19.4) == []
    assert book.overdue(now=19) == [(lease, Loss.CANCELLED)]
    assert book.ending(now=19.5) == [lease]
    book.cancelled(JobId(UUID(int=2)), ends_at=20)


def test_a_cancel_never_makes_a_lease_longer() -> None:
    book = LeaseBook()
    lease = Lease(JobId(UUID(int=1)), 1)
    held = book.grant(lease, lease_s=60, heartbeat_s=10, sent_at=0)
    book.cancelled(lease.job_id, ends_at=100)
    assert held.deadline == 60


# --- a process that is about to end ---


def test_a_process_that_ends_trusts_none_of_its_leases_any_more() -> None:
    book = LeaseBook()
    lease, other, late = (Lease(JobId(UUID(int=number)), 1) for number in (1, 2, 3))
    held = book.grant(lease, lease_s=60, heartbeat_s=10, sent_at=0)
    book.progressed(lease)
    (renewal,) = book.due(now=10)
    book.grant(other, lease_s=5, heartbeat_s=1, sent_at=0)
    book.abandon(now=20)
    assert not book.holds(lease, now=20) and held.deadline == 0.0
    # The answer to a renewal that was on its way brings nothing back, nor does a claim that comes late.
    assert book.renewed([renewal], kept=[lease.job_id], now=21) == [] and held.deadline == 0.0
    assert book.grant(late, lease_s=60, heartbeat_s=10, sent_at=20).deadline == 0.0
    assert book.due(now=100) == []


@pytest.mark.parametrize(("deadline", "abandoned_at", "counts_until"), [(60, 20, 20), (5, 20, 5)])
def test_what_was_given_back_before_the_end_counts_as_stopped_then(
    deadline: float, abandoned_at: float, counts_until: float
) -> None:
    """It takes no step after that, also where its process stands still and goes on much later."""
    book = LeaseBook()
    held = book.grant(Lease(JobId(UUID(int=1)), 1), lease_s=deadline, heartbeat_s=1, sent_at=0)
    book.abandon(now=abandoned_at)
    held.guarded = True
    assert held.ends(now=100) == counts_until


def test_a_cancel_that_is_told_twice_keeps_its_first_grace() -> None:
    book = LeaseBook()
    lease = Lease(JobId(UUID(int=1)), 1)
    held = book.grant(lease, lease_s=60, heartbeat_s=10, sent_at=0)
    book.cancelled(lease.job_id, ends_at=20)
    book.cancelled(lease.job_id, ends_at=30)
    assert held.deadline == 20


# By when somebody has to look


def test_who_holds_nothing_need_not_look() -> None:
    assert LeaseBook().look_by(now=5.0) == math.inf


def test_somebody_has_to_look_a_while_before_the_first_lease_ends() -> None:
    book = granted(lease(1), lease(2), sent_at=100.0)
    book.grant(lease(3), lease_s=60.0, heartbeat_s=10.0, sent_at=120.0)
    assert book.look_by(now=121.0) == 120.0 + book.first_look_s(60.0, 10.0) == 178.0
    book.drop(lease(3))
    assert book.look_by(now=121.0) == 398.0


def test_who_has_just_looked_gets_a_while_and_what_is_over_counts_no_more() -> None:
    book = granted(sent_at=100.0)
    assert book.look_by(now=398.5) == 399.5
    assert book.look_by(now=399.5) == 399.9375, "nobody gets longer than to the end, but for those who look there"
    assert book.look_by(now=399.9) == pytest.approx(400.15)
    assert book.look_by(now=400.0) == math.inf


def test_a_run_that_has_ended_needs_nobody_to_look() -> None:
    book = LeaseBook()
    held = book.grant(lease(), lease_s=LEASE_S, heartbeat_s=BEAT_S, sent_at=100.0)
    held.ends(now=150.0)
    assert book.look_by(now=150.0) == math.inf


def test_who_has_to_be_gone_by_a_time_has_no_longer() -> None:
    book = granted(sent_at=100.0)
    book.gone_by = 130.0
    assert book.look_by(now=110.0) == 130.0
    book.abandon(now=120.0)
    assert book.look_by(now=120.0) == 130.0


@pytest.mark.parametrize(
    ("lease_s", "heartbeat_s", "look_by"),
    [(1.6, 0.5, 1.475), (1.6, 0.1, 1.575), (10.0, 4.0, 9.0), (60.0, 30.0, 58.0), (86_400.0, 43_200.0, 86_398.0)],
)
def test_a_process_is_ended_a_part_of_a_heartbeat_before_its_lease_at_most_two_seconds(
    lease_s: float, heartbeat_s: float, look_by: float
) -> None:
    assert granted(sent_at=0.0, lease_s=lease_s, heartbeat_s=heartbeat_s).look_by(now=0.0) == pytest.approx(look_by)


def test_no_step_begins_when_its_holder_may_be_ending_the_process() -> None:
    book = LeaseBook()
    held = book.grant(lease(), lease_s=LEASE_S, heartbeat_s=BEAT_S, sent_at=100.0)
    last = held.deadline - held.rest_s
    assert book.ending(now=last - 0.001) == []
    assert book.ending(now=last) == [lease()]


def test_what_runs_in_a_thread_ends_with_its_lease_whoever_looks() -> None:
    book = granted(lease(1), sent_at=100.0)
    held = book.grant(lease(2), lease_s=60.0, heartbeat_s=10.0, sent_at=100.0)
    assert book.end_by(now=100.0) == math.inf
    held.in_thread = True
    assert book.end_by(now=100.0) == 160.0
    assert book.end_by(now=160.0) == math.inf, "whoever looks then has seen to it"
    held.ends(now=120.0)
    assert book.end_by(now=120.0) == math.inf
    book.gone_by = 130.0
    assert book.end_by(now=120.0) == 130.0
