"""What others use of the machine."""

import os

import pytest

from bench import machine
from bench.machine import Bystanders, Reading


def test_the_share_is_of_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(machine.time, "monotonic", lambda: 10.0)
    monkeypatch.setattr(machine, "_busy_s", lambda: 107.0)
    monkeypatch.setattr(machine, "_tree_s", lambda _process: 4.0)
    watch = Bystanders(limit=0.1, patience_s=0)
    assert watch.reading() == Reading(at=10.0, others=103.0)
    assert watch.share(Reading(at=5.0, others=101.0)) == pytest.approx(0.2)
    # Clock ticks may say that we used more than the whole machine.
    assert watch.share(Reading(at=5.0, others=104.0)) == 0


async def test_waiting_ends_with_the_patience_for_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(machine.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(machine, "LOOK_S", 0)
    monkeypatch.setattr(Bystanders, "reading", lambda _self: Reading(0, 0))
    monkeypatch.setattr(Bystanders, "share", lambda _self, _since: 0.9)
    watch = Bystanders(limit=0.1, patience_s=10, patience_left_s=15)
    await watch.wait()
    assert watch.patience_left_s < 15 - 10
    await watch.wait()
    await watch.wait()
    assert watch.patience_left_s <= 0


async def test_a_quiet_machine_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LOOK_S", 0)
    monkeypatch.setattr(Bystanders, "share", lambda _self, _since: 0.05)
    watch = Bystanders(limit=0.1, patience_s=60)
    await watch.wait()
    assert watch.patience_left_s > machine.PATIENCE_IN_ALL_S - 5


def test_our_own_use_is_part_of_what_the_machine_was_busy_with() -> None:
    reading = Bystanders(limit=0.1, patience_s=0).reading()
    assert reading.others > 0
    assert machine._tree_s(machine.psutil.Process()) > 0
