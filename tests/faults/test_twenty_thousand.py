"""20,000 jobs on four worker processes that are killed and stopped at random, while PostgreSQL is restarted once.

What must hold: each job ends exactly once, its recorded runs never overlap, its epochs grow, none is lost (I1–I3).
Each run draws a new seed and prints it; ROTA_DEV_SEED replays the order of the faults (their moments also depend on
the machine).
"""

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import psutil
import psycopg
import pytest

import rota
from rota.ids import JobId
from rota.io import migrate
from rota.io.embedded import EmbeddedPostgres
from rota.queue.io.heart import FENCE_EXIT
from rota.queue.job import NewJob
from tests.faults.conftest import refuse_bugs
from tests.faults.processes import WorkerProcess, Workers, until, workers
from tests.faults.records import END, Faults, Pause, Run, excuse_steps_under_way, faults_of, read_steps, runs_of

JOBS = {"quick": 18_000, "steady": 600, "plain": 800, "shaky": 400, "doomed": 200}
WORKERS = 4
STANDING_STILL_MAX = 2
LEASE_S = 2.0  # of the program's kinds
CHAOS_S_MAX = 45.0
DONE_S_MAX = 120.0
"""After the last fault; most of it only passes if something is wrong."""

AUDIT = """
CREATE TABLE audit (id uuid, what text);
CREATE FUNCTION audit_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit VALUES (NEW.id, 'ended');
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT ON rota.ended_jobs FOR EACH ROW EXECUTE FUNCTION audit_end();
CREATE FUNCTION audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit VALUES (NEW.id, format('%s epoch %s tries %s -> %s epoch %s tries %s of %s', OLD.state,
        OLD.lease_epoch, OLD.tries, NEW.state, NEW.lease_epoch, NEW.tries, NEW.max_tries));
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER UPDATE ON rota.open_jobs FOR EACH ROW WHEN (
    NEW.tries > NEW.max_tries
    OR NEW.lease_epoch <> OLD.lease_epoch + (OLD.state = 'queued' AND NEW.state = 'leased')::integer
) EXECUTE FUNCTION audit_change();
"""


@pytest.fixture
def postgres(fast_place: Path) -> Iterator[EmbeddedPostgres]:
    """A server of this test's own, that keeps what it commits."""
    folder = Path(tempfile.mkdtemp(dir=fast_place))
    folder.chmod(0o711)
    with EmbeddedPostgres(folder / "pg") as server:
        yield server


@dataclass
class Chaos:
    """Does its worst to four workers until the jobs have ended."""

    workers: Workers
    postgres: EmbeddedPostgres
    random: Random
    faults: Faults = field(default_factory=Faults)
    counts: Counter[str] = field(default_factory=Counter)
    team: list[WorkerProcess | None] = field(default_factory=list)
    start_again_at: dict[int, float] = field(default_factory=dict)
    go_on_at: dict[int, float] = field(default_factory=dict)
    stopped_ns: dict[int, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Starts the team."""
        self.team = [self.workers.start() for _ in range(WORKERS)]

    def end(self) -> None:
        """Stops the team, which has nothing left to do."""
        for worker in self.team:
            assert worker is not None, "all that was killed has been started again"
            until(lambda worker=worker: worker.said("worker started"), what=worker.tail)
            worker.signal(signal.SIGTERM)
        for worker in self.team:
            assert worker is not None and worker.wait() == 0, worker.tail()

    def act(self) -> None:
        """One fault, drawn at random."""
        place = self.random.randrange(WORKERS)
        worker = self.team[place]
        if worker is None:
            return
        if self.random.random() < 0.5:
            self._kill(place, worker)
        elif not worker.stopped and len(self.go_on_at) < STANDING_STILL_MAX:
            self.stopped_ns[place] = time.monotonic_ns()
            worker.stop()
            self.go_on_at[place] = time.monotonic() + self.random.uniform(0.3, 1.8 * LEASE_S)
            self.counts["stopped"] += 1

    def mend(self, *, calm: bool = False) -> None:
        """Starts and lets go on what is due; all of it if `calm`."""
        now = time.monotonic()
        for place, worker in enumerate(self.team):
            if worker is None:
                if calm or now >= self.start_again_at[place]:
                    self.team[place] = self.workers.start()
            elif worker.stopped:
                if calm or now >= self.go_on_at[place]:
                    self._end_of_pause(place, worker)
                    worker.go_on()
            elif not worker.lives:
                self.counts[self._why_it_ended(worker)] += 1
                self.team[place] = self.workers.start()

    def _why_it_ended(self, worker: WorkerProcess) -> str:
        if worker.wait() == FENCE_EXIT:
            return "fenced"  # before a lease could run out in a thread
        if worker.wait() == -signal.SIGKILL and any(pause.pid == worker.pid for pause in self.faults.pauses):
            return "killed where it stood"  # by its timer, when a lease in a thread ran out
        met_restart = worker.wait() == 1 and "does not answer" in worker.tail()
        assert met_restart, f"a worker ended with {worker.wait()}\n{worker.tail()}"
        return "not started without a database"

    def restart_database(self) -> None:
        """Ends PostgreSQL, in one of two ways, and starts it again."""
        if self.random.random() < 0.5:
            assert self.postgres.pid is not None
            server = psutil.Process(self.postgres.pid)
            server.kill()
            server.wait(10)
            self.counts["database killed"] += 1
        else:
            self.postgres.stop()
            self.counts["database stopped"] += 1
        self.postgres.start()

    def _kill(self, place: int, worker: WorkerProcess) -> None:
        self.faults.killed_ns[worker.pid] = time.monotonic_ns()
        if worker.stopped:
            self._end_of_pause(place, worker)
        worker.kill()
        self.team[place] = None
        self.start_again_at[place] = time.monotonic() + self.random.uniform(0.0, 0.6)
        self.counts["killed"] += 1

    def _end_of_pause(self, place: int, worker: WorkerProcess) -> None:
        self.faults.pauses.append(Pause(worker.pid, self.stopped_ns.pop(place), time.monotonic_ns()))
        del self.go_on_at[place]


def open_jobs(dsn: str) -> int | None:
    """How many jobs have not ended; None while the database is away."""
    try:
        with psycopg.connect(dsn) as conn:
            return conn.execute("SELECT count(*) FROM rota.open_jobs").fetchone()[0]
    except psycopg.OperationalError:
        return None


def new_jobs(random: Random, jobs: Mapping[str, int] = JOBS) -> list[NewJob]:
    """All kinds, in a random order."""
    kinds = [kind for kind, count in jobs.items() for _ in range(count)]
    random.shuffle(kinds)
    return [NewJob(kind=kind, max_tries=2 if kind == "doomed" else 100) for kind in kinds]


def seed() -> int:
    """The seed of this run: a fresh one, or the one that is given."""
    drawn = int(os.environ.get("ROTA_DEV_SEED") or int.from_bytes(os.urandom(4), "big"))
    print(f"ROTA_DEV_SEED={drawn}")
    return drawn


def test_twenty_thousand_jobs_each_end_once(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    random = Random(seed())
    dsn = postgres.dsn
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(migrate.script("rota"))
        conn.execute(AUDIT)
    with psycopg.connect(dsn) as conn:
        added = {each.id for each in rota.App(dsn=dsn).sync.enqueue_many(new_jobs(random), conn=conn)}

    with workers("tests.faults.program:app", tmp_path, dsn=dsn, ROTA_POLL_S="0.5") as team:
        chaos = Chaos(team, postgres, random)
        chaos.begin()
        run(chaos, dsn)
        chaos.end()
        print({name: chaos.counts[name] for name in sorted(chaos.counts)})
        refuse_bugs(team)

    steps = read_steps(tmp_path / "records")
    excuse_steps_under_way(steps, chaos.faults.pauses)
    runs = runs_of(steps)
    print(f"jobs by runs: {sorted(Counter(len(each) for each in runs.values()).items())}")
    assert faults_of(runs, chaos.faults) == []
    with psycopg.connect(dsn) as conn:
        check_table(conn, added, runs)
    assert min(chaos.counts["killed"], chaos.counts["stopped"]) >= 3, "the test was too kind"


def check_table(
    conn: psycopg.Connection[Any],
    added: set[JobId],
    runs: Mapping[UUID, list[Run]],
    *,
    jobs: Mapping[str, int] = JOBS,
    fail: Collection[str] = ("doomed",),
) -> None:
    """Each job has ended, once, and as it should; and it ran as often as the table says."""
    ended = Counter(conn.execute("SELECT kind, state FROM rota.jobs").fetchall())
    assert ended == {(kind, "failed" if kind in fail else "done"): count for kind, count in jobs.items()}
    assert conn.execute("SELECT what, count(*) FROM audit GROUP BY what").fetchall() == [("ended", len(added))]
    columns = "id, kind, state, tries, max_tries, lease_epoch, finished_at"
    rows = conn.execute(f"SELECT {columns} FROM rota.jobs").fetchall()
    assert {row[0] for row in rows} == added
    for job_id, kind, state, tries, max_tries, epoch, finished_at in rows:
        assert finished_at is not None and 1 <= tries <= max_tries and tries <= epoch, (job_id, kind)
        assert {run.epoch for run in runs[job_id]} <= set(range(1, epoch + 1)), (job_id, kind)
        if state == "done":
            (last,) = [run for run in runs[job_id] if run.epoch == epoch]
            assert last.steps[-1].what == END, f"{job_id} ({kind}) is done, and its handler did not come to its end"


def run(chaos: Chaos, dsn: str) -> None:
    """Lets the team work, with faults, until all jobs have ended."""
    total, began = sum(JOBS.values()), time.monotonic()
    restarted, next_fault_at, next_look_at, left = False, began + 1.0, began, total
    while left and (time.monotonic() < began + CHAOS_S_MAX or not restarted):
        now = time.monotonic()
        if now >= next_look_at:
            seen = open_jobs(dsn)
            left = left if seen is None else seen
            next_look_at = now + 0.3
            if left < total * 0.6 and not restarted:
                chaos.restart_database()
                restarted = True
        if now >= next_fault_at:
            chaos.act()
            next_fault_at = now + chaos.random.uniform(0.2, 0.7)
        chaos.mend()
        time.sleep(0.01)
    assert restarted, "the database was never restarted"
    chaos.mend(calm=True)

    def all_ended() -> bool:
        chaos.mend(calm=True)
        return open_jobs(dsn) == 0

    until(all_ended, what=lambda: f"all jobs end\n{chaos.workers.tails()}", timeout_s=DONE_S_MAX, every_s=0.2)
