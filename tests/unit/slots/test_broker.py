"""The exec server's rules, event by event: who is offered what, and what nobody may break."""

from collections import Counter
from typing import Any

import pytest

from rota.slots import messages
from rota.slots.broker import BAD_FRAMES_MAX, HELLO_EVERY_S, Broker
from rota.slots.events import (
    Begin,
    Close,
    Connected,
    Deal,
    Drain,
    Dropped,
    Ended,
    Garbled,
    Kill,
    Moved,
    Said,
    Send,
    Tick,
)
from rota.slots.load import Load
from rota.slots.messages import (
    Cancel,
    Decline,
    Done,
    Error,
    Hello,
    Job,
    Offer,
    Position,
    Progress,
    Query,
    Queued,
    Receipt,
    Unwant,
    Want,
    Work,
)
from rota.slots.rules import Rules


class Desk:
    """A broker with a clock by hand, and what each client heard."""

    def __init__(self, processes: int = 1, *, load: Load | None = None, clients: int = 2, **rules: Any) -> None:
        services = rules.pop("services", {"cut": "cpu", "mix": "cpu"})
        self.broker = Broker(Rules("box:1", services, {"cpu": processes}, **rules), load or Load(learns=False))
        self.now = 100.0
        self.heard: dict[int, list[Any]] = {}
        self.offers: list[tuple[int, str]] = []  # all, in their order
        self.begun: list[str] = []
        self.killed: list[str] = []
        self.closed: list[tuple[int, int]] = []
        for client in range(1, clients + 1):
            self.happens(Connected(client))

    def happens(self, event: Any) -> None:
        for command in self.broker.handle(event, self.now):
            match command:
                case Send(client, message) | Deal(client, message):
                    self.heard.setdefault(client, []).append(message)
                    if isinstance(message, Offer):
                        self.offers.append((client, message.job_id))
                case Begin(job_id):
                    self.begun.append(job_id)
                case Kill(job_id):
                    self.killed.append(job_id)
                case Close(client, code):
                    self.closed.append((client, code))

    def says(self, client: int, *said: Any) -> None:
        for message in said:
            self.happens(Said(client, message))

    def wants(self, client: int, *job_ids: str, service: str = "cut", **more: Any) -> None:
        self.says(client, *(Want(job_id, service, **more) for job_id in job_ids))

    def ends(self, job_id: str, **receipt: Any) -> None:
        self.happens(Ended(job_id, Receipt(**{"ended_by": "exit", "exit": 0, **receipt})))

    def passes(self, seconds: float) -> None:
        until = self.now + seconds
        while (at := self.broker.next_at()) is not None and at <= until:
            self.now = max(self.now, at)
            self.happens(Tick())
        self.now = until

    def last(self, client: int) -> Any:
        return self.heard[client][-1]

    def all(self, kind: type[Any]) -> list[tuple[int, Any]]:
        return [(client, said) for client, heard in self.heard.items() for said in heard if isinstance(said, kind)]

    @property
    def offered(self) -> list[str]:
        return [job_id for _, job_id in self.offers]

    def turn_over(self) -> str:
        """The newest command ends, and the offer that comes of it is taken. Returns: whose it is."""
        before = len(self.offers)
        self.ends(self.begun[-1])
        ((client, job_id),) = self.offers[before:]
        self.says(client, Job(job_id, Work()))
        return job_id

    def run(self, client: int, job_id: str, **more: Any) -> None:
        self.wants(client, job_id, **more)
        self.says(client, Job(job_id, Work()))


def test_the_first_word_is_hello_and_it_is_said_again_when_it_changes() -> None:
    desk = Desk(clients=1)
    assert desk.heard[1] == [Hello("box:1", {"cut": "cpu", "mix": "cpu"}, {"cpu": 1}, 1)]
    desk.passes(HELLO_EVERY_S)
    desk.heard.clear()
    for client in range(2, 12):
        desk.happens(Connected(client))
    desk.passes(HELLO_EVERY_S)
    assert [hello.clients for hello in desk.heard[1]] == [11], "once for all who came in that time"
    assert len(desk.heard[11]) == 1, "who came last knows it already"
    desk.happens(Dropped(11))
    desk.passes(HELLO_EVERY_S)
    assert desk.last(1).clients == 10


def test_who_looks_in_for_a_moment_is_no_news() -> None:
    desk = Desk()
    desk.passes(HELLO_EVERY_S)
    desk.heard.clear()
    desk.happens(Connected(3))
    desk.happens(Dropped(3))
    desk.passes(HELLO_EVERY_S)
    assert list(desk.heard) == [3]


def test_a_broker_that_is_used_for_long_keeps_nothing() -> None:
    desk = Desk(3, clients=1)
    for number in range(3000):
        client = number + 2
        desk.happens(Connected(client))
        desk.wants(client, "a", "b", "c", "d")
        for job_id in [job_id for of, job_id in desk.offers[-4:] if of == client]:
            desk.says(client, Job(job_id, Work()) if number % 3 else Decline(job_id))
        desk.happens(Dropped(client))
        for job_id in desk.killed:
            desk.ends(job_id, ended_by="cancelled")
        desk.killed.clear()
        desk.offers.clear()
        desk.passes(0.01)
    broker = desk.broker
    assert (broker.in_use, broker.waiting, len(broker.clients), len(broker._running)) == (0, 0, 1, 0)
    assert len(broker._offers) < 10
    assert broker.groups["cpu"].book.lines == []


def test_answered_offers_are_not_kept_until_they_would_have_timed_out() -> None:
    desk = Desk(4, clients=1)
    for number in range(1000):
        desk.wants(1, f"j{number}")
        desk.says(1, Job(f"j{number}", Work()))
        desk.ends(f"j{number}")
    assert len(desk.broker._offers) <= 1


def test_nothing_is_said_while_nothing_happens() -> None:
    """I8."""
    desk = Desk()
    desk.wants(1, "a", "b", "c")
    desk.says(1, Job("a", Work()))
    desk.passes(HELLO_EVERY_S)
    desk.heard.clear()
    desk.passes(36_000)
    assert (desk.heard, desk.broker.next_at()) == ({}, None)


def test_who_stands_for_the_old_routes_is_no_client_that_counts() -> None:
    desk = Desk(clients=1)
    desk.passes(1)
    desk.happens(Connected(2, counts=False))
    desk.passes(1)
    assert (desk.last(2).clients, desk.last(1).clients) == (1, 1)
    assert len(desk.heard[1]) == 1, "its coming is no news"


def test_a_free_slot_is_offered_at_once_and_the_rest_is_queued() -> None:
    desk = Desk()
    desk.wants(1, "a", "b")
    assert desk.heard[1][-2:] == [Offer("a"), Queued("b")]
    desk.says(1, Job("a", Work(args=["x"])))
    desk.ends("a", exit=3)
    assert desk.heard[1][-2:] == [Done("a", Receipt(ended_by="exit", exit=3)), Offer("b")]
    desk.wants(1, "a")
    assert desk.last(1) == Queued("a"), "its id is free again"


def test_b_is_served_on_the_next_grant_although_a_parked_a_thousand() -> None:
    """S33."""
    desk = Desk()
    desk.run(1, "running")
    desk.wants(1, *(f"a{number}" for number in range(1000)))
    desk.wants(2, "b")
    desk.ends("running")
    desk.says(1, Job("a0", Work()))
    desk.ends("a0")
    assert desk.offered == ["running", "a0", "b"]


def test_an_urgent_want_of_another_client_takes_the_next_slot_and_the_turns_go_on() -> None:
    """S34."""
    desk = Desk(clients=3)
    desk.run(1, "running")
    desk.wants(1, *(f"a{number}" for number in range(100)))
    desk.wants(2, *(f"b{number}" for number in range(100)))
    desk.ends("running")
    assert desk.last(1) == Offer("a0")
    desk.says(1, Job("a0", Work()))
    desk.wants(3, "urgent", priority=10)
    assert (desk.killed, desk.last(3)) == ([], Queued("urgent")), "what runs goes on"
    assert [desk.turn_over() for _ in range(4)] == ["urgent", "b0", "a1", "b1"]


def test_each_freed_slot_makes_one_offer() -> None:
    """S36: fifty clients wait, slots free in bursts."""
    desk = Desk(8, clients=50)
    for number in range(8):
        desk.run(1, f"run{number}")
    for client in range(1, 51):
        desk.wants(client, *(f"w{client}.{number}" for number in range(4)))
    ended = 0
    for burst in (3, 5, 8):
        before = len(desk.offers)
        for job_id in desk.begun[ended : ended + burst]:
            desk.ends(job_id)
        ended += burst
        fresh = desk.offers[before:]
        assert len(fresh) == burst
        for client, job_id in fresh:
            desk.says(client, Job(job_id, Work()))
    assert max(Counter(desk.offered).values()) == 1
    assert desk.broker.in_use == 8


def test_a_connection_that_dies_with_the_offer_loses_no_wake_up() -> None:
    """S32."""
    desk = Desk()
    desk.run(1, "running")
    desk.wants(1, "first")
    desk.wants(2, "second")
    desk.ends("running")
    assert desk.last(1) == Offer("first")
    desk.happens(Dropped(1))
    assert desk.last(2) == Offer("second")
    assert desk.broker.in_use == 1


def test_an_offer_without_an_answer_goes_to_the_next_and_the_late_job_is_refused() -> None:
    """S37."""
    desk = Desk(offer_timeout_s=5)
    desk.wants(1, "a")
    desk.wants(2, "b")
    desk.passes(4.9)
    assert desk.offered == ["a"]
    desk.passes(0.1)
    assert desk.offered == ["a", "b"]
    assert (desk.last(1).code, desk.last(1).job_id) == ("offer_expired", "a")
    desk.says(1, Job("a", Work()))
    assert desk.last(1).code == "no_offer"
    assert (desk.begun, desk.broker.in_use) == ([], 1)
    desk.says(2, Job("b", Work()))
    desk.passes(60)
    assert (desk.begun, desk.broker.in_use) == (["b"], 1)


def test_what_is_declined_goes_to_the_next_at_once() -> None:
    desk = Desk()
    desk.wants(1, "a", "c")
    desk.wants(2, "b")
    desk.says(1, Decline("a"))
    assert desk.offered == ["a", "c"]  # the turn of 1 goes on: it came before 2 and had no slot yet
    desk.says(1, Unwant("c"))
    assert desk.offered == ["a", "c", "b"]
    desk.says(2, Cancel("b"))
    assert desk.broker.in_use == 0


def test_a_want_that_is_taken_back_is_never_offered() -> None:
    desk = Desk()
    desk.run(1, "a")
    desk.wants(1, "b", "c", "d")
    desk.says(1, Unwant("b"), Cancel("c"))
    desk.ends("a")
    assert desk.offered == ["a", "d"]


def test_a_slot_is_free_only_when_its_command_is_dead() -> None:
    desk = Desk()
    desk.run(1, "a")
    desk.wants(2, "b")
    desk.happens(Dropped(1))
    assert (desk.killed, desk.offered, desk.broker.in_use) == (["a"], ["a"], 1)
    heard = len(desk.heard[1])
    desk.happens(Moved(Progress("a", 1, 1)))
    desk.ends("a", ended_by="cancelled", exit=None)
    assert desk.offered == ["a", "b"]
    assert len(desk.heard[1]) == heard, "nobody hears its end"


def test_a_job_that_still_runs_for_a_lost_connection_is_not_run_twice_at_once() -> None:
    desk = Desk(2)
    desk.run(1, "a")
    desk.happens(Dropped(1))
    desk.run(2, "a")
    assert desk.begun == ["a"]
    done = desk.last(2)
    assert (done.receipt.ended_by, done.receipt.retryable) == ("refused", True)
    assert desk.broker.in_use == 1
    desk.ends("a", ended_by="cancelled")
    desk.run(2, "a")
    assert desk.begun == ["a", "a"]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (Job("run", Work()), "running"),
        (Decline("run"), "running"),
        (Unwant("run"), "running"),
        (Want("run", "cut"), "duplicate_want"),
        (Want("waits", "cut"), "duplicate_want"),
        (Job("waits", Work()), "no_offer"),
        (Job("never", Work()), "no_offer"),
        (Want("x", "mp3"), "unknown_service"),
        (Query("never"), "unknown_job"),
        (Decline("never"), None),
        (Unwant("never"), None),
        (Cancel("never"), None),
    ],
)
def test_words_out_of_turn_change_nothing(said: Any, code: str | None) -> None:
    """S38."""
    desk = Desk()
    desk.run(1, "run")
    desk.wants(1, "waits")
    heard = len(desk.heard[1])
    desk.says(1, said)
    answers = desk.heard[1][heard:]
    assert [answer.code for answer in answers] == ([] if code is None else [code])
    assert (desk.broker.in_use, desk.broker.waiting, desk.begun, desk.killed) == (1, 1, ["run"], [])
    desk.ends("run")
    assert desk.last(1) == Offer("waits")


def test_who_sends_only_garbage_is_shut_out() -> None:
    desk = Desk()
    for _ in range(BAD_FRAMES_MAX + 3):
        desk.happens(Garbled(1, Error("bad_frame", "no")))
    assert desk.closed == [(1, 1008)]
    assert len(desk.all(Error)) == BAD_FRAMES_MAX + 3


def test_a_job_that_cannot_be_read_gives_its_slot_back_at_once() -> None:
    desk = Desk(1)
    desk.wants(1, "a1")
    desk.wants(2, "b1")
    desk.happens(Garbled(2, Error("bad_frame", "no", "a1")))
    assert desk.offered == ["a1"], "it is another's"
    desk.happens(Garbled(1, Error("bad_frame", "no", "a1")))
    assert desk.offered == ["a1", "b1"]
    desk.says(1, Job("a1", Work()))
    assert desk.last(1).code == "no_offer"
    desk.says(2, Job("b1", Work()))
    desk.happens(Garbled(2, Error("bad_frame", "no", "b1")))
    assert (desk.killed, desk.broker.in_use) == ([], 1), "what runs goes on"


def test_wants_have_a_bound_for_each_connection() -> None:
    desk = Desk(wants_max=3)
    desk.wants(1, "a", "b", "c", "d")
    assert desk.last(1).code == "too_many_wants"
    desk.wants(2, "d")
    assert desk.last(2) == Queued("d")


def test_drain_deals_nothing_more_and_takes_no_wants() -> None:
    desk = Desk(2)
    desk.run(1, "a")
    desk.wants(1, "b", "c")
    desk.happens(Drain())
    desk.happens(Drain())
    assert desk.last(1).draining
    assert len(desk.all(Hello)) == 4, "one more for each"
    desk.ends("a")
    assert desk.offered == ["a", "b"]
    desk.says(1, Job("b", Work()))
    assert desk.begun == ["a", "b"], "an offer that was made is kept"
    desk.wants(2, "d")
    assert desk.last(2).code == "draining"


def test_position_and_time_are_told() -> None:
    load = Load()
    for duration_s in (8, 12, 8, 12, 8, 12):
        load.observe("cut", "exit", duration_s)
    desk = Desk(load=load, services={"cut": "cpu"})
    desk.run(1, "a")
    desk.wants(1, "b", "c")
    desk.wants(2, "d")
    desk.says(1, Query("c"), Query("a"))
    third, running = desk.heard[1][-2:]
    assert (third.ahead, third.running, third.capacity) == (2, 1, 1)
    assert 20 < third.eta_low_s < 30 < third.eta_high_s < 50
    assert running == Position("a", 0, 1, 1, 0.0, 0.0)
    desk.wants(1, "e")
    desk.says(1, Query())
    overview = desk.last(1)
    assert [(row.job_id, row.state, row.ahead) for row in overview.jobs] == [
        ("a", "running", None), ("b", "waiting", 0), ("d", "waiting", 1), ("c", "waiting", 2), ("e", "waiting", 3),
    ]  # fmt: skip
    assert overview.waitgroups["cpu"] == messages.WaitgroupView(1, 1, 0, 4)


def test_no_time_is_told_of_what_was_never_measured() -> None:
    desk = Desk(load=Load())
    desk.run(1, "a")
    desk.wants(1, "b")
    desk.says(1, Query("b"))
    assert desk.last(1) == Position("b", 0, 1, 1)


def test_tenants_take_turns_where_they_are_told_to() -> None:
    desk = Desk(fair_by="tenant", weights={"gold": 2})
    desk.run(1, "running")
    for client in (1, 2):
        desk.wants(client, *(f"g{client}{number}" for number in range(3)), tenant="gold")
    desk.wants(1, "t1", "t2", tenant="tin")
    desk.wants(2, "none")
    order = [desk.turn_over() for _ in range(9)]
    assert order == ["g10", "g11", "t1", "none", "g12", "g20", "t2", "g21", "g22"]


def test_a_connection_has_the_weight_that_it_asks_for_as_far_as_it_may() -> None:
    desk = Desk(clients=0, weight_max=3)
    desk.happens(Connected(1, weight=9))
    desk.happens(Connected(2))
    desk.run(2, "running")
    desk.wants(1, *(f"a{number}" for number in range(8)))
    desk.wants(2, *(f"b{number}" for number in range(8)))
    assert "".join(desk.turn_over()[0] for _ in range(8)) == "aaabaaab"


def test_long_work_leaves_the_fast_reserve_alone() -> None:
    load = Load()
    for _ in range(3):
        load.observe("cut", "exit", 600)
        load.observe("mix", "exit", 0.5)
    desk = Desk(8, load=load)
    desk.wants(1, *(f"long{number}" for number in range(10)))
    assert len(desk.offered) == 6
    desk.wants(2, "quick1", "quick2", "quick3", service="mix")
    assert desk.offered[6:] == ["quick1", "quick2"]
    desk.says(2, Decline("quick1"))
    assert desk.offered[8:] == ["quick3"]
    desk.says(2, Decline("quick2"), Decline("quick3"))
    assert len(desk.offered) == 9, "no long one"
    desk.says(1, Decline("long0"))
    assert desk.offered[9:] == ["long6"]


def test_what_is_learned_opens_the_reserve() -> None:
    desk = Desk(4, load=Load())
    desk.wants(1, *(f"a{number}" for number in range(9)))
    assert len(desk.offered) == 3, "an unknown service may be long"
    for number in range(3):
        desk.says(1, Job(f"a{number}", Work()))
        desk.ends(f"a{number}", duration_s=0.1)
    assert desk.broker.in_use == 4
