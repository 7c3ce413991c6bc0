"""Ops at a gateway: who waits for which, and what each is answered."""

from rota.runners import gateway_events as events
from rota.runners import messages
from rota.runners.gateway_events import Lease
from rota.runners.gateway_ops import AWAY_S
from rota.runners.messages import Held, OpError
from tests.unit.runners.gateway_desk import JOB, SESSION, Desk, job_of, messages_of, of


def test_an_op_goes_to_the_runner_and_its_answer_back() -> None:
    desk = Desk()
    desk.connect()
    proof = desk.run()
    (request,) = messages_of(desk.ask(timeout_s=None))
    assert (request.op_id, request.op, request.timeout_sec) == ("op-1", "stat", 600)
    assert desk.answer(proof) == [events.AnswerOp(1, "op-1", {"x": 1}, None)]
    desk.ask(2, "op-2")
    error = OpError(code="invalid_path", message="m", retryable=False)
    assert desk.answer(proof, "op-2", ok=False, result=None, error=error) == [events.AnswerOp(2, "op-2", None, error)]
    assert desk.answer(proof, "op-2") == [], "twice"


def test_one_op_is_in_flight_and_a_repeat_waits_for_it() -> None:
    desk = Desk()
    desk.connect()
    proof = desk.run()
    desk.ask(1)
    (refused,) = desk.ask(2, "op-2")
    assert (refused.status, refused.code) == (409, "op_in_flight")
    assert desk.ask(3) == [], "the same op id"
    assert {command.ask for command in desk.answer(proof)} == {1, 3}


def test_an_op_that_is_not_answered_times_out_and_can_be_asked_again() -> None:
    desk = Desk()
    desk.connect()
    proof = desk.run()
    desk.ask(1, timeout_s=20)
    (refused,) = of(events.RefuseOp, desk.wait(26))
    assert (refused.ask, refused.status, refused.code) == (1, 504, "op_timeout")
    assert [command.status for command in desk.ask(2, "op-2")] == [409]
    assert desk.ask(3) == []
    assert [command.ask for command in desk.answer(proof)] == [3]


def test_an_op_before_the_accept_waits_for_it() -> None:
    desk = Desk()
    desk.connect()
    token = desk.deal()
    assert desk.ask() == []
    said = desk.hear(messages.Accept(lease_epoch=1, job_token=token), job_id=JOB)
    assert [type(message) for message in messages_of(said)] == [messages.OpRequest]


def test_close_ends_the_job() -> None:
    """S81"""
    desk = Desk()
    desk.connect()
    proof = desk.run()
    desk.ask(op="close")
    said = desk.answer(proof)
    assert said == [events.AnswerOp(1, "op-1", {"x": 1}, None), events.Succeed(Lease(JOB, 1))]
    assert desk.hear(messages.Complete(**proof, outcome="succeeded"), job_id=JOB) == [], "it crossed: no answer"
    assert desk.ask(2) == [events.SeekOp(2, "op-1")]


def test_an_op_of_a_session_that_is_not_here_is_sought() -> None:
    """S57, S58"""
    desk = Desk()
    assert desk.ask() == [events.SeekOp(1, "op-1")]
    desk.connect()
    desk.run()
    desk(events.Lost(1))
    desk.now += AWAY_S
    assert desk.ask(2) == [events.SeekOp(2, "op-1")], "its runner may be elsewhere"


def test_an_op_waits_a_moment_for_a_runner_whose_connection_broke() -> None:
    desk = Desk()
    desk.connect()
    desk.run()
    desk(events.Lost(1))
    desk.now += 1
    assert desk.ask() == [], "it dials again"
    assert desk.wait(AWAY_S - 1.1) == []
    assert desk.wait(0.2) == [events.SeekOp(1, "op-1")], "it did not come back here"
    assert desk.ask(2, "op-2") == [events.SeekOp(2, "op-2")]


def test_an_op_that_waited_for_its_runner_is_sent_when_it_is_back() -> None:
    desk = Desk()
    desk.connect()
    proof = desk.run()
    desk(events.Lost(1))
    assert desk.ask() == []
    desk.connect(2, running=(Held(job_id=JOB, lease_epoch=1),))
    said = messages_of(desk(events.Kept(2, (job_of(accepted=True),))))
    assert [type(message).__name__ for message in said] == ["Welcome", "OpRequest"]
    assert desk.wait(AWAY_S) == [], "it is not sought any more"
    said = desk.hear(
        messages.OpResponse(op_id="op-1", ok=True, result={}, **proof), job_id=JOB, session_id=SESSION[:-2] + "a1", at=2
    )
    assert said == [events.AnswerOp(1, "op-1", {}, None)]


def test_what_waits_for_a_session_that_moved_is_sought_anew() -> None:
    """S57"""
    desk = Desk()
    desk.connect()
    desk.run()
    desk.ask()
    assert desk(events.Moved(Lease(JOB, 1))) == [], "its runner is here"
    desk(events.Lost(1))
    assert desk(events.Moved(Lease(JOB, 1))) == [events.SeekOp(1, "op-1")]
