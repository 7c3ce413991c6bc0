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


def test_our_own_use_is_part_of_what_the_machine_was_busy_with() -> None:
    reading = Bystanders(limit=0.1, patience_s=0).reading()
    assert reading.others > 0
    assert machine._tree_s(machine.psutil.Process()) > 0
