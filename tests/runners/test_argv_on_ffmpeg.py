"""Compiled commands on real ffmpegs, with secrets beside the session and a listener that nobody may call."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rota.errors import ArgvNotAllowed
from rota.runners.argv import compile_argv
from rota.runners.io.session_folder import SessionFolder
from tests.postgres_servers import unavailable
from tests.runners.sessions import SECRET, Found, Samples, can, found_tools, heard, listener, run, stage
from tests.runners.test_argv_corpus import ALLOWED, REFUSED, Line

TOOLS = found_tools()
pytestmark = pytest.mark.skipif(not TOOLS, reason="no ffmpeg is here: pip install 'rota[media]'")
EACH = pytest.mark.parametrize("found", TOOLS, ids=lambda found: found.name)

# What the builds between the oldest and the newest run: lines whose pins differ from the usual ones.
SPECIAL = {"ok-029", "ok-031", "ok-032", "ok-034", "ok-064", "ok-094", "ok-095", "ok-099", "ok-107", "ok-136"}
RUNS = [
    pytest.param(line, found, id=f"{line.id}-{found.name}")
    for line in ALLOWED
    for found in TOOLS
    if found in {TOOLS[0], TOOLS[-1]} or line.id in SPECIAL
]

# Two lines of the corpus end with an error on purpose: the file is missing, or a stand-in.
FAILS = {"ok-158", "ok-062"}
NEEDS = {
    "drawtext": "drawtext",
    "subtitles": "subtitles",
    "vidstab": "vidstabdetect",
    ".png": "png",
    ".webp": "libwebp",
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    # The first build that has the encoders of the samples; the small one lacks PNG.
    able = [found for found in TOOLS if "png" in can(found.ffmpeg)] or [TOOLS[0]]
    return Samples(able[0].ffmpeg, tmp_path_factory.mktemp("samples"))


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session's folder; secrets lie above it and beside it."""
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "secret.mp4").write_text(SECRET)
    folder = tmp_path / "session"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def port() -> Iterator[tuple[int, list[bytes]]]:
    with listener() as found:
        yield found


def outside(session: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in session.parent.iterdir() if path != session}


def lacks(line: Line, ffmpeg: Path) -> list[str]:
    return [name for word, name in NEEDS.items() if word in str(line.argv) and name not in can(ffmpeg)]


@pytest.mark.parametrize(("line", "found"), RUNS)
def test_an_allowed_line_runs(
    line: Line, found: Found, samples: Samples, session: Path, port: tuple[int, list[bytes]]
) -> None:
    missing = lacks(line, found.ffmpeg)
    if missing:
        pytest.skip(f"{found.name} has no {missing[0]}")
    stage(session, samples, files=line.files, contents=line.contents, links=line.symlinks)
    before = outside(session)
    compiled = compile_argv(line.tool, line.argv, SessionFolder(session))
    for written in compiled.writes:
        (session / written).parent.mkdir(parents=True, exist_ok=True)
    done = run(found.ffmpeg if line.tool == "ffmpeg" else found.ffprobe, compiled.argv, session)
    assert done.returncode == 0 or line.id in FAILS, done.stderr.decode(errors="replace")[-2000:]
    assert outside(session) == before
    assert port[1] == []


LEAKS: Sequence[tuple[Sequence[str], dict[str, str]]] = [
    # S69: what a staged file is said to be is pinned, whatever it holds.
    (
        ["-f", "mp4", "-i", "clip.mp4", "-f", "null", "-"],
        {"clip.mp4": "#EXTM3U\n#EXTINF:1,\n../secret.mp4\n#EXT-X-ENDLIST\n"},
    ),
    (
        ["-f", "mpegts", "-i", "clip.mp4", "-f", "null", "-"],
        {"clip.mp4": "#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:{port}/a.ts\n"},
    ),
    (["-f", "srt", "-i", "subs.srt", "out.vtt"], {"subs.srt": "ffconcat version 1.0\nfile ../secret.txt\n"}),
    (["-i", "notes.bin", "out.wav"], {"notes.bin": "\n\n\nfile '../secret.txt'\n"}),
    # S70: one odd name stays one name.
    (["-i", "a -i http:\u2215x -y.mp4", "-f", "null", "-"], {}),
]


@EACH
@pytest.mark.parametrize(("argv", "contents"), LEAKS)
def test_what_a_staged_file_names_is_not_opened(
    argv: Sequence[str], contents: dict[str, str], found: Found, session: Path, port: tuple[int, list[bytes]]
) -> None:
    for file, text in contents.items():
        (session / file).write_text(text.replace("{port}", str(port[0])))
    try:
        compiled = compile_argv("ffmpeg", argv, SessionFolder(session))
    except ArgvNotAllowed:
        return
    done = run(found.ffmpeg, compiled.argv, session)
    assert SECRET.encode() not in done.stdout + done.stderr
    for written in session.rglob("*"):
        assert SECRET.encode() not in written.read_bytes()
    assert port[1] == []


@EACH
def test_the_listener_hears_an_ffmpeg_that_nothing_holds_back(found: Found, tmp_path: Path) -> None:
    # Without this the other tests could pass because nothing can be heard at all.
    with listener() as (number, calls):
        run(found.ffmpeg, ["-v", "quiet", "-rw_timeout", "500000", "-i", f"http://127.0.0.1:{number}/a"], tmp_path)
        assert heard(calls)


def test_refused_lines_stay_refused_on_real_folders(samples: Samples, session: Path) -> None:
    for line in REFUSED:
        folder = session / line.id
        folder.mkdir()
        stage(folder, samples, files=line.files, contents=line.contents, links=line.symlinks)
        with pytest.raises(ArgvNotAllowed):
            compile_argv(line.tool, line.argv, SessionFolder(folder))


@pytest.mark.parametrize(("part", "oldest", "newest"), [("ffmpeg5", 5, 5), ("ffmpeg8", 8, 99)])
def test_an_old_and_a_new_ffmpeg_are_here(part: str, oldest: int, newest: int) -> None:
    if not [found for found in TOOLS if oldest <= found.major <= newest]:
        unavailable(part, f"no ffmpeg of version {oldest} or later is here, only {[found.name for found in TOOLS]}")
