"""How many may begin to connect."""

import pytest

from rota.runners.ramp import RETRY_MAX_S, RETRY_MIN_S, Ramp, told_s


def test_a_seconds_worth_comes_in_at_once_and_then_as_many_a_second() -> None:
    ramp = Ramp(5)
    assert [ramp.admit(0.0) is None for _ in range(7)] == [True] * 5 + [False] * 2
    assert [ramp.admit(0.4) is None for _ in range(3)] == [True, True, False]
    assert [ramp.admit(100.0) is None for _ in range(6)] == [True] * 5 + [False]


def test_each_that_is_refused_is_told_another_time() -> None:
    ramp = Ramp(10)
    for _ in range(10):
        ramp.admit(0.0)
    told = [ramp.admit(0.0) for _ in range(20)]
    assert told == pytest.approx([RETRY_MIN_S + n / 10 for n in range(20)])


def test_nobody_is_told_to_wait_longer_than_a_minute() -> None:
    ramp = Ramp(1)
    told = [ramp.admit(0.0) for _ in range(500)]
    waits = [wait for wait in told if wait is not None]
    assert len(waits) == 499 and max(waits) <= RETRY_MAX_S and min(waits) >= RETRY_MIN_S


def test_who_comes_at_the_time_that_it_was_told_comes_in() -> None:
    ramp = Ramp(2)
    told = sorted(wait for wait in (ramp.admit(0.0) for _ in range(40)) if wait is not None)
    assert all(ramp.admit(wait) is None for wait in told)


def test_less_than_one_a_second() -> None:
    ramp = Ramp(0.5)
    assert ramp.admit(0.0) is not None  # nothing is saved up yet
    assert ramp.admit(10.0) is None


@pytest.mark.parametrize(("wait_s", "told"), [(0.2, 1), (1.0, 1), (1.01, 2), (6.4, 7), (60.0, 60)])
def test_no_shorter_wait_is_told(wait_s: float, told: int) -> None:
    assert told_s(wait_s) == told
