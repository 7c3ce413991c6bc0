"""What a scrape shows: the workers' numbers at once, the database's from a question asked seldom."""

import asyncio
from pathlib import Path

import msgspec

from rota.errors import DatabaseAway
from rota.io.families import Family
from rota.queue.io.metrics import KEEP_S, MeterFolder, QueueMetrics, Standing
from rota.queue.job import State
from rota.queue.meters import Meters
from rota.queue.watching import JobCount


class Asked:
    """A database that counts how often it is asked, on a clock that the test moves."""

    def __init__(self, *, takes_s: float = 0.0) -> None:
        self.now = 100.0
        self.times = 0
        self.away = False
        self._takes_s = takes_s

    async def __call__(self) -> Standing:
        self.times += 1
        await asyncio.sleep(0)
        self.now += self._takes_s
        if self.away:
            raise DatabaseAway("The database does not answer.")
        counts = [
            JobCount("film", State.QUEUED, self.times, due=1, oldest_due_s=4.5),
            JobCount("film", State.LEASED, 2, overdue=1),
        ]
        return Standing(counts, ["lost"])

    def metrics(self, meters: Meters | None = None) -> QueueMetrics:
        return QueueMetrics(lambda: meters or Meters(), self, clock=lambda: self.now)


def values(families: list[Family], name: str) -> dict[tuple[str, ...], float]:
    """The samples of one family by their labels; none where it is left out."""
    return {tuple(sample.labels): sample.value for one in families if one.name == name for sample in one.samples}


async def test_two_hundred_scrapes_a_second_ask_the_database_once_in_15_s_S98() -> None:
    asked = Asked()
    metrics = asked.metrics()
    for _ in range(10):
        await asyncio.gather(*(metrics.families() for _ in range(20)))
        asked.now += 0.1
    assert asked.times == 1
    asked.now += KEEP_S
    assert values(await metrics.families(), "jobs") == {("film", "queued"): 2, ("film", "leased"): 2}
    assert asked.times == 2


async def test_a_question_that_takes_long_is_asked_less_often() -> None:
    asked = Asked(takes_s=3.0)
    metrics = asked.metrics()
    await metrics.families()
    asked.now += 59
    await metrics.families()
    assert asked.times == 1
    asked.now += 2
    await metrics.families()
    assert asked.times == 2


async def test_what_the_database_says_becomes_families() -> None:
    shown = await Asked().metrics().families()
    assert values(shown, "job_oldest_due_seconds") == {("film",): 4.5}
    assert values(shown, "jobs_lease_overdue") == {("film",): 1}
    assert values(shown, "orphan_kinds") == {("lost",): 1}
    assert values(shown, "database_up") == {(): 1}


async def test_without_a_database_its_numbers_are_left_out_and_the_others_stay() -> None:
    asked, meters = Asked(), Meters()
    meters.failed("film")
    metrics = asked.metrics(meters)
    await metrics.families()
    asked.away = True
    asked.now += KEEP_S
    shown = await metrics.families()
    assert not [family for family in shown if family.name == "jobs"]
    assert values(shown, "database_up") == {(): 0}
    assert values(shown, "job_failures_total") == {("film",): 1}


async def test_what_workers_counted_becomes_families() -> None:
    meters = Meters(overlap_s=0.5, loop_lag_s=0.25)
    meters.stalled("film", how="fenced")
    meters.lost("unwritten")
    meters.waited("film", [0.02, 400.0, 5000.0])
    shown = await Asked().metrics(meters).families()
    assert values(shown, "job_lease_kills_total") == {("film",): 1}
    assert values(shown, "stall_kills_total") == {("stopped",): 0, ("killed",): 0, ("fenced",): 1}
    assert values(shown, "lease_lost_total") == {("taken",): 0, ("unwritten",): 1}
    assert values(shown, "fenced_total") == {(): 1}
    assert values(shown, "overlap_seconds_total") == {(): 0.5}
    assert values(shown, "loop_lag_seconds") == {(): 0.25}
    (wait,) = [family for family in shown if family.name == "job_wait_seconds"]
    (sample,) = wait.samples
    assert sample.value == 5400.02
    assert sample.buckets[0] == (0.005, 0) and sample.buckets[-2:] == [(3600.0, 2), (float("inf"), 3)]


def write(folder: Path, pid: int, failures: int, lag_s: float = 0.0) -> Path:
    file = MeterFolder.file(folder, pid)
    file.write_bytes(msgspec.json.encode(Meters(failures={"film": failures}, loop_lag_s=lag_s)))
    return file


def test_totals_never_go_back_when_a_process_ends(tmp_path: Path) -> None:
    living = {1, 2}
    folder = MeterFolder(tmp_path, living=lambda: living)
    write(tmp_path, 1, 3)
    write(tmp_path, 2, 4, lag_s=9.0)
    assert (folder.read().failures, folder.read().loop_lag_s) == ({"film": 7}, 9.0)
    living.remove(2)
    last = write(tmp_path, 2, 5, lag_s=9.0)
    assert folder.read().failures == folder.read().failures == {"film": 8}
    assert folder.read().loop_lag_s == 0, "a latest value ends with its process"
    assert not last.exists()
    living.add(3)
    write(tmp_path, 3, 1)
    assert folder.read().failures == {"film": 9}


def test_a_file_that_is_no_good_spoils_nothing(tmp_path: Path) -> None:
    folder = MeterFolder(tmp_path, living=lambda: {1, 2})
    write(tmp_path, 1, 3)
    MeterFolder.file(tmp_path, 2).write_bytes(b"{")
    assert folder.read().failures == {"film": 3}
