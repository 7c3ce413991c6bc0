"""Ids: version 7 as RFC 9562 has it, in the order of the list; and names of holders."""

from itertools import pairwise
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.ids import new_holder, uuid_v7s

NOW_US = 1_790_000_000_123_456


@given(st.integers(0, 200), st.integers(0, 2**48 * 1000 - 1000), st.integers(0, 2**62 - 1))
def test_ids_are_version_7_and_rise(count: int, unix_us: int, random_bits: int) -> None:
    ids = uuid_v7s(count, unix_us=unix_us, random_bits=random_bits)
    assert len(ids) == count
    assert all(earlier < later for earlier, later in pairwise(ids))
    for number, new in enumerate(ids):
        assert (new.version, new.variant) == (7, RFC_4122)
        assert new.int >> 80 == (unix_us + number) // 1000
        assert new.int & (2**62 - 1) == random_bits


def test_the_fraction_of_a_millisecond_is_kept() -> None:
    """Method 3 of section 6.2: twelve bits hold 1/4096 of a millisecond, so each microsecond has its own."""
    ids = uuid_v7s(1000, unix_us=NOW_US // 1000 * 1000, random_bits=0)
    fractions = [new.int >> 64 & 0xFFF for new in ids]
    assert len(set(fractions)) == 1000
    assert (fractions[0], fractions[500], fractions[999]) == (0, 2048, 4091)


def test_later_ids_are_greater() -> None:
    assert uuid_v7s(1, unix_us=NOW_US)[0] < uuid_v7s(1, unix_us=NOW_US + 1)[0]


def test_the_random_half_is_new_each_time() -> None:
    tails = {uuid_v7s(1, unix_us=NOW_US)[0].int & (2**62 - 1) for _ in range(100)}
    assert len(tails) == 100


def test_an_id_of_the_rfc() -> None:
    """The example of RFC 9562, A.6: 2022-02-22 19:22:22 UTC, whose bits after the milliseconds are random there."""
    (made,) = uuid_v7s(1, unix_us=1_645_557_742_000_000, random_bits=0x18C4DC0C0C07398F)
    assert made == UUID("017F22E2-79B0-7000-98C4-DC0C0C07398F")


@pytest.mark.parametrize("host", ["web-1", "h" * 300])
def test_a_holder_is_one_process_start(host: str) -> None:
    first, second = new_holder(host=host, pid=7), new_holder(host=host, pid=7)
    assert first != second
    assert first.startswith(f"{host[:100]}:7:")
    assert len(first) < 120
