"""Worker processes that end themselves, that stand still before they do, and that go on after a long sleep (S22).

Each test is short: no wait is longer than a grace of half a second, whatever the leases are.
"""

import signal
import time

import psutil
import pytest

from tests.faults.jobs import Jobs
from tests.faults.processes import WorkerProcess, Workers, alive, ready, stands_still, until
from tests.faults.records import MOVE, START, STOPPED, Faults, Pause


def now_ns() -> int:
    return time.monotonic_ns()


# What is cancelled, or lost, and cannot be stopped


@pytest.mark.parametrize("kind", ["long_deaf", "long_blocker"])
def test_what_is_cancelled_and_cannot_be_stopped_ends_with_its_process_after_the_grace(
    jobs: Jobs, team: Workers, kind: str
) -> None:
    """Long before its lease does, also where the event loop is blocked: then the heart asks who was cancelled."""
    worker = ready(team.start(ROTA_CANCEL_GRACE_S="0.5", FAULTS_GRACE_S="0.5"))
    other = jobs.add("long_work", until="go")
    jobs.until_step(other, MOVE)
    job = jobs.add(kind)
    jobs.until_step(job, START)
    leased_until = jobs[job].lease_until
    jobs.cancel(job)
    assert worker.wait() == 70
    assert jobs[job].now < leased_until
    assert (jobs[job].state, jobs[job].last_error) == ("cancelled", "Cancelled by the test")
    assert jobs.tries(job) == ["fenced"]
    assert (jobs[other].state, jobs[other].tries, jobs.tries(other)) == ("queued", 0, ["given_back"])
    team.start()
    jobs.let_go("go")
    assert jobs.wait(other, "done").tries == 1
    jobs.check_runs()


def test_a_thread_that_goes_on_under_a_lease_that_is_anothers_ends_with_its_process(jobs: Jobs, team: Workers) -> None:
    """The database ended the lease before its time, as after a jump of its clock."""
    worker = ready(team.start(FAULTS_GRACE_S="0.5"))
    other = jobs.add("long_work", until="go")
    job = jobs.add("long_deaf", max_tries=1)
    for each in (other, job):
        jobs.until_step(each, MOVE)
    jobs.conn.execute("UPDATE rota.open_jobs SET lease_until = now() - interval '1 second' WHERE id = %s", (job,))
    assert worker.wait() == 70
    # The sweep says the one, and the last words the other: who comes first.
    assert (jobs[job].state, jobs.tries(job)) in [("failed", ["lost"]), ("failed", ["fenced"])]
    assert (jobs[other].state, jobs[other].tries, jobs.tries(other)) == ("queued", 0, ["given_back"])


# A process that stands still


def test_a_process_that_stands_still_before_its_end_runs_nothing_that_it_gave_back(jobs: Jobs, team: Workers) -> None:
    first = ready(team.start(FAULTS_STAND_STILL="1"))
    others = [jobs.add(kind, until="go") for kind in ("long_work", "long_plain", "long_apart")]
    for other in others:
        jobs.until_step(other, MOVE)
    child = jobs.steps(others[2])[0].pid
    job = jobs.add("deaf")
    until(lambda: stands_still(first.pid), what=first.tail)
    paused_ns = now_ns()
    until(lambda: not alive(child) or stands_still(child), what="what ran in a child process does not go on")
    team.start()
    for other in others:
        jobs.until_step(other, MOVE, count=1 + len(jobs.steps(other, MOVE)))
        assert [step.epoch for step in jobs.steps(other, START)] == [1, 2]
    paused = Pause(first.pid, paused_ns, now_ns())
    first.go_on()
    # What is to end when it stands still is killed by the system meanwhile, where that has a timer for it.
    assert first.wait() in (70, -signal.SIGKILL)
    until(lambda: not alive(child), what="the child is gone")
    jobs.let_go("go")
    assert [jobs.wait(other, "done").tries for other in others] == [1] * 3
    assert [jobs.tries(other) for other in others] == [["given_back", "done"]] * 3
    assert (jobs[job].state, jobs.tries(job)) == ("failed", ["fenced"])
    assert jobs.overlap_s() == 0
    jobs.check_runs(Faults(pauses=[paused]))


@pytest.mark.parametrize("kind", ["long_work", "long_plain", "long_apart", "long_deaf"])
def test_a_machine_that_sleeps_runs_no_job_that_it_has_lost(jobs: Jobs, team: Workers, kind: str) -> None:
    """Its clock for leases counts the hours, and nothing else does: timers go on where they were."""
    sleeper = ready(team.start(FAULTS_SLEEPER="1"))
    job = jobs.add(kind, until="go")
    jobs.until_step(job, MOVE)
    own = jobs.steps(job, START)[0].pid
    children = psutil.Process(sleeper.pid).children()
    sleep_ns = now_ns()
    for process in (sleeper, *children):
        process.stop() if isinstance(process, WorkerProcess) else process.suspend()
    jobs.let_go("slept")
    # For the database the lease is over, as it is after those hours.
    jobs.conn.execute("UPDATE rota.open_jobs SET lease_until = now() - interval '1 second' WHERE id = %s", (job,))
    other = team.start()
    until(lambda: len(jobs.steps(job, START)) == 2, what="the job is taken again")
    before = len(jobs.steps(job, MOVE, pid=own))
    slept = Pause(own, sleep_ns, now_ns())
    for process in (sleeper, *children):
        process.go_on() if isinstance(process, WorkerProcess) else process.resume()
    match kind:
        case "long_deaf":
            assert sleeper.wait() == 70
        case "long_apart":
            until(lambda: not alive(own), what="the child has ended itself")
        case "long_plain":
            until(lambda: jobs.steps(job, STOPPED, pid=own) or not sleeper.lives, what="its thread ends")
        case _:
            jobs.until_step(job, STOPPED, pid=own)
    steps = jobs.steps(job, MOVE)
    assert len([step for step in steps if step.pid == own]) <= before + 1  # it may have been on its way
    if kind == "long_deaf":
        return
    jobs.let_go("go")
    done = jobs.wait(job, "done")
    assert (done.tries, jobs.tries(job)) == (2, ["lost", "done"])
    assert (sleeper.lives or kind == "long_plain") and other.lives
    jobs.check_runs(Faults(pauses=[slept]))


@pytest.mark.parametrize("options", [("--alone",), ("--processes", "1")])
def test_threads_that_coroutines_began_keep_no_worker(jobs: Jobs, team: Workers, options: tuple[str, ...]) -> None:
    """All threads that the event loop lends are busy, and go on for long: it would wait for them at its end."""
    worker = team.start(*options, ROTA_STOP_GRACE_S="0.1")
    held = [jobs.add("waits_for_a_thread") for _ in range(40)]
    for job in held:
        jobs.until_step(job, START)
    worker.signal(signal.SIGTERM)
    assert worker.wait(timeout_s=15) == 0
    assert worker.said("worker stopped")
    assert {(jobs[job].state, jobs[job].tries) for job in held} == {("queued", 0)}
    assert jobs.conn.execute("SELECT count(*) FROM rota.servers").fetchone() == (0,)


@pytest.mark.parametrize("how", ["closed", "taken away"])
def test_a_worker_whose_streams_a_handler_took_ends_well(jobs: Jobs, team: Workers, how: str) -> None:
    worker = ready(team.start())
    jobs.wait(jobs.add("loses_streams", how=how), "done")
    assert jobs.wait(jobs.add("tiny"), "done").tries == 1
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
