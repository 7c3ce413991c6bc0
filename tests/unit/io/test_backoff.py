"""Waits between tries to reach something: they double up to a cap, differ from each other, and start anew."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from rota.io.backoff import Backoff


class Fixed(Random):
    """A random source that always says the same."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value


def test_the_upper_bound_doubles_up_to_the_cap() -> None:
    backoff = Backoff(Fixed(1.0), first_s=0.5, cap_s=3.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_wait_is_at_least_a_tenth_of_its_bound() -> None:
    backoff = Backoff(Fixed(0.0), first_s=0.5, cap_s=3.0)
    waits = [backoff.next_s() for _ in range(5)]
    assert [round(wait, 9) for wait in waits] == [0.05, 0.1, 0.2, 0.3, 0.3]


def test_after_a_success_it_starts_anew() -> None:
    backoff = Backoff(Fixed(1.0), first_s=0.5, cap_s=3.0)
    backoff.next_s()
    backoff.next_s()
    assert backoff.failures == 2
    backoff.reset()
    assert (backoff.failures, backoff.next_s()) == (0, 0.5)


@given(st.integers(), st.floats(0.001, 10), st.floats(0.001, 3600), st.integers(1, 3000))
def test_no_wait_is_nothing_or_more_than_the_cap(seed: int, first_s: float, cap_s: float, failures: int) -> None:
    backoff = Backoff(Random(seed), first_s=first_s, cap_s=cap_s, failures=failures)
    for _ in range(3):
        assert 0.1 * min(first_s, cap_s) <= backoff.next_s() <= cap_s


def test_two_programs_do_not_march_in_step() -> None:
    one, other = Backoff(Random(1)), Backoff(Random(2))
    assert [one.next_s() for _ in range(8)] != [other.next_s() for _ in range(8)]


def test_the_same_seed_gives_the_same_waits() -> None:
    one, other = Backoff(Random(1)), Backoff(Random(1))
    assert [one.next_s() for _ in range(8)] == [other.next_s() for _ in range(8)]
