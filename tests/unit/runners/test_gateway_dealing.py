"""Which jobs a gateway deals to whom: claims, lines of runners that are alike, and offers."""

from rota.runners import gateway_events as events
from rota.runners import messages
from rota.runners.claim_lines import DRY_S
from rota.runners.gateway_events import Identity, Lease
from rota.runners.matching import Needs
from rota.runners.messages import Requires
from rota.runners.token import Claims
from tests.unit.runners.gateway_desk import DESKTOP, JOB, KEYS, OTHER, SESSION, WALL, Desk, job_of, messages_of, of


def test_a_job_that_comes_while_a_claim_is_under_way_is_claimed_after_it() -> None:
    desk = Desk()
    desk.connect()
    desk.hear(messages.Ready(free_slots=2))
    needs = Needs("CloudPool", "org-1", "video.compile", Requires(), 1000)
    assert desk(events.Demand(needs)) == []  # the statement may have looked before the job was there
    assert [claim.slots for claim in of(events.Claim, desk(events.Claimed(1, ())))] == [2]
    assert of(events.Claim, desk(events.Claimed(1, ()))) == [], "once is enough"


def test_jobs_are_claimed_for_free_slots_only() -> None:
    desk = Desk()
    desk.connect()
    (claim,) = of(events.Claim, desk.hear(messages.Ready(free_slots=99)))
    assert (claim.slots, claim.target, claim.org_id) == (2, "CloudPool", None), "its capabilities have two"
    assert desk.hear(messages.Ready(free_slots=2)) == [], "a claim is under way"
    said = desk(events.Claimed(1, (job_of(), job_of(OTHER))))
    assert [type(message) for message in messages_of(said)] == [messages.Assign] * 2
    assert of(events.Claim, said) == []
    said = desk.hear(messages.RunnerHeartbeat(free_slots=2, running=()))
    assert desk.core.registry.links[1].free == 0, "a heartbeat that crossed the assigns"


def ready(desk: Desk, *runners: int) -> list[int]:
    """These say that they are free; whose claims that brings about."""
    said = [command for at in runners for command in desk.hear(messages.Ready(free_slots=1), at=at)]
    return [claim.connection for claim in of(events.Claim, said)]


def alike(count: int) -> Desk:
    """Runners that can do the same, connected."""
    desk = Desk()
    for at in range(1, count + 1):
        desk.connect(at, Identity(f"worker-{at}", "CloudPool", None))
    return desk


def test_one_claim_that_finds_nothing_does_for_all_that_are_alike() -> None:
    desk = alike(4)
    desk.connect(5, Identity("worker-5", "CloudPool", None), fontset_version="2")
    desk.connect(6, DESKTOP)
    assert ready(desk, 1, 2, 3, 5, 6) == [1, 5, 6], "another version or another organisation may find something"
    assert of(events.Claim, desk(events.Claimed(1, ()))) == []
    assert ready(desk, 4) == [], "nothing was there a moment ago"
    desk.now += DRY_S
    assert ready(desk, 4, 3) == [4]


def test_what_was_found_is_followed_up_by_the_next_in_line() -> None:
    desk = alike(4)
    assert ready(desk, 1, 2, 3, 4) == [1]
    desk(events.Lost(2))
    assert [c.connection for c in of(events.Claim, desk(events.Claimed(1, (job_of(),))))][-1] == 3
    assert [c.connection for c in of(events.Claim, desk(events.Claimed(3, (job_of(OTHER),))))][-1] == 4


def test_the_line_goes_on_where_the_one_that_asked_is_gone() -> None:
    desk = alike(3)
    assert ready(desk, 1, 2, 3) == [1]
    desk(events.Lost(1))
    assert [c.connection for c in of(events.Claim, desk(events.Claimed(1, ())))] == [2]


def test_work_that_comes_while_a_claim_is_under_way_is_claimed_all_the_same() -> None:
    """S4"""
    needs = Needs("CloudPool", "org-9", "video.compile", Requires(), 10)
    desk = alike(3)
    assert ready(desk, 1) == [1]
    desk(events.Demand(needs))  # its notification was faster than the claim's answer
    assert [c.connection for c in of(events.Claim, desk(events.Claimed(1, ())))] == [1], "it asks again"
    desk(events.Claimed(1, ()))
    assert ready(desk, 2) == [2], "so that nothing is known yet"
    desk(events.Claimed(2, ()))
    assert ready(desk, 3) == []
    assert of(events.Claim, desk(events.Demand(needs))) != [], "a job was queued"


def test_the_end_of_a_job_may_make_room_for_others_of_its_organisation() -> None:
    desk = alike(2)
    proof = desk.run()
    assert ready(desk, 2) == [2]
    desk(events.Claimed(2, ()))
    desk.hear(messages.Complete(outcome="succeeded", **proof), job_id=JOB)
    assert ready(desk, 1) == [1]


def test_who_declined_a_job_does_not_speak_for_others() -> None:
    desk = alike(2)
    token = desk.deal()
    desk.hear(messages.Reject(lease_epoch=1, job_token=token, reason="busy"), job_id=JOB)
    assert ready(desk, 1) == [1]
    desk(events.Claimed(1, ()))
    assert ready(desk, 2) == [2]


def test_a_queued_job_finds_a_runner_that_can_do_it() -> None:
    desk = Desk()
    desk.connect(1, Identity("a", "CloudPool", None), job_types=())
    desk.connect(2, Identity("b", "CloudPool", None))
    desk.connect(3, DESKTOP)
    for number in (1, 2, 3):
        desk.hear(messages.Ready(free_slots=1), at=number)
        desk(events.Claimed(number, ()))
    needs = Needs("CloudPool", "org-9", "video.compile", Requires(), 10)
    assert [c.connection for c in of(events.Claim, desk(events.Demand(needs)))] == [2]
    needs = Needs("OrgRunner", "org-1", "video.compile", Requires(), 10)
    assert [c.connection for c in of(events.Claim, desk(events.Demand(needs)))] == [3]
    assert desk(events.Demand(Needs("OrgRunner", "org-2", "video.compile", Requires(), 10))) == []


def test_what_must_not_go_there_is_given_back() -> None:
    """The statement sees to it; this is the second look."""
    for job in (job_of(target="OrgRunner"), job_of(job_type="video.analyze.extract")):
        desk = Desk()
        desk.connect()
        desk.hear(messages.Ready(free_slots=1))
        said = desk(events.Claimed(1, (job,)))
        assert messages_of(said) == []
        assert len(of(events.Release, said)) == 1


def test_a_claim_for_a_runner_that_is_gone_is_given_back() -> None:
    desk = Desk()
    desk.connect()
    desk.hear(messages.Ready(free_slots=1))
    desk(events.Lost(1))
    assert [c.lease for c in of(events.Release, desk(events.Claimed(1, (job_of(),))))] == [Lease(JOB, 1)]


def test_the_token_of_an_assign_covers_the_job_at_its_epoch() -> None:
    desk = Desk()
    desk.connect()
    claims = KEYS.read(desk.deal(), wall=WALL)
    assert claims == Claims(JOB, 1, "org-1", int(WALL) + 900, SESSION[:-2] + "a1")


def test_an_offer_that_is_not_answered_is_over_after_ten_seconds() -> None:
    desk = Desk()
    desk.connect()
    token = desk.deal()
    assert of(events.Release, desk.wait(9.9)) == []
    (release,) = of(events.Release, desk.wait(0.2))
    assert (release.lease, release.runner_id) == (Lease(JOB, 1), "worker-1")
    late = desk.hear(messages.Accept(lease_epoch=1, job_token=token), job_id=JOB)
    assert [message.reason for message in messages_of(late)] == ["lease_lost"]
    (claim,) = of(events.Claim, desk.hear(messages.Ready(free_slots=1)))
    assert claim.without == (JOB,)


def test_a_reject_gives_the_job_back_and_is_remembered() -> None:
    desk = Desk()
    desk.connect()
    token = desk.deal()
    said = desk.hear(messages.Reject(lease_epoch=1, job_token=token, reason="busy"), job_id=JOB)
    assert [c.reason for c in of(events.Release, said)] == ["busy"]
    (claim,) = of(events.Claim, desk.hear(messages.Ready(free_slots=1)))
    assert claim.without == (JOB,)
    desk(events.Claimed(1, ()))
    desk.now += 61
    (claim,) = of(events.Claim, desk.hear(messages.Ready(free_slots=1)))
    assert claim.without == ()
