"""Worker processes that are killed, stopped, blocked and cut off, one trouble at a time (S1–S30).

Each test is short: leases last 2 seconds, and an idle worker looks five times a second.
"""

import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import UUID

import psutil
import psycopg
import pytest

from rota.io import migrate
from rota.io.embedded import EmbeddedPostgres
from tests.faults.conftest import PROGRAM, refuse_bugs
from tests.faults.jobs import Jobs
from tests.faults.processes import WorkerProcess, Workers, alive, ready, until, workers
from tests.faults.proxy import Proxy, proxy
from tests.faults.records import END, MOVE, START, STOPPED, Faults, Pause
from tests.postgres_servers import Server

LEASE_S = 2.0  # as in tests/faults/troubles.py
POLL_S = 0.2
STEP_S = 0.03  # as in tests/faults/troubles.py
SLACK_S = 15.0
"""What a machine may add that has ten times more work than cores. Who waits for the wrong thing waits for longer."""


def now_ns() -> int:
    return time.monotonic_ns()


# A worker that dies


def test_a_job_of_a_killed_worker_is_taken_again_when_its_lease_is_over(jobs: Jobs, team: Workers) -> None:
    """S1, S2, S29: neither earlier, by a namesake that starts at once, nor later, because the namesake is well."""
    job = jobs.add("work", until="go")
    first = team.start()
    jobs.until_step(job, MOVE)
    lease_until = jobs[job].lease_until
    first.kill()
    held = jobs[job]
    jobs.conn.execute("TRUNCATE rota.waiting")  # whoever keeps a list of servers has lost it

    other = jobs.add("work", seconds=2 * LEASE_S)
    second = ready(team.start())
    jobs.let_go("go")
    done = jobs.wait(job, "done")
    again = jobs.steps(job, START)
    assert [step.pid for step in again] == [first.pid, second.pid]
    assert (held.state, held.tries, held.leased_by) == ("leased", 1, held.leased_by)
    assert (done.tries, done.lease_epoch) == (2, 2)
    assert done.leased_by != held.leased_by
    assert lease_until <= held.lease_until < done.started_at
    assert (done.started_at - held.lease_until).total_seconds() < POLL_S + SLACK_S
    assert done.last_error.startswith(f"The lease ran out: {held.leased_by}")
    assert jobs.wait(other, "done").tries == 1
    jobs.check_runs()


def test_jobs_of_the_dead_take_no_slots(jobs: Jobs, team: Workers) -> None:
    """S19: a limit counts what runs here, not what somebody died with."""
    lost = [jobs.add("long_work", until="go") for _ in range(2)]
    first = team.start()
    for job in lost:
        jobs.until_step(job, START)
    first.kill()
    waiting = [jobs.add("long_work", until="go") for _ in range(2)]
    team.start()
    for job in waiting:
        jobs.until_step(job, START)
    assert [jobs[job].state for job in lost] == ["leased"] * 2
    jobs.let_go("go")
    jobs.conn.execute("UPDATE rota.open_jobs SET lease_until = now() WHERE id = ANY(%s)", (lost,))
    assert [jobs.wait(job, "done").tries for job in (*lost, *waiting)] == [2, 2, 1, 1]


def test_a_job_that_kills_its_process_fails_after_its_tries(jobs: Jobs, team: Workers) -> None:
    """S6: the try is counted when it is claimed, since nobody is there to count it afterwards."""
    job = jobs.add("deadly")
    team.start("--processes", "1")
    failed = jobs.wait(job, "failed")
    assert (failed.tries, failed.last_error) == (3, "The lease ran out on the last try")
    starts = jobs.steps(job, START)
    assert [step.epoch for step in starts] == [1, 2, 3]
    assert jobs.tries(job) == ["lost", "lost", "lost"]
    assert len({step.pid for step in starts}) == 3


def test_there_is_no_gap_between_taken_and_started(jobs: Jobs, team: Workers) -> None:
    """S26: workers die at random moments around their first claim; nothing is lost, nothing fails without a run."""
    random = Random(26)
    added = [jobs.add("tiny") for _ in range(60)]
    for _ in range(8):
        worker = ready(team.start())
        give_up_at = time.monotonic() + random.uniform(0, 0.03)
        while time.monotonic() < give_up_at:
            pass
        worker.kill()
        added.extend(jobs.add("tiny") for _ in range(10))
    team.start()
    for job in added:
        row = jobs.wait(job, "done")
        assert row.tries <= 9
        assert jobs.steps(job, END)
    jobs.check_runs()


def add_and_lose_claim(jobs: Jobs, network: Proxy) -> UUID:
    """A job whose claim the database takes, and its answer never reaches the worker that sent it."""
    network.lose_answer(b"UPDATE 1\0")  # what PostgreSQL calls a claim of one job
    job = jobs.add("work", until="go")
    until(lambda: jobs[job].state == "leased", what="the job is claimed")
    return job


def test_a_job_that_was_claimed_and_not_started_is_taken_again(jobs: Jobs, team: Workers) -> None:
    """S26, at the worst moment: the claim is in the database, and its holder dies before it knows."""
    with proxy(jobs.dsn) as network:
        worker = ready(team.start(ROTA_DSN=network.dsn))
        job = add_and_lose_claim(jobs, network)
        worker.kill()
        jobs.let_go("go")
        second = team.start()
        row = jobs.wait(job, "done")
        assert (row.tries, row.lease_epoch) == (2, 2)
        assert [step.pid for step in jobs.steps(job, START)] == [second.pid]


def test_a_claim_whose_answer_was_lost_counts_no_try(jobs: Jobs, team: Workers) -> None:
    with proxy(jobs.dsn) as network:
        worker = ready(team.start(ROTA_DSN=network.dsn))
        job = add_and_lose_claim(jobs, network)
        network.cut()
        jobs.let_go("go")
        row = jobs.wait(job, "done")
        assert (row.tries, row.lease_epoch) == (1, 2)
        assert [step.epoch for step in jobs.steps(job, START)] == [2]
        assert worker.lives


# A worker that is stopped by a signal


def test_sigterm_lets_short_jobs_end_and_gives_long_ones_back(jobs: Jobs, team: Workers) -> None:
    worker = ready(team.start(ROTA_STOP_GRACE_S="0.7"))
    short = jobs.add("work", until="short")
    long = jobs.add("work", until="long")
    thread = jobs.add("plain", until="long")
    for job in (short, long, thread):
        jobs.until_step(job, MOVE)
    before = {job: jobs[job] for job in (long, thread)}
    worker.signal(signal.SIGTERM)
    until(lambda: worker.said("worker stops"), what="it says that it stops")
    late = jobs.add("tiny")
    jobs.let_go("short")
    assert worker.wait() == 0
    assert (jobs[short].state, jobs[short].tries) == ("done", 1)
    assert (jobs[late].state, jobs[late].lease_epoch) == ("queued", 0), "it claimed although it stops"
    for job, held in before.items():
        row = jobs[job]
        assert (row.state, row.tries, row.lease_epoch, row.last_error) == ("queued", 0, 1, None)
        assert row.run_after == held.run_after, "it lost its place in line"
        assert jobs.steps(job, STOPPED), "its handler was not told"

    jobs.let_go("long")
    team.start()
    assert [jobs.wait(job, "done").tries for job in (long, thread, late)] == [1, 1, 1]
    jobs.check_runs()


def test_what_a_claim_brings_after_sigterm_is_given_back_and_nothing_else(jobs: Jobs, team: Workers) -> None:
    worker = ready(team.start())
    running = jobs.add("long_work", until="go")  # leases are not renewed while the table is locked
    jobs.until_step(running, MOVE)
    late = jobs.add("long_work", delay_s=0.3)
    with psycopg.connect(jobs.dsn) as other:
        other.execute("LOCK TABLE rota.open_jobs IN SHARE MODE")  # looks go through, and a claim waits
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'next due jobs'"
        until(lambda: jobs.conn.execute(waits).fetchone() == (1,), what="a claim waits", every_s=0.005)
        worker.signal(signal.SIGTERM)
        drains = "SELECT FROM rota.servers WHERE draining"
        until(lambda: jobs.conn.execute(drains).fetchone() is not None, what="it has heard the signal")
    row = until(lambda: (row := jobs[late]).lease_epoch == 1 and row.state == "queued" and row, what="it is given back")
    assert row.tries == 0
    moves = len(jobs.steps(running, MOVE))
    jobs.until_step(running, MOVE, count=moves + 5)
    jobs.let_go("go")
    assert worker.wait() == 0
    assert (jobs[running].state, jobs[running].tries) == ("done", 1)
    assert jobs.steps(late) == []


def test_a_thread_that_does_not_end_is_given_back_to_start_after_its_process(jobs: Jobs, team: Workers) -> None:
    worker = team.start(ROTA_STOP_GRACE_S="0.2")
    job = jobs.add("endless")
    jobs.until_step(job, MOVE)
    worker.signal(signal.SIGTERM)
    other = ready(team.start())
    assert worker.wait() in (0, 70)  # it may be in a hurry
    again = jobs.until_step(job, START, pid=other.pid)
    assert again.at_ns > jobs.steps(job, pid=worker.pid)[-1].at_ns
    assert jobs[job].tries == 1
    jobs.check_runs()


def test_sigterm_then_sigkill(jobs: Jobs, team: Workers) -> None:
    """S21: claiming stops at the first signal; what had not ended runs again when its lease is over."""
    worker = ready(team.start())
    held = [jobs.add("work", until="go") for _ in range(2)]
    for job in held:
        jobs.until_step(job, MOVE)
    worker.signal(signal.SIGTERM)
    until(lambda: worker.said("worker stops"), what="it says that it stops")
    late = jobs.add("work", until="go")
    for job in held:
        jobs.until_step(job, MOVE, count=len(jobs.steps(job, MOVE)) + 5)  # they go on, and keep their leases
    assert jobs[late].state == "queued"
    worker.kill()
    team.start()
    jobs.let_go("go")
    assert [jobs.wait(job, "done").tries for job in (*held, late)] == [2, 2, 1]
    jobs.check_runs()


def test_a_second_sigterm_gives_back_at_once(jobs: Jobs, team: Workers) -> None:
    """S21: it loses nothing and doubles nothing."""
    worker = ready(team.start())
    held = [jobs.add("work", until="go") for _ in range(3)]
    for job in held:
        jobs.until_step(job, MOVE)
    worker.signal(signal.SIGTERM)
    until(lambda: worker.said("worker stops"), what="it says that it stops")
    worker.signal(signal.SIGTERM)
    asked = time.monotonic()
    assert worker.wait() == 0
    assert time.monotonic() - asked < SLACK_S
    assert [(jobs[job].state, jobs[job].tries) for job in held] == [("queued", 0)] * 3
    jobs.let_go("go")
    team.start()
    assert [jobs.wait(job, "done").tries for job in held] == [1, 1, 1]
    jobs.check_runs()


# Several processes


def children_of(worker: WorkerProcess) -> list[psutil.Process]:
    return psutil.Process(worker.pid).children(recursive=True)


def test_no_child_outlives_a_killed_parent(jobs: Jobs, team: Workers) -> None:
    held = [jobs.add("work", until="go") for _ in range(4)]
    parent = team.start("--processes", "2", ROTA_STOP_GRACE_S="0.5", ROTA_LIMIT_WORK="2")
    for job in held:
        jobs.until_step(job, MOVE)
    children = children_of(parent)
    assert {child.pid for child in children} > {jobs.steps(job)[0].pid for job in held}
    parent.kill()
    _, left = psutil.wait_procs(children, timeout=10)
    assert left == []
    assert [(jobs[job].state, jobs[job].tries) for job in held] == [("queued", 0)] * 4


def test_a_child_that_dies_is_started_again(jobs: Jobs, team: Workers) -> None:
    parent = team.start("--processes", "2", ROTA_LIMIT_WORK="1")
    first = [jobs.add("work", until="go") for _ in range(2)]
    for job in first:
        jobs.until_step(job, START)
    before = {child.pid for child in children_of(parent)}
    killed = jobs.steps(first[0])[0].pid
    psutil.Process(killed).kill()
    again = jobs.until_step(first[0], START, count=2)
    assert again.pid not in before
    jobs.let_go("go")
    assert [jobs.wait(job, "done").tries for job in first] == [2, 1]
    parent.signal(signal.SIGTERM)
    assert parent.wait() == 0


# A job that does not move, or does not stop


def test_a_job_without_progress_is_stopped_before_its_lease_ends(jobs: Jobs, team: Workers) -> None:
    """The stall kill: a try is counted, the process lives on and its other jobs too."""
    worker = team.start()
    other = jobs.add("work", until="go")
    job = jobs.add("idler")
    jobs.until_step(job, START)
    leased_until = jobs[job].lease_until
    jobs.until_step(job, STOPPED)
    stopped_at = jobs[job].now
    assert stopped_at < leased_until
    failed = jobs.wait(job, "failed")
    assert (failed.tries, failed.last_error) == (
        2, f"The job made no progress for the lease time ({LEASE_S:g} s); its worker stopped it",
    )  # fmt: skip
    assert [step.epoch for step in jobs.steps(job, START)] == [1, 2]
    jobs.let_go("go")
    assert jobs.wait(other, "done").tries == 1
    assert worker.lives


def test_a_coroutine_that_swallows_every_stop_gets_no_further_step(jobs: Jobs, team: Workers) -> None:
    worker = team.start()
    other = jobs.add("work", until="go")
    job = jobs.add("stubborn")
    jobs.until_step(job, START)
    failed = jobs.wait(job, "failed")
    assert "made no progress" in failed.last_error or failed.last_error == "The lease ran out on the last try"
    steps = jobs.steps(job)
    lease_ends_ns = steps[0].at_ns + int(LEASE_S * 1e9)
    assert steps[-1].at_ns <= lease_ends_ns + 50e6
    moves = len(jobs.steps(other, MOVE))
    jobs.until_step(other, MOVE, count=moves + 10)
    assert jobs.steps(job) == steps
    assert worker.lives
    jobs.let_go("go")
    assert jobs.wait(other, "done").tries == 1


@pytest.mark.parametrize("kind", ["blocker", "deaf"])
def test_what_cannot_be_stopped_ends_with_its_process(jobs: Jobs, team: Workers, kind: str) -> None:
    """S22: before the lease lapses; the other jobs are given back without a try, and go on elsewhere."""
    worker = ready(team.start())
    others = [jobs.add(other, until="go") for other in ("long_work", "long_work", "long_plain", "long_plain")]
    for other in others:
        jobs.until_step(other, MOVE)
    job = jobs.add(kind)
    jobs.until_step(job, START)
    leased_until = jobs[job].lease_until
    # A machine that is too busy for it to end itself in time leaves that to its warden.
    assert worker.wait() in (70, -signal.SIGKILL)
    assert (jobs[job].state, jobs[job].tries) == ("failed", 1)
    assert jobs[job].finished_at < leased_until
    assert "made no progress" in jobs[job].last_error
    assert jobs.tries(job) == ["fenced"]
    assert [jobs.tries(other) for other in others] == [["given_back"]] * 4
    assert [(jobs[other].state, jobs[other].tries) for other in others] == [("queued", 0)] * 4
    assert worker.said("could not be stopped")
    team.start()
    jobs.let_go("go")
    assert [jobs.wait(other, "done").tries for other in others] == [1] * 4
    jobs.check_runs()


# A worker that stands still


@pytest.mark.parametrize("kind", ["work", "plain"])
def test_a_worker_that_stood_still_for_longer_than_its_lease_takes_no_further_step(
    jobs: Jobs, team: Workers, kind: str
) -> None:
    first = team.start()
    job = jobs.add(kind, until="go")
    jobs.until_step(job, MOVE)
    pause_ns = now_ns()
    first.stop()
    second = team.start()
    jobs.until_step(job, MOVE, pid=second.pid)
    before = len(jobs.steps(job, MOVE, pid=first.pid))
    paused = Pause(first.pid, pause_ns, now_ns())
    first.go_on()
    if kind == "work":
        until(lambda: jobs.steps(job, STOPPED, pid=first.pid), what="its handler is stopped")
        until(lambda: first.said("lost its lease") or first.said("not written"), what="it says why")
        assert first.lives
    else:
        until(lambda: jobs.steps(job, STOPPED, pid=first.pid) or not first.lives, what="its thread ends")
    jobs.until_step(job, MOVE, pid=second.pid, count=len(jobs.steps(job, MOVE, pid=second.pid)) + 5)
    assert len(jobs.steps(job, MOVE, pid=first.pid)) <= before + 1  # it may have been on its way
    jobs.let_go("go")
    done = jobs.wait(job, "done")
    assert (done.tries, done.result) == (2, f"by {second.pid}")
    jobs.check_runs(Faults(pauses=[paused]))
    if kind == "work":
        stopped = "SELECT FROM rota.tries WHERE job_id = %s AND stopped_at IS NOT NULL"
        until(lambda: jobs.conn.execute(stopped, (job,)).fetchone() is not None, what="it says when it stopped")
        assert jobs.overlap_s() == 0, "what it did, it did before its lease was over"


def test_a_child_process_keeps_its_lease_while_its_worker_stands_still(jobs: Jobs, team: Workers) -> None:
    """The child is not stopped with its worker, and nobody but itself can end it."""
    both = [ready(team.start()), ready(team.start())]
    for idle in both:
        # On a busy machine a child may take as long to start as this lease lasts: each worker has one that is warm.
        idle.stop()
        jobs.wait(jobs.add("long_apart", seconds=0), "done")
        idle.go_on()
    job = jobs.add("apart", until="go")
    child = jobs.until_step(job, MOVE, count=int(1.5 * LEASE_S / STEP_S)).pid
    assert jobs[job].tries == 1, "the child is told of each extension of its lease"
    first, second = sorted(both, key=lambda worker: worker.pid != psutil.Process(child).ppid())
    first.stop()
    until(lambda: len(jobs.steps(job, START)) == 2, what="the job is taken again")
    other = next(step.pid for step in jobs.steps(job, START) if step.pid != child)
    first.go_on()
    until(lambda: not alive(child), what="the first child has ended")
    stopped = "SELECT FROM rota.tries WHERE job_id = %s AND stopped_at IS NOT NULL"
    until(lambda: jobs.conn.execute(stopped, (job,)).fetchone() is not None, what="its worker says when it stopped")
    jobs.let_go("go")
    done = jobs.wait(job, "done")
    assert (done.tries, done.result) == (2, f"by {other}")
    assert jobs.tries(job) == ["lost", "done"]
    assert jobs.overlap_s() == 0
    assert first.lives and second.lives
    jobs.check_runs()


def test_cancel_does_not_wait_for_a_worker_that_says_nothing(jobs: Jobs, team: Workers) -> None:
    """S30: asking never moves the lease; the job ends with it at the latest."""
    silent = team.start()
    job = jobs.add("work")
    jobs.until_step(job, MOVE)
    silent.stop()
    other = ready(team.start())
    lease_until = jobs[job].lease_until
    for _ in range(3):
        jobs.cancel(job)
        assert jobs[job].lease_until in (lease_until, None)
    row = jobs.wait(job, "cancelled")
    assert (row.finished_at - lease_until).total_seconds() < POLL_S + SLACK_S
    moves = jobs.steps(job, MOVE)
    silent.go_on()
    jobs.until_step(job, STOPPED)
    assert jobs.steps(job, MOVE)[: len(moves) + 1] == jobs.steps(job, MOVE)
    assert jobs[job].state == "cancelled"
    assert jobs.steps(job, START, pid=other.pid) == []


# A network that fails


def test_a_worker_that_leaves_the_network(jobs: Jobs, team: Workers) -> None:
    """S25: its jobs are taken within lease and look; it stops in time, and works again when it is back."""
    with proxy(jobs.dsn) as network:
        cut_off = team.start(ROTA_DSN=network.dsn, FAULTS_TIMEOUT_S="1")
        held = [jobs.add("work", until="go"), jobs.add("plain", until="go")]
        for job in held:
            jobs.until_step(job, MOVE)
        network.fall_silent()
        left = time.monotonic()
        other = ready(team.start())
        for job in held:
            jobs.until_step(job, START, pid=other.pid)
        assert time.monotonic() - left < LEASE_S + POLL_S + SLACK_S
        jobs.check_runs()
        killed = Faults(killed_ns={other.pid: now_ns()})
        other.kill()
        jobs.let_go("go")

        network.come_back()
        for job in (*held, jobs.add("tiny")):
            row = jobs.wait(job, "done")
            assert jobs.steps(job, END, pid=cut_off.pid), "who else could have done it?"
            assert row.tries <= 3
    assert cut_off.lives
    jobs.check_runs(killed)


ENDS = """
CREATE TABLE ends (id uuid PRIMARY KEY);
CREATE FUNCTION note_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ends VALUES (NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER ends AFTER INSERT ON rota.ended_jobs FOR EACH ROW EXECUTE FUNCTION note_end();
"""


def test_an_end_that_comes_late_is_refused(jobs: Jobs, team: Workers) -> None:
    """I3: a job was done, but nobody could be told before its lease ended, and another worker runs it by now."""
    with proxy(jobs.dsn) as network:
        late = team.start(ROTA_DSN=network.dsn, FAULTS_TIMEOUT_S="1")
        job = jobs.add("work", until="go")
        jobs.until_step(job, MOVE)
        network.fall_silent()
        jobs.let_go("go")
        jobs.until_step(job, END)
        jobs.hold_back("go")
        other = team.start(ROTA_LIMIT_TINY="0")
        jobs.until_step(job, MOVE, pid=other.pid)

        network.come_back()
        jobs.wait(jobs.add("tiny"), "done")  # it writes ends in their order, and claims nothing while one waits
        assert jobs.steps(job, END, pid=late.pid)
        assert (jobs[job].state, jobs[job].lease_epoch) == ("leased", 2)
        jobs.let_go("go")
        row = jobs.wait(job, "done")
    assert (row.tries, row.result) == (2, f"by {other.pid}")
    jobs.check_runs()


def test_connections_that_break_at_any_moment(jobs: Jobs, team: Workers) -> None:
    """Also after the database has taken what it was told, and before it could say so: nothing is lost or done twice."""
    jobs.conn.execute(ENDS)
    added = [jobs.add("tiny") for _ in range(900)]
    with proxy(jobs.dsn, cut_after=40_000, random=Random(25)) as network:
        for _ in range(2):
            team.start(ROTA_DSN=network.dsn)
        for job in added:
            row = jobs.wait(job, "done")
            assert row.tries < 100 and row.finished_at is not None
        assert network.cuts > 5, "the network was too good"
    assert jobs.conn.execute("SELECT count(*) FROM ends").fetchone() == (900,)
    jobs.check_runs()


def test_backends_that_are_terminated(jobs: Jobs, team: Workers) -> None:
    """In the middle of claims and of ends: no job is lost, none ends twice."""
    added = [jobs.add("tiny") for _ in range(500)] + [jobs.add("work", seconds=0.5) for _ in range(30)]
    for _ in range(2):
        team.start()
    random, kills = Random(12), 0
    give_up_at = time.monotonic() + 30
    while jobs.open():
        assert time.monotonic() < give_up_at, f"{jobs.open()} jobs are left\n{team.tails()}"
        kills += jobs.conn.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name ~ '^rota' AND random() < 0.5"
        ).fetchone()[0]
        time.sleep(random.uniform(0.02, 0.2))
    assert kills > 10
    assert {jobs[job].state for job in added} == {"done"}
    jobs.check_runs()


# A database that changes its mind


def test_a_database_that_turns_read_only(jobs: Jobs, team: Workers, default_server: Server) -> None:
    """S11: a failover. Connections are made anew until one may write; nothing stays leased."""
    worker = team.start()
    held = [jobs.add("work", until="go") for _ in range(3)]
    queued = [jobs.add("tiny", delay_s=1) for _ in range(10)]
    for job in held:
        jobs.until_step(job, MOVE)
    default_server.psql("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
    try:
        until(lambda: worker.said("trying again"), what="it says that the database is away")
        for job in held:
            jobs.until_step(job, STOPPED)
    finally:
        default_server.psql("ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
    jobs.let_go("go")
    for job in (*held, *queued):
        # One is lost to the failover; on a machine with no time for anybody, such a short lease may be lost again.
        assert jobs.wait(job, "done").tries <= 3
    assert worker.lives
    assert "read-only" in worker.said("trying again")[0]["error"]
    jobs.check_runs()


def test_no_transaction_is_open_while_handlers_work(jobs: Jobs, team: Workers) -> None:
    """S14: a handler may work for longer than a session may idle in a transaction."""
    team.start()
    held = [jobs.add("work", until="go"), jobs.add("plain", until="go")]
    for job in held:
        jobs.until_step(job, MOVE)
    seen = 0
    give_up_at = time.monotonic() + 1.0
    while time.monotonic() < give_up_at:
        rows = jobs.conn.execute(
            "SELECT application_name, state, query FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name ~ '^rota'"
        ).fetchall()
        assert [row for row in rows if "in transaction" in row[1]] == []
        seen = max(seen, len(rows))
        time.sleep(0.01)
    assert seen >= 2, "no connection of a worker was seen"
    jobs.let_go("go")
    for job in held:
        jobs.wait(job, "done")


@pytest.fixture
def own_server(fast_place: Path) -> Iterator[EmbeddedPostgres]:
    """A server that a test may stop, with Rota's schema."""
    folder = Path(tempfile.mkdtemp(dir=fast_place))
    folder.chmod(0o711)
    with EmbeddedPostgres(folder / "pg", fsync=False) as server:
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            conn.execute(migrate.script("rota"))
        yield server


def test_a_database_that_is_away_at_the_start(own_server: EmbeddedPostgres, tmp_path: Path) -> None:
    """One sentence, and an exit status for a supervisor; Rota's own supervisor tries again, less and less often."""
    dsn = own_server.dsn
    own_server.stop()
    with workers(PROGRAM, tmp_path, dsn=dsn, ROTA_POLL_S="0.2") as team:
        alone = team.start()
        assert alone.wait() == 1
        assert alone.tail().splitlines()[1:] == [
            "rota: The database at postgresql://local socket/rota does not answer: [Errno 2] No such file or "
            "directory. Is it running, and is its address (ROTA_DSN) right?"
        ]
        parent = team.start("--processes", "1")
        until(lambda: len(parent.said("a process ended")) >= 2, what="it tries again")
        own_server.start()
        with psycopg.connect(dsn, autocommit=True) as conn:
            jobs = Jobs(conn, tmp_path / "records")
            jobs.wait(jobs.add("tiny"), "done")
        assert len(parent.said("a process ended")) <= 8
        assert "Traceback" not in parent.log.read_text()
        parent.signal(signal.SIGTERM)
        assert parent.wait() == 0


def test_ends_wait_for_a_database_that_comes_back(own_server: EmbeddedPostgres, tmp_path: Path) -> None:
    """A job whose end could not be written for a while ends once and does not run again."""
    dsn = own_server.dsn
    with workers(PROGRAM, tmp_path, dsn=dsn, ROTA_POLL_S="0.2") as team:
        with psycopg.connect(dsn, autocommit=True) as conn:
            jobs = Jobs(conn, tmp_path / "records")
            worker = ready(team.start())
            added = [jobs.add("patient", until="go") for _ in range(10)]
            for job in added:
                jobs.until_step(job, START)
        own_server.stop()
        jobs.let_go("go")
        for job in added:
            until(lambda job=job: jobs.steps(job, END), what="the job ends while the database is away")
        until(lambda: worker.said("ends of jobs wait"), what="it says so")
        own_server.start()
        with psycopg.connect(dsn, autocommit=True) as conn:
            jobs = Jobs(conn, tmp_path / "records")
            for job in added:
                row = jobs.wait(job, "done")
                assert (row.tries, row.lease_epoch, len(jobs.steps(job, START))) == (1, 1, 1)
        refuse_bugs(team)


def test_a_database_that_goes_away_for_longer_than_a_lease(own_server: EmbeddedPostgres, tmp_path: Path) -> None:
    """Jobs stop before their leases end, ends that wait are written or refused, and work goes on by itself."""
    dsn = own_server.dsn
    with workers(PROGRAM, tmp_path, dsn=dsn, ROTA_POLL_S="0.2") as team:
        with psycopg.connect(dsn, autocommit=True) as conn:
            jobs = Jobs(conn, tmp_path / "records")
            pair = [ready(team.start(ROTA_LIMIT_WORK="2")) for _ in range(2)]
            long = [jobs.add("work", until="go") for _ in range(2)]
            short = [jobs.add("work", until="soon") for _ in range(2)]
            for job in (*long, *short):
                jobs.until_step(job, MOVE)
        own_server.stop()
        jobs.let_go("soon")
        for job in short:
            until(lambda job=job: jobs.steps(job, END), what="a short job ends while the database is away")
        for job in long:
            until(lambda job=job: jobs.steps(job, STOPPED), what="a long job stops before its lease ends")
            lasted_s = (jobs.steps(job, STOPPED)[0].at_ns - jobs.steps(job, MOVE)[-1].at_ns) / 1e9
            assert lasted_s < LEASE_S
        own_server.start()
        with psycopg.connect(dsn, autocommit=True) as conn:
            jobs = Jobs(conn, tmp_path / "records")
            jobs.let_go("go")
            for job in (*long, *short, jobs.add("tiny")):
                jobs.wait(job, "done")
            jobs.check_runs()
        assert all(worker.lives for worker in pair)
        refuse_bugs(team)
