"""The state table: what may follow what, what is final, and that every state can be reached."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

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
