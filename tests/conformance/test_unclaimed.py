"""How many jobs that no worker has claimed go before a job (unclaimed)."""

from collections.abc import Sequence

from rota.ids import JobId
from tests.conformance.queues import NOBODY, Queue


async def unclaimed(queue: Queue, job_id: JobId, kinds: Sequence[str] = ("film", "clip")) -> int:
    return sum((await queue.call("unclaimed", job_id, kinds=kinds, now=queue.now)).values())


async def test_a_queued_job_stands_behind_the_more_urgent_and_the_older(queue: Queue) -> None:
    first = await queue.add("film")
    queue.later(1)
    clip = await queue.add("clip")
    last = await queue.add("film")
    urgent = await queue.add("clip", priority=5)
    await queue.add("other", priority=9)
    await queue.add("film", priority=9, run_after=queue.at(60))
    assert [await unclaimed(queue, job_id) for job_id in (urgent, first, clip, last)] == [0, 1, 2, 3]
    by_kind = await queue.call("unclaimed", last, kinds=["film", "clip", "other"], now=queue.now)
    assert by_kind == {"film": 1, "clip": 2, "other": 1}
    assert await unclaimed(queue, last, ["film"]) == 1
    assert await unclaimed(queue, last, []) == 0


async def test_one_that_was_claimed_stands_behind_the_more_urgent_alone(queue: Queue) -> None:
    """It waits in a want-book already, and what comes to that later with its priority stands behind it."""
    old = await queue.add("film")
    mine = await queue.add("film", priority=3)
    await queue.take(mine, kind="film")
    assert await unclaimed(queue, mine) == 0
    await queue.add("clip", priority=3)
    await queue.add("clip", priority=4)
    assert await unclaimed(queue, mine) == 1, "the one that is more urgent"
    assert await unclaimed(queue, old) == 2, "what was claimed is counted elsewhere"


async def test_before_a_call_of_no_job_are_the_more_urgent(queue: Queue) -> None:
    for priority in (2, 3, 4, 5):
        await queue.add("film", priority=priority)
    await queue.add("clip", priority=4)
    await queue.add("other", priority=9)
    await queue.add("film", priority=9, run_after=queue.at(60))
    claimed = await queue.add("clip", priority=8)
    await queue.take(claimed, kind="clip")
    told = [
        await queue.call("unclaimed_above", priority, kinds=kinds, now=queue.now)
        for priority, kinds in ((3, ["film", "clip"]), (3, ["film"]), (9, ["film"]), (-1, []))
    ]
    assert told == [3, 2, 0, 0]


async def test_nobody_stands_before_what_is_not_there(queue: Queue) -> None:
    await queue.add("film", priority=9)
    assert await unclaimed(queue, NOBODY) == 0
