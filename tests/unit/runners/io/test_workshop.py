"""The workshop: each op is answered once, each session ends once, and its folder with it."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from rota.io.scratch import Scratch
from rota.runners.agent_events import (
    Answer,
    EndSession,
    Event,
    ForgetAnswer,
    KeepAnswer,
    OpEnded,
    OpenSession,
    OpMoved,
    Recall,
    Recalled,
    RunOp,
    SessionBroke,
    SessionEnded,
)
from rota.runners.io import workshop as workshop_module
from rota.runners.io.ringlog import FILE_NAME, RingLog
from rota.runners.io.workshop import Workshop
from rota.runners.messages import Assign, Limits, Requires
from rota.runners.ops import PathArgs, args_of
from tests.runner_media import Made

JOB = "0197c0de-0000-7000-8000-000000000001"
OTHER = "0197c0de-0000-7000-8000-000000000002"
WAIT_S = 60.0

E = TypeVar("E", bound=Event)


def assign(epoch: int = 1) -> Assign:
    return Assign(
        job_type="video.compile", lease_epoch=epoch, job_token="t", attempt=1, timeout_sec=60,
        limits=Limits(max_output_bytes=1, idle_timeout_sec=60), requires=Requires(), spec={}, org_id="o",
    )  # fmt: skip


class Bench:
    """A workshop, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = Made()
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.ring = RingLog(folder / "log")
        self.left: list[str] = []
        scratch = Scratch(folder / "scratch", prefix="runner-", left=self.left.append)
        self.workshop = Workshop(scratch, make_media=self.made, say=self.events.put_nowait, ring=self.ring)

    async def next(self, kind: type[E]) -> E:
        async with asyncio.timeout(WAIT_S):
            event = await self.events.get()
        assert isinstance(event, kind), event
        return event

    def open(self, job_id: str = JOB, *, epoch: int = 1) -> None:
        self.workshop.obey(OpenSession(job_id, assign(epoch)))

    def run(self, op: str, args: dict[str, object], *, op_id: str = "op-1", timeout_s: float = 60.0) -> None:
        typed = args_of("video.compile", op, args)
        self.workshop.obey(RunOp(JOB, 1, "video.compile", op_id, op, typed, timeout_s))

    def ffmpeg(self, *argv: str, timeout_s: float = 60.0) -> None:
        self.run("ffmpeg", {"argv": list(argv), "timeoutSec": 60}, timeout_s=timeout_s)

    def folders(self) -> list[Path]:
        return sorted(path for path in (self.folder / "scratch").glob("runner-*/*") if path.is_dir())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.ring.close()


async def test_ops_run_in_a_folder_of_the_sessions_own(bench: Bench) -> None:
    bench.open()
    bench.run("stage", {"url": "https://store.invalid/a", "path": "in.mp4", "maxBytes": 100})
    staged = await bench.next(OpEnded)
    assert (staged.job_id, staged.epoch, staged.op_id) == (JOB, 1, "op-1")
    assert staged.answer.result is not None
    assert staged.answer.result["bytes"] == 23
    (folder,) = bench.folders()
    assert (folder.stat().st_mode & 0o777, os.listdir(folder / "files")) == (0o700, ["in.mp4"])
    bench.workshop.obey(EndSession(JOB, 1, 10.0, "done"))
    assert await bench.next(SessionEnded) == SessionEnded(JOB, 1)
    await bench.workshop.close()
    assert bench.made.sessions[0].closed
    assert list((bench.folder / "scratch").iterdir()) == []


async def test_progress_is_told_in_percent(bench: Bench) -> None:
    bench.open()
    bench.ffmpeg("wait")
    assert await bench.next(OpMoved) == OpMoved(JOB, 1, "op-1", "ffmpeg", 25.0, "frame 25")
    bench.made.sessions[0].go_on.set()
    assert (await bench.next(OpEnded)).answer.result == {"exitCode": 0, "stderrTail": "", "durationMs": 1}
    await bench.workshop.close()


@pytest.mark.parametrize("argv", ["wait", "deaf"])
async def test_a_session_that_ends_ends_its_op_which_is_answered(bench: Bench, argv: str) -> None:
    bench.open()
    bench.ffmpeg(argv)
    await bench.made.sessions[0].began.wait()
    bench.workshop.obey(EndSession(JOB, 1, 0.2, "cancelled"))
    while not isinstance(event := await bench.next(OpEnded | OpMoved), OpEnded):  # type: ignore[arg-type]
        pass
    assert event.answer.error is not None
    assert event.answer.error.code == "cancelled"
    assert await bench.next(SessionEnded) == SessionEnded(JOB, 1)
    await bench.workshop.close()


async def test_an_op_that_outlives_its_time_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workshop_module, "LATE_S", 0.0)
    bench.open()
    bench.ffmpeg("deaf", timeout_s=0.01)
    error = (await bench.next(OpEnded)).answer.error
    assert error is not None
    assert (error.code, error.retryable) == ("timeout", True)
    await bench.workshop.close()


async def test_an_op_that_breaks_is_answered_and_tells_no_secret(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.open()
    bench.ffmpeg("break")
    error = (await bench.next(OpEnded)).answer.error
    assert error is not None
    assert "canary" not in error.message
    bench.run("stat", {"path": "a"}, op_id="op-2")
    assert (await bench.next(OpEnded)).answer.result == {"exists": False, "bytes": 0}
    await bench.workshop.close()
    assert "canary" not in (bench.folder / "log" / FILE_NAME).read_text()
    assert "canary" not in caplog.text


async def test_answers_are_kept_beside_the_files_until_they_are_forgotten(bench: Bench) -> None:
    large = Answer(result={"content": "x" * 10_000})
    bench.open()
    bench.workshop.obey(KeepAnswer(JOB, 1, "op-1", large))
    bench.workshop.obey(Recall(JOB, 1, "op-1"))
    assert await bench.next(Recalled) == Recalled(JOB, 1, "op-1", large)
    (folder,) = bench.folders()
    assert sorted(os.listdir(folder)) == ["answers", "files"]
    assert os.listdir(folder / "files") == []
    bench.workshop.obey(ForgetAnswer(JOB, 1, "op-1"))
    bench.workshop.obey(Recall(JOB, 1, "op-1"))
    assert await bench.next(Recalled) == Recalled(JOB, 1, "op-1", None)
    await bench.workshop.close()


async def test_a_session_without_a_folder_breaks(bench: Bench) -> None:
    (bench.folder / "scratch").write_text("no folder")
    bench.open()
    broke = await bench.next(SessionBroke)
    assert (broke.job_id, broke.epoch, broke.code) == (JOB, 1, "disk_full")
    bench.run("stat", {"path": "a"})
    error = (await bench.next(OpEnded)).answer.error
    assert error is not None
    assert error.code == "disk_full"
    bench.workshop.obey(EndSession(JOB, 1, 10.0, "broke"))
    await bench.next(SessionEnded)
    await bench.workshop.close()


async def test_the_session_that_takes_the_most_disk_is_broken(bench: Bench) -> None:
    """S80: the quota of all sessions together."""
    bench.workshop.break_largest("nothing runs")
    bench.open()
    bench.open(OTHER, epoch=7)
    (bench.made.sessions[0].folder / "small").write_bytes(b"x" * 1000)
    (bench.made.sessions[1].folder / "large").write_bytes(b"x" * 100_000)
    bench.workshop.break_largest("too much")
    assert await bench.next(SessionBroke) == SessionBroke(OTHER, 7, "disk_full", "too much")
    await bench.workshop.close()


async def test_two_epochs_of_one_job_are_two_sessions(bench: Bench) -> None:
    bench.open(epoch=1)
    bench.workshop.obey(EndSession(JOB, 1, 0.0, "lease_lost"))
    bench.open(epoch=2)
    assert bench.made.sessions[0].folder != bench.made.sessions[1].folder
    assert await bench.next(SessionEnded) == SessionEnded(JOB, 1)
    bench.workshop.obey(RunOp(JOB, 2, "video.compile", "op-1", "stat", PathArgs(path="a"), 60.0))
    assert (await bench.next(OpEnded)).epoch == 2
    await bench.workshop.close()
