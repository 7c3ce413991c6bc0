"""Counting in batches, and adding up the numbers of several processes."""

import msgspec

from rota.queue import meters as module
from rota.queue.meters import Histogram, Meters, add_up


def test_a_histogram_counts_up_to_and_with_each_bound() -> None:
    histogram = Histogram.over((1.0, 5.0))
    histogram.observe([0.5, 1.0, 1.5, 5.0, 7.0])
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 15.0)


def test_what_a_clock_makes_negative_counts_as_nothing() -> None:
    histogram = Histogram.over((1.0,))
    histogram.observe([-3.0, float("nan")])
    assert (histogram.counts, histogram.total) == ([2, 0], 0.0)


def test_numbers_of_processes_are_added_and_the_worst_lateness_stays() -> None:
    one, other = Meters(loop_lag_s=0.5, overlap_s=1.5), Meters(loop_lag_s=0.25)
    for meters in (one, other):
        meters.failed("film")
        meters.lost("taken")
        meters.waited("film", [0.2])
        meters.ran("film", [2.0, 3.0])
        meters.claim.observe([0.01])
    other.stalled("sound", how="killed")
    other.stalled("sound", how="fenced")
    total = add_up([one, msgspec.json.decode(msgspec.json.encode(other), type=Meters)])
    assert total.failures == {"film": 2} and total.lease_lost == {"taken": 2}
    assert total.lease_kills == {"sound": 2} and total.stall_kills == {"killed": 1, "fenced": 1}
    assert (total.fenced, total.overlap_s, total.loop_lag_s) == (1, 1.5, 0.5)
    assert sum(total.wait["film"].counts) == 2 and total.run["film"].total == 10.0
    assert sum(total.claim.counts) == 2
    assert one.failures == {"film": 1}, "what was added up is left as it was"


def test_kinds_without_end_do_not_fill_the_memory() -> None:
    meters = Meters()
    for number in range(module.KINDS_MAX + 5):
        meters.failed(f"kind {number}")
        meters.ran(f"kind {number}", [1.0])
    meters.failed("kind 0")
    assert len(meters.failures) == len(meters.run) == module.KINDS_MAX
    assert meters.failures["kind 0"] == 2
