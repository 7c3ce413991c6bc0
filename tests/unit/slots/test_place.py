"""The time until a want's turn, as a range. That positions come true is in tests/property/test_wantbook.py."""

from itertools import islice

import pytest

from rota.slots.place import STEPS_MAX, eta, etas


def test_a_free_slot_is_now() -> None:
    assert eta(0, 2, [(5.0, 10.0, 20.0)], 10, 20) == (0, 0)


def test_what_runs_has_to_end_first() -> None:
    assert eta(0, 1, [(5.0, 8.0, 20.0)], 10, 20) == (3, 15)
    assert eta(0, 1, [(50.0, 8.0, 20.0)], 10, 20) == (0, 0), "it is over its time already"


def test_each_want_ahead_takes_a_slot_for_its_time() -> None:
    assert eta(3, 2, [(0.0, 10.0, 10.0), (0.0, 4.0, 4.0)], 10, 10) == (20, 20)


def test_the_turns_of_a_line_are_those_of_each_of_its_wants() -> None:
    running = [(0.0, 10.0, 12.0), (1.0, 4.0, 4.0)]
    each = [eta(before, 2, running, 3, 7) for before in range(20)]
    assert list(islice(etas(2, running, 3, 7), 20)) == each
    assert each[:3] == [(3, 3), (6, 10), (9, 12)]


def test_far_back_in_the_line_it_goes_on_at_the_pace_so_far() -> None:
    low_s, high_s = eta(10 * STEPS_MAX, 4, [(0.0, 2.0, 3.0)] * 4, 2, 3)
    assert low_s == pytest.approx(10 * STEPS_MAX * 2 / 4, rel=0.01)
    assert high_s == pytest.approx(10 * STEPS_MAX * 3 / 4, rel=0.01)
