"""Ends of jobs that do not come from their runner."""

from rota.runners import gateway_events as events
from rota.runners import messages
from rota.runners.gateway_events import Lease
from rota.runners.messages import Limits
from tests.unit.runners.gateway_desk import DESKTOP, JOB, POOL, SESSION, Desk, closes, job_of, messages_of, of


def test_a_revoked_device_loses_its_jobs_and_its_connection() -> None:
    desk = Desk()
    desk.connect(identity=DESKTOP)
    desk.run(job_of(target="OrgRunner"))
    said = desk(events.Revoked("device-1"))
    assert [type(m).__name__ for m in messages_of(said)] == ["Cancel", "Bye"]
    assert messages_of(said)[0].reason == "revoked"
    assert of(events.Expire, said) == [events.Expire(Lease(JOB, 1), "the device was revoked")]
    assert closes(said) == [4401]


def test_a_disabled_organisation_is_closed_with_4403() -> None:
    desk = Desk()
    desk.connect(1, identity=DESKTOP)
    desk.connect(2, identity=POOL)
    desk.deal(at=2)
    assert [(c.connection, int(c.code)) for c in of(events.Close, desk(events.Forbidden("org-1")))] == [(1, 4403)]
    assert JOB in desk.core.jobs, "what the pool does for it was begun when it was allowed"


def test_a_disabled_organisation_loses_also_what_its_devices_will_come_back_for() -> None:
    desk = Desk()
    desk.connect(identity=DESKTOP)
    desk.run(job_of(target="OrgRunner"))
    desk(events.Lost(1))
    said = desk(events.Forbidden("org-1"))
    assert said == [events.Expire(Lease(JOB, 1), "the organisation is disabled")] and not desk.core.jobs


def test_a_worker_whose_secret_was_replaced_is_told_so() -> None:
    desk = Desk()
    desk.connect()
    said = desk(events.Revoked("worker-1", "the pool's secret was replaced"))
    assert closes(said) == [4401] and messages_of(said)[0].reason == "the pool's secret was replaced"


def test_a_job_that_somebody_else_has_ended_is_stopped_and_its_op_released() -> None:
    desk = Desk()
    desk.connect()
    desk.run()
    desk(events.OpAsked(7, SESSION[:-2] + "a1", "op-1", "stat", {}, None))
    said = desk(events.JobEnded(JOB))
    assert [m.reason for m in messages_of(said)] == ["execution_ended"]
    assert [(one.ask, one.status, one.code) for one in of(events.RefuseOp, said)] == [(7, 410, "session_lost")]
    assert not desk.core.jobs and desk(events.JobEnded(JOB)) == []


def test_a_cancel_releases_the_waiter_at_once_and_ends_after_its_grace() -> None:
    """S56"""
    desk = Desk()
    desk.connect()
    proof = desk.run()
    desk.ask()
    said = desk(events.CancelJob(JOB, "user"))
    assert [(m.reason, m.grace_sec) for m in messages_of(said)] == [("user", 10)]
    assert [(c.status, c.code) for c in of(events.RefuseOp, said)] == [(409, "op_cancelled")]
    assert [(c.status, c.code) for c in desk.ask(2)] == [(410, "session_lost")]
    assert desk.answer(proof) == []
    assert of(events.EndCancelled, desk.wait(9.9)) == []
    assert of(events.EndCancelled, desk.wait(0.2)) == [events.EndCancelled(Lease(JOB, 1))]
    late = desk.hear(messages.Complete(**proof, outcome="succeeded"), job_id=JOB)
    assert [type(command) for command in late] == [events.Send], "thrown away"


def test_a_session_ends_by_its_limits() -> None:
    for spec, passes, reason in (
        (job_of(timeout_s=40), 40.1, "session_timeout"),
        (job_of(limits=Limits(max_output_bytes=1, idle_timeout_sec=30)), 30.1, "session_idle"),
    ):
        desk = Desk()
        desk.connect()
        desk.run(spec)
        (expired,) = of(events.Expire, desk.wait(passes))
        assert expired.reason == reason


def test_an_op_in_flight_is_no_idleness() -> None:
    desk = Desk()
    desk.connect()
    desk.run(job_of(limits=Limits(max_output_bytes=1, idle_timeout_sec=30)))
    desk.ask(timeout_s=600)
    assert of(events.Expire, desk.wait(40)) == []
