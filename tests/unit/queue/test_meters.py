"""Counting in batches, and adding up the numbers of several processes."""

import msgspec

from rota.queue import meters as module
from rota.queue.meters import Meters, add_up
from rota.tallies import ExecTally


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


def test_a_process_without_exec_servers_says_nothing_of_them() -> None:
    one, other = Meters(loop_lag_s=1.0), Meters(exec=ExecTally(parked=2))
    assert add_up([one, one]).exec is None
    total = add_up([one, other, other])
    assert total.exec is not None and total.exec.parked == 4
    other.ended()
    assert other.exec is not None and other.exec.parked == 0
