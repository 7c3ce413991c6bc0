"""Histograms, and what a client of exec servers counts."""

import msgspec

from rota.tallies import ExecTally, Histogram


def test_a_histogram_counts_up_to_and_with_each_bound() -> None:
    histogram = Histogram.over((1.0, 5.0))
    histogram.observe([0.5, 1.0, 1.5, 5.0, 7.0])
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 15.0)


def test_what_a_clock_makes_negative_counts_as_nothing() -> None:
    histogram = Histogram.over((1.0,))
    histogram.observe([-3.0, float("nan")])
    assert (histogram.counts, histogram.total) == ([2, 0], 0.0)


def test_numbers_of_clients_are_added_and_what_has_ended_has_no_connections() -> None:
    one = ExecTally({"a:1": 1}, 2, 3, {"taken": 4, "surplus": 1}, no_slot=1, reconnects={"a:1": 2})
    one.grant.observe((0.3, 5000.0))
    total = ExecTally()
    total.add(one)
    total.add(msgspec.json.decode(msgspec.json.encode(one), type=ExecTally))
    assert total.connections == {"a:1": 2} and total.reconnects == {"a:1": 4}
    assert total.offers == {"taken": 8, "surplus": 2}
    assert (total.parked, total.running, total.no_slot) == (4, 6, 2)
    assert sum(total.grant.counts) == 4 and total.grant.total == 10_000.6
    total.ended()
    assert (total.connections, total.parked, total.running) == ({"a:1": 0}, 0, 0)
    assert total.offers["taken"] == 8, "what happened, happened"
    assert one.connections == {"a:1": 1}, "what was added up is left as it was"
