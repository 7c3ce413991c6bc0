"""The queue as a test looks at it from outside: with plain SQL, and through what handlers recorded."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import namedtuple_row

from rota.io.postgres import statement
from tests.faults.processes import WAIT_S, until
from tests.faults.records import Faults, Step, excuse_steps_under_way, faults_of, read_steps, runs_of


@dataclass(slots=True)
class Jobs:
    """The jobs of one database.

    Args:
        conn: a connection of the test's own, in autocommit.
        records: the folder in which handlers record their steps.
        dsn: the database's address.
    """

    conn: psycopg.Connection[Any]
    records: Path
    dsn: str = ""

    def add(self, kind: str, *, max_tries: int | None = None, delay_s: float = 0, **payload: Any) -> UUID:
        """Adds one job, as psql would."""
        sql = "SELECT id FROM rota.enqueue(%s, %s, max_tries => %s, delay_s => %s)"
        row = self.conn.execute(sql, (kind, json.dumps(payload), max_tries, delay_s)).fetchone()
        assert row is not None
        found: UUID = row[0]
        return found

    def cancel(self, job_id: UUID) -> None:
        """Asks for a job to be cancelled, as `rota jobs cancel` does."""
        sql = statement("rota.queue.io.sql", "cancel.sql", "rota")
        psycopg.RawCursor(self.conn).execute(sql, ([job_id], "Cancelled by the test", None))

    def __getitem__(self, job_id: UUID) -> Any:
        """The row of one job, and `now`, the database's time."""
        with self.conn.cursor(row_factory=namedtuple_row) as cursor:
            row = cursor.execute("SELECT *, now() AS now FROM rota.jobs WHERE id = %s", (job_id,)).fetchone()
        assert row is not None, f"job {job_id} is lost"
        return row

    def wait(self, job_id: UUID, *states: str, timeout_s: float = WAIT_S) -> Any:
        """Waits until a job is in one of these states, and gives its row."""
        return until(
            lambda: (row := self[job_id]).state in states and row,
            what=lambda: f"the job is {' or '.join(states)}; now it is {self[job_id]}",
            timeout_s=timeout_s,
        )

    def steps(self, job_id: UUID, what: str | None = None, *, pid: int | None = None) -> list[Step]:
        """What handlers recorded of a job."""
        return [
            step
            for step in read_steps(self.records)
            if step.job_id == job_id and what in (None, step.what) and pid in (None, step.pid)
        ]

    def until_step(self, job_id: UUID, what: str, *, count: int = 1, pid: int | None = None) -> Step:
        """Waits for a step of a job, and gives the last one."""
        until(
            lambda: len(self.steps(job_id, what, pid=pid)) >= count,
            what=lambda: f"{count} × {what} of the job, which is {self[job_id]}",
        )
        return self.steps(job_id, what, pid=pid)[-1]

    def let_go(self, name: str) -> None:
        """Makes the file that handlers wait for."""
        (self.records / name).touch()

    def hold_back(self, name: str) -> None:
        """Takes away what `let_go` made."""
        (self.records / name).unlink()

    def open(self) -> int:
        """How many jobs have not ended."""
        row = self.conn.execute("SELECT count(*) FROM rota.open_jobs").fetchone()
        assert row is not None
        return int(row[0])

    def overlap_s(self) -> float:
        """How long runs of one job by different holders overlapped, as the holders have said themselves."""
        sql = statement("rota.queue.io.sql", "overlap.sql", "rota")
        row = psycopg.RawCursor(self.conn).execute(sql, (None,)).fetchone()
        assert row is not None
        return float(row[0])

    def tries(self, job_id: UUID) -> list[str]:
        """How the tries that are kept of a job ended, in their order."""
        rows = self.conn.execute("SELECT ended FROM rota.tries WHERE job_id = %s ORDER BY epoch", (job_id,)).fetchall()
        return [ended for (ended,) in rows]

    def check_runs(self, faults: Faults | None = None) -> None:
        """Fails if two runs of a job overlapped."""
        faults, steps = faults or Faults(), read_steps(self.records)
        excuse_steps_under_way(steps, faults.pauses)
        found = faults_of(runs_of(steps), faults)
        assert not found, "\n".join(found)
