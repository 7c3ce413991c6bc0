"""The runner's machine: what each event makes it say."""

from random import Random
from typing import Any

import msgspec
import pytest

from rota.runners import agent_events as events
from rota.runners import messages
from rota.runners.agent import Agent, Phase
from rota.runners.agent_events import Answer
from rota.runners.frames import Frame
from rota.runners.messages import LeaseAnswer, Limits, Requires

WALL = 1_800_000_000.0
JOB, OTHER = "0197c7a0-0000-7000-8000-0000000000a1", "0197c7a0-0000-7000-8000-0000000000a2"
SESSION = "0197c7a0-0000-7000-8000-0000000000c1"
CAPABILITIES = messages.Capabilities(
    protocol_version="1.0", agent_version="1.2.0", os="linux", arch="amd64", slots=1, container="none",
    runtime_image_digest=None, ffmpeg_version="8.0", fontset_version="1", job_types=("video.compile",),
    max_output_bytes=1000,
)  # fmt: skip
WELCOME = messages.Welcome(
    runner_id="r", kind="CloudPool", org_id=None, protocol_version="1.0", heartbeat_sec=15, dead_after_sec=45,
    max_inline_bytes=4_194_304, gateway_instance="gateway-0", server_time="2026-01-02T03:04:05Z", resumed=(),
)  # fmt: skip
ASSIGN = messages.Assign(
    job_type="video.compile", lease_epoch=1, job_token="FIXTURE.job.token", attempt=1, timeout_sec=600,
    limits=Limits(max_output_bytes=1000, idle_timeout_sec=120), requires=Requires(), spec={}, org_id="org-1",
)  # fmt: skip


class Bench:
    """An agent, its clock, and what it said."""

    def __init__(self, **changes: Any) -> None:
        self.core = Agent(msgspec.structs.replace(CAPABILITIES, **changes), Random(1))
        self.now = 1000.0
        self.link = 0
        self.frames = 0

    def __call__(self, event: Any) -> list[Any]:
        said = self.core.handle(event, self.now, WALL + self.now)
        for command in said:
            if isinstance(command, events.Dial):
                self.link = command.link
        return said

    def hear(self, message: Any, *, job_id: str | None = None, session_id: str | None = None) -> list[Any]:
        self.frames += 1
        return self(events.Received(self.link, Frame(f"f{self.frames}", message, job_id, session_id)))

    def wait(self, seconds: float, *, answers: bool = False) -> list[Any]:
        """Lets time pass with the ticks that are asked for; `answers`: heartbeats are answered, all is well."""
        until, said = self.now + seconds, []
        while (at := self.core.next_at()) is not None and at <= until:
            self.now = max(self.now, at)
            said += self(events.Tick())
            if answers:
                self.beats(said)
        self.now = until
        return said

    def beats(self, said: list[Any]) -> None:
        for beat in [m for m in sent(said[-3:]) if isinstance(m, messages.RunnerHeartbeat)]:
            leases = tuple(LeaseAnswer(job_id=held.job_id, ok=True) for held in beat.running)
            self.hear(messages.GatewayHeartbeat(server_time="2026-01-02T03:04:05Z", leases=leases))

    def connect(self, **welcome: Any) -> list[Any]:
        if self.core.phase is Phase.DOWN and self.core.next_at() is None:
            self(events.Start())
        self(events.Connected(self.link))
        return self.hear(msgspec.structs.replace(WELCOME, **welcome))

    def assign(self, job_id: str = JOB, **changes: Any) -> list[Any]:
        return self.hear(msgspec.structs.replace(ASSIGN, **changes), job_id=job_id, session_id=SESSION)

    def ask(self, op_id: str = "op-1", op: str = "stat", args: Any = None) -> list[Any]:
        request = messages.OpRequest(op_id=op_id, op=op, args=args or {"path": "a"}, timeout_sec=30)
        return self.hear(request, job_id=JOB, session_id=SESSION)

    def do(self, op_id: str = "op-1", answer: Answer | None = None) -> list[Any]:
        self.ask(op_id)
        return self(events.OpEnded(JOB, 1, op_id, answer or Answer({"exists": True, "bytes": 1})))


def sent(said: list[Any]) -> list[Any]:
    return [command.frame.message for command in said if isinstance(command, events.Send)]


def of(kind: type, said: list[Any]) -> list[Any]:
    return [command for command in said if isinstance(command, kind)]


def connected(**changes: Any) -> Bench:
    bench = Bench(**changes)
    bench.connect()
    return bench


def at_work(**changes: Any) -> Bench:
    bench = connected(**changes)
    bench.assign()
    return bench


def test_it_dials_says_hello_and_is_ready() -> None:
    bench = Bench()
    assert bench(events.Start()) == [events.Dial(1)]
    (hello,) = of(events.SendHello, bench(events.Connected(1)))
    assert (hello.running, hello.clock_offset_s) == ((), 0.0)
    said = sent(bench.hear(WELCOME))
    assert [type(message).__name__ for message in said] == ["RunnerHeartbeat", "Ready"]
    assert [message.free_slots for message in said] == [1, 1]


def test_a_job_is_accepted_and_another_declined_as_busy() -> None:
    bench = connected()
    said = bench.assign()
    assert [type(message) for message in sent(said)] == [messages.Accept]
    assert [command.job_id for command in of(events.OpenSession, said)] == [JOB]
    assert bench.assign() == [], "the same once more"
    assert [message.reason for message in sent(bench.assign(OTHER))] == ["busy"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"job_type": "video.analyze.extract"}, "capability_mismatch"),
        ({"job_type": "mine.bitcoin"}, "capability_mismatch"),
        ({"job_type": "remotion.workspace-session"}, "no_container_runtime"),
        ({"requires": Requires(fontset_version="2")}, "capability_mismatch"),
        ({"limits": Limits(max_output_bytes=1001, idle_timeout_sec=1)}, "capability_mismatch"),
    ],
)
def test_it_looks_itself_at_what_it_is_assigned(changes: dict[str, Any], reason: str) -> None:
    said = connected().assign(**changes)
    assert [message.reason for message in sent(said)] == [reason]
    assert of(events.OpenSession, said) == []


def test_a_pause_declines_and_an_old_version_takes_nothing() -> None:
    bench = connected()
    assert [message.free_slots for message in sent(bench(events.Paused(True)))] == [0]
    assert [message.reason for message in sent(bench.assign())] == ["paused_by_user"]
    assert [message.free_slots for message in sent(bench(events.Paused(False)))] == [1]
    bench = Bench()
    said = bench.connect(min_agent_version="1.3")
    assert [message.free_slots for message in sent(said)] == [0, 0]
    assert any(command.urgent and "update" in command.text for command in of(events.Tell, said))


def test_an_op_runs_once_and_its_repeat_is_answered_from_what_was_kept() -> None:
    bench = at_work()
    (run,) = of(events.RunOp, bench.ask())
    assert (run.op, run.args.path, run.timeout_s) == ("stat", "a", 30.0)
    assert bench.ask() == [], "it runs: its answer will come"
    (busy,) = sent(bench.ask("op-2"))
    assert (busy.error.code, busy.error.retryable) == ("op_in_flight", True)
    said = bench(events.OpEnded(JOB, 1, "op-1", Answer({"exists": True, "bytes": 1})))
    assert [type(command) for command in said] == [events.KeepAnswer, events.Send]
    assert bench.ask() == [events.Recall(JOB, 1, "op-1")]
    (again,) = sent(bench(events.Recalled(JOB, 1, "op-1", said[0].answer)))
    assert again.result == {"exists": True, "bytes": 1}


def test_answers_age_out_after_256() -> None:
    """S63"""
    bench = at_work()
    forgotten: list[str] = []
    for number in range(257):
        forgotten += [command.op_id for command in of(events.ForgetAnswer, bench.do(f"op-{number}"))]
    assert forgotten == ["op-0"]
    (expired,) = sent(bench.ask("op-0"))
    assert (expired.ok, expired.error.code) == (False, "op_expired")
    assert bench.ask("op-1") == [events.Recall(JOB, 1, "op-1")]
    assert [m.error.code for m in sent(bench(events.Recalled(JOB, 1, "op-1", None)))] == ["op_expired"]


@pytest.mark.parametrize(
    ("op", "args", "code"),
    [("teleport", {}, "unsupported_op"), ("writeFile", {}, "unsupported_op"), ("stat", {"path": 7}, "invalid_args")],
)
def test_what_it_cannot_read_it_does_not_run(op: str, args: Any, code: str) -> None:
    said = at_work().ask(op=op, args=args)
    assert [message.error.code for message in sent(said)] == [code]
    assert of(events.RunOp, said) == []


def test_a_result_that_no_frame_can_carry_is_an_error() -> None:
    """S48"""
    bench = at_work()
    bench.ask(op="read", args={"path": "a", "maxBytes": 4_194_304})
    said = bench(events.OpEnded(JOB, 1, "op-1", Answer({"content": "\0" * 1_000_000, "encoding": "utf8", "bytes": 1})))
    assert [message.error.code for message in sent(said)] == ["file_too_large"]


def test_close_ends_the_session_and_is_told_until_the_gateway_knows() -> None:
    """S81"""
    bench = at_work()
    (end,) = of(events.EndSession, bench.ask(op="close", args={"x": 1}))
    assert bench.ask("op-2") == []
    said = bench(events.SessionEnded(JOB, 1))
    assert end.reason == "closed"
    assert [type(message).__name__ for message in sent(said)] == ["OpResponse", "Complete", "Ready"]
    assert sent(said)[2].free_slots == 1
    bench(events.Dropped(bench.link, 1006, ""))
    bench.wait(2)
    (hello,) = of(events.SendHello, bench(events.Connected(bench.link)))
    assert [held.job_id for held in hello.running] == [JOB]
    resumed = (messages.Held(job_id=JOB, lease_epoch=1),)
    said = bench.hear(msgspec.structs.replace(WELCOME, resumed=resumed))
    assert [type(message).__name__ for message in sent(said)][:2] == ["OpResponse", "Complete"]
    bench.hear(messages.GatewayHeartbeat(server_time="x", leases=(LeaseAnswer(job_id=JOB, ok=False),)))
    assert bench.core.held == {}


def test_a_cancel_stops_the_session_and_is_acknowledged() -> None:
    """S59, S60"""
    bench = at_work()
    bench.ask()
    (end,) = of(events.EndSession, bench.hear(messages.Cancel(reason="user", grace_sec=10), job_id=JOB))
    assert (end.grace_s, end.reason) == (10, "user")
    assert bench(events.OpEnded(JOB, 1, "op-1", Answer({}))) == [], "what it was at is of no concern any more"
    said = sent(bench(events.SessionEnded(JOB, 1)))
    assert [getattr(message, "outcome", "") for message in said] == ["cancelled", ""]


def test_a_lost_lease_stops_the_session_and_nothing_is_said_of_it() -> None:
    for lost in (
        messages.Cancel(reason="lease_lost", grace_sec=10),
        messages.GatewayHeartbeat(server_time="x", leases=(LeaseAnswer(job_id=JOB, ok=False),)),
    ):
        bench = at_work()
        bench.wait(16)
        said = bench.hear(lost, job_id=JOB)
        if isinstance(lost, messages.GatewayHeartbeat):  # the first answer is for the beat before the job
            assert of(events.EndSession, said) == []
            said = bench.hear(lost, job_id=JOB)
        assert len(of(events.EndSession, said)) == 1
        assert [type(message).__name__ for message in sent(bench(events.SessionEnded(JOB, 1)))] == ["Ready"]
        assert bench.core.held == {}


def test_it_stops_by_itself_when_its_lease_is_not_confirmed() -> None:
    """S62"""
    bench = at_work()
    bench.hear(messages.GatewayHeartbeat(server_time="x", leases=()))
    said = bench.wait(15, answers=True)
    confirmed_at = bench.now
    bench(events.Dropped(bench.link, 1006, ""))
    bench.wait(0.1)
    while not of(events.EndSession, said) and bench.now < confirmed_at + 60:
        for dial in of(events.Dial, said):
            bench(events.DialFailed(dial.link, "refused"))
        said = bench.wait(0.5)
    assert confirmed_at + 43 <= bench.now <= confirmed_at + 45


def test_an_answer_that_comes_twice_confirms_once() -> None:
    bench = at_work()
    bench.wait(31)  # three heartbeats are out
    deadline = bench.core.held[JOB].deadline
    answer = messages.GatewayHeartbeat(server_time="x", leases=(LeaseAnswer(job_id=JOB, ok=True),))
    for _ in range(3):
        bench(events.Received(bench.link, Frame("same", answer)))
    assert bench.core.held[JOB].deadline == deadline, "the first beat did not name the job"


def test_a_machine_that_slept_dials_at_once_and_stops_what_is_over() -> None:
    """A late timer is a suspend: nothing waits for a closing handshake."""
    bench = at_work()
    bench.now += 12 + 15
    said = bench(events.Tick())
    assert [type(command) for command in said][:3] == [events.Tell, events.Hang, events.Dial]
    assert of(events.EndSession, said) == []
    bench.now += 60
    assert len(of(events.EndSession, bench(events.Tick()))) == 1


@pytest.mark.parametrize(("told_s", "every_s"), [(15, 15), (5, 5), (60, 15), (0, 1)])
def test_heartbeats_come_as_often_as_the_gateway_wants_and_at_least_every_15_s(told_s: int, every_s: int) -> None:
    bench = Bench()
    bench.connect(heartbeat_sec=told_s)
    beats = [m for m in sent(bench.wait(30, answers=True)) if isinstance(m, messages.RunnerHeartbeat)]
    assert len(beats) == 30 // every_s


def test_silence_is_a_half_open_link() -> None:
    bench = connected()
    said = bench.wait(33)
    assert of(events.Dial, said) == [events.Dial(2)]
    assert of(events.Hang, said)[0].at_once
    assert bench(events.Dropped(1, 1006, "")) == [], "of the old link"


def test_it_redials_for_ever_with_jitter_under_a_cap() -> None:
    bench = Bench()
    bench(events.Start())
    waits = []
    for _ in range(200):
        before = bench.now
        bench(events.DialFailed(bench.link, "refused"))
        at = bench.core.next_at()
        assert at is not None
        waits.append(at - before)
        bench.wait(at - before)
    assert max(waits) <= 30
    assert len(set(waits)) > 190
    assert min(waits[10:]) < 5 < max(waits[10:])


@pytest.mark.parametrize(
    ("code", "waits"),
    [
        *((code, (0, 1)) for code in (1000, 1001, 1006, 1009, 1012, 4408, 4429, 4999)),
        *((code, (15, 45)) for code in (4400, 4401, 4403, 4409)),
    ],
)
def test_how_soon_it_dials_again_depends_on_why_it_was_closed(code: int, waits: tuple[int, int]) -> None:
    """It never ends by itself. What only a person can lift is told as urgent, and tried less often."""
    for seed in range(20):
        bench = connected()
        bench.core._line.random.seed(seed)
        said = bench(events.Dropped(bench.link, code, "why"))
        (told,) = of(events.Tell, said)
        assert told.urgent == (waits[0] > 0) and "why" in told.text
        at = bench.core.next_at()
        assert at is not None
        assert waits[0] <= at - bench.now <= waits[1]
        assert of(events.Dial, bench.wait(waits[1])) == [events.Dial(bench.link)]


def test_a_session_is_not_given_up_for_a_connection_that_was_replaced() -> None:
    """What replaced it may be an older one of its own, of which a gateway heard late."""
    for seed in range(20):
        bench = at_work()
        bench.core._line.random.seed(seed)
        bench(events.Dropped(bench.link, 4409, "superseded"))
        at, (held,) = bench.core.next_at(), bench.core.held.values()
        assert at is not None
        assert of(events.Dial, bench.wait(at - bench.now)) == [events.Dial(2)]
        assert held.deadline >= bench.now + 15


def test_a_gateway_that_says_nothing_is_given_up_sooner_while_a_lease_runs_out() -> None:
    bench = connected()
    bench(events.Dropped(bench.link, 1006, ""))
    bench.wait(1)
    bench(events.Connected(bench.link))
    assert of(events.Hang, bench.wait(19.9)) == []
    assert [hang.at_once for hang in of(events.Hang, bench.wait(0.2))] == [True]
    bench = at_work()
    bench.wait(0.1, answers=True)
    bench(events.Dropped(bench.link, 1006, ""))
    for dials in range(1, 4):
        while bench.core.phase is not Phase.DIALLING:
            bench.wait(0.1)
        assert bench.core.held[JOB].deadline > bench.now, f"dial {dials} is within the lease"
        bench.wait(10)  # and nobody answers


def test_a_machine_that_slept_while_it_dialled_dials_anew() -> None:
    bench = Bench()
    bench(events.Start())
    bench.now += 600
    said = bench(events.Tick())
    assert [hang.link for hang in of(events.Hang, said)] == [1]
    assert of(events.Dial, said) == [events.Dial(2)]


def test_a_gateway_that_is_busy_says_how_long_to_wait() -> None:
    bench = Bench()
    bench(events.Start())
    bench(events.Connected(1))
    bench.hear(messages.Bye(reason="too many at once", retry_after_sec=90))
    bench(events.Dropped(1, 4429, ""))
    at = bench.core.next_at()
    assert at is not None
    assert 90 <= at - bench.now <= 135


def test_a_wrong_clock_is_corrected_once_and_told() -> None:
    """S52"""
    bench = Bench()
    bench(events.Start())
    bench(events.Connected(1))
    bye = messages.Bye(reason="the runner's clock is 300 s behind", server_time="2027-01-15T08:21:40Z")
    said = bench.hear(bye)
    assert of(events.Dial, said) == [events.Dial(2)]
    assert any("clock is off" in command.text for command in of(events.Tell, said))
    (hello,) = of(events.SendHello, bench(events.Connected(2)))
    assert hello.clock_offset_s == 300.0
    assert of(events.Dial, bench.hear(bye)) == [], "once"


def test_an_assign_that_crosses_a_drain_is_declined() -> None:
    """S65"""
    bench = connected()
    bench.hear(messages.GatewayHeartbeat(server_time="2027-01-15T08:16:40Z", leases=()))
    said = bench(events.Drain("sigterm", 0.0))
    assert [type(message).__name__ for message in sent(said)] == ["Drain", "RunnerHeartbeat"]
    assert [message.reason for message in sent(bench.assign(OTHER))] == ["shutting_down"]
    said = bench.hear(messages.GatewayHeartbeat(server_time="2027-01-15T08:16:40Z", leases=()))
    assert [type(message).__name__ for message in sent(said)] == ["Bye"], "all that crossed has come"
    bench = at_work(slots=2)
    said = bench(events.Drain("sigterm", 20.0))
    assert [type(message).__name__ for message in sent(said)] == ["Drain", "RunnerHeartbeat"]
    assert [message.reason for message in sent(bench.assign(OTHER))] == ["shutting_down"]
    (end,) = of(events.EndSession, bench.wait(20.5, answers=True))
    assert end.job_id == JOB
    said = bench(events.SessionEnded(JOB, 1))
    assert [type(message).__name__ for message in sent(said)][-1] == "Bye"
    assert [int(command.code) for command in of(events.Hang, said)] == [1000]
    assert bench(events.Dropped(bench.link, 1000, "")) == [events.Exit(0)]
    assert bench.core.next_at() is None


def test_a_drain_that_nobody_answers_ends_all_the_same() -> None:
    bench = connected()
    bench(events.Drain("sigterm", 0.0))
    said = bench.wait(5.5, answers=False)
    assert [type(message).__name__ for message in sent(said)] == ["Bye"]


def test_a_drain_without_a_connection_ends_at_once() -> None:
    bench = connected()
    bench(events.Dropped(bench.link, 1006, ""))
    assert of(events.Exit, bench(events.Drain("sigterm", None))) == [events.Exit(0)]


def test_a_session_that_breaks_is_a_failure() -> None:
    bench = at_work()
    assert len(of(events.EndSession, bench(events.SessionBroke(JOB, 1, "disk_full", "no space")))) == 1
    (fail, _) = sent(bench(events.SessionEnded(JOB, 1)))
    assert (fail.failure_class, fail.code) == ("runner", "disk_full")


def test_a_job_that_is_assigned_anew_ends_the_old_session_first() -> None:
    bench = at_work(slots=2)
    said = bench.assign(lease_epoch=2)
    assert [message.reason for message in sent(said)] == ["busy"]
    assert [(command.job_id, command.epoch) for command in of(events.EndSession, said)] == [(JOB, 1)]


def test_progress_is_sent_once_a_second() -> None:
    bench = at_work()
    bench.ask()
    moved = events.OpMoved(JOB, 1, "op-1", "ffmpeg", 10.0, "frame 1")
    assert [message.percent for message in sent(bench(moved))] == [10.0]
    assert bench(moved) == []
    bench.now += 1
    assert len(sent(bench(moved))) == 1


def test_less_disk_means_no_slots_and_more_means_another_hello() -> None:
    """A runner below its floor of free disk offers no job types."""
    bench = connected()
    said = bench(events.Changed(msgspec.structs.replace(CAPABILITIES, job_types=())))
    assert len(of(events.Dial, said)) == 1
    bench = at_work()
    said = bench(events.Changed(msgspec.structs.replace(CAPABILITIES, job_types=())))
    assert [message.free_slots for message in sent(said)] == [0]


@pytest.mark.parametrize("wait_s", [10**9, 2**63 - 1])
def test_a_gateway_that_asks_for_years_is_asked_again_within_two_hours(wait_s: int) -> None:
    for says_so in (True, False):
        bench = Bench()
        bench(events.Start())
        if says_so:
            bench(events.Connected(1))
            bench.hear(messages.Bye(reason="too many at once", retry_after_sec=wait_s))
            bench(events.Dropped(1, 4429, ""))
        else:
            bench(events.DialFailed(1, "it is not ready", float(wait_s)))
        at = bench.core.next_at()
        assert at is not None
        assert 3600 <= at - bench.now <= 5400


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59.999999999Z", "0001-01-01T00:00:00Z"])
def test_a_time_that_nobody_can_have_corrects_no_clock(time: str) -> None:
    bench = Bench()
    bench(events.Start())
    bench(events.Connected(1))
    assert of(events.Dial, bench.hear(messages.Bye(reason="the clock", server_time=time))) == []


@pytest.mark.parametrize("reason", ["user", "lease_lost"])
def test_a_job_is_stopped_within_a_minute_however_long_it_is_given(reason: str) -> None:
    bench = at_work()
    (end,) = of(events.EndSession, bench.hear(messages.Cancel(reason=reason, grace_sec=2**63 - 1), job_id=JOB))
    assert end.grace_s == 60


@pytest.mark.parametrize("heartbeat_s", [0, 1, 15, 2**63 - 1])
def test_however_often_a_gateway_wants_to_hear_of_it_a_runner_says_so_every_1_to_15_s(heartbeat_s: int) -> None:
    bench = Bench()
    bench.connect(heartbeat_sec=heartbeat_s)
    at = bench.core.next_at()
    assert at is not None
    assert 1 <= at - bench.now <= 15
