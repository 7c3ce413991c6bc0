"""The reference queue itself; what it does as a queue is in `tests/conformance`, and here is that it would notice."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from rota.ids import Holder, JobId
from rota.queue.job import Ask, Finish, NewJob, Outcome, State, forever_key, open_key, queued_key
from rota.queue.reference import Reference
from rota.queue.retention import Rule

HOLDER = Holder("here:1:aa")
START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


def reference(*, seed: int = 1) -> tuple[Reference, Clock]:
    clock = Clock()
    return Reference(clock=clock, random=Random(seed)), clock


def with_one_of_each() -> tuple[Reference, dict[State, JobId]]:
    """A queue with a queued, a leased, a failed and a done job."""
    queue, _ = reference()
    ids = [queue.enqueue(NewJob(kind)).id for kind in ("queued", "leased", "failed", "done")]
    for number, outcome in ((1, None), (2, Outcome.FAILED), (3, Outcome.DONE)):
        kind = ("queued", "leased", "failed", "done")[number]
        (job,) = queue.claim([Ask(kind, 1, 60.0, 3)], holder=HOLDER)
        if outcome is not None:
            queue.finish([Finish(job.lease, outcome)])
    queue.check_invariants()
    return queue, dict(zip((State.QUEUED, State.LEASED, State.FAILED, State.DONE), ids, strict=True))


def test_one_seed_gives_the_same_ids() -> None:
    made = []
    for seed in (1, 1, 2):
        queue, clock = reference(seed=seed)
        first = queue.enqueue(NewJob("work")).id
        clock.now += timedelta(seconds=1)
        made.append([first, *(one.id for one in queue.enqueue_many([NewJob("work")] * 3))])
    assert made[0] == made[1] != made[2]
    assert len(set(made[0])) == 4


def test_ids_rise_even_while_the_clock_stands_or_steps_back() -> None:
    queue, clock = reference()
    ids = [one.id for one in queue.enqueue_many([NewJob("work")] * 50)]
    ids.append(queue.enqueue(NewJob("work")).id)
    clock.now -= timedelta(days=1)
    ids.append(queue.enqueue(NewJob("work")).id)
    assert all(earlier < later for earlier, later in pairwise(ids))


def test_the_clock_is_asked_where_no_time_is_given() -> None:
    queue, clock = reference()
    queue.enqueue(NewJob("work", delay_s=10.0))
    assert queue.claim([Ask("work", 1, 60.0, 3)], holder=HOLDER) == []
    assert len(queue.claim([Ask("work", 1, 60.0, 3)], holder=HOLDER, now=START + timedelta(seconds=10))) == 1
    clock.now += timedelta(seconds=71)
    assert len(queue.sweep()) == 1


@pytest.mark.parametrize(
    ("state", "changes", "said"),
    [
        (State.QUEUED, {"lease_until": START}, "lease_until and queued"),
        (State.QUEUED, {"cancel_asked_at": START}, "queued and asked to stop"),
        (State.QUEUED, {"finished_at": START}, "finished_at and queued"),
        (State.QUEUED, {"result": "1"}, "queued with a result"),
        (State.QUEUED, {"tries": 1}, "1 tries, epoch 0"),
        (State.QUEUED, {"tries": -1}, "-1 tries"),
        (State.LEASED, {"lease_until": None}, "lease_until and leased"),
        (State.LEASED, {"leased_by": None}, "leased to nobody"),
        (State.LEASED, {"lease_epoch": 0}, "1 tries, epoch 0"),
        (State.FAILED, {"finished_at": None}, "finished_at and failed"),
        (State.FAILED, {"result": "1"}, "failed with a result"),
        (State.FAILED, {"state": State.QUEUED}, "in the wrong table"),
        (State.DONE, {"cancel_asked_at": START}, "done and asked to stop"),
        (State.DONE, {"lease_until": START}, "lease_until and done"),
    ],
)
def test_a_row_that_cannot_be_is_noticed(state: State, changes: dict[str, Any], said: str) -> None:
    queue, ids = with_one_of_each()
    table = queue._open if ids[state] in queue._open else queue._ended
    table[ids[state]] = replace(table[ids[state]], **changes)
    with pytest.raises(AssertionError, match=said):
        queue.check_invariants()


@pytest.mark.parametrize("key", [open_key("a"), queued_key("a")], ids=lambda key: key.scope)
def test_a_key_that_is_held_twice_is_noticed(key: Any) -> None:
    queue, _ = reference()
    first = queue.enqueue(NewJob("work", dedupe=key)).id
    other = queue.enqueue(NewJob("work")).id
    queue._open[other] = replace(queue._open[first], id=other)
    with pytest.raises(AssertionError, match="I6: a key is held twice"):
        queue.check_invariants()


def test_a_forever_key_of_another_job_is_noticed() -> None:
    queue, _ = reference()
    queue.enqueue(NewJob("work", dedupe=forever_key("a")))
    queue._forever["a"] = queue.enqueue(NewJob("work")).id
    with pytest.raises(AssertionError, match=r"I6: .* has another job's forever key"):
        queue.check_invariants()


def test_a_job_in_two_places_is_noticed() -> None:
    queue, ids = with_one_of_each()
    queue._open[ids[State.DONE]] = queue._ended[ids[State.DONE]]
    with pytest.raises(AssertionError, match="open and ended"):
        queue.check_invariants()


@pytest.mark.parametrize(
    ("state", "changes", "said"),
    [
        (State.QUEUED, {"state": State.DONE}, "goes from queued to done"),
        (State.DONE, {"state": State.QUEUED}, "goes from done to queued"),
        (State.FAILED, {"state": State.DONE}, "goes from failed to done"),
        (State.DONE, {"last_error": "late"}, "has ended and is changed"),
        (State.FAILED, {"priority": 3}, "has ended and is changed"),
        (State.LEASED, {"lease_epoch": 0}, "the epoch of .* goes from 1 to 0"),
        (State.LEASED, {"lease_epoch": 2}, "the epoch of .* goes from 1 to 2"),
        (State.QUEUED, {"state": State.LEASED}, "the epoch of .* goes from 0 to 0"),
    ],
)
def test_a_step_that_cannot_be_is_refused(state: State, changes: dict[str, Any], said: str) -> None:
    queue, ids = with_one_of_each()
    (row,) = queue.show(ids[state])
    with pytest.raises(AssertionError, match=said):
        queue._write(row, **changes)


def test_notices_wait_for_who_reads_them() -> None:
    queue, _ = reference()
    queue.wait(HOLDER, kinds=["work"], seconds=60)
    queue.enqueue(NewJob("work"))
    queue.enqueue_many([NewJob("work"), NewJob("other")])
    assert queue.notices == ["work", "other", "work"]
    queue.notices.clear()
    (job, _) = queue.claim([Ask("work", 9, 60.0, 3)], holder=HOLDER)
    queue.cancel([job.id])
    assert queue.notices == [f"!{HOLDER}"]


def test_who_died_asleep_is_forgotten_by_the_next_that_wakes() -> None:
    queue, clock = reference()
    queue.wait(Holder("dead:1:aa"), kinds=["work"], seconds=60)
    clock.now += timedelta(seconds=119)
    queue.awake(HOLDER)
    assert len(queue._waiting) == 1
    clock.now += timedelta(seconds=2)
    queue.awake(HOLDER)
    assert queue._waiting == {}


Act = Callable[[Reference], Any]


@pytest.mark.parametrize(
    "act",
    [
        lambda queue: queue.poll(["queued"], holder=HOLDER),
        lambda queue: queue.show(JobId(min(queue._open))),
        lambda queue: queue.prune(Rule(None, True, 1000)),
    ],
)
def test_looking_changes_nothing(act: Act) -> None:
    queue, _ = with_one_of_each()
    before = (dict(queue._open), dict(queue._ended))
    act(queue)
    assert (queue._open, queue._ended) == before
