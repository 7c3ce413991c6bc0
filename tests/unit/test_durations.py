"""Durations in words."""

import pytest

from rota.durations import duration, measured, span


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (172_799, "48 h"),
        (172_800, "2 d"), (3650 * 86_400, "3650 d"), (-30, "30 s"),
    ],
)  # fmt: skip
def test_a_duration_has_two_digits_or_so(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0.0 s"), (0.04, "0.0 s"), (3.14, "3.1 s"), (9.94, "9.9 s"), (9.96, "10 s"), (10, "10 s"), (120, "2 min")],
)
def test_a_short_measured_time_has_tenths(seconds: float, words: str) -> None:
    assert measured(seconds) == words


@pytest.mark.parametrize(
    ("low_s", "high_s", "words"),
    [(180, 300, "3 to 5 min"), (100, 200, "100 s to 3 min"), (61, 61, "about 61 s"), (3, 90, "3 to 90 s")],
)
def test_an_estimate_names_its_unit_once(low_s: float, high_s: float, words: str) -> None:
    assert span(low_s, high_s) == words
