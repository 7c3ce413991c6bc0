"""What runners report about their jobs, and what counts of it."""

import pytest

from rota.runners import gateway_events as events
from rota.runners import messages
from rota.runners.frames import Frame
from rota.runners.gateway_events import Identity, Lease
from rota.runners.token import Claims
from tests.unit.runners.gateway_desk import JOB, KEYS, OTHER, SESSION, WALL, Desk, messages_of, of


def test_an_accept_that_crosses_a_cancel_is_told_of_it_again() -> None:
    desk = Desk()
    desk.connect()
    token = desk.deal()
    assert [m.reason for m in messages_of(desk(events.CancelJob(JOB, "execution_ended")))] == ["execution_ended"]
    said = desk.hear(messages.Accept(lease_epoch=1, job_token=token), job_id=JOB)
    assert [m.reason for m in messages_of(said)] == ["execution_ended"] and of(events.StoreAccept, said) == []


def test_a_reject_that_crosses_a_cancel_ends_the_job_at_once() -> None:
    desk = Desk()
    desk.connect()
    token = desk.deal()
    desk(events.CancelJob(JOB, "user"))
    said = desk.hear(messages.Reject(lease_epoch=1, job_token=token, reason="busy"), job_id=JOB)
    assert [command.lease for command in of(events.EndCancelled, said)] == [Lease(JOB, 1)]
    assert of(events.Release, said) == []
    assert JOB not in desk.core.jobs


@pytest.mark.parametrize("kind", ["token", "expired", "epoch", "connection", "job", "session"])
def test_what_proves_nothing_changes_nothing(kind: str) -> None:
    """S54"""
    desk = Desk()
    desk.connect(1)
    proof = desk.run()
    desk.connect(2, Identity("worker-2", "CloudPool", None))
    token, epoch, job_id, at = proof["job_token"], 1, JOB, 1
    match kind:
        case "token":
            token = KEYS.mint(Claims(OTHER, 1, "org-1", int(WALL) + 900))
        case "expired":
            token = KEYS.mint(Claims(JOB, 1, "org-1", int(WALL)))
        case "epoch":
            epoch = 2
        case "connection":
            at = 2
        case "job":
            job_id = OTHER
        case "session":
            token = KEYS.mint(Claims(JOB, 1, "org-1", int(WALL) + 900, SESSION[:-2] + "ff"))
    for message in (
        messages.Progress(lease_epoch=epoch, job_token=token, stage="s"),
        messages.Fail(
            lease_epoch=epoch, job_token=token, failure_class="input", code="c", message="m", retryable=False
        ),
        messages.Complete(lease_epoch=epoch, job_token=token, outcome="succeeded"),
    ):
        said = desk.hear(message, job_id=job_id, at=at)
        assert [type(command) for command in said] == [events.Send]
        assert [m.reason for m in messages_of(said)] == ["lease_lost"]
    assert JOB in desk.core.jobs


def test_a_cancelled_job_ends_when_its_runner_says_so() -> None:
    desk = Desk()
    desk.connect()
    proof = desk.run()
    desk(events.CancelJob(JOB, "execution_ended"))
    said = desk.hear(messages.Complete(**proof, outcome="cancelled"), job_id=JOB)
    assert said == [events.EndCancelled(Lease(JOB, 1))]
    assert desk.wait(100) and not of(events.EndCancelled, desk.said)


@pytest.mark.parametrize(
    ("claimed", "counts", "retryable"),
    [("platform", "runner", True), ("runner", "runner", True), ("input", "input", False), ("moon", "runner", True)],
)
def test_a_failure_counts_as_the_platform_derives_it(claimed: str, counts: str, *, retryable: bool) -> None:
    desk = Desk()
    desk.connect()
    proof = desk.run()
    fail = messages.Fail(**proof, failure_class=claimed, code="c", message="m", retryable=True)
    (failed,) = of(events.FailJob, desk.hear(fail, job_id=JOB))
    assert (failed.failure_class, failed.claimed_class, failed.retryable) == (counts, claimed, retryable)


def test_a_token_that_was_good_ends_nevertheless() -> None:
    desk = Desk()
    desk.connect()
    proof = desk.run()
    said = desk.core.handle(
        events.Received(1, Frame("m", messages.Progress(**proof, stage="s"), JOB)), desk.now, WALL + 900
    )
    assert [message.reason for message in messages_of(said)] == ["lease_lost"]


def test_accept_and_reject_count_once() -> None:
    desk = Desk()
    desk.connect()
    proof = desk.run()
    assert desk.hear(messages.Accept(**proof), job_id=JOB) == []
    assert desk.hear(messages.Reject(**proof, reason="busy"), job_id=JOB) == []
    assert JOB in desk.core.jobs
