"""The file in which workers count the jobs that start."""

import time
from pathlib import Path

from bench.queue.meter import Meter, started, waits


def test_it_counts_over_all_files_and_knows_the_first_start(tmp_path: Path) -> None:
    one, two = Meter(tmp_path / "1"), Meter(tmp_path / "2")
    (tmp_path / "3").touch()  # one that is being made
    assert started(tmp_path.iterdir()) == (0, float("inf"))
    before = time.monotonic()
    one.started()
    between = time.monotonic()
    for _ in range(3):
        two.started()
        one.started()
    count, first = started(tmp_path.iterdir())
    assert count == 7
    assert before <= first <= between


def test_it_keeps_the_waits_of_numbered_jobs_alone(tmp_path: Path) -> None:
    meter = Meter(tmp_path / "1", waits=3)
    for number, seconds in ((-1, 9.0), (0, 0.5), (2, 0.25), (3, 9.0)):
        meter.waited(number, seconds)
    assert waits(tmp_path / "1") == [0.5, 0.25]
