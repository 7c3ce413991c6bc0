"""Fixtures of the fault tests.

jobs   the queue of a fresh database, as a test looks at it from outside
team   worker processes of `tests.faults.troubles` on it; they end with the test, and may not have met a bug of Rota
"""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.faults.jobs import Jobs
from tests.faults.processes import Workers, workers

PROGRAM = "tests.faults.troubles:app"
BUGS = ("a loop of the worker failed", "heartbeats failed", "Task exception was never retrieved")
"""What a worker logs when it meets what nobody thought of."""


@pytest.fixture
def jobs(migrated_dsn: str, tmp_path: Path) -> Iterator[Jobs]:
    with psycopg.connect(migrated_dsn, autocommit=True) as conn:
        yield Jobs(conn, tmp_path / "records", migrated_dsn)


@pytest.fixture
def team(migrated_dsn: str, tmp_path: Path) -> Iterator[Workers]:
    with workers(PROGRAM, tmp_path, dsn=migrated_dsn, ROTA_POLL_S="0.2", ROTA_STOP_GRACE_S="20") as made:
        yield made
    refuse_bugs(made)


def refuse_bugs(team: Workers) -> None:
    """Fails if a worker logged a bug."""
    for worker in team.started:
        log = worker.log.read_text(errors="replace")
        assert not any(bug in log for bug in BUGS), f"{worker.log.name} tells of a bug:\n{log[-5000:]}"
