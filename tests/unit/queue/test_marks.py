"""Marks: where a claim begins, when it looks at all of it, and that it misses nothing but what went back."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.ids import Holder, JobId
from rota.queue.job import Ask, ClaimedJob, NewJob, Release
from rota.queue.marks import LEVELS_MAX, WHOLE_EVERY_S_MAX, WHOLE_SHARE, Mark, Marks, Wholes
from rota.queue.reference import Reference

START = datetime(2026, 1, 1, tzinfo=UTC)
HOLDER = Holder("here:1:aa")
KIND = "work"


class Clocked:
    """A queue, the marks of one worker, and a clock for both."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.marks = Marks()
        self.queue = Reference(clock=lambda: START + timedelta(seconds=self.now_s), random=Random(1))

    def add(self, count: int = 1, **options: object) -> list[JobId]:
        return [added.id for added in self.queue.enqueue_many([NewJob(KIND, **options) for _ in range(count)])]  # type: ignore[arg-type]

    def claim(
        self, free: int, *, took_s: float = 1.0, lowest: int | None = None
    ) -> tuple[list[ClaimedJob], list[Mark]]:
        """Claims with the marks that there are."""
        asks = [Ask(KIND, free, 300.0, 3, lowest=lowest)]
        marks = self.marks.of([KIND], now=self.now_s)
        jobs = self.queue.claim(asks, holder=HOLDER, marks=marks)
        self.marks.claimed(asks, jobs, marks=marks, sent_at=self.now_s, took_s=took_s)
        return jobs, marks


@pytest.fixture
def clocked() -> Clocked:
    return Clocked()


def test_the_first_claim_is_whole_and_the_next_begins_behind_the_last_job(clocked: Clocked) -> None:
    clocked.add(5)
    clocked.now_s = 100.0
    jobs, marks = clocked.claim(3)
    assert (len(jobs), marks) == (3, [])
    jobs_2, marks = clocked.claim(3)
    assert marks == [Mark(KIND, 0, run_after=jobs[-1].run_after, job_id=jobs[-1].id)]
    assert len(jobs_2) == 2
    clocked.now_s += 7.0
    _, marks = clocked.claim(3)
    assert marks == [Mark(KIND, 0, age_s=7.0)]


def test_a_whole_claim_is_due_after_a_multiple_of_what_it_took() -> None:
    wholes = Wholes()
    assert wholes.due(0.0)
    wholes.was(sent_at=100.0, took_s=0.1)
    assert not wholes.due(100.0 + WHOLE_SHARE * 0.1 - 0.01)
    assert wholes.due(100.0 + WHOLE_SHARE * 0.1 + 0.01)
    wholes.was(sent_at=100.0, took_s=60.0)
    assert not wholes.due(100.0 + WHOLE_EVERY_S_MAX - 0.01)
    assert wholes.due(100.0 + WHOLE_EVERY_S_MAX)


def test_quick_whole_claims_leave_no_room_for_marks(clocked: Clocked) -> None:
    clocked.add(3)
    clocked.claim(1, took_s=0.001)
    clocked.now_s += 0.1
    _, marks = clocked.claim(1, took_s=0.001)
    assert marks == []


def test_what_is_behind_a_mark_is_found_in_bounded_time(clocked: Clocked) -> None:
    clocked.now_s = 1000.0
    clocked.add(2)
    clocked.now_s += 100.0
    (first, second), _ = clocked.claim(2)
    (old,) = clocked.add(run_after=START)
    clocked.queue.release([Release(first.lease)])
    assert clocked.claim(9) == ([], [Mark(KIND, 0, run_after=second.run_after, job_id=second.id)])
    clocked.now_s += WHOLE_EVERY_S_MAX
    jobs, marks = clocked.claim(9)
    assert marks == []
    assert [job.id for job in jobs] == [old, first.id]


def test_what_this_worker_returns_is_found_at_once(clocked: Clocked) -> None:
    clocked.add(2)
    clocked.now_s = 100.0
    (first, _), _ = clocked.claim(2)
    clocked.queue.release([Release(first.lease)])
    clocked.marks.forget([KIND])
    assert [job.id for job in clocked.claim(9)[0]] == [first.id]


def test_a_new_priority_is_found_by_a_marked_claim(clocked: Clocked) -> None:
    clocked.add(3)
    clocked.now_s = 100.0
    clocked.claim(1)
    ids = [clocked.add(priority=priority)[0] for priority in (-5, 5, 2)]
    jobs, marks = clocked.claim(9)
    assert marks
    assert [job.id for job in jobs if job.priority] == [ids[1], ids[2], ids[0]]
    assert len(jobs) == 5


def test_levels_above_the_lowest_that_was_reached_are_taken(clocked: Clocked) -> None:
    for priority in (9, 5, 1):
        clocked.add(2, priority=priority)
    clocked.now_s = 50.0
    jobs, _ = clocked.claim(3)
    assert clocked.marks.all([KIND], now=50.0) == [
        Mark(KIND, 9, age_s=0.0),
        Mark(KIND, 5, run_after=jobs[-1].run_after, job_id=jobs[-1].id),
    ]


def test_a_claim_of_urgent_jobs_says_nothing_of_others(clocked: Clocked) -> None:
    clocked.add(1, priority=9)
    clocked.add(2, priority=1)
    clocked.now_s = 50.0
    clocked.claim(1)
    clocked.marks._lines[KIND].levels[1] = 3.0
    clocked.claim(5, lowest=5)
    assert clocked.marks._lines[KIND].levels == {9: 50.0, 1: 3.0}


def test_no_more_levels_are_kept_than_are_of_use(clocked: Clocked) -> None:
    for priority in range(LEVELS_MAX + 20):
        clocked.add(priority=priority)
    clocked.now_s = 50.0
    clocked.claim(1000)
    assert len(clocked.marks.all([KIND], now=50.0)) == LEVELS_MAX


def test_no_room_no_mark(clocked: Clocked) -> None:
    clocked.add(1)
    assert clocked.claim(0)[0] == []
    assert clocked.marks.all([KIND], now=0.0) == []


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "claim", "other", "wait"]), st.integers(0, 5), st.sampled_from([0, 0, 3, 7])
    ),
    max_size=60,
)


@given(steps=steps)
def test_marked_claims_bring_what_whole_ones_would(steps: list[tuple[str, int, int]]) -> None:
    """As long as nothing goes back, and whoever else claims too."""
    clocked = Clocked()
    for what, number, priority in steps:
        match what:
            case "add":
                clocked.add(number, priority=priority)
            case "wait":
                clocked.now_s += number
            case "other":
                clocked.queue.claim([Ask(KIND, number, 300.0, 3)], holder=Holder("there:2:bb"))
            case _:
                due = sorted(
                    (row for row in clocked.queue._queued() if row.kind == KIND),
                    key=lambda row: (-row.priority, row.run_after, row.id),
                )
                jobs, _ = clocked.claim(number, took_s=100.0)
                assert [job.id for job in jobs] == [row.id for row in due[:number]]
