"""Times that a person set with SQL and that Python does not know: they stop no worker and no command.

`UPDATE rota.open_jobs SET run_after = 'infinity'` parks a job, '-infinity' makes it due; what adds jobs refuses both.
"""

import json
from pathlib import Path

import pytest

import rota
from rota.ids import Holder
from rota.io.postgres import Database, Target
from rota.queue.io.store import Store
from rota.queue.io.watch import Watch
from rota.queue.job import Ask, JobFilter, NewJob, State
from rota.queue.limits import Limits
from tests.integration.programs import ROTA, run
from tests.integration.test_worker import Bench, bench, working

__all__ = ["bench"]

HOLDER = Holder("here:1:aa")
ODD = ["-infinity", "0044-03-15 12:00+00 BC", "infinity", "20000-01-01 00:00+00"]


async def set_run_after(database: Database, job_id: rota.JobId, value: str) -> None:
    await database.fetch("UPDATE rota.open_jobs SET run_after = $2::text::timestamptz WHERE id = $1", job_id, value)


@pytest.mark.parametrize("value", ODD)
async def test_statements_read_such_a_row(any_migrated_dsn: str, value: str) -> None:
    database = Database(Target(any_migrated_dsn), size=2)
    store, due = Store(database), value in ODD[:2]
    try:
        for limits in (Limits(), Limits(fleet=9)):
            job_id = (await store.enqueue(NewJob("odd"))).id
            await set_run_after(database, job_id, value)
            seen = await store.poll(["odd"], holder=HOLDER)
            assert seen.next_due_s is not None and (seen.next_due_s < 0) is due
            (row,) = await store.page(JobFilter(states=(State.QUEUED,)), limit=9)
            assert row.id == job_id and (row.run_after < row.now) is due
            assert [orphan.kind for orphan in await store.orphan_kinds()] == (["odd"] if due else [])
            counts = {count.state: count for count in await Watch(database).counts(ended=False)}
            assert (counts[State.QUEUED].oldest_due_s is not None) is due
            claim = store.claim_turns if limits else store.claim
            claimed = await claim([Ask("odd", 9, 60.0, 3, limits=limits)], holder=HOLDER)
            assert [job.id for job in claimed] == ([job_id] if due else [])
            await database.fetch("DELETE FROM rota.open_jobs")
    finally:
        await database.stop()


async def test_the_jobs_beside_it_run(bench: Bench) -> None:
    @bench.app.job(limit=3)
    async def work(ctx: rota.Context) -> None:
        bench.ran.append(str(ctx.job.id))

    parked, first, other = [(await bench.app.enqueue("work", {})).id for _ in range(3)]
    for job_id, value in ((parked, "infinity"), (first, "-infinity")):
        await set_run_after(bench.store.database, job_id, value)
    async with working(bench.app):
        for job_id in (first, other):
            assert (await bench.ends(job_id)).state is State.DONE
    assert (await bench.row(parked)).state is State.QUEUED and len(bench.ran) == 2


async def test_the_commands_show_it(tmp_path: Path, migrated_dsn: str) -> None:
    database = Database(Target(migrated_dsn), size=1)
    job_id = (await Store(database).enqueue(NewJob("odd"))).id
    for value in ODD:
        await set_run_after(database, job_id, value)
        for command in (["list"], ["show", str(job_id)], ["why", str(job_id)]):
            for options in ([], ["--json"]):
                done = run([*ROTA, "jobs", *command, *options], folder=tmp_path, environ={"ROTA_DSN": migrated_dsn})
                assert done.status == 0 and not done.err, (value, command, done)
                assert not options or json.loads(done.out)
    await database.stop()
