"""`rota demo` as a person without a terminal sees it: on real files, with and without the kill, and interrupted."""

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from rota.io.ffmpeg import find_tools
from tests.integration.programs import ROTA, Done, mentioning, nothing_runs, run, running

KINDS = ("probe", "contact sheet", "loudness", "transcode", "waveform")
CLIP = "a [b] 'clip' & so.mp4"
"""A name that means something to markup, to a shell and to HTML."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table at the end."""

    job: str
    kind: str
    file: str
    state: str
    tries: int
    result: str


class Page(HTMLParser):
    """What a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if name in ("src", "href", "poster") and value]


@dataclass(frozen=True, slots=True)
class Demo:
    """How a demo ended."""

    folder: Path
    done: Done

    @property
    def rows(self) -> list[Row]:
        lines = self.done.out.splitlines()
        head = next(number for number, line in enumerate(lines) if re.match(r"job +kind +file ", line))
        names = ("job", "kind", "file", "state", "tries", "time", "worker", "result")
        starts = {name: lines[head].index(name) for name in names}
        table = lines[head + 1 : lines.index("", head)]

        def cell(line: str, name: str, after: str | None) -> str:
            return line[starts[name] : None if after is None else starts[after]].strip()

        return [
            Row(
                cell(line, "job", "kind"), cell(line, "kind", "file"), cell(line, "file", "state"),
                cell(line, "state", "tries"), int(cell(line, "tries", "time").split()[0]), cell(line, "result", None),
            )
            for line in table
        ]  # fmt: skip

    @property
    def kinds_by_file(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for row in self.rows:
            found.setdefault(row.file, []).append(row.kind)
        return found

    def check_page(self) -> list[str]:
        """Holds if all that the page shows is there. Returns: the files."""
        results = self.folder / "results"
        page = Page()
        page.feed((results / "index.html").read_text(encoding="utf-8"))
        files = [unquote(link).removeprefix("./") for link in page.links if not link.startswith(("#", "data:"))]
        for file in files:
            assert "://" not in file and (results / file).is_file() and (results / file).stat().st_size > 0, file
        return files

    def commands(self) -> list[list[str]]:
        """The commands to look further."""
        return [shlex.split(line) for line in self.done.out.partition("Look further:\n")[2].splitlines()]


def demo(work: Path, *args: str | Path) -> Demo:
    """Runs it through a pipe, in the folder `out` of this one; nothing is left running."""
    done = run([*ROTA, "demo", "--folder", "out", *args], folder=work, timeout_s=180)
    nothing_runs(work)
    return Demo(work / "out", done)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a clip, a tone, and a text that calls itself a clip."""
    place = tmp_path_factory.mktemp("demo")
    tools = find_tools(os.environ.get("ROTA_FFMPEG"))
    picture = ["-f", "lavfi", "-i", "testsrc2=size=640x360:rate=25:duration=8"]
    sound = ["-f", "lavfi", "-i", "aevalsrc=0.1*sin(2000*PI*t):sample_rate=48000:duration=8"]
    video = ["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac"]
    for name, argv in ((CLIP, [*picture, *sound, *video]), ("tone.wav", sound)):
        subprocess.run([tools.ffmpeg, "-v", "error", *argv, place / name], check=True, stdin=subprocess.DEVNULL)
    (place / "text.mp4").write_text("This is no media file.\n")
    yield place
    nothing_runs(place)


@pytest.fixture(scope="module")
def first(work: Path) -> Demo:
    """The first demo in this folder, with the kill."""
    return demo(work, CLIP, "tone.wav")


def test_every_job_of_every_file_is_done(first: Demo) -> None:
    assert (first.done.status, first.done.err) == (0, "")
    assert first.kinds_by_file == {CLIP: list(KINDS), "tone.wav": list(KINDS)}
    assert {row.state for row in first.rows} == {"done"}
    assert "Enqueued 10 jobs for 2 files in one transaction." in first.done.out
    assert re.search(r"\n10 of 10 jobs done in [\d.]+ s; \d taken again after a worker was killed\.", first.done.out)
    results = {(row.file, row.kind): row.result for row in first.rows}
    assert results["tone.wav", "contact sheet"] == "no video"
    assert results[CLIP, "probe"] == "h264, aac"
    assert results[CLIP, "loudness"].endswith(" LUFS")
    assert results[CLIP, "transcode"].startswith("640×360, ")


def test_the_jobs_of_the_killed_worker_are_taken_again(first: Demo) -> None:
    assert re.search(r"^Killed worker [12] \(SIGKILL\) in the middle of: ", first.done.out, flags=re.MULTILINE)
    again = [row for row in first.rows if row.tries == 2]
    assert again and {row.tries for row in first.rows} <= {1, 2}
    for row in again:
        kind = row.kind.replace(" ", "_")
        assert re.search(
            rf"^leased  {kind}  {re.escape(row.file)}  on worker [12], try 2$", first.done.out, re.MULTILINE
        )


def test_the_page_shows_what_was_made_and_nothing_half_made_stays(first: Demo) -> None:
    shown = first.check_page()
    made = {path.name for path in (first.folder / "results").iterdir()} - {"index.html"}
    assert made == set(shown), "all that was made is shown, and nothing else is there"
    assert {Path(name).suffix for name in made} == {".jpg", ".mp4", ".png"}
    assert "&#x27;clip&#x27; &amp; so.mp4" in (first.folder / "results/index.html").read_text(encoding="utf-8")


def test_the_commands_to_look_further_work(first: Demo) -> None:
    listed, shown, dev = first.commands()
    answer = run([*listed, "--json"], folder=first.folder.parent)
    assert {job["id"][:18] for job in json.loads(answer.out)["jobs"]} == {row.job for row in first.rows}
    answer = run([*shown, "--json"], folder=first.folder.parent)
    assert json.loads(answer.out)[0]["tries"] == 2, "it shows one that was taken again"
    with running(dev, folder=first.folder.parent) as program:
        program.says("ROTA_DSN=")
        program.signal(signal.SIGINT)
        assert program.status() == 0


def test_a_second_run_makes_no_database_and_without_the_kill_nobody_tries_twice(first: Demo, work: Path) -> None:
    made_at = (first.folder / "postgres/data/PG_VERSION").stat().st_mtime_ns
    second = demo(work, "--no-kill", CLIP, "tone.wav")
    assert (second.done.status, second.done.err) == (0, "")
    assert {(row.state, row.tries) for row in second.rows} == {("done", 1)}
    assert len(second.rows) == 10 and "Killed" not in second.done.out and "taken again" not in second.done.out
    assert (first.folder / "postgres/data/PG_VERSION").stat().st_mtime_ns == made_at, "no database is made again"
    assert {row.job for row in second.rows}.isdisjoint(row.job for row in first.rows)
    second.check_page()


def test_a_file_that_is_no_media_fails_with_its_reason(first: Demo, work: Path) -> None:
    mixed = demo(work, "--no-kill", "text.mp4", "tone.wav")
    assert (mixed.done.status, mixed.done.err) == (1, "")
    by_file = {name: [row for row in mixed.rows if row.file == name] for name in ("text.mp4", "tone.wav")}
    for row in by_file["text.mp4"]:
        assert (row.state, row.tries) == ("failed", 1)
        assert row.result.startswith("ffprobe on ") and row.result.endswith("Is it a whole media file?")
    assert {row.state for row in by_file["tone.wav"]} == {"done"}, "the others go on"
    assert "5 of 10 jobs done" in mixed.done.out
    mixed.check_page()


def test_a_file_that_is_not_there_is_said_in_one_sentence_and_nothing_is_made(work: Path, tmp_path: Path) -> None:
    for name in ("gone.mp4", "."):
        done = run([*ROTA, "demo", "--folder", tmp_path / "out", CLIP, name], folder=work)
        assert (done.status, done.out) == (1, "")
        assert done.err == f"rota: {name} is no file. Name media files, or none: then the demo makes some.\n"
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_else_is_refused(work: Path, tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "letter.txt").write_text("mine")
    done = run([*ROTA, "demo", "--folder", tmp_path, CLIP], folder=work)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("rota: ") and "choose another folder" in done.err and "Traceback" not in done.err
    assert (tmp_path / "postgres" / "letter.txt").read_text() == "mine"


def test_an_interrupted_demo_leaves_nothing_running_and_the_next_one_is_whole(first: Demo, work: Path) -> None:
    # Two workers take two jobs of a kind at once, so one of each waits.
    argv = [*ROTA, "demo", "--folder", "out", "--no-kill", CLIP, CLIP, CLIP]
    with running(argv, folder=work) as program:
        program.says("leased  transcode")
        assert mentioning(work), "there is something to leave behind"
        program.signal(signal.SIGINT)
        assert program.status() == 130
        assert "Traceback" not in program.err
    nothing_runs(work)
    after = demo(work, "--no-kill", "tone.wav")
    assert after.done.status == 0
    assert {(row.file, row.state) for row in after.rows} == {("tone.wav", "done")}
    assert not [name for name in os.listdir(first.folder / "results") if name.startswith(".")]
    jobs = [*ROTA, "jobs", "list", "--json", "--limit", "100", "--dsn", f"embedded:{first.folder / 'postgres'}"]
    states = [(job["state"], job["last_error"]) for job in json.loads(run(jobs, folder=work).out)["jobs"]]
    assert ("cancelled", "Left by an earlier demo") in states
    assert not {"queued", "leased"} & {state for state, _ in states}


def test_a_demo_that_is_killed_leaves_nothing_running_either(first: Demo, work: Path) -> None:
    with running([*ROTA, "demo", "--folder", "out", "--no-kill", CLIP], folder=work) as program:
        program.says("leased  transcode")
        program.signal(signal.SIGKILL)
        assert program.status() == -signal.SIGKILL
        nothing_runs(work, timeout_s=60)
