"""What a person sees of a runner: bars that follow the ops, lines without tricks, and facts."""

import pytest

from rota.runners.agent_events import Answer, EndSession, OpEnded, OpenSession, OpMoved, RunOp, SessionEnded, Tell
from rota.runners.io.probing import Ability
from rota.runners.io.shown import LinesShown, TerminalShown, facts_of, shown_for
from rota.runners.messages import Assign, Capabilities, Limits, OpError, Requires
from rota.runners.ops import PathArgs

JOB = "0197c0de-0000-7000-8000-000000000001"
ASSIGN = Assign(
    job_type="video.compile", lease_epoch=1, job_token="canary", attempt=1, timeout_sec=60,
    limits=Limits(max_output_bytes=1, idle_timeout_sec=60), requires=Requires(), spec={"key": "canary"}, org_id="o",
)  # fmt: skip
SEEN = [
    Tell("goodbye", "The gateway says goodbye: \x1b[2Jevil.", urgent=True),
    OpenSession(JOB, ASSIGN),
    RunOp(JOB, 1, "video.compile", "op-1", "stat", PathArgs(path="canary"), 60.0),
    OpMoved(JOB, 1, "op-1", "ffmpeg", 25.0, "frame \x1b]0;title\x07 25"),
    OpEnded(JOB, 1, "op-1", Answer(error=OpError(code="timeout", message="canary", retryable=True))),
    OpEnded(JOB, 1, "op-2", Answer(result={"content": "canary"})),
    EndSession(JOB, 1, 10.0, "user"),
    SessionEnded(JOB, 1),
    SessionEnded("0197c0de-0000-7000-8000-000000000002", 1),
    OpMoved("0197c0de-0000-7000-8000-000000000002", 1, "op-9", "ffmpeg", None, None),
]


def test_elsewhere_than_on_a_terminal_events_are_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    shown = LinesShown()
    for what in SEEN:
        shown.saw(what)
    shown.close()
    events = [record.message.partition(" job_id")[0].partition(" text")[0] for record in caplog.records]
    assert events == ["goodbye", "session begins", "op ended", "op ended", "session ends"]
    assert "code='timeout'" in caplog.text
    assert "canary" not in caplog.text


def test_on_a_terminal_sessions_are_bars_that_follow_their_ops(capfd: pytest.CaptureFixture[str]) -> None:
    shown = TerminalShown()
    bars: list[tuple[str, str]] = []
    try:
        for what in SEEN:
            shown.saw(what)
            bars += [(task.fields["percent"], task.fields["detail"]) for task in shown.progress.tasks]
    finally:
        shown.close()
    assert [detail for _, detail in bars] == [
        "waits for an op", "stat", "ffmpeg frame \\x1b]0;title\\x07 25", "timeout, waits for an op", "waits for an op",
        "waits for an op",
    ]  # fmt: skip
    assert [percent for percent, _ in bars] == ["", "", "25 %", "", "", ""]
    said = capfd.readouterr().err
    assert "canary" not in said
    assert "\x1b[2J" not in said
    assert "goodbye" in said


def test_the_clock_of_a_session_goes_on_when_an_op_is_done() -> None:
    shown = TerminalShown()
    try:
        shown.saw(OpenSession(JOB, ASSIGN))
        shown.saw(OpMoved(JOB, 1, "op", "stage", 100.0, None))
        (task,) = shown.progress.tasks
        assert task.fields["percent"] == "100 %"
        assert not task.finished
    finally:
        shown.close()


def test_the_facts_say_what_a_runner_lacks() -> None:
    can = Capabilities(
        protocol_version="1.0", agent_version="1", os="linux", arch="amd64", slots=1, container="none",
        runtime_image_digest=None, ffmpeg_version="none", fontset_version="0", job_types=(), max_output_bytes=1,
    )  # fmt: skip
    facts = dict(facts_of(Ability(can, None, lacks="ffmpeg is missing"), gateway="wss://g", who="mac-7"))
    assert facts["ffmpeg"] == "none: ffmpeg is missing"
    assert facts["jobs"] == "none, until ffmpeg is here"
    assert facts["isolation"] == "the argv gate alone"


def test_a_terminal_gets_bars_and_a_log_gets_lines() -> None:
    assert isinstance(shown_for(terminal=False), LinesShown)
    shown = shown_for(terminal=True)
    assert isinstance(shown, TerminalShown)
    shown.close()
