"""Compiled commands on real ffmpegs, with secrets beside the session and a listener that nobody may call."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rota.errors import ArgvNotAllowed
from rota.runners.argv import compile_argv
from rota.runners.io.session_folder import SessionFolder
from tests.runners.sessions import SECRET, Samples, can, found_tools, listener, run, stage
from tests.runners.test_argv_corpus import ALLOWED, REFUSED, Line

TOOLS = found_tools()
pytestmark = pytest.mark.skipif(not TOOLS, reason="no ffmpeg is here: pip install 'rota[media]'")
REQUIRED = "media" in os.environ.get("ROTA_DEV_REQUIRE", "").split(",")

# Every third allowed line, and those whose pins differ from the usual ones; the rest runs where all are asked for.
SPECIAL = {
    "ok-029",
    "ok-031",
    "ok-032",
    "ok-034",
    "ok-064",
    "ok-094",
    "ok-095",
    "ok-099",
    "ok-107",
    "ok-136",
    "ok-153",
    "ok-157",
}
SAMPLE = (
    ALLOWED
    if os.environ.get("ROTA_DEV_FFMPEG")
    else [line for index, line in enumerate(ALLOWED) if index % 5 == 0 or line.id in SPECIAL]
)

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
    able = [ffmpeg for _, ffmpeg, _ in TOOLS if "png" in can(ffmpeg)] or [TOOLS[0][1]]
    return Samples(able[0], tmp_path_factory.mktemp("samples"))


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


@pytest.mark.parametrize(("name", "ffmpeg", "ffprobe"), TOOLS, ids=[name for name, _, _ in TOOLS])
@pytest.mark.parametrize("line", SAMPLE, ids=lambda line: line.id)
def test_an_allowed_line_runs(  # noqa: PLR0917 - fixtures
    line: Line, name: str, ffmpeg: Path, ffprobe: Path, samples: Samples, session: Path, port: tuple[int, list[bytes]]
) -> None:
    missing = lacks(line, ffmpeg)
    if missing:
        pytest.skip(f"{name} has no {missing[0]}")
    stage(session, samples, files=line.files, contents=line.contents, links=line.symlinks)
    before = outside(session)
    compiled = compile_argv(line.tool, line.argv, SessionFolder(session))
    for written in compiled.writes:
        (session / written).parent.mkdir(parents=True, exist_ok=True)
    done = run(ffmpeg if line.tool == "ffmpeg" else ffprobe, compiled.argv, session)
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


@pytest.mark.parametrize(("name", "ffmpeg", "ffprobe"), TOOLS, ids=[name for name, _, _ in TOOLS])
@pytest.mark.parametrize(("argv", "contents"), LEAKS)
def test_what_a_staged_file_names_is_not_opened(  # noqa: PLR0917 - fixtures
    argv: Sequence[str],
    contents: dict[str, str],
    name: str,
    ffmpeg: Path,
    ffprobe: Path,
    session: Path,
    port: tuple[int, list[bytes]],
) -> None:
    for file, text in contents.items():
        (session / file).write_text(text.replace("{port}", str(port[0])))
    try:
        compiled = compile_argv("ffmpeg", argv, SessionFolder(session))
    except ArgvNotAllowed:
        return
    done = run(ffmpeg, compiled.argv, session)
    assert SECRET.encode() not in done.stdout + done.stderr
    for written in session.rglob("*"):
        assert SECRET.encode() not in written.read_bytes()
    assert port[1] == []


@pytest.mark.parametrize(("name", "ffmpeg", "ffprobe"), TOOLS, ids=[name for name, _, _ in TOOLS])
def test_the_listener_hears_an_ffmpeg_that_nothing_holds_back(
    name: str, ffmpeg: Path, ffprobe: Path, tmp_path: Path
) -> None:
    # Without this the other tests could pass because nothing can be heard at all.
    with listener() as (number, calls):
        run(ffmpeg, ["-v", "quiet", "-rw_timeout", "500000", "-i", f"http://127.0.0.1:{number}/a.mp4"], tmp_path)
    assert calls


def test_refused_lines_stay_refused_on_real_folders(samples: Samples, session: Path) -> None:
    for line in REFUSED:
        folder = session / line.id
        folder.mkdir()
        stage(folder, samples, files=line.files, contents=line.contents, links=line.symlinks)
        with pytest.raises(ArgvNotAllowed):
            compile_argv(line.tool, line.argv, SessionFolder(folder))


@pytest.mark.skipif(not REQUIRED, reason="asked for with ROTA_DEV_REQUIRE=media")
def test_ffmpeg_is_here() -> None:
    assert TOOLS
