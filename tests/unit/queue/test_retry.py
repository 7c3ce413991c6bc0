"""How long a failed try waits."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.queue.retry import Exponential, Fixed, RetryWaits


def test_the_same_wait_each_time() -> None:
    assert [Fixed().wait_s(tries, random=Random(1)) for tries in (1, 2, 99)] == [30.0] * 3
    assert Fixed(0.5).wait_s(1, random=Random(1)) == 0.5


def test_waits_double_to_the_cap() -> None:
    """Seed 003: from 30 seconds to 12 hours at most, in 12 tries."""
    waits = Exponential(jitter=0.0)
    assert [waits.wait_s(tries, random=Random(1)) for tries in range(1, 13)] == [
        30, 60, 120, 240, 480, 960, 1920, 3840, 7680, 15360, 30720, 43200,
    ]  # fmt: skip


@given(
    tries=st.integers(-5, 10**6),
    first_s=st.floats(0, 1e6),
    cap_s=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_a_wait_stays_near_its_place(tries: int, first_s: float, cap_s: float, jitter: float, seed: int) -> None:
    plain = Exponential(first_s, cap_s, jitter=0.0).wait_s(tries, random=Random(seed))
    wait = Exponential(first_s, cap_s, jitter).wait_s(tries, random=Random(seed))
    assert 0 <= wait <= cap_s
    assert plain * (1 - jitter) - 1e-6 <= wait <= plain * (1 + jitter) + 1e-6


def test_jitter_goes_both_ways_and_is_the_sources_own() -> None:
    waits, random = Exponential(first_s=100.0, jitter=0.5), Random(2)
    made = [waits.wait_s(1, random=random) for _ in range(200)]
    assert min(made) < 70
    assert max(made) > 130
    random = Random(2)
    assert made == [waits.wait_s(1, random=random) for _ in range(200)]


@pytest.mark.parametrize("waits", [Fixed(), Exponential()])
def test_both_are_what_a_kind_takes(waits: RetryWaits) -> None:
    assert waits.wait_s(1, random=Random(1)) > 0
