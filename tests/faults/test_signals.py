"""Signals that reach a worker twice, from two sides, or from a terminal that closes: none of them means impatience. And
those for what a handler has started, which are not for its worker."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import psutil
import pytest

from tests.faults.jobs import Jobs
from tests.faults.processes import WorkerProcess, Workers, ready, until
from tests.faults.records import MOVE

BELOW_A_PARENT = ("--processes", "1")


def busy(jobs: Jobs, team: Workers, *options: str) -> tuple[WorkerProcess, UUID]:
    """A worker that runs a job, which ends once it is let go."""
    job = jobs.add("work", until="go")
    worker = team.start(*options)
    jobs.until_step(job, MOVE)
    return worker, job


def children_of(worker: WorkerProcess) -> list[psutil.Process]:
    return psutil.Process(worker.pid).children(recursive=True)


def ends_its_job(worker: WorkerProcess, job: UUID, jobs: Jobs) -> None:
    """The job goes on, comes to its own end, and so does the worker."""
    until(lambda: worker.said("worker stops"), what="it says that it stops")
    jobs.until_step(job, MOVE, count=len(jobs.steps(job, MOVE)) + 5)
    jobs.let_go("go")
    assert worker.wait() == 0
    assert (jobs[job].state, jobs[job].tries, jobs[job].lease_epoch) == ("done", 1, 1)


@contextmanager
def hangups_ignored() -> Iterator[None]:
    """What is started in this block ignores SIGHUP, as below nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("options", [("--alone",), BELOW_A_PARENT])
def test_a_terminal_that_closes_lets_jobs_end(jobs: Jobs, team: Workers, options: tuple[str, ...]) -> None:
    """The system and the shell may send SIGHUP each."""
    worker, job = busy(jobs, team, *options)
    worker.signal(signal.SIGHUP)
    until(lambda: worker.said("worker stops"), what="it says that it stops")
    worker.signal(signal.SIGHUP)
    ends_its_job(worker, job, jobs)


@pytest.mark.parametrize("order", [(signal.SIGTERM, signal.SIGHUP), (signal.SIGHUP, signal.SIGTERM)])
def test_a_hangup_beside_a_sigterm_is_no_second_signal(
    jobs: Jobs, team: Workers, order: tuple[signal.Signals, signal.Signals]
) -> None:
    """Service managers send the one right after the other, and a busy process may hear them the other way round."""
    worker, job = busy(jobs, team)
    worker.signal(order[0])
    until(lambda: worker.said("worker stops"), what="it says that it stops")
    worker.signal(order[1])
    ends_its_job(worker, job, jobs)


@pytest.mark.parametrize("options", [("--alone",), BELOW_A_PARENT])
def test_below_nohup_a_worker_outlives_its_terminal(jobs: Jobs, team: Workers, options: tuple[str, ...]) -> None:
    with hangups_ignored():
        worker, job = busy(jobs, team, *options)
    for process in [psutil.Process(worker.pid), *children_of(worker)]:
        process.send_signal(signal.SIGHUP)
    jobs.let_go("go")
    jobs.wait(job, "done")
    assert jobs.wait(jobs.add("tiny"), "done").tries == 1
    assert not worker.said("worker stops") and not worker.said("worker stopped")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_signal_that_reaches_parent_and_children_lets_jobs_end(jobs: Jobs, team: Workers) -> None:
    """A service manager may signal every process of a service at once, and the parent tells its children as well."""
    worker, job = busy(jobs, team, *BELOW_A_PARENT)
    below = children_of(worker)
    assert below
    for process in [*below, psutil.Process(worker.pid)]:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGHUP)
    ends_its_job(worker, job, jobs)


def test_a_second_signal_to_the_parent_gives_back_at_once(jobs: Jobs, team: Workers) -> None:
    worker, job = busy(jobs, team, *BELOW_A_PARENT)
    worker.signal(signal.SIGTERM)
    until(lambda: worker.said("worker stops"), what="it says that it stops")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert (jobs[job].state, jobs[job].tries) == ("queued", 0)
    jobs.let_go("go")
    ready(team.start())
    assert jobs.wait(job, "done").tries == 1


@pytest.mark.parametrize("place", ["stops_others", "stops_others_in_a_child", "stops_others_in_the_loop"])
def test_what_a_handler_starts_hears_its_own_signals_and_the_worker_does_not(
    jobs: Jobs, team: Workers, place: str
) -> None:
    """A process that `multiprocessing` forks shares the pipe by which its parent's event loop hears signals."""
    worker = ready(team.start())
    found = {}
    for how in ("program", "forked", "pool"):
        job = jobs.add(place, how=how)
        found[how] = jobs.wait(job, "done").result
    assert found == {"program": -signal.SIGTERM, "forked": -signal.SIGTERM, "pool": [1, 2, 3]}
    assert jobs.wait(jobs.add("tiny"), "done").tries == 1
    assert worker.lives and not worker.said("worker stopped")
