"""What the demo shows while it runs: on a terminal a picture that fits, elsewhere a line for each change."""

import io
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from rich.cells import cell_len
from rich.console import Console

from rota.demo.view import LiveView, PlainView, fraction_of, worker_of
from rota.ids import JobId
from rota.queue.job import JobRow, State

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
WORKERS = {"71": "worker 1", "72": "worker 2"}


def job_id(number: int) -> JobId:
    return JobId(UUID(int=number))


def row(number: int = 1, state: State = State.QUEUED, **values: Any) -> JobRow:
    plain = JobRow(
        id=job_id(number), kind="transcode", tenant=None, priority=0, state=state, place="", tries=0, max_tries=3,
        run_after=NOW, created_at=NOW, started_at=None, finished_at=None, heartbeat_at=None, lease_until=None,
        lease_epoch=0, leased_by=None, dedupe_key=None, dedupe_scope=None, last_error=None, progress=None,
        cancel_asked_at=None, now=NOW,
    )  # fmt: skip
    return replace(plain, **values)


def files(count: int = 1, name: str = "clip.mp4") -> Mapping[str, str]:
    return {str(job_id(number)): name for number in range(1, count + 1)}


def running(number: int = 1, *, pid: int = 71, tries: int = 1) -> JobRow:
    return row(number, State.LEASED, tries=tries, leased_by=f"host:{pid}:ab12", progress='{"fraction": 0.25}')


def done(number: int = 1) -> JobRow:
    return row(number, State.DONE, tries=1, started_at=NOW, finished_at=NOW + timedelta(seconds=2.5))


def test_how_far_a_job_is() -> None:
    assert fraction_of(row()) == 0.0
    assert fraction_of(running()) == 0.25
    assert fraction_of(row(state=State.LEASED, progress='{"note": "x"}')) == 0.0
    assert fraction_of(done()) == 1.0
    assert fraction_of(row(state=State.FAILED, progress='{"fraction": 0.5}')) == 0.0


def test_a_worker_is_known_by_its_process() -> None:
    assert worker_of(running(pid=72), WORKERS) == "worker 2"
    assert worker_of(row(leased_by="fe80::1:71:ab12"), WORKERS) == "worker 1"
    for holder in (None, "", "host", "host:99:ab12"):
        assert worker_of(row(leased_by=holder), WORKERS) == ""


# --- without a terminal ---


def plain_view(name: str = "clip.mp4") -> tuple[PlainView, io.StringIO]:
    out = io.StringIO()
    return PlainView(Console(file=out, width=40), files(name=name), WORKERS), out


def test_each_change_is_one_line_however_long() -> None:
    view, out = plain_view()
    failed = row(state=State.FAILED, tries=3, last_error="no sound in the file, and much more to say about that")
    again = row(state=State.QUEUED, tries=1, last_error="the lease ran out")
    for seen in (row(), row(), running(), running(), again, running(pid=72, tries=2), done(), failed):
        view.show([seen])
    view.say("A sentence that is longer than the forty columns of this console.")
    view.close()
    assert out.getvalue().splitlines() == [
        "leased  transcode  clip.mp4  on worker 1, try 1",
        "queued  transcode  clip.mp4  the lease ran out",
        "leased  transcode  clip.mp4  on worker 2, try 2",
        "done  transcode  clip.mp4  2.5 s",
        "failed  transcode  clip.mp4  no sound in the file, and much more to say about that",
        "A sentence that is longer than the forty columns of this console.",
    ]


def test_a_file_name_drives_nothing() -> None:
    view, out = plain_view("[red]a[/b]\x1b[31m\n:smile:.mp4")
    view.show([running()])
    assert out.getvalue() == "leased  transcode  [red]a[/b]\\x1b[31m :smile:.mp4  on worker 1, try 1\n"


# --- on a terminal ---


def test_the_picture_fits_and_says_how_many_are_done() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, height=10, force_terminal=True, color_system=None, legacy_windows=False)
    view = LiveView(console, files(30, "[red]" + "x" * 100 + "\x1b[31m.mp4"), WORKERS)
    rows = [done(number) for number in range(1, 11)] + [running(11)] + [row(number) for number in range(12, 31)]
    try:
        start = out.tell()
        view.show(rows)
        picture = out.getvalue()[start:]
    finally:
        view.close()
    lines = [line.replace("\r", "").replace("\x1b[2K", "") for line in picture.split("\n")]
    assert len(lines) <= console.height
    assert all(cell_len(line) <= 80 for line in lines)
    assert "\x1b[31m" not in picture
    assert "leased" in lines[1], "what runs comes first"
    assert "[red]x" in lines[1]
    assert lines[-1].rstrip().endswith("10 of 30 jobs")


def test_what_is_said_stays_above_the_picture() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, height=10, force_terminal=True, color_system=None)
    view = LiveView(console, files(), WORKERS)
    view.show([running()])
    view.say("Killed worker 1 [SIGKILL].")
    view.close()
    assert "Killed worker 1 [SIGKILL]." in out.getvalue()
