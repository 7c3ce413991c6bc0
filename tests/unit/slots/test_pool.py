"""The policy of one address: what it dials and closes, and when."""

from itertools import pairwise
from random import Random

from rota.slots.pool import (
    CONNECTIONS_MAX,
    GROW_EVERY_S,
    REDIAL_FIRST_S,
    REDIAL_MAX_S,
    REPROBE_FIRST_S,
    REPROBE_S,
    TICK_S,
    Close,
    Dial,
    Dropped,
    FoundNoBroker,
    Greeted,
    Poll,
    Pool,
    Started,
    Ticked,
)  # fmt: skip


def pool() -> Pool:
    return Pool(Random(4))


def started(instance: str = "a") -> Pool:
    made = pool()
    assert made.handle(Started(), 0.0) == [Dial(1)]
    assert made.handle(Greeted(1, instance), 0.0) == []
    return made


def wait_for_dial(made: Pool, now: float, *, bound: float) -> float:
    """Ticks at the time that the pool asks for, which is within the bound."""
    assert made.due_at is not None
    at = made.due_at
    assert now <= at <= now + bound
    commands = made.handle(Ticked(), at)
    assert [type(command) for command in commands] == [Dial]
    return at


def test_one_connection_is_enough_while_nothing_waits() -> None:
    made = started()
    assert made.due_at is None
    for second in range(600):
        assert made.handle(Ticked(), float(second)) == []


def test_backpressure_of_a_whole_tick_brings_one_more_s35() -> None:
    made = started()
    assert made.handle(Ticked(waiting_since=10.0), 10.0 + TICK_S * 0.9) == []
    assert made.handle(Ticked(waiting_since=10.0), 10.0 + TICK_S) == [Dial(2)]


def test_growth_is_one_at_a_time_rate_limited_and_capped_s35() -> None:
    made, dialled, now = started(), [], 100.0
    for step in range(2000):
        now = 100.0 + step * 0.1
        for command in made.handle(Ticked(waiting_since=0.0), now):
            assert isinstance(command, Dial)
            dialled.append(now)
            assert made.handle(Ticked(waiting_since=0.0), now) == [], "one at a time"
            made.handle(Greeted(command.connection, f"pod-{command.connection}"), now)
    assert len(dialled) == CONNECTIONS_MAX - 1
    assert all(later - earlier >= GROW_EVERY_S - 1e-9 for earlier, later in pairwise(dialled))


def test_an_instance_that_is_known_is_closed_and_covers_the_address() -> None:
    made = started("a")
    assert made.handle(Ticked(waiting_since=0.0), 5.0) == [Dial(2)]
    assert made.handle(Greeted(2, "a"), 5.1) == [Close(2, "duplicate")]
    assert made.instances == {1: "a"}
    for step in range(int(REPROBE_FIRST_S)):
        assert made.handle(Ticked(waiting_since=0.0), 5.1 + step) == [], "covered"
    assert made.handle(Ticked(waiting_since=0.0), 5.1 + REPROBE_FIRST_S) == [Dial(3)], "probed under backpressure"


def test_an_address_that_shows_nothing_new_is_probed_ever_more_seldom() -> None:
    made, now, waits = started("a"), 100.0, []
    for _ in range(8):
        (dial,) = made.handle(Ticked(waiting_since=0.0), now)
        assert isinstance(dial, Dial)
        assert made.handle(Greeted(dial.connection, "a"), now) == [Close(dial.connection, "duplicate")]
        assert made.covered_until is not None
        waits.append(made.covered_until - now)
        now = made.covered_until
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0, 60.0]
    (dial,) = made.handle(Ticked(waiting_since=0.0), now)
    assert isinstance(dial, Dial)
    made.handle(Greeted(dial.connection, "b"), now)
    (dial,) = made.handle(Ticked(waiting_since=0.0), now + GROW_EVERY_S)
    assert isinstance(dial, Dial)
    made.handle(Greeted(dial.connection, "a"), now + GROW_EVERY_S)
    assert made.covered_until == now + GROW_EVERY_S + REPROBE_FIRST_S, "soon again after a find"


def test_the_mark_alone_does_not_dial_again() -> None:
    made = started("a")
    made.handle(Ticked(waiting_since=0.0), 5.0)
    made.handle(Greeted(2, "a"), 5.0)
    assert made.handle(Ticked(), 5.0 + REPROBE_S) == []


def test_a_dropped_connection_is_dialled_again_with_full_jitter() -> None:
    made = started()
    assert made.handle(Dropped(1), 10.0) == []
    now = wait_for_dial(made, 10.0, bound=REDIAL_FIRST_S)
    bound = REDIAL_FIRST_S
    for _ in range(12):
        assert made._dialling is not None
        made.handle(Dropped(made._dialling), now)
        bound = min(REDIAL_MAX_S, bound * 2)
        now = wait_for_dial(made, now, bound=bound)
    assert made._dialling is not None
    made.handle(Greeted(made._dialling, "b"), now)
    made.handle(Dropped(made._dialling or made._numbers), now)
    wait_for_dial(made, now, bound=REDIAL_FIRST_S)


def test_waits_differ_between_clients() -> None:
    waits = []
    for seed in range(20):
        made = Pool(Random(seed))
        made.handle(Started(), 0.0)
        made.handle(Dropped(1), 0.0)
        waits.append(made.due_at)
    assert len(set(waits)) == 20


def test_all_connections_come_back_one_after_the_other() -> None:
    made = started("a")
    made.handle(Ticked(waiting_since=0.0), 5.0)
    made.handle(Greeted(2, "b"), 5.0)
    made.handle(Dropped(1), 6.0)
    made.handle(Dropped(2), 6.0)
    now = wait_for_dial(made, 6.0, bound=2 * REDIAL_FIRST_S)
    assert made.handle(Greeted(3, "a"), now) == [Dial(4)]
    assert made.handle(Greeted(4, "a"), now) == [Close(4, "duplicate")]
    assert made.due_at is None, "a fleet that shrank is not probed without backpressure"


def test_an_instance_that_drains_is_replaced_but_not_closed() -> None:
    made = started("a")
    assert made.handle(Greeted(1, "a", draining=True), 20.0) == []
    now = wait_for_dial(made, 20.0, bound=REDIAL_FIRST_S)
    assert made.handle(Greeted(2, "b"), now) == []
    assert (made.live, made.instances) == (1, {1: "a", 2: "b"})


def test_the_only_instance_drains_and_is_asked_for_again_with_growing_waits() -> None:
    made = started("a")
    made.handle(Greeted(1, "a", draining=True), 20.0)
    now = wait_for_dial(made, 20.0, bound=REDIAL_FIRST_S)
    assert made.handle(Greeted(2, "a", draining=True), now) == [Close(2, "duplicate")]
    wait_for_dial(made, now, bound=2 * REDIAL_FIRST_S)


def test_an_address_without_a_broker_is_polled_and_asked_again_later() -> None:
    made = pool()
    made.handle(Started(), 0.0)
    assert made.handle(FoundNoBroker(1), 1.0) == [Poll(on=True)]
    assert made.handle(Ticked(waiting_since=0.0), 30.0) == []
    assert made.handle(Ticked(waiting_since=0.0), 1.0 + REPROBE_S) == [Dial(2)]
    assert made.handle(FoundNoBroker(2), 62.0) == [], "it is polled already"
    assert made.handle(Ticked(), 62.0 + REPROBE_S) == [Dial(3)]
    assert made.handle(Greeted(3, "a"), 125.0) == [Poll(on=False)]


def test_what_is_said_of_a_connection_that_is_gone_changes_nothing() -> None:
    made = started("a")
    made.handle(Dropped(1), 1.0)
    assert made.handle(Dropped(1), 1.0) == []
    assert made.handle(Greeted(1, "a"), 1.0) == []
    assert made.instances == {}
