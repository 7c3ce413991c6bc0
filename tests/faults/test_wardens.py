"""Handlers that hold the interpreter itself, so that no thread of their process runs, its heart neither (S22).

A warden, or in a child process a timer of the system, ends each such process before a lease of its can lapse.
"""

import signal
import struct
from contextlib import suppress
from uuid import UUID

import psutil
import pytest

from rota.queue.io.warden import PROGRAM
from tests.faults.jobs import Jobs
from tests.faults.processes import WorkerProcess, Workers, alive, ready, until
from tests.faults.records import MOVE, PULSE, START

SAID = "held the interpreter"


def warden_of(worker: WorkerProcess) -> int:
    """The process id of a worker's warden; 0 while it has none."""
    for child in psutil.Process(worker.pid).children():
        with suppress(psutil.Error):
            if str(PROGRAM) in child.cmdline():
                return child.pid
    return 0


def ran_until_s(jobs: Jobs, job: UUID, *, epoch: int) -> float:
    """The last moment at which a run that held its interpreter ran; 0 while it does not hold it yet."""
    path = jobs.records / f"{job}-{epoch}{PULSE}"
    beats = path.read_bytes() if path.exists() else b""
    return float(struct.unpack("d", beats)[0]) if beats else 0.0


def starts_s(jobs: Jobs, job: UUID) -> list[float]:
    return [step.at_ns / 1e9 for step in jobs.steps(job, START)]


@pytest.mark.parametrize("kind", ["hog", "plain_hog"])
def test_a_process_whose_interpreter_is_held_ends_before_a_lease_of_its_lapses(
    jobs: Jobs, team: Workers, kind: str
) -> None:
    first = ready(team.start())
    other = jobs.add("work", until="go")
    jobs.until_step(other, MOVE)
    job = jobs.add(kind, max_tries=2)
    jobs.until_step(job, START)
    second = ready(team.start())
    assert first.wait() == -signal.SIGKILL
    assert first.said(SAID)
    jobs.until_step(job, START, count=2)
    jobs.until_step(other, START, count=2)
    assert second.wait() == -signal.SIGKILL
    # On a busy machine its lease may be over when it has hardly begun to hold the interpreter.
    assert ran_until_s(jobs, job, epoch=1) < starts_s(jobs, job)[1]
    third = team.start()
    jobs.let_go("go")
    assert jobs.wait(job, "failed").last_error == "The lease ran out on the last try"
    assert jobs.wait(other, "done").tries == 3, "short leases end together, before anything can be given back"
    assert third.lives and len(starts_s(jobs, job)) == 2
    assert jobs.tries(job) == ["lost", "lost"]
    jobs.check_runs()


@pytest.mark.parametrize("kind", ["calm_hog", "plain_calm_hog"])
def test_the_others_of_a_process_whose_interpreter_is_held_are_given_back_without_a_try(
    jobs: Jobs, team: Workers, kind: str
) -> None:
    first = ready(team.start())
    others = [jobs.add("calm", until="go") for _ in range(3)]
    in_thread = jobs.add("plain_calm", until="go")
    for job in (*others, in_thread):
        jobs.until_step(job, START)
    hog = jobs.add(kind, max_tries=1)
    jobs.until_step(hog, START)
    second = ready(team.start())
    assert first.wait() == -signal.SIGKILL
    for job in others:
        jobs.until_step(job, START, count=2)
    until(lambda: first.said("were given back"), what="the warden says so")
    (said,) = first.said("were given back")
    assert hog.hex in said["suspects"]
    assert [jobs[job].tries for job in others] == [1, 1, 1]
    jobs.let_go("go")
    assert [jobs.wait(job, "done").tries for job in others] == [1, 1, 1]
    # On a machine with no time for anybody it is not seen which of the threads computes.
    assert jobs.wait(in_thread, "done").tries == (2 if in_thread.hex in said["suspects"] else 1)
    assert jobs.wait(hog, "failed").last_error == "The lease ran out on the last try"
    assert second.lives
    jobs.check_runs()


def test_a_parent_that_kills_what_its_worker_left_behind_lets_the_warden_finish(jobs: Jobs, team: Workers) -> None:
    parent = team.start("--processes", "1")
    other = jobs.add("calm", until="go")
    worker = jobs.until_step(other, START).pid
    hog = jobs.add("calm_hog", max_tries=1)
    jobs.until_step(hog, START)
    warden = next(child.pid for child in psutil.Process(worker).children() if str(PROGRAM) in child.cmdline())
    jobs.until_step(other, START, count=2)
    assert jobs[other].tries == 1
    assert parent.said("were given back")
    until(lambda: not psutil.pid_exists(warden), what="the warden is gone, and no zombie")
    jobs.let_go("go")
    assert jobs.wait(other, "done").tries == 1
    jobs.check_runs()


def test_a_child_process_whose_interpreter_is_held_ends_with_its_lease_while_its_worker_stands_still(
    jobs: Jobs, team: Workers
) -> None:
    both = [ready(team.start()), ready(team.start())]
    for idle in both:
        # On a busy machine a child may take as long to start as this lease lasts: each worker has one that is warm.
        idle.stop()
        jobs.wait(jobs.add("long_apart", seconds=0), "done")
        idle.go_on()
    job = jobs.add("apart_hog", max_tries=2)
    child = jobs.until_step(job, START).pid
    until(lambda: ran_until_s(jobs, job, epoch=1), what="it holds its interpreter")
    first = next(worker for worker in both if worker.pid == psutil.Process(child).ppid())
    first.stop()
    jobs.until_step(job, START, count=2)
    assert not alive(child)
    assert starts_s(jobs, job)[0] < ran_until_s(jobs, job, epoch=1) < starts_s(jobs, job)[1]
    first.go_on()
    assert jobs.wait(job, "failed").tries == 2
    assert first.lives, "a process that stands still is left alone"


def test_a_process_that_stands_still_with_a_thread_of_a_job_ends_with_its_lease(jobs: Jobs, team: Workers) -> None:
    """The thread would go on at once when its process does, before anything in that could end it."""
    first = ready(team.start())
    job = jobs.add("plain", until="go", deaf=True)
    jobs.until_step(job, MOVE)
    first.stop()
    assert first.wait() == -signal.SIGKILL
    second = team.start()
    moved = jobs.until_step(job, MOVE, pid=second.pid)
    assert moved.epoch == 2
    jobs.let_go("go")
    assert jobs.wait(job, "done").tries == 2
    jobs.check_runs()


def test_a_thread_that_holds_the_interpreter_at_a_stop_does_not_outlast_it(jobs: Jobs, team: Workers) -> None:
    """Its job was given back, to start in a moment."""
    first = ready(team.start(ROTA_STOP_GRACE_S="0.1"))
    job = jobs.add("late_hog", max_tries=1)
    jobs.until_step(job, START)
    first.signal(signal.SIGTERM)
    until(lambda: jobs[job].state == "queued", what="it is given back")
    jobs.let_go("hold")
    second = team.start()
    jobs.until_step(job, START, count=2)
    assert first.wait() == -signal.SIGKILL
    assert ran_until_s(jobs, job, epoch=1) < starts_s(jobs, job)[1]
    second.kill()


def test_a_warden_that_ends_has_a_successor_and_none_outlives_its_worker(jobs: Jobs, team: Workers) -> None:
    worker = ready(team.start())
    before = until(lambda: warden_of(worker), what="the worker has a warden")
    other = jobs.add("work", until="go")
    jobs.until_step(other, MOVE)
    psutil.Process(before).kill()
    after = until(lambda: warden_of(worker) not in (0, before) and warden_of(worker), what="it has another")
    jobs.let_go("go")
    assert jobs.wait(other, "done").tries == 1
    worker.kill()
    until(lambda: not alive(after), what="its warden ends with it")
