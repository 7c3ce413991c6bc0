"""Parents and batches: a job keeps both wherever it goes."""

from uuid import UUID

import pytest

from rota.ids import BatchId, JobId
from rota.queue.job import NewJob, Outcome, State, queued_key
from tests.conformance.queues import LEASE_S, Queue

PARENT, BATCH = JobId(UUID(int=11)), BatchId(UUID(int=12))


async def add(queue: Queue, kind: str = "work", **options: object) -> JobId:
    return await queue.add(kind, parent_id=PARENT, batch_id=BATCH, **options)


@pytest.mark.parametrize("way", ["done", "retry", "release", "twin", "swept", "swept away", "cancel", "again"])
async def test_a_job_keeps_its_parent_and_its_batch(queue: Queue, way: str) -> None:
    job_id = await add(queue, max_tries=1 if way == "swept away" else 3, dedupe=queued_key("k"))
    if way == "cancel":
        await queue.cancel(job_id)
    else:
        lease = await queue.take(job_id)
        match way:
            case "done":
                await queue.end(lease)
            case "retry":
                await queue.end(lease, Outcome.RETRY, error="no")
            case "release":
                await queue.back(lease)
            case "twin":
                await queue.add(dedupe=queued_key("k"))
                assert await queue.back(lease, keyed=True) is State.DONE
            case "swept" | "swept away":
                queue.later(LEASE_S + 1)
                await queue.sweep()
            case "again":
                await queue.end(lease, Outcome.FAILED, error="no")
                await queue.retry(job_id)
    row = await queue.row(job_id)
    assert (row.parent_id, row.batch_id) == (PARENT, BATCH)
    (listed,) = [row for row in await queue.page() if row.id == job_id]
    assert (listed.parent_id, listed.batch_id) == (PARENT, BATCH)


async def test_jobs_added_together_may_differ_in_parent_and_batch(queue: Queue) -> None:
    jobs = [NewJob("work"), NewJob("work", parent_id=PARENT), NewJob("work", batch_id=BATCH)]
    added = await queue.enqueue_many(jobs)
    rows = [await queue.row(answer.id) for answer in added]
    assert [(row.parent_id, row.batch_id) for row in rows] == [(None, None), (PARENT, None), (None, BATCH)]
