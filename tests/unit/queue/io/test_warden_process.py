"""What a warden makes of what it hears of its worker, and when it ends it."""

import os
from math import inf

from rota.queue.io.warden_process import (
    GRACE_CPU_S,
    GRACE_S,
    SAMPLE_S,
    SHORT_STEP_S,
    STEP_S,
    Process,
    Watch,
    process_of,
)

RUNS = Process(still=False, cpu_s=10.0)
STILL = Process(still=True, cpu_s=10.0)


def heard(look_by: float) -> Watch:
    watch = Watch()
    watch.heard(look_by)
    return watch


def test_a_worker_that_runs_nothing_may_be_silent() -> None:
    watch = Watch()
    assert not watch.must_end(RUNS, now=1e9, late=False)
    assert watch.wait_s(now=1e9) == STEP_S


def test_a_worker_that_did_not_look_in_time_ends() -> None:
    watch = heard(100.0)
    assert not watch.must_end(RUNS, now=99.9, late=False)
    assert watch.must_end(RUNS, now=100.0, late=False)


def test_it_waits_until_then_and_looks_often_afterwards() -> None:
    watch = heard(100.0)
    assert watch.wait_s(now=50.0) == STEP_S
    assert watch.wait_s(now=99.5 - SAMPLE_S) == 0.5
    assert watch.wait_s(now=99.75) == 0.25
    assert watch.wait_s(now=100.0) == SHORT_STEP_S


def test_it_takes_a_sample_shortly_before() -> None:
    watch = heard(100.0)
    assert [watch.must_sample(now=now) for now in (99.9 - SAMPLE_S, 100.0 - SAMPLE_S, 99.9, 100.0)] == [
        False,
        True,
        True,
        False,
    ]
    assert not heard(inf).must_sample(now=1e9)


def test_one_that_stands_still_is_left_alone_and_has_a_while_once_it_goes_on() -> None:
    watch = heard(100.0)
    for now in (100.0, 200.0, 300.0):
        assert not watch.must_end(STILL, now=now, late=False)
    assert not watch.must_end(RUNS, now=301.0, late=False)
    assert not watch.must_end(RUNS, now=301.0 + GRACE_S - 0.01, late=False)
    assert watch.must_end(RUNS, now=301.0 + GRACE_S, late=False)


def test_on_a_machine_that_slept_its_heart_comes_first() -> None:
    watch = heard(100.0)
    assert not watch.must_end(RUNS, now=5000.0, late=True)
    watch.heard(inf)
    assert not watch.must_end(RUNS, now=5000.0 + GRACE_S, late=False)


def test_who_takes_the_time_of_the_cpu_and_does_not_look_has_had_its_while() -> None:
    watch = heard(100.0)
    assert not watch.must_end(RUNS, now=101.0, late=True)
    busy = Process(still=False, cpu_s=RUNS.cpu_s + GRACE_CPU_S)
    assert watch.must_end(busy, now=101.0 + GRACE_CPU_S, late=False)


def test_a_word_ends_the_while() -> None:
    watch = heard(100.0)
    assert not watch.must_end(RUNS, now=101.0, late=True)
    watch.heard(101.1)
    assert watch.must_end(RUNS, now=101.1, late=False)


def test_it_sees_that_a_process_runs() -> None:
    found = process_of(os.getpid())
    assert not found.still
    assert found.cpu_s > 0
