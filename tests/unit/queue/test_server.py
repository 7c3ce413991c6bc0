"""Whether the database's clock was set back between two looks at it."""

from datetime import UTC, datetime, timedelta

import pytest

from rota.queue.server import CLOCK_AHEAD_S, Glance, set_back_between

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("moved_s", "was_set_back"),
    [(15.0, False), (3600.0, False), (15.0 - CLOCK_AHEAD_S, False), (14.9 - CLOCK_AHEAD_S, True), (-3600.0, True)],
)
def test_a_clock_that_went_less_far_than_ours_was_set_back(moved_s: float, was_set_back: bool) -> None:
    before = Glance(100.0, NOON, 101.0)
    assert set_back_between(before, Glance(116.0, NOON + timedelta(seconds=moved_s), 117.0)) is was_set_back


def test_answers_that_came_late_are_no_sign() -> None:
    before = Glance(100.0, NOON, 140.0)
    assert not set_back_between(before, Glance(141.0, NOON + timedelta(seconds=1), 142.0))
