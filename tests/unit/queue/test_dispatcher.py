"""What a worker decides: which kinds it asks for, and the exact write at the end of a job."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import ExecRefused, NoSlot, PayloadError
from rota.ids import JobId
from rota.lease import Lease, Loss
from rota.queue.dispatcher import (
    CLAIM_MAX,
    NOT_COMMITTED,
    STALLED,
    UNWRITTEN,
    WAIT_S_MAX,
    Slots,
    Stop,
    completed,
    could_not_stop,
    describe_error,
    failed_try,
    give_back,
    not_committed,
    of_pass,
    raised,
    settle,
    stopped,
    unfit,
    with_follow_ups,
    yielding,
)
from rota.queue.history import TryEnd
from rota.queue.job import Ask, ClaimedJob, Finish, NewJob, Outcome, Release, Scope
from rota.queue.kind import Kind
from rota.queue.outcomes import Again, Cancelled, Fail, GiveBack, Retry, Snooze, Yield
from rota.queue.pause import Paused
from rota.queue.payload import TEXT_BYTES_MAX
from rota.queue.retry import Exponential, Fixed

START = datetime(2026, 1, 1, tzinfo=UTC)
KIND = Kind("work", retry=Fixed(30.0))
LEASE = Lease(JobId(UUID(int=1)), 4)
NAN, INF = float("nan"), float("inf")


def claimed(
    *, tries: int = 1, max_tries: int = 3, scope: Scope | None = None, kind: str = "work", number: int = 1,
    priority: int = 0,
) -> ClaimedJob:  # fmt: skip
    return ClaimedJob(
        lease=LEASE if number == 1 else Lease(JobId(UUID(int=number)), 4), kind=kind, tenant=None, payload="{}",
        priority=priority, tries=tries, max_tries=max_tries,
        run_after=START, created_at=START, dedupe_scope=scope, progress=None, trace=None,
    )  # fmt: skip


def settled(returned: Any, *, kind: Kind = KIND, **job: Any) -> Finish | Release:
    return settle(claimed(**job), kind=kind, returned=returned, random=Random(1))


# Slots


def kinds(**limits: int) -> dict[str, Kind]:
    return {name: Kind(name, limit=limit, max_tries=2, lease_s=60.0) for name, limit in limits.items()}


def free(slots: Slots) -> dict[str, int]:
    return {ask.kind: ask.free for ask in slots.asks()}


def test_a_worker_asks_for_its_free_slots() -> None:
    slots = Slots(kinds(a=2, b=5, off=0))
    assert slots.asks() == [Ask("a", 2, 60.0, 2), Ask("b", 5, 60.0, 2)]
    assert slots.free_kinds() == ["a", "b"]
    slots.took([claimed(kind="a"), claimed(kind="a"), claimed(kind="b")])
    assert (free(slots), slots.free_kinds(), slots.count) == ({"b": 4}, ["b"], 3)
    slots.left("a")
    assert (free(slots), slots.count) == ({"a": 1, "b": 4}, 2)


def test_paused_kinds_are_not_asked_for() -> None:
    slots = Slots(kinds(a=2, b=5), paused=Paused(kinds=frozenset({"a", "z"})))
    assert (free(slots), slots.free_kinds(), slots.paused_kinds()) == ({"b": 5}, ["b"], ["a"])
    assert not slots.roomy("a") and slots.roomy("b")
    slots.paused = Paused(all=True)
    assert (slots.asks(), slots.paused_kinds()) == ([], ["a", "b"])
    slots.paused = Paused(tenants=frozenset({"a"}))
    assert free(slots) == {"a": 2, "b": 5}


def test_nothing_is_asked_for_while_pauses_are_not_known() -> None:
    slots = Slots(kinds(a=2), paused=None)
    assert (slots.asks(), slots.free_kinds(), slots.paused_kinds()) == ([], [], [])


def test_a_closed_worker_asks_for_nothing() -> None:
    slots = Slots(kinds(a=2))
    slots.open = False
    assert (slots.asks(), slots.free_kinds()) == ([], [])


def test_a_slot_is_freed_once() -> None:
    slots = Slots(kinds(a=2))
    slots.took([claimed(kind="a")])
    slots.left("a")
    with pytest.raises(AssertionError, match="a slot of a is freed that was not taken"):
        slots.left("a")


def test_a_kind_with_a_thousand_slots_keeps_no_other_out() -> None:
    asked = free(Slots(kinds(huge=100_000, big=5000, small=10, one=1)))
    assert (asked["one"], asked["small"]) == (1, 10)
    assert asked["huge"] >= 400
    assert asked["big"] >= 400
    assert sum(asked.values()) <= CLAIM_MAX


@given(st.lists(st.integers(0, 3000), max_size=40))
def test_every_kind_with_room_gets_some_and_none_too_much(limits: list[int]) -> None:
    slots = Slots(kinds(**{f"k{number}": limit for number, limit in enumerate(limits)}))
    asked = free(slots)
    assert set(asked) == set(slots.free_kinds()) == {f"k{number}" for number, limit in enumerate(limits) if limit}
    assert all(0 < count <= slots.kinds[name].limit for name, count in asked.items())
    assert sum(asked.values()) == min(CLAIM_MAX, sum(limits))
    shares = sorted(asked.values())
    cut = [count for name, count in asked.items() if count < slots.kinds[name].limit]
    assert all(count >= shares[-1] - 1 for count in cut), "one that wants more has less than another"


def test_more_kinds_than_one_claim_takes() -> None:
    assert set(free(Slots(kinds(**{f"k{number}": 5 for number in range(1500)}))).values()) == {1}


# The end of a job whose handler returned


@dataclass
class Report:
    rows: int


@pytest.mark.parametrize(
    ("returned", "write"),
    [
        (None, Finish(LEASE, Outcome.DONE)),
        ({"rows": 3}, Finish(LEASE, Outcome.DONE, result='{"rows":3}')),
        (Report(3), Finish(LEASE, Outcome.DONE, result='{"rows":3}')),
        (0, Finish(LEASE, Outcome.DONE, result="0")),
        ("", Finish(LEASE, Outcome.DONE, result='""')),
        (Fail("no licence"), Finish(LEASE, Outcome.FAILED, error="no licence")),
        (Cancelled("not wanted"), Finish(LEASE, Outcome.CANCELLED, error="not wanted")),
        (Cancelled(), Finish(LEASE, Outcome.CANCELLED)),
        (Retry(), Finish(LEASE, Outcome.RETRY, error="The handler asked for a retry", wait_s=30.0)),
        (Retry(5.0, "busy"), Finish(LEASE, Outcome.RETRY, error="busy", wait_s=5.0)),
        (Retry(0), Finish(LEASE, Outcome.RETRY, error="The handler asked for a retry", wait_s=0.0)),
        (Snooze(60.0), Release(LEASE, wait_s=60.0, how=TryEnd.SNOOZED)),
        (Snooze(60.0, "later"), Release(LEASE, wait_s=60.0, reason="later", how=TryEnd.SNOOZED)),
        (Yield(), Release(LEASE, how=TryEnd.YIELDED)),
        (GiveBack(), Release(LEASE, wait_s=1.0)),
        (GiveBack("no GPU", 9.0), Release(LEASE, wait_s=9.0, reason="no GPU")),
    ],
)
def test_what_a_handler_returns(returned: Any, write: Finish | Release) -> None:
    assert settled(returned) == write


@pytest.mark.parametrize(
    ("after_s", "wait_s"), [(-1.0, 0.0), (NAN, 0.0), (INF, WAIT_S_MAX), (1e300, WAIT_S_MAX), (-INF, 0.0)]
)
@pytest.mark.parametrize("outcome", [Retry, Snooze, lambda after_s: GiveBack(after_s=after_s)])
def test_no_wait_is_too_long_for_the_database(outcome: Callable[[float], Any], after_s: float, wait_s: float) -> None:
    write = settled(outcome(after_s))
    assert write.wait_s == wait_s
    assert settled(None, kind=Kind("work", retry=Fixed(after_s))) == Finish(LEASE, Outcome.DONE)
    assert failed_try(claimed(), kind=Kind("work", retry=Fixed(after_s)), error="", random=Random(1)).wait_s == wait_s


@pytest.mark.parametrize("returned", [Retry(), Snooze(1.0), Yield(), GiveBack()])
def test_a_queued_key_may_meet_a_twin_on_the_way_back(returned: Any) -> None:
    assert settled(returned, scope=Scope.QUEUED).keyed
    assert not settled(returned, scope=Scope.OPEN).keyed
    assert not settled(returned).keyed


@pytest.mark.parametrize("returned", [None, 1, Fail("x"), Cancelled()])
def test_an_end_needs_no_look_at_twins(returned: Any) -> None:
    assert not settled(returned, scope=Scope.QUEUED).keyed


def test_the_last_try_fails() -> None:
    assert settled(Retry(5.0, "busy"), tries=3) == Finish(LEASE, Outcome.FAILED, error="busy")
    assert settled(Retry(), tries=1, max_tries=1).outcome is Outcome.FAILED  # type: ignore[union-attr]
    assert settled(Snooze(5.0), tries=3) == Release(LEASE, wait_s=5.0, how=TryEnd.SNOOZED)


def test_the_wait_follows_the_try() -> None:
    kind = Kind("work", max_tries=12, retry=Exponential(jitter=0.0))
    waits = [settled(Retry(), kind=kind, tries=tries, max_tries=12) for tries in (1, 2, 5)]
    assert [write.wait_s for write in waits] == [30.0, 60.0, 480.0]


@pytest.mark.parametrize("returned", [math.nan, {"a": ["\0"]}, object(), {(1, 2): 3}])
def test_a_result_that_cannot_be_stored_fails_the_job(returned: Any) -> None:
    write = settled(returned)
    assert isinstance(write, Finish)
    assert (write.outcome, write.result) == (Outcome.FAILED, None)
    assert (write.error or "").startswith("The result cannot be stored: $")


@pytest.mark.parametrize(
    "returned", [Fail("a\0\ud800" + "😀" * 5000), Retry(1.0, "a\0\ud800" + "😀" * 5000)], ids=["fail", "retry"]
)
def test_reasons_are_made_storable(returned: Any) -> None:
    error = settled(returned).error  # type: ignore[union-attr]
    assert error is not None
    assert error.startswith("a�?😀")
    assert len(error.encode()) <= 8192


# Other ends


def test_a_failed_try() -> None:
    random = Random(1)
    assert failed_try(claimed(tries=2), kind=KIND, error="why", random=random) == Finish(
        LEASE, Outcome.RETRY, error="why", wait_s=30.0
    )
    assert failed_try(claimed(tries=3), kind=KIND, error="why", random=random) == Finish(
        LEASE, Outcome.FAILED, error="why"
    )
    assert failed_try(claimed(scope=Scope.QUEUED), kind=KIND, error="", random=random).keyed


def test_a_payload_that_does_not_fit_is_not_tried_again() -> None:
    assert unfit(claimed(), PayloadError("It does not fit.", path="$.a")) == Finish(
        LEASE, Outcome.FAILED, error="It does not fit."
    )


def again(error: str, how: TryEnd | None = TryEnd.STOPPED) -> Finish:
    return Finish(LEASE, Outcome.RETRY, error=error, wait_s=30.0, how=how)


@pytest.mark.parametrize(
    ("why", "write"),
    [
        (Stop(loss=Loss.TAKEN), None),
        (Stop(loss=Loss.TAKEN, cancel_asked=True, given_back=True, over=True, started=False), None),
        (Stop(loss=Loss.STALLED), again(STALLED.format(lease_s=300))),
        (Stop(loss=Loss.UNWRITTEN), again(UNWRITTEN)),
        (Stop(over=True), again(UNWRITTEN)),
        (Stop(cancel_asked=True), Finish(LEASE, Outcome.CANCELLED, how=TryEnd.STOPPED)),
        (Stop(cancel_asked=True, killed=True), Finish(LEASE, Outcome.CANCELLED, how=TryEnd.KILLED)),
        (Stop(loss=Loss.STALLED, killed=True), again(STALLED.format(lease_s=300), TryEnd.KILLED)),
        (Stop(over=True, killed=True), again(UNWRITTEN, TryEnd.KILLED)),
        (
            Stop(cancel_asked=True, loss=Loss.STALLED, given_back=True),
            Finish(LEASE, Outcome.CANCELLED, how=TryEnd.STOPPED),
        ),
        (Stop(given_back=True), Release(LEASE)),
        (Stop(given_back=True, loss=Loss.STALLED), again(STALLED.format(lease_s=300))),
        (Stop(given_back=True, started=False), Release(LEASE)),
        (Stop(given_back=True, started=False, loss=Loss.STALLED), Release(LEASE)),
        (Stop(), again("The handler was cancelled by its own code", None)),
    ],
)
def test_a_job_that_was_stopped(why: Stop, write: Finish | Release | None) -> None:
    assert stopped(claimed(), kind=KIND, why=why, random=Random(1)) == write


def test_the_words_that_operators_look_for() -> None:
    """Seed 003 searches last_error for 'made no progress'."""
    assert STALLED.format(lease_s=300.0) == (
        "The job made no progress for the lease time (300 s); its worker stopped it"
    )


def test_a_job_that_could_not_be_stopped() -> None:
    write = could_not_stop(claimed(tries=3), kind=KIND, random=Random(1))
    assert write.outcome is Outcome.FAILED
    assert (write.error or "").endswith("its worker stopped it by ending the process")
    assert write.how is TryEnd.FENCED
    again = could_not_stop(claimed(), kind=KIND, random=Random(1))
    assert (again.outcome, again.how, again.wait_s) == (Outcome.RETRY, TryEnd.FENCED, 30.0)


def test_what_a_process_could_not_stop_does_not_start_again_before_it_is_gone() -> None:
    at_once = Kind("work", retry=Fixed(0.0))
    write = could_not_stop(claimed(), kind=at_once, random=Random(1), gone_in_s=2.0)
    assert (write.outcome, write.wait_s) == (Outcome.RETRY, 2.0)


def test_a_job_that_is_given_back() -> None:
    assert give_back(claimed()) == Release(LEASE)
    assert give_back(claimed(scope=Scope.QUEUED), wait_s=2.0) == Release(LEASE, wait_s=2.0, keyed=True)


# Words for an error


def _raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_an_error_in_one_line() -> None:
    here = "test_dispatcher.py:"
    assert describe_error(_raised(ValueError("no frame"))).startswith(f"ValueError: no frame ({here}")
    assert describe_error(_raised(KeyError("a"))).startswith(f"KeyError: 'a' ({here}")
    assert describe_error(_raised(RuntimeError())).startswith(f"RuntimeError ({here}")
    assert describe_error(_raised(ValueError(" two\n  lines\t"))).startswith(f"ValueError: two lines ({here}")


class _Leaves(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class _Hidden(Exception):
    @property
    def __traceback__(self) -> None:
        raise KeyboardInterrupt


def test_whatever_an_error_does_it_is_described() -> None:
    assert describe_error(_Leaves()) == "_Leaves: its message cannot be read, because that raises SystemExit"
    assert describe_error(_Hidden("h")) == "_Hidden: h"


def test_a_long_message_is_cut() -> None:
    said = describe_error(ValueError("frame\n" * 2_000_000))
    assert said.startswith("ValueError: frame frame") and len(said.encode()) <= TEXT_BYTES_MAX


def test_an_error_that_was_never_raised_has_no_place() -> None:
    assert describe_error(TimeoutError("slow")) == "TimeoutError: slow"


def test_a_handler_that_lets_no_slot_through_sends_its_job_back_without_a_try() -> None:
    write = raised(claimed(), kind=KIND, error=NoSlot("No slot came.", after_s=60.0), random=Random(1))
    assert write == Release(LEASE, wait_s=60.0, reason="No slot came.", keyed=False)


def test_a_command_that_never_fits_fails_its_job_at_once() -> None:
    write = raised(claimed(), kind=KIND, error=ExecRefused("no such argument"), random=Random(1))
    assert isinstance(write, Finish)
    assert (write.outcome, write.error) == (Outcome.FAILED, "ExecRefused: no such argument")


def test_any_other_error_is_a_failed_try() -> None:
    error = ValueError("odd")
    assert raised(claimed(), kind=KIND, error=error, random=Random(1)) == failed_try(
        claimed(), kind=KIND, error="ValueError: odd", random=Random(1)
    )


# --- flow ---


def test_a_run_that_wants_to_run_again() -> None:
    job = claimed()
    write = settle(job, kind=KIND, returned=Again(after_s=5), random=Random(1))
    assert write == Finish(job.lease, Outcome.AGAIN, wait_s=5.0)


def test_follow_ups_go_with_a_success_only() -> None:
    lease = claimed().lease
    more = (NewJob("next"),)
    for outcome in Outcome:
        write = with_follow_ups(Finish(lease, outcome), more)
        assert isinstance(write, Finish)
        assert write.follow_ups == (more if outcome in (Outcome.DONE, Outcome.AGAIN) else ())
    assert with_follow_ups(Release(lease), more) == Release(lease)


def test_an_own_transaction_that_was_not_committed_is_a_failed_try() -> None:
    job, random = claimed(tries=3, max_tries=3), Random(1)
    for write in (None, Finish(job.lease, Outcome.DONE), Finish(job.lease, Outcome.AGAIN)):
        told = not_committed(job, kind=KIND, write=write, random=random)
        assert told == Finish(job.lease, Outcome.FAILED, error=NOT_COMMITTED)
    kept = Finish(job.lease, Outcome.CANCELLED)
    assert not_committed(job, kind=KIND, write=kept, random=random) is kept


def test_who_makes_room() -> None:
    jobs = [claimed(number=number, priority=priority) for number, priority in enumerate((1, 0, 0, 7), 1)]
    one, old, new, _ = (job.id for job in jobs)
    assert yielding([], jobs) == set()
    assert yielding([0], jobs) == set()
    assert yielding([1], jobs) == {new}, "of two alike the one begun last"
    assert yielding([9, 1], jobs) == {new, old}
    assert yielding([9, 9, 9, 9, 9], jobs) == {new, old, one, jobs[3].id}
    assert yielding([2, 2, 2, 2], jobs) == {new, old, one}


def test_each_end_of_a_run_of_a_pass_is_followed_by_the_next() -> None:
    runs = Kind("nightly", runs_pass=True)
    for outcome in (Outcome.DONE, Outcome.FAILED, Outcome.CANCELLED):
        end = Finish(LEASE, outcome)
        assert of_pass(end, runs) == Finish(LEASE, outcome, keyed=True, follows="nightly")
        assert of_pass(end, KIND) == end
    for goes_on in (Finish(LEASE, Outcome.RETRY), Finish(LEASE, Outcome.AGAIN), Release(LEASE)):
        assert of_pass(goes_on, runs) == goes_on


def test_an_end_has_all_that_its_run_and_its_kind_add() -> None:
    end, more = Finish(LEASE, Outcome.DONE), (NewJob("next"),)
    assert completed(end, kind=KIND, progress=None, follow_ups=()) is end
    assert completed(end, kind=KIND, progress=0.5, follow_ups=()) == Finish(LEASE, Outcome.DONE, progress="0.5")
    assert completed(end, kind=KIND, progress=None, follow_ups=[*more]) == Finish(LEASE, Outcome.DONE, follow_ups=more)
    assert completed(end, kind=Kind("pay", ends_alone=True), progress=None, follow_ups=()).alone
    whole = completed(end, kind=Kind("nightly", runs_pass=True, ends_alone=True), progress=1, follow_ups=[*more])
    assert whole == Finish(
        LEASE, Outcome.DONE, progress="1", follow_ups=more, keyed=True, follows="nightly", alone=True
    )
