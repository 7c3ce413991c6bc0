"""How a runner comes in at a gateway: its hello, the ramp, and what it still holds."""

from typing import Any

import pytest

from rota.runners import gateway_events as events
from rota.runners import messages
from rota.runners.gateway_admission import RETURN_RETRY_MAX_S, RETURN_S
from rota.runners.gateway_events import Lease
from rota.runners.messages import Held
from tests.unit.runners.gateway_desk import (
    CAPABILITIES,
    DESKTOP,
    JOB,
    OTHER,
    POOL,
    SESSION,
    Desk,
    closes,
    job_of,
    messages_of,
    of,
)


def test_a_runner_is_welcomed() -> None:
    desk = Desk(min_agent_version="1.0")
    assert [type(command) for command in desk.hello()] == [events.Authenticate]
    said = desk(events.Verified(1, DESKTOP))
    (welcome,) = messages_of(said)
    assert (welcome.runner_id, welcome.kind, welcome.org_id) == ("device-1", "Desktop", "org-1")
    assert (welcome.heartbeat_sec, welcome.dead_after_sec, welcome.max_inline_bytes) == (15, 45, 4_194_304)
    assert (welcome.gateway_instance, welcome.min_agent_version, welcome.resumed) == ("gateway-0", "1.0", ())


def test_an_unsupported_version_is_told_what_is_supported() -> None:
    desk = Desk()
    desk(events.Opened(1, "h"))
    hello = messages.Hello(
        protocol_version="2.0", auth=messages.PoolAuth(credential="s", worker_name="w"), capabilities=CAPABILITIES
    )
    said = desk.hear(hello)
    assert closes(said) == [4400]
    assert "1.0" in messages_of(said)[0].reason


def test_a_refusal_is_told_with_its_reason_and_wait() -> None:
    """S52"""
    desk = Desk()
    desk.hello()
    said = desk(events.Refused(1, 4401, "the runner's clock is 300 s ahead", retry_after_s=6.4, tells_time=True))
    assert closes(said) == [4401]
    (bye,) = messages_of(said)
    assert (bye.retry_after_sec, bye.server_time) == (7, "2027-01-15T08:00:00.000Z")


def test_the_newest_connection_wins() -> None:
    desk = Desk()
    desk.connect(1)
    said = desk.connect(2)
    assert [(c.connection, int(c.code)) for c in of(events.Close, said)] == [(1, 4409)]
    assert [c.connection for c in of(events.Send, said)] == [2]


def test_only_a_newer_connection_elsewhere_replaces_the_one_here() -> None:
    desk = Desk()
    desk.hello(1)
    desk(events.Verified(1, POOL, order=8))
    assert desk(events.Elsewhere("worker-2", 9)) == []
    # The word of an older hello is late: the replica that took it has to hear of this one.
    assert desk(events.Elsewhere("worker-1", 7)) == [events.Announce("worker-1", 8)]
    assert desk(events.Listening()) == [events.Announce("worker-1", 8)]
    assert closes(desk(events.Elsewhere("worker-1", 9))) == [4409]
    assert desk(events.Listening()) == []


@pytest.mark.parametrize(("order", "closed"), [(7, [4409]), (9, [])])
def test_what_is_heard_of_elsewhere_while_a_hello_is_looked_at_counts(order: int, closed: list[int]) -> None:
    desk = Desk()
    desk.hello(1)
    desk(events.Elsewhere("worker-1", 8))
    desk(events.Elsewhere("worker-1", 6))
    assert closes(desk(events.Verified(1, POOL, order=order))) == closed


def test_who_comes_too_fast_is_told_when_to_come_again_before_it_is_looked_at() -> None:
    desk = Desk(hellos_per_s=2.0)
    assert [of(events.Authenticate, desk.hello(at)) != [] for at in (1, 2, 3)] == [True, True, False]
    assert closes(desk.said) == [4429]
    assert messages_of(desk.said)[0].retry_after_sec == 1


def test_a_lease_that_is_live_lets_its_runner_in_past_the_ramp_once_a_second() -> None:
    desk = Desk(hellos_per_s=1.0)
    desk.connect()
    desk.run()
    desk(events.Lost(1))
    mine = (Held(job_id=JOB, lease_epoch=1),)
    assert closes(desk.hello(2)) == [4429], "one that holds nothing stands in line"
    assert of(events.Authenticate, desk.hello(3, running=mine)) != []
    assert of(events.Authenticate, desk.hello(4, running=mine)) != [], (
        "this one has room in the ramp of those that hold"
    )
    assert closes(desk.hello(5, running=mine)) == [4429]
    desk.now += RETURN_S
    assert of(events.Authenticate, desk.hello(6, running=mine)) != []


def test_who_holds_jobs_of_which_nothing_is_known_here_has_a_ramp_of_its_own_and_waits_less() -> None:
    desk = Desk(hellos_per_s=1.0)
    waits: dict[bool, list[int]] = {True: [], False: []}
    for at in range(1, 80):
        holds = at % 2 == 0
        desk.hello(at, running=(Held(job_id=OTHER, lease_epoch=at),) if holds else ())
        waits[holds] += [bye.retry_after_sec for bye in messages_of(desk.said)]
    assert len(waits[True]) == 38 and len(waits[False]) == 39, "one of each is let in"
    assert max(waits[True]) <= RETURN_RETRY_MAX_S < max(waits[False])


def test_an_old_agent_is_welcomed_and_gets_no_jobs() -> None:
    desk = Desk(min_agent_version="2.0")
    desk.connect()
    assert of(events.Claim, desk.hear(messages.Ready(free_slots=2))) == []


@pytest.mark.parametrize(("event", "code"), [(events.Revoked("device-1"), 4401), (events.Forbidden("org-1"), 4403)])
def test_who_is_barred_while_its_hello_is_looked_at_does_not_come_in(event: Any, code: int) -> None:
    desk = Desk()
    desk.hello()
    assert desk(event) == []
    said = desk(events.Verified(1, DESKTOP))  # by what was read before
    assert closes(said) == [code] and [type(m) for m in messages_of(said)] == [messages.Bye]
    # A hello that begins after it is looked at anew, and rests on what is read then.
    assert [type(m) for m in messages_of(desk.connect(2, identity=DESKTOP))] == [messages.Welcome]


def test_a_runner_that_comes_back_keeps_its_jobs_and_is_asked_again() -> None:
    desk = Desk()
    desk.connect()
    proof = desk.run()
    desk.ask()
    desk(events.Lost(1))
    desk.now += 20
    held = (Held(job_id=JOB, lease_epoch=1), Held(job_id=OTHER, lease_epoch=2))
    (check,) = of(events.CheckHeld, desk.connect(2, running=held))
    assert check.held == (Lease(JOB, 1), Lease(OTHER, 2))
    said = messages_of(desk(events.Kept(2, (job_of(accepted=True),))))
    assert [type(message).__name__ for message in said] == ["Welcome", "Cancel", "OpRequest"]
    assert [lease.job_id for lease in said[0].resumed] == [JOB]
    assert (said[1].reason, said[2].op_id) == ("lease_lost", "op-1")
    said = desk.hear(
        messages.OpResponse(op_id="op-1", ok=True, result={}, **proof), job_id=JOB, session_id=SESSION[:-2] + "a1", at=2
    )
    assert of(events.AnswerOp, said) == [events.AnswerOp(1, "op-1", {}, None)]


def test_another_replica_takes_a_job_over_with_the_token_of_the_first() -> None:
    """S57"""
    first, second = Desk(), Desk()
    first.connect()
    proof = first.run()
    second.connect(running=(Held(job_id=JOB, lease_epoch=1),))
    second(events.Kept(1, (job_of(accepted=True, age_s=30.0),)))
    assert [type(message) for message in messages_of(second.ask())] == [messages.OpRequest]
    assert second.answer(proof) == [events.AnswerOp(1, "op-1", {"x": 1}, None)]


def test_a_runner_that_comes_back_without_a_job_releases_who_waits() -> None:
    desk = Desk()
    desk.connect()
    desk.run()
    desk.ask()
    (refused,) = of(events.RefuseOp, desk.connect(2))
    assert (refused.status, refused.code) == (410, "session_lost")
