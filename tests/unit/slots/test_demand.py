"""The wants of one process over many connections."""

from typing import Any

import pytest

from rota.slots.demand import (
    Announced,
    Asked,
    Command,
    Demand,
    Dropped,
    Ended,
    Event,
    GiveUp,
    Lose,
    Offered,
    Place,
    Refuse,
    Refused,
    Return,
    Send,
    Settle,
    Ticked,
    Unsendable,
    Wanted,
    Withdrawn,
)  # fmt: skip
from rota.slots.messages import Cancel, Decline, ErrorCode, Query, Receipt, Unwant, Want

RECEIPT = Receipt(ended_by="exit", exit=0)


class Desk:
    """A Demand, with its clock, checked after each event."""

    def __init__(self) -> None:
        self.demand = Demand()
        self.now = 100.0

    def __call__(self, event: Event) -> list[Command]:
        commands = self.demand.handle(event, self.now)
        self.demand.check()
        return commands

    def wants(self, job_id: str, service: str = "ocr", **facts: Any) -> list[Command]:
        give_up_at = facts.pop("give_up_at", None)
        return self(Wanted(Want(job_id, service, **facts), give_up_at))

    def hello(self, connection: int, *services: str, address: int = 0, **facts: Any) -> list[Command]:
        return self(Announced(connection, address, frozenset(services or ("ocr",)), **facts))


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize("code", [ErrorCode.RUNNING, ErrorCode.UNKNOWN_JOB, ErrorCode.DUPLICATE_WANT])
def test_a_question_that_crossed_an_offer_does_no_harm_to_what_runs(desk: Desk, code: ErrorCode) -> None:
    desk.hello(1)
    desk.wants("j")
    desk(Asked("j"))
    assert desk(Offered(1, "j")) == [Place(1, "j")]
    assert desk(Refused(1, "j", code, "it waits no more")) == []
    assert desk(Ended(1, "j", RECEIPT)) == [Settle("j", RECEIPT)]


def test_a_want_that_cannot_be_said_does_not_wait_for_its_time_to_run_out(desk: Desk) -> None:
    desk.hello(1)
    desk.hello(2)
    desk.wants("j")
    said = desk(Refused(2, "j", ErrorCode.BAD_FRAME, "no such thing"))
    assert said == [Send(1, Unwant("j")), Refuse("j", ErrorCode.BAD_FRAME, "no such thing")]
    assert desk(Refused(1, "j", ErrorCode.BAD_FRAME, "no such thing")) == []


def test_a_want_is_parked_wherever_its_service_was_announced(desk: Desk) -> None:
    desk.hello(1)
    desk.hello(2, "transcode")
    desk.hello(3, "ocr", "transcode")
    assert desk.wants("j") == [Send(1, Want("j", "ocr")), Send(3, Want("j", "ocr"))]


def test_a_connection_that_comes_gets_the_wants_that_wait_in_their_order(desk: Desk) -> None:
    desk.wants("old")
    desk.now += 1
    desk.wants("new")
    desk.now += 1
    desk.wants("urgent", priority=9)
    assert desk.hello(1) == [
        Send(1, Want("urgent", "ocr", priority=9)), Send(1, Want("old", "ocr")), Send(1, Want("new", "ocr"))
    ]  # fmt: skip


def test_the_first_offer_is_taken_and_the_others_are_spared_or_declined(desk: Desk) -> None:
    for number in (1, 2, 3):
        desk.hello(number)
    desk.wants("j")
    assert desk(Offered(2, "j")) == [Place(2, "j"), Send(1, Unwant("j")), Send(3, Unwant("j"))]
    assert desk(Offered(3, "j")) == [Send(3, Decline("j"))], "it crossed with our UNWANT"
    assert desk(Ended(2, "j", RECEIPT)) == [Settle("j", RECEIPT)]
    assert desk(Offered(1, "j")) == [Send(1, Decline("j"))], "nobody wants it any more"


def test_an_offer_for_nothing_is_declined(desk: Desk) -> None:
    desk.hello(1)
    assert desk(Offered(1, "unknown")) == [Send(1, Decline("unknown"))]


def test_a_want_that_is_withdrawn_is_withdrawn_everywhere(desk: Desk) -> None:
    desk.hello(1)
    desk.hello(2)
    desk.wants("j")
    assert desk(Withdrawn("j")) == [Send(1, Unwant("j")), Send(2, Unwant("j"))]
    assert desk(Withdrawn("j")) == []


def test_what_runs_is_cancelled_where_it_runs(desk: Desk) -> None:
    desk.hello(1)
    desk.wants("j")
    desk(Offered(1, "j"))
    assert desk(Withdrawn("j")) == [Send(1, Cancel("j"))]
    assert desk(Ended(1, "j", RECEIPT)) == [], "its end is nobody's concern"


def test_a_crash_loses_what_ran_there_and_the_rest_waits_on_the_others(desk: Desk) -> None:
    desk.hello(1)
    desk.hello(2)
    desk.wants("runs")
    desk.wants("waits")
    desk(Offered(1, "runs"))
    assert desk(Dropped(1)) == [Lose("runs")]
    assert desk(Offered(2, "waits")) == [Place(2, "waits")], "not withdrawn where nobody listens"


def test_a_reconnect_registers_the_current_wants_again(desk: Desk) -> None:
    desk.hello(1)
    desk.wants("a")
    desk.wants("b")
    desk(Dropped(1))
    assert desk.hello(2) == [Send(2, Want("a", "ocr")), Send(2, Want("b", "ocr"))]


def test_an_end_from_elsewhere_or_of_nothing_changes_nothing(desk: Desk) -> None:
    desk.hello(1)
    desk.hello(2)
    desk.wants("j")
    assert desk(Ended(1, "j", RECEIPT)) == [], "a DONE without a JOB"
    desk(Offered(1, "j"))
    assert desk(Ended(2, "j", RECEIPT)) == []
    assert desk(Ended(1, "unknown", RECEIPT)) == []


def test_a_want_is_given_up_in_time_and_says_whether_it_could_be_served(desk: Desk) -> None:
    desk.hello(1)
    desk.wants("j", give_up_at=130.0)
    desk.wants("k", "speech", give_up_at=130.0)
    desk.wants("patient")
    assert desk.demand.due_at == 130.0
    desk.now = 129.9
    assert desk(Ticked()) == []
    desk.now = 130.0
    assert desk(Ticked()) == [Send(1, Unwant("j")), GiveUp("j", True), GiveUp("k", False)]
    assert desk.demand.waiting() == ["patient"]
    assert desk.demand.due_at is None


def test_what_has_a_slot_is_not_given_up(desk: Desk) -> None:
    desk.hello(1)
    desk.wants("j", give_up_at=130.0)
    desk(Offered(1, "j"))
    desk.now = 200.0
    assert desk(Ticked()) == []


def test_services_that_change_move_the_wants(desk: Desk) -> None:
    desk.hello(1, "ocr")
    desk.wants("j")
    desk.wants("k", "speech")
    assert desk.hello(1, "speech") == [Send(1, Unwant("j")), Send(1, Want("k", "speech"))]


def test_nothing_is_parked_where_no_new_work_is_taken(desk: Desk) -> None:
    desk.hello(1)
    desk.wants("j")
    assert desk.hello(1, draining=True) == [Send(1, Unwant("j"))]
    assert desk.wants("k") == []


def test_an_address_for_one_service_gets_only_its_wants(desk: Desk) -> None:
    desk.hello(1, "ocr", "speech", only="speech")
    assert desk.wants("j") == []
    assert desk.wants("k", "speech") == [Send(1, Want("k", "speech"))]


def test_an_address_that_is_polled_may_offer_anything(desk: Desk) -> None:
    desk(Announced(-1, 0, None))
    assert desk.wants("j", "anything") == [Send(-1, Want("j", "anything"))]


@pytest.mark.parametrize("code", [ErrorCode.NO_OFFER, ErrorCode.OFFER_EXPIRED])
def test_a_job_that_came_too_late_waits_again(desk: Desk, code: ErrorCode) -> None:
    desk.hello(1)
    desk.hello(2)
    desk.wants("j")
    desk(Offered(1, "j"))
    assert desk(Refused(1, "j", code, "")) == [Return("j"), Send(1, Want("j", "ocr")), Send(2, Want("j", "ocr"))]
    assert desk(Refused(1, "j", ErrorCode.NO_OFFER, "")) == [], "both words may come for one offer"
    assert desk(Offered(1, "j")) == [Place(1, "j"), Send(2, Unwant("j"))]


def test_a_job_that_is_refused_will_not_run(desk: Desk) -> None:
    desk.hello(1)
    desk.wants("j")
    desk(Offered(1, "j"))
    assert desk(Refused(1, "j", ErrorCode.BAD_FRAME, "no")) == [Refuse("j", ErrorCode.BAD_FRAME, "no")]


def test_a_job_that_is_too_large_frees_its_slot_at_once(desk: Desk) -> None:
    desk.hello(1)
    desk.wants("j")
    desk(Offered(1, "j"))
    assert desk(Unsendable("j", "large")) == [Send(1, Decline("j")), Refuse("j", ErrorCode.FRAME_TOO_LARGE, "large")]


def test_a_want_that_is_turned_away_waits_elsewhere_and_is_not_repeated(desk: Desk) -> None:
    desk.hello(1)
    desk.hello(2)
    desk.wants("j")
    assert desk(Refused(1, "j", ErrorCode.UNKNOWN_SERVICE, "")) == []
    assert desk(Ticked()) == []
    assert desk(Offered(2, "j")) == [Place(2, "j")]


def test_a_full_want_book_is_asked_again_at_the_next_tick(desk: Desk) -> None:
    desk.hello(1)
    desk.wants("j")
    desk(Refused(1, "j", ErrorCode.TOO_MANY_WANTS, ""))
    assert desk.wants("k") == [], "it would be refused like the one before"
    assert desk(Ticked()) == [Send(1, Want("j", "ocr")), Send(1, Want("k", "ocr"))]


def test_refusals_that_crossed_with_something_change_nothing(desk: Desk) -> None:
    desk.hello(1)
    desk.wants("j")
    for code in (ErrorCode.UNKNOWN_JOB, ErrorCode.DUPLICATE_WANT, ErrorCode.NO_OFFER):
        assert desk(Refused(1, "j", code, "")) == []
    assert desk(Refused(1, "unknown", ErrorCode.UNKNOWN_JOB, "")) == []
    assert desk(Offered(1, "j")) == [Place(1, "j")]


def test_the_place_in_line_is_asked_wherever_the_want_is_parked(desk: Desk) -> None:
    desk.hello(1)
    desk.hello(2)
    desk.wants("j")
    assert desk(Asked("j")) == [Send(1, Query("j")), Send(2, Query("j"))]
    desk(Offered(1, "j"))
    assert desk(Asked("j")) == []
    assert desk(Asked("unknown")) == []


def test_pressure_is_on_the_addresses_that_could_help(desk: Desk) -> None:
    desk.hello(1, "ocr", address=0)
    desk.hello(2, "speech", address=1)
    assert desk.demand.waiting_since(0) is None
    desk.wants("j", "ocr")
    assert desk.demand.waiting_since(0) == 100.0
    assert desk.demand.waiting_since(1) is None
    desk.now = 105.0
    desk.wants("k", "unheard")
    assert desk.demand.waiting_since(1) == 105.0, "nothing offers it: any address may have an instance that does"
    desk(Offered(1, "j"))
    assert desk.demand.waiting_since(0) == 105.0
    assert desk.demand.placed_on("j") == 1
