"""20,000 jobs on four worker processes, and among them some that nothing stops in a friendly way.

They block the event loop, never end in a thread, or run in a child process that ignores SIGTERM and has a grandchild in
a session of its own. Their workers end themselves before a lease can run out, again and again.

What must hold is what `test_twenty_thousand` says; beside that the good jobs lose no try to the bad ones, the bad ones
end as they should, and nothing is left running.
"""

import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import psutil
import psycopg
import pytest
from msgspec import structs

import rota
from rota.io import migrate
from rota.io.embedded import EmbeddedPostgres
from rota.io.postgres import statement
from rota.queue.io.heart import FENCE_EXIT
from rota.queue.io.warden_process import EVENT
from tests.faults import test_twenty_thousand as whole
from tests.faults.conftest import refuse_bugs
from tests.faults.processes import RECORDS, WorkerProcess, Workers, until, workers
from tests.faults.records import Run, faults_of, read_steps, runs_of
from tests.faults.test_twenty_thousand import AUDIT, Chaos, check_table, new_jobs, postgres, run

__all__ = ["postgres"]

BAD = {"blocker": 5, "endless": 5, "parent": 6}
JOBS = {"good": 19_000, "good_thread": 1_000 - sum(BAD.values()), **BAD}
UNLUCKY_MAX = 20
"""Good jobs that may lose a try: those of one claim that is carried out after the last words of its process."""
WITHIN_S = 6.0
"""Within this the bad ones come up, so that most of the good ones are met by some."""


@dataclass
class Bad(Chaos):
    """Does nothing to the workers: their jobs do."""

    def act(self) -> None:
        """Nothing."""

    def restart_database(self) -> None:
        """It stays."""

    def _why_it_ended(self, worker: WorkerProcess) -> str:
        # One that could not end itself in time, on a busy machine, is ended by its warden.
        return "killed by its warden" if was_killed_by_its_warden(worker) else super()._why_it_ended(worker)

    def end(self) -> None:
        """Stops the team. The last job may be a bad one, whose process is about to end itself."""
        for worker in self.team:
            assert worker is not None, "nobody was killed"
            until(lambda worker=worker: worker.said("worker started") or not worker.lives, what=worker.tail)
            worker.signal(signal.SIGTERM)
        for worker in self.team:
            assert worker is not None, "nobody was killed"
            assert worker.wait() in (0, FENCE_EXIT) or was_killed_by_its_warden(worker), worker.tail()


def was_killed_by_its_warden(worker: WorkerProcess) -> bool:
    """Whether it ended by SIGKILL, and its warden said that it was its doing."""
    return worker.wait() == -signal.SIGKILL and worker.said(EVENT)


def left_running(team: Workers) -> list[str]:
    """What has to do with this test and still runs."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RECORDS) == team.environ[RECORDS] and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


@pytest.mark.timeout(600)
def test_twenty_thousand_jobs_with_bad_ones_each_end_once(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    random = Random(whole.seed())
    dsn = postgres.dsn
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(migrate.script("rota"))
        conn.execute(AUDIT)
    jobs = [
        structs.replace(job, max_tries=1, delay_s=random.uniform(0, WITHIN_S))
        if job.kind in BAD
        else structs.replace(job, max_tries=100)
        for job in new_jobs(random, JOBS)
    ]
    with psycopg.connect(dsn) as conn:
        added = {each.id for each in rota.App(dsn=dsn).sync.enqueue_many(jobs, conn=conn)}
    with workers("tests.faults.bad_program:app", tmp_path, dsn=dsn, ROTA_POLL_S="0.5") as team:
        bad = Bad(team, postgres, random)
        bad.begin()
        run(bad, dsn)
        bad.end()
        refuse_bugs(team)
        until(lambda: not left_running(team), what=lambda: f"nothing is left: {left_running(team)}")
    runs = runs_of(read_steps(tmp_path / "records"))
    assert faults_of(runs, bad.faults) == []
    with psycopg.connect(dsn) as conn:
        check_table(conn, added, runs, jobs=JOBS, fail=BAD)
        check_tries(conn, runs, gave_back=not any(worker.said("could not be given back") for worker in team.started))
        overlap = statement("rota.queue.io.sql", "overlap.sql", "rota")
        assert psycopg.RawCursor(conn).execute(overlap, [None]).fetchone() == (0,), "holders say that they overlapped"
    print(dict(bad.counts))
    assert bad.counts["fenced"] >= 3


def check_tries(conn: psycopg.Connection[Any], runs: Mapping[UUID, list[Run]], *, gave_back: bool) -> None:
    """How the runs ended that did not simply succeed. `gave_back`: no machine was so busy that last words were cut."""
    rows = conn.execute(
        "SELECT j.kind, t.ended, count(*) FROM rota.tries AS t JOIN rota.jobs AS j ON j.id = t.job_id GROUP BY 1, 2"
    ).fetchall()
    ends: dict[str, Counter[str]] = {kind: Counter() for kind in JOBS}
    for kind, how, count in rows:
        ends[kind][how] = count
    print(ends)
    for kind in ("blocker", "endless"):
        assert ends[kind].keys() <= {"fenced", "given_back", "lost"}
    # Where the end of a child is seen late, its worker is fenced.
    assert ends["parent"].keys() <= {"killed", "stopped", "fenced", "given_back", "lost"}
    stopped = conn.execute("SELECT job_id, epoch FROM rota.tries WHERE ended = 'stopped'").fetchall()
    began = {(job_id, run.epoch) for job_id in runs for run in runs[job_id]}
    assert not began & set(stopped), "only a child that took as long as its lease to start is stopped"
    for kind in ("good", "good_thread"):
        assert ends[kind].keys() <= {"done", "given_back", "lost"}
    if gave_back:
        assert [ends[kind]["fenced"] for kind in ("blocker", "endless")] == [BAD["blocker"], BAD["endless"]]
        more = conn.execute("SELECT count(*) FROM rota.jobs WHERE tries > 1").fetchone()
        assert more is not None and more[0] <= UNLUCKY_MAX, "the bad ones cost the good ones their tries"
