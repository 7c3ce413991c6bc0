"""The gateway's machine as a whole: connections, its own end, and what it keeps."""

from typing import Any

import pytest

from rota.runners import gateway_events as events
from rota.runners import messages
from rota.runners.gateway_events import Identity, Lease
from tests.unit.runners.gateway_desk import CAPABILITIES, DESKTOP, JOB, POOL, Desk, closes, messages_of, of


@pytest.mark.parametrize(
    "message",
    [messages.Ready(free_slots=1), messages.RunnerHeartbeat(free_slots=1, running=()), messages.Bye(reason="x")],
)
def test_nothing_is_accepted_before_the_welcome(message: Any) -> None:
    """S55"""
    desk = Desk()
    desk(events.Opened(1, "h"))
    assert closes(desk.hear(message)) == [4400]
    desk = Desk()
    desk.hello()
    assert closes(desk.hear(message)) == [4400], "while the hello is looked at"
    assert desk(events.Verified(1, POOL)) == []


def test_no_hello_within_ten_seconds_and_a_second_hello() -> None:
    """S55"""
    desk = Desk()
    desk(events.Opened(1, "h"))
    assert desk.wait(9.9) == []
    assert closes(desk.wait(0.2)) == [4400]
    desk = Desk()
    desk.connect()
    hello = messages.Hello(
        protocol_version="1.0", auth=messages.PoolAuth(credential="s", worker_name="w"), capabilities=CAPABILITIES
    )
    assert closes(desk.hear(hello)) == [4400]


@pytest.mark.parametrize(
    ("code", "says"), [("bad_message", None), ("unknown_type", None), ("unsupported_version", "1.0")]
)
def test_what_cannot_be_read_ends_a_connection_only_before_the_welcome(code: str, says: str | None) -> None:
    """S55"""
    desk = Desk()
    desk(events.Opened(1, "h"))
    said = desk(events.Garbled(1, code, "no good"))
    assert closes(said) == [4400]
    assert [says in bye.reason for bye in messages_of(said)] == ([True] if says else [])
    desk = Desk()
    desk.connect()
    assert desk(events.Garbled(1, code, "no good")) == []


def test_silence_ends_a_connection_and_any_bytes_are_life() -> None:
    """S47, S50"""
    desk = Desk()
    desk.connect()
    desk.wait(40)
    desk(events.Heard(1))
    assert closes(desk.wait(44)) == []
    assert closes(desk.wait(2)) == [4408]
    assert desk(events.Lost(1)) == []


def test_a_runner_that_drains_gets_nothing_and_leaves_its_jobs_to_expire() -> None:
    """S65"""
    desk = Desk()
    desk.connect()
    desk.run()
    desk.hear(messages.Drain(reason="sigterm"))
    assert of(events.Claim, desk.hear(messages.Ready(free_slots=2))) == []
    said = desk.hear(messages.Bye(reason="drained"))
    assert of(events.Expire, said) == [events.Expire(Lease(JOB, 1), "the runner ended")]
    assert closes(said) == [1000]


def test_a_replica_that_ends_says_goodbye_and_keeps_the_leases() -> None:
    desk = Desk()
    desk.connect()
    desk.run()
    desk.ask()
    assert [m.reason for m in messages_of(desk(events.Drain("deploy", 30)))] == ["deploy"]
    assert of(events.Claim, desk.hear(messages.Ready(free_slots=1))) == []
    said = desk(events.Stop("deploy"))
    assert closes(said) == [1001]
    assert of(events.Expire, said) == []
    assert [(c.status, c.code) for c in of(events.RefuseOp, said)] == [(504, "op_timeout")]
    (refused,) = desk.ask(2)
    assert (refused.status, refused.code) == (504, "op_timeout"), "and not 410: the session is not lost"


def test_figures_tell_what_could_take_work() -> None:
    desk = Desk()
    desk.connect(1, Identity("a", "CloudPool", None))
    desk.connect(2, Identity("b", "CloudPool", None), job_types=())
    desk.connect(3, Identity("c", "CloudPool", None))
    desk.connect(4, DESKTOP)
    for number in (1, 2, 3, 4):
        desk.hear(messages.Ready(free_slots=2), at=number)
        desk(events.Claimed(number, ()))
    desk.hear(messages.Drain(reason="x"), at=3)
    figures = desk.core.registry.figures()
    assert (figures.connected_cloud_pool, figures.connected_org_runner) == (3, 1)
    assert (figures.available_cloud_pool, figures.free_slots_cloud_pool, figures.free_slots_org_runner) == (1, 2, 2)
    assert (figures.runners_without_job_types, figures.draining_runners) == (1, 1)


def test_nothing_is_said_or_kept_when_nothing_is_left() -> None:
    desk = Desk()
    desk.connect()
    proof = desk.run()
    desk.ask()
    desk(events.AskGone(1))
    desk.answer(proof)
    desk.hear(messages.Complete(**proof, outcome="succeeded"), job_id=JOB)
    desk.hello(2)
    for connection in (1, 2):
        desk(events.Lost(connection))
    assert desk.wait(1000) == []
    core, registry = desk.core, desk.core.registry
    assert not (core.jobs or core._jobs._sessions or core._ops._asks)
    assert not (registry.links or registry.of_runner or registry.checking)
