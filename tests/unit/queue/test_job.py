"""The state table: what may follow what, what is final, and that every state can be reached."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from rota.ids import JobId
from rota.lease import Lease
from rota.queue.job import (
    ENDED,
    NEXT_STATES,
    ClaimedJob,
    Dedupe,
    Outcome,
    Scope,
    State,
    forever_key,
    open_key,
    queued_key,
)
from rota.queue.outcomes import Again, Cancelled, Fail, GiveBack, Retry, Snooze

START = datetime(2026, 1, 1, tzinfo=UTC)


def reachable(start: State) -> set[State]:
    seen, coming = set(), [start]
    while coming:
        state = coming.pop()
        if state not in seen:
            seen.add(state)
            coming += NEXT_STATES[state]
    return seen


def test_every_state_stands_in_the_table() -> None:
    assert set(NEXT_STATES) == set(State)
    assert all(states <= set(State) for states in NEXT_STATES.values())


def test_every_state_is_reached_from_queued() -> None:
    assert reachable(State.QUEUED) == set(State)


def test_from_every_open_state_a_job_can_end() -> None:
    """I1: nothing is stuck."""
    assert all(reachable(state) & ENDED for state in State if state not in ENDED)


def test_an_ended_job_is_only_queued_again_by_a_person_and_never_when_done() -> None:
    assert NEXT_STATES[State.DONE] == set()
    assert all(NEXT_STATES[state] <= {State.QUEUED} for state in ENDED)


def test_nothing_is_leased_but_what_was_queued() -> None:
    assert [state for state in State if State.LEASED in NEXT_STATES[state]] == [State.QUEUED]


def test_no_state_follows_itself() -> None:
    assert all(state not in NEXT_STATES[state] for state in State)


def test_outcomes_are_states_but_for_those_that_go_on() -> None:
    assert {State(outcome) for outcome in Outcome if outcome not in (Outcome.RETRY, Outcome.AGAIN)} <= NEXT_STATES[
        State.LEASED
    ]


def test_keys() -> None:
    assert open_key("a") == Dedupe("a", Scope.OPEN)
    assert queued_key("a") == Dedupe("a", Scope.QUEUED)
    assert forever_key("a") == Dedupe("a", Scope.FOREVER)
    assert len({open_key("a"), queued_key("a"), forever_key("a"), open_key("a")}) == 3


def claimed(number: int, *, priority: int = 0, after_s: float = 0.0) -> ClaimedJob:
    return ClaimedJob(
        lease=Lease(JobId(UUID(int=number)), 1),
        kind="work",
        tenant=None,
        payload="{}",
        priority=priority,
        tries=1,
        max_tries=3,
        run_after=START + timedelta(seconds=after_s),
        created_at=START,
        dedupe_scope=None,
        progress=None,
        trace=None,
    )


def test_the_queues_order() -> None:
    """Highest priority, then oldest run_after, then oldest job."""
    in_order = [
        claimed(9, priority=50, after_s=99),
        claimed(8, priority=0, after_s=-5),
        claimed(1),
        claimed(2),
        claimed(3, after_s=1),
        claimed(0, priority=-1, after_s=-99),
    ]
    assert sorted(reversed(in_order), key=lambda job: job.order) == in_order
    assert in_order[0].id == JobId(UUID(int=9))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Snooze("3"), "Snooze waits for a number of seconds, and this is a str"),
        (lambda: Snooze(None), "Snooze waits for a number of seconds, and this is a NoneType"),
        (lambda: Snooze(3, reason=7), "Snooze takes a text, and this is a int"),
        (lambda: Retry(after_s=timedelta(minutes=5)), "Retry waits for a number of seconds, and this is a timedelta"),
        (lambda: Retry(error=ValueError("x")), "Retry takes a text, and this is a ValueError"),
        (lambda: Again("soon"), "Again waits for a number"),
        (lambda: GiveBack(after_s=b"1"), "GiveBack waits for a number"),
        (lambda: GiveBack(5), "GiveBack takes a text"),
        (lambda: Fail(ValueError("x")), "Fail takes a text, and this is a ValueError"),
        (lambda: Fail(None), "Fail takes a text, and this is a NoneType"),
        (lambda: Cancelled(5), "Cancelled takes a text"),
    ],
)
def test_an_outcome_that_no_worker_could_do_is_refused_where_it_is_made(make: Callable[[], object], said: str) -> None:
    with pytest.raises(TypeError, match=f"^rota.{said}"):
        make()


def test_what_is_left_out_of_an_outcome_is_no_fault() -> None:
    assert (Retry().after_s, Snooze(0).reason, Again().after_s, GiveBack().reason) == (None, None, 0.0, None)
    assert (Cancelled().reason, Fail("").reason, Snooze(float("nan")).reason) == (None, "", None)
