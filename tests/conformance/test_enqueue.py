"""Adding jobs: what is stored, what a key keeps out (I6), what is refused."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122

import pytest

from rota.errors import EnqueueError
from rota.queue.job import Dedupe, NewJob, Outcome, State, forever_key, open_key, queued_key
from tests.conformance.queues import FIRST_ID, LAST_ID, Queue, ask

ALL_SCOPES = [open_key("a"), queued_key("a"), forever_key("a")]


async def test_a_job_has_its_defaults(queue: Queue) -> None:
    added = await queue.enqueue(NewJob("work"))
    row = await queue.row(added.id)
    assert added.created
    assert (row.kind, row.payload, row.state, row.place) == ("work", "{}", State.QUEUED, "worker")
    assert (row.priority, row.tries, row.max_tries, row.lease_epoch) == (0, 0, None, 0)
    assert row.created_at == row.run_after == queue.now
    empty = (row.tenant, row.dedupe_key, row.dedupe_scope, row.trace, row.leased_by, row.last_error, row.progress)
    assert empty == (None,) * 7
    times = (row.started_at, row.finished_at, row.heartbeat_at, row.lease_until, row.cancel_asked_at)
    assert times == (None,) * 5


async def test_a_job_keeps_all_that_it_was_given(queue: Queue) -> None:
    job = NewJob(
        "work", '{"text": "\\\\u0000 😀 漢字", "n": [1, 2.5, null]}', priority=-3, tenant="org", max_tries=7,
        dedupe=open_key("key"), run_after=queue.at(3600), trace="00-aa-bb-01",
    )  # fmt: skip
    row = await queue.row((await queue.enqueue(job)).id)
    assert json.loads(row.payload or "") == {"text": "\\u0000 😀 漢字", "n": [1, 2.5, None]}
    assert (row.priority, row.tenant, row.max_tries, row.trace) == (-3, "org", 7, "00-aa-bb-01")
    assert (row.dedupe_key, row.dedupe_scope, row.run_after) == ("key", "open", job.run_after)


async def test_a_delay_counts_from_now_and_a_time_goes_before_it(queue: Queue) -> None:
    delayed = await queue.add(delay_s=90.5)
    assert (await queue.row(delayed)).run_after == queue.at(90.5)
    an_hour_ago = queue.at(-3600)
    timed = await queue.add(delay_s=90.5, run_after=an_hour_ago)
    assert (await queue.row(timed)).run_after == an_hour_ago


async def test_many_are_answered_in_their_order_with_rising_ids(queue: Queue) -> None:
    jobs = [NewJob("work", priority=number % 3, tenant=None if number % 2 else "org") for number in range(50)]
    added = await queue.enqueue_many(jobs)
    assert all(one.created for one in added)
    assert [one.id for one in added] == sorted(one.id for one in added)
    rows = [await queue.row(one.id) for one in added]
    assert [(row.priority, row.tenant) for row in rows] == [(job.priority, job.tenant) for job in jobs]


async def test_an_id_tells_the_microsecond_in_which_its_job_came(queue: Queue) -> None:
    """RFC 9562, version 7 with the microseconds in the 12 bits behind the version."""
    queue.later(0.000_777)
    job_id = await queue.add()
    assert (job_id.version, job_id.variant) == (7, RFC_4122)
    us = ((await queue.row(job_id)).created_at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert (job_id.int >> 80, job_id.int >> 64 & 0xFFF) == (us // 1000, us % 1000 * 4096 // 1000)


async def test_none_is_fine(queue: Queue) -> None:
    assert await queue.enqueue_many([]) == []
    assert await queue.rows() == []


@pytest.mark.parametrize("key", ALL_SCOPES, ids=lambda key: key.scope)
async def test_a_held_key_answers_with_its_job_and_changes_nothing(queue: Queue, key: Dedupe) -> None:
    first = await queue.add(payload='{"n": 1}', dedupe=key)
    again = await queue.enqueue(NewJob("other", '{"n": 2}', priority=9, dedupe=key))
    assert (again.id, again.created) == (first, False)
    (row,) = await queue.rows()
    assert (row.kind, row.payload, row.priority) == ("work", '{"n": 1}', 0)


async def test_an_open_key_is_held_until_the_job_has_ended(queue: Queue) -> None:
    first = await queue.add(dedupe=open_key("a"))
    lease = await queue.take(first)
    assert not (await queue.enqueue(NewJob("work", dedupe=open_key("a")))).created
    assert await queue.end(lease, Outcome.RETRY, error="no") is State.QUEUED
    assert not (await queue.enqueue(NewJob("work", dedupe=open_key("a")))).created
    await queue.end(await queue.take(first))
    assert (await queue.enqueue(NewJob("work", dedupe=open_key("a")))).created


async def test_a_queued_key_is_free_while_its_job_runs(queue: Queue) -> None:
    first = await queue.add(dedupe=queued_key("a"))
    await queue.take(first)
    answers = [await queue.enqueue(NewJob("work", dedupe=queued_key("a"))) for _ in range(20)]
    assert [answer.created for answer in answers] == [True] + [False] * 19
    assert {answer.id for answer in answers} == {answers[0].id}
    assert len(await queue.rows()) == 2


async def test_a_forever_key_outlives_its_job_and_its_retention(queue: Queue) -> None:
    first = await queue.add(dedupe=forever_key("a"))
    await queue.end(await queue.take(first))
    queue.later(3600)
    assert await queue.prune(keep_s=60) == 1
    again = await queue.enqueue(NewJob("work", dedupe=forever_key("a")))
    assert (again.id, again.created) == (first, False)
    assert await queue.rows() == []


async def test_one_text_is_another_key_in_each_scope(queue: Queue) -> None:
    assert len({await queue.add(dedupe=key) for key in ALL_SCOPES}) == 3


@pytest.mark.parametrize("key", ALL_SCOPES, ids=lambda key: key.scope)
async def test_a_key_twice_in_one_batch_makes_one_job(queue: Queue, key: Dedupe) -> None:
    other = replace(key, key="b")
    held = await queue.add(dedupe=other)
    keys = [key, None, other, key, None, key]
    added = await queue.enqueue_many([NewJob("work", dedupe=given) for given in keys])
    assert [one.created for one in added] == [True, True, False, False, True, False]
    assert added[0].id == added[3].id == added[5].id
    assert added[2].id == held
    assert len(await queue.rows()) == 4


REFUSED = [
    (NewJob(""), "has no usable kind: give a name of 1 to 200 characters"),
    (NewJob("k" * 201), "has no usable kind: give a name of 1 to 200 characters"),
    (NewJob("work", max_tries=0), "has a max_tries outside 1 to 1000"),
    (NewJob("work", max_tries=1001), "has a max_tries outside 1 to 1000"),
    (NewJob("work", delay_s=-0.1), "has a delay_s outside 0 to 3155760000 (a hundred years)"),
    (NewJob("work", delay_s=float("nan")), "has a delay_s outside 0 to 3155760000 (a hundred years)"),
    (NewJob("work", delay_s=float("inf")), "has a delay_s outside 0 to 3155760000 (a hundred years)"),
    (NewJob("work", dedupe=open_key("")), "needs a dedupe_key of 1 to 500 characters together with a dedupe_scope"),
    (
        NewJob("work", dedupe=forever_key("é" * 501)),
        "needs a dedupe_key of 1 to 500 characters together with a dedupe_scope",
    ),
]


@pytest.mark.parametrize(("job", "reason"), REFUSED)
async def test_a_bad_job_is_refused_with_the_reason(queue: Queue, job: NewJob, reason: str) -> None:
    with pytest.raises(EnqueueError) as caught:
        await queue.enqueue(job)
    assert str(caught.value) == f"rota: job 1 of this enqueue {reason}"
    assert await queue.rows() == []


@pytest.mark.parametrize(("job", "reason"), REFUSED)
async def test_a_bad_job_keeps_its_whole_batch_out(queue: Queue, job: NewJob, reason: str) -> None:
    good = [NewJob("work"), NewJob("work", dedupe=open_key("o")), NewJob("work", dedupe=forever_key("f"))]
    with pytest.raises(EnqueueError) as caught:
        await queue.enqueue_many([*good, job, NewJob("", max_tries=0)])
    assert str(caught.value) == f"rota: job 4 of this enqueue {reason}"
    assert await queue.rows() == []
    assert all(one.created for one in await queue.enqueue_many(good))


@pytest.mark.parametrize(
    "job",
    [
        NewJob("k" * 200),
        NewJob("漢" * 200),
        NewJob("work", max_tries=1000),
        NewJob("work", delay_s=3_155_760_000.0),
        NewJob("work", dedupe=open_key("漢" * 500)),
        NewJob("work", "null"),
        NewJob("work", '"text"'),
    ],
)
async def test_the_limits_themselves_are_fine(queue: Queue, job: NewJob) -> None:
    assert (await queue.enqueue(job)).created
    assert len(await queue.show(FIRST_ID, LAST_ID)) == 1


async def test_a_job_of_an_unknown_kind_stays_queued(queue: Queue) -> None:
    strange = await queue.add("nobody's")
    await queue.add()
    assert len(await queue.claim(ask("work"), ask("other"))) == 1
    assert await queue.states([strange]) == [State.QUEUED]
