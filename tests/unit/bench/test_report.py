"""Quantiles, medians, ratios, bars and the table of a bench."""

import pytest

from bench.report import Bar, Line, Sample, bars, disturbance, medians, quantile, ratio, table

DRAIN = Line("W3", "drain : raw", "drain.rota", "drain.raw", bar=Bar("drain / raw", 0.4))
WAKE = Line("W5", "p50", "wake.rota", "wake.notify", unit="ms", digits=2, bar=Bar("p50", 5, of_ratio=False, below=True))
PLAIN = Line("W1", "one by one", "one.rota", "one.raw")
LINES = (PLAIN, DRAIN, WAKE)


def test_a_quantile_is_the_smallest_value_that_enough_values_do_not_exceed() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [quantile(values, share) for share in (0.01, 0.25, 0.26, 0.5, 0.99, 1)] == [1, 1, 2, 2, 4, 4]
    assert quantile([7.0], 0.5) == 7
    assert quantile(range(1, 301), 0.99) == 297


def test_each_key_has_its_median() -> None:
    samples = [Sample("a", 1), Sample("b", 10), Sample("a", 9), Sample("a", 2), Sample("b", 20)]
    assert medians(samples) == {"a": 2, "b": 15}


@pytest.mark.parametrize(
    ("bar", "figure", "ok"),
    [
        (Bar("", 0.4), 0.4, True),
        (Bar("", 0.4), 0.399, False),
        (Bar("", 0.4), float("nan"), False),
        (Bar("", 5, below=True), 4.99, True),
        (Bar("", 5, below=True), 5.0, False),
        (Bar("", 5, below=True), float("nan"), False),
    ],
)
def test_a_bar_is_reached_or_stayed_under(bar: Bar, figure: float, ok: bool) -> None:
    assert bar.ok(figure) is ok


def test_a_ratio_needs_both_sides() -> None:
    assert ratio(DRAIN, {"drain.rota": 50, "drain.raw": 200}) == 0.25
    assert ratio(DRAIN, {"drain.rota": 50}) is None
    assert ratio(DRAIN, {"drain.raw": 200}) is None
    assert ratio(DRAIN, {"drain.rota": 50, "drain.raw": 0}) is None
    assert ratio(Line("", "", "drain.rota"), {"drain.rota": 50}) is None


def test_bars_are_those_that_were_measured() -> None:
    samples = [Sample("drain.rota", 50), Sample("drain.raw", 100), Sample("wake.rota", 6), Sample("one.rota", 1)]
    assert bars(LINES, samples) == [
        {"name": "drain / raw", "value": 0.5, "bar": 0.4, "ok": True},
        {"name": "p50", "value": 6, "bar": 5, "ok": False},
    ]
    assert bars(LINES, [Sample("drain.rota", 50)]) == []


def test_the_table_has_a_line_for_what_was_measured() -> None:
    samples = [
        Sample("drain.rota", 12_345, others=0.02),
        Sample("drain.raw", 100_000, others=0.04),
        Sample("wake.rota", 1.234),
    ]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table(LINES, samples).splitlines()]
    assert rows[0] == ["", "work", "Rota", "base", "ratio", "bar", "ok", "others' CPU"]
    assert rows[2:] == [
        ["W3", "drain : raw", "12,345 /s", "100,000", "0.12", "≥ 0.4", "NO", "3%"],
        ["W5", "p50", "1.23 ms", "", "", "< 5", "yes", "0%"],
    ]


def test_a_bar_on_a_ratio_without_a_base_says_nothing() -> None:
    row = table([DRAIN], [Sample("drain.rota", 5)]).splitlines()[2]
    assert [cell.strip() for cell in row.split("|")[1:-1]] == ["W3", "drain : raw", "5 /s", "", "", "", "", "0%"]


def test_the_report_says_how_much_others_disturbed_it() -> None:
    quiet = [Sample("a", 1, others=0.01), Sample("b", 1, others=0.09)]
    assert disturbance(quiet, limit=0.1).startswith("Quiet: others used less than 10%")
    loud = [*quiet, Sample("c", 1, others=0.5)]
    assert "in 1 of 3 measurements (median of all 9%, worst 50%)" in disturbance(loud, limit=0.1)
