"""What becomes of the queued job that holds a key when another enqueue has it too: replace, merge, debounce; throttle.

The scopes themselves (open, queued, forever) are in test_enqueue.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rota.errors import EnqueueError
from rota.queue.job import (
    Dedupe,
    NewJob,
    Outcome,
    Scope,
    State,
    Twin,
    debounce_key,
    merge_key,
    queued_key,
    replace_key,
    throttle_key,
)
from tests.conformance.queues import Queue

MAKERS: dict[str, Callable[[str], Dedupe]] = {
    "replace": replace_key,
    "merge": merge_key,
    "debounce": lambda key: debounce_key(key, wait_s=5),
}
mode = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def job(dedupe: Dedupe, payload: Any = None, **options: Any) -> NewJob:
    return NewJob("work", payload=json.dumps(payload or {}), dedupe=dedupe, **options)


async def payload_of(queue: Queue, job_id: Any) -> Any:
    return json.loads((await queue.row(job_id)).payload or "")


async def test_replace_gives_the_queued_twin_the_new_payload(queue: Queue) -> None:
    first = await queue.enqueue(job(replace_key("k"), {"n": 1}, priority=3, delay_s=60.0, max_tries=9))
    second = await queue.enqueue(job(replace_key("k"), {"m": 2}, priority=1))
    assert (second.id, second.created) == (first.id, False)
    row = await queue.row(first.id)
    assert (json.loads(row.payload or ""), row.priority, row.max_tries) == ({"m": 2}, 3, 9)
    assert row.run_after == queue.now, "the sooner time of the two"
    third = await queue.enqueue(job(replace_key("k"), {"l": 3}, priority=7, delay_s=50.0))
    row = await queue.row(third.id)
    assert (row.id, row.priority, row.dedupe_scope) == (first.id, 7, Scope.QUEUED)
    assert row.run_after < queue.now
    assert len(await queue.rows()) == 1


@mode
async def test_a_running_twin_is_left_alone(queue: Queue, make: Callable[[str], Dedupe]) -> None:
    first = await queue.enqueue(job(make("k"), {"n": [1]}))
    await queue.take(first.id)
    second = await queue.enqueue(job(make("k"), {"n": [2]}))
    assert second.created and second.id != first.id
    assert await payload_of(queue, first.id) == {"n": [1]}
    third = await queue.enqueue(job(make("k"), {"n": [3]}))
    assert (third.id, third.created) == (second.id, False)


@mode
async def test_twenty_enqueues_while_one_runs_leave_one_queued_job(queue: Queue, make: Callable[[str], Dedupe]) -> None:
    """S20."""
    first = await queue.enqueue(job(make("k")))
    lease = await queue.take(first.id)
    added = [await queue.enqueue(job(make("k"), {"n": number})) for number in range(20)]
    assert [answer.created for answer in added] == [True] + 19 * [False]
    # S3: the running one goes back, meets its twin, and nothing else is held up.
    other = await queue.add()
    assert await queue.end(lease, Outcome.RETRY, keyed=True) is State.DONE
    assert (await queue.row(other)).state is State.QUEUED
    assert [row.state for row in await queue.rows() if row.dedupe_key].count(State.QUEUED) == 1


@mode
async def test_new_work_has_all_its_tries(queue: Queue, make: Callable[[str], Dedupe]) -> None:
    first = await queue.enqueue(job(make("k"), max_tries=2))
    await queue.end(await queue.take(first.id), Outcome.RETRY, error="no", wait_s=100.0, keyed=True)
    await queue.enqueue(job(make("k")))
    row = await queue.row(first.id)
    assert (row.tries, row.last_error, row.lease_epoch) == (0, None, 1)


MERGES: dict[str, tuple[Any, Any, Any]] = {
    "arrays": ([1, 2], [2, 3], [1, 2, 2, 3]),
    "objects": (
        {"ids": [1], "keep": 1, "at": "a", "mixed": [1]},
        {"ids": [2, 3], "at": "b", "new": [9], "mixed": 4},
        {"ids": [1, 2, 3], "keep": 1, "at": "b", "new": [9], "mixed": 4},
    ),
    "only the first level": ({"deep": {"ids": [1]}}, {"deep": {"ids": [2]}}, {"deep": {"ids": [2]}}),
    "array and object": ([1], {"ids": [2]}, {"ids": [2]}),
    "plain": (1, 2, 2),
}


@pytest.mark.parametrize(("old", "new", "merged"), MERGES.values(), ids=MERGES.keys())
async def test_merge(queue: Queue, old: Any, new: Any, merged: Any) -> None:
    first = await queue.enqueue(NewJob("work", payload=json.dumps(old), dedupe=merge_key("k")))
    await queue.enqueue(NewJob("work", payload=json.dumps(new), dedupe=merge_key("k")))
    assert await payload_of(queue, first.id) == merged


async def test_debounce_waits_from_the_last_enqueue_with_its_payload(queue: Queue) -> None:
    key = debounce_key("k", wait_s=5)
    first = await queue.enqueue(job(key, {"n": 1}, delay_s=5.0))
    for number in range(2, 5):
        queue.later(3)
        await queue.enqueue(job(key, {"n": number}, delay_s=5.0))
    row = await queue.row(first.id)
    assert (row.run_after, json.loads(row.payload or "")) == (queue.at(5), {"n": 4})


async def test_debounce_waits_at_most_so_long_from_the_first(queue: Queue) -> None:
    key = debounce_key("k", wait_s=5, at_most_s=7)
    first = await queue.enqueue(job(key, delay_s=5.0))
    created = queue.now
    for _ in range(3):
        queue.later(3)
        await queue.enqueue(job(key, delay_s=5.0))
    assert ((await queue.row(first.id)).run_after - created).total_seconds() == 7


async def test_throttle_creates_one_in_a_window_whatever_became_of_it(queue: Queue) -> None:
    key = throttle_key("k", window_s=60)
    first = await queue.enqueue(job(key))
    await queue.end(await queue.take(first.id))
    queue.later(50)
    held = await queue.enqueue(job(key))
    assert (held.id, held.created) == (first.id, False)
    queue.later(20)
    second = await queue.enqueue(job(key))
    assert second.created
    assert (await queue.row(second.id)).dedupe_scope is Scope.THROTTLE
    queue.later(50)
    assert (await queue.enqueue(job(key))).id == second.id
    other = await queue.enqueue(job(throttle_key("other", window_s=60)))
    assert other.created


async def test_throttled_jobs_of_one_batch(queue: Queue) -> None:
    key = throttle_key("k", window_s=60)
    added = await queue.enqueue_many([job(key), job(key), NewJob("work"), job(throttle_key("l", window_s=1))])
    assert [answer.created for answer in added] == [True, False, True, True]
    assert added[0].id == added[1].id


async def test_a_batch_with_every_mode(queue: Queue) -> None:
    jobs = [
        job(merge_key("m"), {"ids": [1]}),
        NewJob("work"),
        job(replace_key("r"), {"n": 1}),
        job(merge_key("m"), {"ids": [2]}),
        job(queued_key("q")),
        job(queued_key("q")),
        job(replace_key("r"), {"n": 2}),
    ]
    added = await queue.enqueue_many(jobs)
    assert [answer.created for answer in added] == [True, True, True, False, True, False, False]
    assert await payload_of(queue, added[0].id) == {"ids": [1, 2]}
    assert await payload_of(queue, added[2].id) == {"n": 2}
    assert added[6].id == added[2].id and added[3].id == added[0].id
    assert len(await queue.rows()) == 4


async def test_a_person_s_retry_of_a_throttled_job_needs_no_window(queue: Queue) -> None:
    first = await queue.enqueue(job(throttle_key("k", window_s=60)))
    await queue.end(await queue.take(first.id), Outcome.FAILED, error="no")
    assert (await queue.retry(first.id)).outcome == "queued"


@pytest.mark.parametrize(
    ("dedupe", "said"),
    [
        (Dedupe("k", Scope.THROTTLE), "needs a dedupe_window_s"),
        (Dedupe("k", Scope.OPEN, window_s=3), "only throttle and debounce know"),
        (Dedupe("k", Scope.QUEUED, Twin.REPLACE, window_s=3), "only throttle and debounce know"),
        (Dedupe("k", Scope.THROTTLE, window_s=0), "dedupe_window_s outside"),
        (Dedupe("k", Scope.QUEUED, Twin.DEBOUNCE, window_s=-1), "dedupe_window_s outside"),
        (Dedupe("", Scope.QUEUED, Twin.MERGE), "needs a dedupe_key"),
    ],
)
async def test_what_is_no_key_is_refused(queue: Queue, dedupe: Dedupe, said: str) -> None:
    with pytest.raises(EnqueueError, match=said):
        await queue.enqueue(job(dedupe))
    with pytest.raises(EnqueueError, match=said):
        await queue.enqueue_many([NewJob("work"), job(dedupe)])
    assert await queue.rows() == []
