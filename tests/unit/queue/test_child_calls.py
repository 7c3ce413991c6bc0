"""Calls of child processes on their way to the worker and back."""

import io
from pathlib import Path
from typing import Any

import pytest

from rota.commands import Call, Completed
from rota.errors import ExecError, ExecFailed, ExecLost, ExecRefused, NoSlot, RotaError, SettingsError
from rota.queue import child_calls
from rota.queue.child_calls import Answered, Asks, Report, answered, asks, call_of, completed, failed
from rota.queue.child_messages import Frames, Ready, frame

REPORT = Report("exit", 0, None, None, None, 1.5, 7, 3, 2, 0, None, False, True)


def travel(message: Asks | Answered) -> Any:
    (arrived,) = Frames().feed(frame(message))
    return arrived


def test_a_call_comes_as_it_was_made_and_under_the_jobs_name() -> None:
    moved: list[int] = []
    made = Call(
        "ocr", {"page": 3, "fast": True}, b"in", env={"TZ": "UTC"}, priority=4, tenant="acme", timeout_s=2.5,
        wait_s=1.0, check=False, name="somebody else's",
    )  # fmt: skip
    call = call_of(travel(asks(7, made)), name="job", moved=lambda: moved.append(1))
    assert (call.service, call.args, call.stdin, call.env) == ("ocr", {"page": 3, "fast": True}, b"in", {"TZ": "UTC"})
    assert (call.priority, call.tenant, call.timeout_s, call.wait_s, call.check) == (4, "acme", 2.5, 1.0, False)
    assert call.name == "job"
    call.moved()
    assert moved == [1]
    assert call_of(travel(asks(8, Call("ocr", ("a", 1)))), name="job", moved=print).args == ["a", 1]


@pytest.mark.parametrize("stdin", [b"abc", [b"a", b"bc"], io.BytesIO(b"abc"), bytearray(b"abc"), iter([b"abc"])])
def test_what_is_fed_is_handed_over_whole(stdin: Any) -> None:
    assert call_of(travel(asks(1, Call("cat", stdin=stdin))), name="job", moved=print).stdin == b"abc"


def test_a_file_travels_as_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call = call_of(travel(asks(1, Call("cat", stdin=Path("page")))), name="job", moved=print)
    assert call.stdin == tmp_path / "page"


async def chunks() -> Any:
    yield b""


@pytest.mark.parametrize(
    "stdin", ["text", io.StringIO("text"), [1], chunks(), b"x" * 11, [b"x" * 6] * 2, io.BytesIO(b"x" * 11)]
)
def test_what_cannot_be_handed_over_is_refused(stdin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_calls, "INPUT_BYTES_MAX", 10)
    with pytest.raises(ExecRefused):
        asks(1, Call("cat", stdin=stdin))


def test_an_answer_is_output_and_receipt() -> None:
    done = completed(travel(answered(3, Completed(b"out", REPORT))))
    assert (done.output, done.receipt) == (b"out", REPORT)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ExecLost("gone"), ExecLost),
        (ExecRefused("no"), ExecRefused),
        (SettingsError("no exec servers"), SettingsError),
        (ZeroDivisionError("ours"), ExecError),
    ],
)
def test_what_the_call_raised_is_raised_in_the_child(error: Exception, kind: type[RotaError]) -> None:
    with pytest.raises(kind, match=str(error)) as caught:
        completed(travel(failed(3, error)))
    assert type(caught.value) is kind


def test_what_an_error_carries_comes_along() -> None:
    with pytest.raises(ExecFailed, match="badly") as bad:
        completed(travel(failed(3, ExecFailed("badly", receipt=REPORT))))
    assert bad.value.receipt == REPORT
    with pytest.raises(NoSlot, match="none came") as none:
        completed(travel(failed(3, NoSlot("none came", after_s=60.0))))
    assert none.value.after_s == 60.0


def test_bytes_that_are_no_messages_are_one_kind_of_error() -> None:
    for body in (b"\xc1", frame(Ready())[4:].replace(b"Ready", b"Other")):
        with pytest.raises(ValueError, match="does not know"):
            list(Frames().feed(len(body).to_bytes(4, "big") + body))
