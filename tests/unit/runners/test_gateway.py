"""The gateway's machine: what each event makes it say."""

from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from rota.runners import gateway_events as events
from rota.runners import messages
from rota.runners.claim_lines import DRY_S
from rota.runners.gateway import Gateway
from rota.runners.gateway_admission import RETURN_RETRY_MAX_S, RETURN_S, Rules
from rota.runners.gateway_events import Identity, Job, Lease
from rota.runners.gateway_ops import AWAY_S
from rota.runners.matching import Needs
from rota.runners.messages import Frame, Held, Limits, OpError, Requires
from rota.runners.token import Claims, TokenKeys

WALL = 1_800_000_000.0
KEYS = TokenKeys([b"k" * 32])
JOB, OTHER = "0197c7a0-0000-7000-8000-0000000000a1", "0197c7a0-0000-7000-8000-0000000000a2"
SESSION = "0197c7a0-0000-7000-8000-0000000000c1"
POOL = Identity("worker-1", "CloudPool", None)
DESKTOP = Identity("device-1", "Desktop", "org-1")
CAPABILITIES = messages.Capabilities(
    protocol_version="1.0", agent_version="1.2.0", os="linux", arch="amd64", slots=2, container="none",
    runtime_image_digest=None, ffmpeg_version="8.0", fontset_version="1", job_types=("video.compile",),
    max_output_bytes=1000,
)  # fmt: skip


def job_of(job_id: str = JOB, epoch: int = 1, **options: Any) -> Job:
    job = Job(
        Lease(job_id, epoch), SESSION[:-2] + job_id[-2:], "org-1", "CloudPool", "video.compile", 1, 600,
        Limits(max_output_bytes=1000, idle_timeout_sec=120), Requires(), {"executionId": "e"},
    )  # fmt: skip
    return replace(job, **options)


class Desk:
    """A gateway, its clock, and what it said."""

    def __init__(self, **rules: Any) -> None:
        self.core = Gateway(Rules("gateway-0", **rules), KEYS, Random(1))
        self.now = 0.0
        self.said: list[Any] = []

    def __call__(self, event: Any) -> list[Any]:
        self.said = self.core.handle(event, self.now, WALL + self.now)
        return self.said

    def hear(self, message: Any, *, job_id: str | None = None, session_id: str | None = None, at: int = 1) -> list[Any]:
        return self(events.Received(at, Frame("m", message, job_id, session_id)))

    def wait(self, seconds: float) -> list[Any]:
        """Lets time pass, with the ticks that are asked for."""
        until, said = self.now + seconds, []
        while (at := self.core.next_at()) is not None and at <= until:
            self.now = max(self.now, at)
            said += self(events.Tick())
        self.now, self.said = until, said
        return said

    def hello(self, at: int = 1, *, running: tuple[Held, ...] = (), **changes: Any) -> list[Any]:
        self(events.Opened(at, "gateway.invalid"))
        auth = messages.PoolAuth(credential="secret", worker_name="worker-1")
        capabilities = msgspec.structs.replace(CAPABILITIES, **changes)
        return self.hear(
            messages.Hello(protocol_version="1.0", auth=auth, capabilities=capabilities, running=running or None), at=at
        )

    def connect(self, at: int = 1, identity: Identity = POOL, **changes: Any) -> list[Any]:
        self.hello(at, **changes)
        return self(events.Verified(at, identity))

    def deal(self, job: Job | None = None, at: int = 1) -> str:
        """One job, offered; returns its token."""
        self.hear(messages.Ready(free_slots=1), at=at)
        said = self(events.Claimed(at, (job or job_of(),)))
        return str(messages_of(said)[0].job_token)

    def run(self, job: Job | None = None) -> dict[str, Any]:
        """One job, accepted; returns what its messages carry."""
        token = self.deal(job)
        proof = {"lease_epoch": 1, "job_token": token}
        self.hear(messages.Accept(**proof), job_id=JOB)
        return proof

    def ask(self, ask: int = 1, op_id: str | None = "op-1", op: str = "stat", timeout_s: int | None = 30) -> list[Any]:
        return self(events.OpAsked(ask, SESSION[:-2] + "a1", op_id, op, {"path": "a"}, timeout_s))

    def answer(self, proof: dict[str, Any], op_id: str = "op-1", **options: Any) -> list[Any]:
        said = {"ok": True, "result": {"x": 1}, **options}
        return self.hear(messages.OpResponse(op_id=op_id, **proof, **said), job_id=JOB, session_id=SESSION[:-2] + "a1")


def messages_of(said: list[Any]) -> list[Any]:
    return [command.frame.message for command in said if isinstance(command, events.Send)]


def of(kind: type, said: list[Any]) -> list[Any]:
    return [command for command in said if isinstance(command, kind)]


def closes(said: list[Any]) -> list[int]:
    return [int(command.code) for command in of(events.Close, said)]


# The handshake


def test_a_runner_is_welcomed() -> None:
    desk = Desk(min_agent_version="1.0")
    assert [type(command) for command in desk.hello()] == [events.Authenticate]
    said = desk(events.Verified(1, DESKTOP))
    (welcome,) = messages_of(said)
    assert (welcome.runner_id, welcome.kind, welcome.org_id) == ("device-1", "Desktop", "org-1")
    assert (welcome.heartbeat_sec, welcome.dead_after_sec, welcome.max_inline_bytes) == (15, 45, 4_194_304)
    assert (welcome.gateway_instance, welcome.min_agent_version, welcome.resumed) == ("gateway-0", "1.0", ())


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
    assert (bye.retry_after_sec, bye.server_time) == (6, "2027-01-15T08:00:00.000Z")


def test_the_newest_connection_wins() -> None:
    desk = Desk()
    desk.connect(1)
    said = desk.connect(2)
    assert [(c.connection, int(c.code)) for c in of(events.Close, said)] == [(1, 4409)]
    assert [c.connection for c in of(events.Send, said)] == [2]


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


def test_silence_ends_a_connection_and_any_bytes_are_life() -> None:
    """S47, S50"""
    desk = Desk()
    desk.connect()
    desk.wait(40)
    desk(events.Heard(1))
    assert closes(desk.wait(44)) == []
    assert closes(desk.wait(2)) == [4408]
    assert desk(events.Lost(1)) == []


def test_an_old_agent_is_welcomed_and_gets_no_jobs() -> None:
    desk = Desk(min_agent_version="2.0")
    desk.connect()
    assert of(events.Claim, desk.hear(messages.Ready(free_slots=2))) == []


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


@pytest.mark.parametrize(("event", "code"), [(events.Revoked("device-1"), 4401), (events.Forbidden("org-1"), 4403)])
def test_who_is_barred_while_its_hello_is_looked_at_does_not_come_in(event: Any, code: int) -> None:
    desk = Desk()
    desk.hello()
    assert desk(event) == []
    said = desk(events.Verified(1, DESKTOP))  # by what was read before
    assert closes(said) == [code] and [type(m) for m in messages_of(said)] == [messages.Bye]
    # A hello that begins after it is looked at anew, and rests on what is read then.
    assert [type(m) for m in messages_of(desk.connect(2, identity=DESKTOP))] == [messages.Welcome]


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


# Dealing


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


# Fencing


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


# Ops


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


# Coming back


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


# Ends


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
    desk(events.Lost(1))
    assert desk.wait(1000) == []
    core = desk.core
    assert not (core.jobs or core._jobs._sessions or core._ops._asks or core.registry.links or core.registry.of_runner)


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
