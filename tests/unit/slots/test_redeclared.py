"""An exec server that is told something else while it works: wants keep their order, and what runs goes on."""

from typing import Any

from rota.slots.events import Connected, Redeclared
from rota.slots.load import Load
from rota.slots.messages import Decline, Error, ErrorCode, Hello, Job, Offer, Position, Query, Queued, Work
from rota.slots.rules import Rules
from tests.unit.slots.test_broker import Desk

SERVICES = {"cut": "cpu", "mix": "cpu"}


def redeclare(desk: Desk, services: dict[str, str], waitgroups: dict[str, int], **rules: Any) -> None:
    desk.happens(Redeclared(Rules("box:1", services, waitgroups, **rules)))


def test_a_waitgroup_that_shrinks_lets_what_runs_go_on_and_deals_again_when_there_is_room() -> None:
    desk = Desk(3)
    for job_id in ("a1", "a2", "a3"):
        desk.run(1, job_id)
    desk.wants(1, "a4")
    redeclare(desk, SERVICES, {"cpu": 1})
    assert desk.killed == []
    desk.ends("a1")
    desk.ends("a2")
    assert "a4" not in desk.offered, "one runs, and there is one slot"
    desk.ends("a3")
    assert desk.offered[-1] == "a4"


def test_a_waitgroup_that_grows_deals_its_new_slots_at_once() -> None:
    desk = Desk(1)
    desk.wants(1, "a1", "a2", "a3")
    redeclare(desk, SERVICES, {"cpu": 2})
    assert desk.offered == ["a1", "a2"]


def test_every_client_hears_of_it_once_and_only_if_it_is_news_to_clients() -> None:
    desk = Desk(clients=2)
    desk.heard.clear()
    redeclare(desk, SERVICES, {"cpu": 1}, offer_timeout_s=1.0)
    assert desk.heard == {}
    redeclare(desk, {**SERVICES, "new": "cpu"}, {"cpu": 1})
    for client in (1, 2):
        assert [type(said) for said in desk.heard[client]] == [Hello]
        assert desk.last(client).services == {**SERVICES, "new": "cpu"}
    desk.wants(1, "a1", service="new")
    assert desk.last(1) == Offer("a1")


def test_a_service_that_is_gone_is_refused_to_who_waits_and_runs_on_where_it_runs() -> None:
    desk = Desk(1)
    desk.run(1, "a1", service="mix")
    desk.wants(1, "a2", service="mix")
    desk.wants(1, "a3", service="cut")
    desk.heard.clear()
    redeclare(desk, {"cut": "cpu"}, {"cpu": 1})
    hello, error = desk.heard[1]
    assert isinstance(hello, Hello), "first, so that the want is not parked here again"
    assert isinstance(error, Error)
    assert (error.code, error.job_id) == (ErrorCode.UNKNOWN_SERVICE, "a2")
    assert desk.killed == []
    desk.ends("a1")
    assert desk.offered[-1] == "a3"


def test_a_waitgroup_that_is_gone_stays_until_its_last_command_has_ended() -> None:
    desk = Desk(1)
    desk.run(1, "a1")
    desk.wants(1, "a2")
    redeclare(desk, {"cut": "gpu"}, {"gpu": 1})
    assert desk.offered == ["a1", "a2"], "its service draws from another now"
    assert desk.broker.in_use == 2
    desk.says(1, Decline("a2"))
    desk.ends("a1")
    assert (desk.broker.in_use, list(desk.broker.groups)) == (0, ["gpu"])


def test_an_offer_of_a_waitgroup_that_is_gone_can_yet_be_taken() -> None:
    desk = Desk(1)
    desk.wants(1, "a1")
    redeclare(desk, {"cut": "gpu"}, {"gpu": 1})
    desk.says(1, Job("a1", Work()))
    assert desk.begun == ["a1"]
    desk.ends("a1")
    assert list(desk.broker.groups) == ["gpu"]


def test_wants_keep_the_order_in_which_they_would_have_been_dealt_slots() -> None:
    desk = Desk(1)
    desk.run(1, "first")
    desk.wants(1, "a1", "a2", "a3")
    desk.wants(2, "b1")
    desk.wants(2, "urgent", priority=5)
    redeclare(desk, SERVICES, {"cpu": 1})
    dealt = [desk.turn_over() for _ in range(5)]
    same = Desk(1)
    same.run(1, "first")
    same.wants(1, "a1", "a2", "a3")
    same.wants(2, "b1")
    same.wants(2, "urgent", priority=5)
    assert dealt == [same.turn_over() for _ in range(5)]


def test_who_takes_turns_can_change() -> None:
    desk = Desk(1)
    desk.run(1, "first")
    desk.wants(1, "a1", "a2", tenant="t1")
    desk.wants(1, "a3", tenant="t2")
    redeclare(desk, SERVICES, {"cpu": 1}, fair_by="tenant", weights={"t1": 2})
    assert [desk.turn_over() for _ in range(3)] == ["a1", "a2", "a3"]
    redeclare(desk, SERVICES, {"cpu": 1}, fair_by="tenant")
    desk.wants(1, "a4", "a5", tenant="t1")
    desk.wants(1, "a6", tenant="t2")
    assert [desk.turn_over() for _ in range(3)] == ["a4", "a6", "a5"]


def test_a_connection_keeps_the_weight_that_it_asked_for() -> None:
    desk = Desk(1, clients=0)
    desk.happens(Connected(1, weight=3))
    desk.happens(Connected(2))
    desk.run(1, "first")
    redeclare(desk, SERVICES, {"cpu": 1}, weight_max=2)
    desk.wants(1, "a1", "a2", "a3")
    desk.wants(2, "b1")
    assert [desk.turn_over() for _ in range(4)] == ["a1", "a2", "b1", "a3"]


def test_a_time_in_line_counts_that_the_first_ends_free_nothing() -> None:
    load = Load()
    for _ in range(3):
        load.observe("cut", "exit", 10.0)
    desk = Desk(2, load=load, fast_reserve=False)
    desk.run(1, "a1")
    desk.now += 4.0
    desk.run(1, "a2")
    desk.wants(1, "a3")
    assert desk.last(1) == Queued("a3")
    redeclare(desk, SERVICES, {"cpu": 1}, fast_reserve=False)
    desk.says(1, Query("a3"))
    told = desk.last(1)
    assert isinstance(told, Position)
    assert (told.ahead, told.running, told.capacity, told.eta_low_s) == (0, 2, 1, 10.0)
