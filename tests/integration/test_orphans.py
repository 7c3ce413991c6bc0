"""Jobs of a worker that its warden has killed, given back from outside."""

import json
from dataclasses import asdict

import pytest

from rota.ids import Holder
from rota.io.postgres import Database, Target
from rota.queue.io import orphans
from rota.queue.io.store import Store
from rota.queue.job import Ask, JobFilter, NewJob, State

GONE, OTHER = Holder("gone:1:00000001"), Holder("other:2:00000002")


async def test_all_but_the_suspects_go_back_without_a_try_and_other_workers_keep_theirs(any_migrated_dsn: str) -> None:
    target = Target(any_migrated_dsn)
    database = Database(target, size=1)
    store = Store(database)
    await store.enqueue_many([NewJob("work", "null") for _ in range(4)])
    ask = Ask("work", 1, 60.0, 5)
    suspect, *innocent = [job.id for _ in range(3) for job in await store.claim([ask], holder=GONE)]
    (kept,) = [job.id for job in await store.claim([ask], holder=OTHER)]
    assert await orphans.give_back(target, GONE, left=[suspect]) == len(innocent) == 2
    await store.sweep()
    rows = {row.id: row for row in await store.page(JobFilter(), limit=10)}
    assert [(rows[job].state, rows[job].tries) for job in innocent] == [(State.QUEUED, 0)] * 2
    assert [(rows[job].state, rows[job].tries) for job in (suspect, kept)] == [(State.LEASED, 1)] * 2
    await database.stop()


def test_where_the_database_is_away_it_says_so_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    told = {
        "target": asdict(Target("postgresql://127.0.0.1:1/none")), "holder": GONE,
        "suspects": ["00" * 15 + "01"], "apart": [],
        "log_format": None, "log_level": "info",
    }  # fmt: skip
    orphans.main(json.loads(json.dumps(told)))
    (line,) = caplog.messages
    assert line.startswith("the other jobs of a killed worker could not be given back")
    assert "postgresql://127.0.0.1:1/none" in line
