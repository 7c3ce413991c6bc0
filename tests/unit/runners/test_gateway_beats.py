"""Heartbeats: which leases go on."""

from rota.runners import gateway_events as events
from rota.runners import messages
from rota.runners.gateway_events import Lease
from rota.runners.messages import Held
from tests.unit.runners.gateway_desk import JOB, OTHER, Desk, messages_of


def test_heartbeats_renew_what_is_held_and_tell_what_is_lost() -> None:
    desk = Desk()
    desk.connect()
    desk.run()
    running = (Held(job_id=JOB, lease_epoch=1), Held(job_id=OTHER, lease_epoch=4))
    said = desk.hear(messages.RunnerHeartbeat(free_slots=1, running=running))
    assert said == [events.Renew(1, (Lease(JOB, 1),))]
    (beat,) = messages_of(desk(events.Renewed(1, ())))
    assert [(lease.job_id, lease.ok) for lease in beat.leases] == [(JOB, True), (OTHER, False)]
    desk.hear(messages.RunnerHeartbeat(free_slots=1, running=running[:1]))
    (beat,) = messages_of(desk(events.Renewed(1, None)))
    assert beat.leases == (), "nobody knows: the runner's own deadline counts"
    desk.hear(messages.RunnerHeartbeat(free_slots=1, running=running))
    (beat,) = messages_of(desk(events.Renewed(1, (), unknown=(Lease(JOB, 1),))))
    assert [(lease.job_id, lease.ok) for lease in beat.leases] == [(OTHER, False)], "of one of them nobody knows"
    assert JOB in desk.core.jobs
    desk.hear(messages.RunnerHeartbeat(free_slots=1, running=running[:1]))
    (beat,) = messages_of(desk(events.Renewed(1, (Lease(JOB, 1),))))
    assert [lease.ok for lease in beat.leases] == [False]
    assert desk.core.jobs == {}


def test_a_lease_that_is_not_renewed_is_lost_here_as_well() -> None:
    desk = Desk()
    desk.connect()
    desk.run()
    desk.now += 30
    desk(events.Heard(1))
    said = desk.wait(16)
    assert [message.reason for message in messages_of(said)] == ["lease_lost"]
    assert desk.ask() == [events.SeekOp(1, "op-1")]
