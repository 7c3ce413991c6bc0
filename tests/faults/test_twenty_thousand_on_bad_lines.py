"""20,000 jobs on four workers whose way to the database is bad in every way at once.

One connection in a few breaks, also in the middle of a commit, after the database has taken what it was told and before
it could say so; two workers stand behind a pgbouncer in transaction mode; backends are terminated; the database turns
read-only for a while, as in a failover; and the clocks of two machines are an hour off, one each way.

What must hold is what `test_twenty_thousand` says, and the seed is drawn as there.
"""

import signal
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psycopg
import pytest

import rota
from rota.io import migrate
from rota.io.embedded import EmbeddedPostgres
from rota.io.postgres import statement
from tests.faults import test_twenty_thousand as whole
from tests.faults.conftest import refuse_bugs
from tests.faults.processes import WorkerProcess, until, workers
from tests.faults.proxy import Proxy, proxy
from tests.faults.records import excuse_steps_under_way, faults_of, read_steps, runs_of
from tests.faults.test_twenty_thousand import AUDIT, WORKERS, Chaos, check_table, new_jobs, postgres, run
from tests.poolers import pgbouncer

__all__ = ["postgres"]

CUT_AFTER_BYTES = 400_000
HOUR_S = 3600


@dataclass
class BadLines(Chaos):
    """Does its worst to what lies between the workers and the database."""

    line: Proxy | None = None
    pooled: str = ""
    _read_only: bool = field(default=False)

    def begin(self) -> None:
        """Starts the team: two through the line that breaks, two through the pooler."""
        self.team = [self._start(number) for number in range(WORKERS)]

    def _start(self, number: int) -> WorkerProcess:
        assert self.line is not None, "a line is given"
        clock_s = (HOUR_S, -HOUR_S, 0, 0)[number]
        way = (
            {"ROTA_DSN": self.line.dsn} if number % 2 == 0 else {"ROTA_DSN": self.pooled, "ROTA_POOLER": "transaction"}
        )
        return self.workers.start(FAULTS_CLOCK_S=str(clock_s), **way)

    def end(self) -> None:
        """Stops the team, which has nothing left to do."""

        def all_started() -> bool:
            self.mend(calm=True)
            return all(worker is not None and worker.said("worker started") for worker in self.team)

        until(all_started, what=self.workers.tails)
        for worker in self.team:
            assert worker is not None and worker.lives, self.workers.tails()
            worker.signal(signal.SIGTERM)
        for worker in self.team:
            assert worker is not None and worker.wait() == 0, worker.tail()

    def act(self) -> None:
        """One fault, drawn at random."""
        assert self.line is not None, "a line is given"
        fault = self.random.choice(("cut", "terminate"))
        self.counts[fault] += 1
        if fault == "cut":
            self.line.cut()
        else:
            self._say(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.5"
            )

    def mend(self, *, calm: bool = False) -> None:
        """Lets the database be written again, some time after it was not.

        Starts those again that met it, or a line that broke, at their start, as their supervisor would.
        """
        for number, worker in enumerate(self.team):
            if worker is not None and not worker.lives and not worker.said("worker started"):
                assert "The database at" in worker.tail(), worker.tail()
                self.counts["not started on a bad line"] += 1
                self.team[number] = self._start(number)
        if self._read_only and (calm or self.random.random() < 0.01):
            self._read_only = False
            self._say("ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")

    def restart_database(self) -> None:
        """The database does not restart here: it turns read-only."""
        self._read_only = True
        self._say("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        self.counts["read-only"] += 1

    def _say(self, *statements: str) -> None:
        with psycopg.connect(self.postgres.dsn, autocommit=True) as conn:
            for statement in statements:
                conn.execute(statement)


@pytest.mark.timeout(600)
def test_twenty_thousand_jobs_on_bad_lines_each_end_once(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    random = Random(whole.seed())
    dsn = postgres.dsn
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(migrate.script("rota"))
        conn.execute(AUDIT)
    with psycopg.connect(dsn) as conn:
        added = {each.id for each in rota.App(dsn=dsn).sync.enqueue_many(new_jobs(random), conn=conn)}
    with (
        proxy(dsn, cut_after=CUT_AFTER_BYTES, random=Random(random.random())) as line,
        pgbouncer(dsn, tmp_path / "pooler", connections=8) as pooled,
        workers("tests.faults.program:app", tmp_path, dsn=dsn, ROTA_POLL_S="0.5") as team,
    ):
        chaos = BadLines(team, postgres, random, line=line, pooled=pooled)
        chaos.begin()
        run(chaos, dsn)
        chaos.end()
        print(dict(chaos.counts), "cuts", line.cuts)
        refuse_bugs(team)
        assert line.cuts >= 3, "the line was too good"
    steps = read_steps(tmp_path / "records")
    excuse_steps_under_way(steps, chaos.faults.pauses)
    runs = runs_of(steps)
    assert faults_of(runs, chaos.faults) == []
    with psycopg.connect(dsn) as conn:
        check_table(conn, added, runs)
        overlap = statement("rota.queue.io.sql", "overlap.sql", "rota")
        assert psycopg.RawCursor(conn).execute(overlap, [None]).fetchone() == (0,), "holders say that they overlapped"
