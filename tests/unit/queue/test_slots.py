"""Slots beyond a number for each kind: those of the CPU, with a share for urgent jobs, and allowances that change."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.ids import JobId
from rota.lease import Lease
from rota.queue.dispatcher import CLAIM_MAX, Slots, begins_too_late, give_back_unbegun
from rota.queue.job import Ask, ClaimedJob, Release
from rota.queue.kind import Kind
from rota.queue.limits import Limits, Rate
from rota.queue.pause import Paused

START = datetime(2026, 1, 1, tzinfo=UTC)


def job(kind: str, priority: int = 0) -> ClaimedJob:
    return ClaimedJob(
        lease=Lease(JobId(UUID(int=1)), 1), kind=kind, tenant=None, payload="{}", priority=priority, tries=1,
        max_tries=3, run_after=START, created_at=START, dedupe_scope=None, progress=None, trace=None,
    )  # fmt: skip


def bound(name: str, *, cpus: int, urgent: int | None = None) -> Kind:
    return Kind(name, limit=cpus, cpu_bound=True, urgent_priority=urgent)


def said(asks: list[Ask]) -> dict[str, tuple[int, int | None]]:
    return {ask.kind: (ask.free, ask.lowest) for ask in asks}


@given(
    st.integers(1, 3000),
    st.integers(-2, 2) | st.integers(-3000, 3000),
    st.integers(0, 3000) | st.none(),
    st.sampled_from(["open", "closed", "paused"]),
    st.booleans(),
)
def test_a_kind_is_roomy_while_half_of_a_whole_claim_is_free(
    limit: int, beyond: int, allowance: int | None, how: str, by_cpu: bool
) -> None:
    kind = Kind("a", limit=limit, cpu_bound=by_cpu, urgent_priority=5 if by_cpu else None)
    running = min(max(0, limit - min(limit, CLAIM_MAX) // 2 + beyond), limit)
    slots = Slots({"a": kind}, cpus=1500, running={"a": running}, open=how != "closed")
    slots.paused = Paused(kinds=frozenset({"a"} if how == "paused" else ()))
    if allowance is not None:
        slots.allowances["a"] = lambda: allowance
    free = sum(ask.free for ask in slots.asks())
    # An ask is never for more than a whole claim, so half of that is seen in it.
    assert slots.roomy("a") == (2 * free >= min(limit, CLAIM_MAX))


def test_kinds_of_the_cpu_share_it() -> None:
    slots = Slots({name: bound(name, cpus=4) for name in "ab"} | {"mail": Kind("mail", limit=10)}, cpus=4)
    assert said(slots.asks()) == {"a": (2, None), "b": (2, None), "mail": (10, None)}
    slots.took([job("a"), job("a"), job("b")])
    assert sum(free for name, (free, _) in said(slots.asks()).items() if name != "mail") == 1
    slots.took([job("b")])
    assert said(slots.asks()) == {"mail": (10, None)}
    slots.left("a")
    assert sum(free for name, (free, _) in said(slots.asks()).items() if name != "mail") == 1


def test_who_gets_the_last_slot_of_the_cpu_changes() -> None:
    slots = Slots({name: bound(name, cpus=1) for name in "abc"}, cpus=1)
    assert {name for _ in range(3) for name in said(slots.asks())} == {"a", "b", "c"}


def test_a_kind_of_the_cpu_that_is_not_wanted_takes_no_share() -> None:
    slots = Slots({name: bound(name, cpus=4) for name in "ab"}, cpus=4)
    assert said(slots.asks({"b"})) == {"b": (4, None)}


def test_a_quarter_of_the_cpu_is_kept_for_urgent_jobs() -> None:
    slots = Slots({"a": bound("a", cpus=8, urgent=50), "b": bound("b", cpus=8)}, cpus=8)
    assert said(slots.asks({"a"})) == {"a": (6, None)}
    slots.took([job("b")] * 6)
    assert said(slots.asks()) == {"a": (2, 50)}
    slots.took([job("a", 50)])
    assert said(slots.asks()) == {"a": (1, 50)}
    slots.took([job("a", 50)])
    assert slots.asks() == []
    slots.left("b")
    # Seven run, of which six could be plain ones: the one that is free is kept.
    assert said(slots.asks()) == {"a": (1, 50)}


@pytest.mark.parametrize(("cpus", "kept"), [(1, 0), (2, 1), (3, 1), (4, 1), (8, 2), (64, 16)])
def test_how_much_is_kept(cpus: int, kept: int) -> None:
    slots = Slots({"a": bound("a", cpus=cpus, urgent=50)}, cpus=cpus)
    assert said(slots.asks()) == {"a": (cpus - kept, None)}


def test_urgent_jobs_are_not_asked_for_again_until_something_is_heard() -> None:
    slots = Slots({"a": bound("a", cpus=2, urgent=50)}, cpus=2)
    slots.took([job("a")])
    (ask,) = slots.asks()
    assert ask.lowest == 50
    slots.answered(ask, 0)
    assert slots.asks() == []
    assert not slots.roomy("a")
    slots.heard(["a"])
    assert slots.asks() == [ask]
    slots.answered(ask, 1)
    assert slots.asks() == [ask]


@given(
    cpus=st.integers(1, 9),
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from([0, 60])), max_size=60),
)
def test_never_more_than_the_cpu_has_and_never_plain_ones_in_what_is_kept(
    cpus: int, steps: list[tuple[str, bool, int]]
) -> None:
    kinds = {"a": bound("a", cpus=cpus, urgent=50), "b": bound("b", cpus=cpus), "c": bound("c", cpus=cpus, urgent=50)}
    slots = Slots(kinds, cpus=cpus)
    kept = max(1, cpus // 4) if cpus > 1 else 0
    running: list[ClaimedJob] = []
    for kind, claims, priority in steps:
        if claims:
            for ask in slots.asks():
                jobs = [job(ask.kind, priority)] * ask.free
                jobs = [one for one in jobs if ask.lowest is None or one.priority >= ask.lowest]
                slots.took(jobs)
                running += jobs
        elif ended := [one for one in running if one.kind == kind]:
            running.remove(ended[0])
            slots.left(kind)
        assert len(running) == slots.count <= cpus
        assert sum(one.priority < 50 for one in running) <= cpus - kept


def test_an_allowance_bounds_a_kind_and_may_change() -> None:
    slots = Slots({"cut": Kind("cut", limit=10), "mail": Kind("mail", limit=10)})
    allowed = 0
    slots.allowances["cut"] = lambda: allowed
    assert said(slots.asks()) == {"mail": (10, None)}
    assert slots.free_kinds() == ["mail"]
    allowed = 3
    slots.took([job("cut")])
    assert said(slots.asks({"cut"})) == {"cut": (2, None)}
    allowed = 50
    assert said(slots.asks({"cut"})) == {"cut": (9, None)}
    allowed = 1
    assert slots.asks({"cut"}) == []


def test_asks_say_the_limits_beyond_one_server() -> None:
    limits = Limits(fleet=3, fair=True)
    (ask,) = Slots({"a": Kind("a", limits=limits)}).asks()
    assert ask.limits == limits


# Jobs that begin late


def test_a_job_does_not_begin_with_little_of_its_lease_left() -> None:
    assert not begins_too_late(left_s=300.0, lease_s=300.0)
    assert not begins_too_late(left_s=150.0, lease_s=300.0)
    assert begins_too_late(left_s=149.9, lease_s=300.0)
    assert begins_too_late(left_s=-5.0, lease_s=300.0)


def test_what_goes_back_unbegun_has_not_started() -> None:
    lease = job("a").lease
    assert give_back_unbegun(job("a"), kind=Kind("a")) == Release(lease)
    limited = Kind("a", limits=Limits(rate=Rate(5, per_s=60.0)))
    assert give_back_unbegun(job("a"), kind=limited) == Release(lease, unstart_s=60.0)
