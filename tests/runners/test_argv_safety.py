"""What was seen to get past simpler gates, one row each, on every ffmpeg that is here (S67 to S71).

Each row plants its secrets beside the session and is given to the gate. It may be refused; if it is not, it runs
without any other wall, and nothing outside may have been read, written or called. Some rows are run without the gate,
too, so that the ways out are known to be real.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rota.errors import ArgvNotAllowed
from rota.runners.argv import compile_argv
from rota.runners.io.session_folder import SessionFolder
from tests.postgres_servers import unavailable
from tests.runners.sessions import SECRET, Found, Samples, can, found_tools, heard, listener, run

TOOLS = found_tools()
pytestmark = pytest.mark.skipif(not TOOLS, reason="no ffmpeg is here: pip install 'rota[media]'")
EACH = pytest.mark.parametrize("found", TOOLS, ids=lambda found: found.name)
WORDS = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:5\n"
TO_NULL = ["-f", "null", "-"]


@dataclass(frozen=True, slots=True)
class Row:
    """One way out. `{port}` stands for the listener, `{out}` for the folder around the session."""

    number: str
    argv: Sequence[str]
    staged: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    tool: str = "ffmpeg"


def playlist(*names: str) -> str:
    return WORDS + "".join(f"#EXTINF:5,\n{name}\n" for name in names) + "#EXT-X-ENDLIST\n"


URL = "http://127.0.0.1:{port}/a"
IN = ["-i", "in.mp4"]
ROWS = [
    Row("1", [*IN, "-i", URL, "-map", "1", *TO_NULL]),
    Row("1", ["-protocol_whitelist", "file,pipe", *IN, "-i", URL, "-map", "1", *TO_NULL]),
    Row("2", [*IN, "-c", "copy", "-f", "mpegts", URL]),
    Row("2", ["-protocol_whitelist", "file,pipe", *IN, "-c", "copy", "-f", "mpegts", URL]),
    Row("3", ["-protocol_whitelist", "file", "-protocol_whitelist", "file,http,tcp", "-i", URL, *TO_NULL]),
    Row("4", [*IN, "-vf", r"movie=http\\://127.0.0.1\\:{port}/a[a];[in][a]overlay", *TO_NULL]),
    Row("4", [*IN, "-vf", "movie={out}/secret.mp4[a];[in][a]overlay", "o.mp4"]),
    Row("4", [*IN, "-vf", "movie=../secret.mp4:format_opts=protocol_whitelist=file[a];[in][a]overlay", "o.mp4"]),
    Row("4", ["-f", "lavfi", "-i", "amovie={out}/secret.wav", "o.wav"]),
    Row("5", ["-progress", URL, *IN, *TO_NULL]),
    Row("5", ["-o", URL, "in.mp4"], tool="ffprobe"),
    Row("5", [*IN, "-vf", r"zmq=bind_address=tcp\\://127.0.0.1\\:{port}", *TO_NULL]),
    Row("6", ["-i", "x.mp4", "-c", "copy", "o.ts"], {"x.mp4": playlist("../secret.ts")}),
    Row("6", ["-f", "mpegts", "-i", "x.mp4", "-c", "copy", "o.ts"], {"x.mp4": playlist("../secret.ts")}),
    Row("6", ["-f", "hls", "-i", "x.mp4", "-c", "copy", "o.ts"], {"x.mp4": playlist("../secret.ts")}),
    Row("6", ["x.mp4", "-show_streams"], {"x.mp4": playlist("../secret.ts")}, tool="ffprobe"),
    Row("7", ["-i", "x.m3u8", "-c", "copy", "o.ts"], {"x.m3u8": playlist("../secret.ts")}),
    Row("7", ["-i", "x.m3u8", "-c", "copy", "o.ts"], {"x.m3u8": playlist(URL + ".ts")}),
    Row("8", ["-i", "x.mp4", "-c", "copy", "o.ts"], {"x.mp4": WORDS + "#EXT-X-STREAM-INF:BANDWIDTH=1\n../child.txt\n"}),
    Row("9", ["-i", "x.mp4", "-c", "copy", "o.ts"], {"x.mp4": "ffconcat version 1.0\nfile link.ts\n"},
        {"link.ts": "../secret.ts"}),
    Row("9", ["-f", "concat", "-safe", "0", "-i", "list.txt", "-c", "copy", "o.ts"], {"list.txt": "file link.ts\n"},
        {"link.ts": "../secret.ts"}),
    Row("9", ["-i", "link.ts", "-c", "copy", "o.ts"], links={"link.ts": "../secret.ts"}),
    Row("10", ["-dump_attachment:t", "", "-i", "attached.mkv", *TO_NULL]),
    Row("10", ["-dump_attachment:t", "../escaped.txt", "-i", "attached.mkv", *TO_NULL]),
    Row("11", [*IN, "-/vf", "../secret.txt", *TO_NULL]),
    Row("11", [*IN, "-/metadata", "../secret.txt", "-c", "copy", "o.mp4"]),
    Row("11", [*IN, "-/filter_complex", "graph", *TO_NULL], {"graph": "movie=../secret.mp4"}),
    Row("11", [*IN, "-filter_complex_script", "graph", *TO_NULL], {"graph": "movie=../secret.mp4,null"}),
    Row("12", [*IN, "-vf", "drawtext=/text=../secret.txt", "o.mp4"]),
    Row("13", ["-f", "tty", "-i", "../secret.txt", "o.mp4"]),
    Row("13", ["-f", "u8", "-ar", "8000", "-ac", "1", "-i", "link", "o.wav"], links={"link": "../secret.txt"}),
    Row("13", [*IN, "-attach", "../secret.txt", "-metadata:s:t", "mimetype=text/plain", "-c", "copy", "o.mkv"]),
    Row("13", [*IN, "-vf", "drawtext=textfile=../secret.txt", "o.mp4"]),
    Row("14", [*IN, "-vf", "frei0r=../../session/ev", *TO_NULL], {"ev.so": "\x7fELF"}),
    Row("14", [*IN, "-af", "ladspa=file=./ev.so:plugin=x", *TO_NULL], {"ev.so": "\x7fELF"}),
    Row("15", [*IN, "-c:v", "libx264", "-x264-params", "pass=1:stats={out}/escaped.txt", *TO_NULL]),
    Row("15", [*IN, "-c:v", "libx265", "-x265-params", "csv={out}/escaped.txt", *TO_NULL]),
    Row("15", [*IN, *IN, "-lavfi", "psnr=stats_file=../escaped.txt", *TO_NULL]),
    Row("15", [*IN, "-vf", "signalstats,metadata=print:file=../escaped.txt", *TO_NULL]),
    Row("15", ["-vstats_file", "../escaped.txt", *IN, *TO_NULL]),
    Row("15", [*IN, "-stats_enc_post:v", "../escaped.txt", *TO_NULL]),
    Row("15", ["-print_graphs_file", "../escaped.txt", *IN, *TO_NULL]),
    Row("17", [*IN, "-c", "copy", "o.mp4", "../escaped.mp4"]),
    Row("17", [*IN, "-c", "copy", "--", "../escaped.mp4"]),
    Row("18", ["-y", *IN, "-c", "copy", "./in.mp4"]),
    Row("19", ["-f", "u8", "-i", "pipe:7", "o.wav"]),
    Row("20", ["-i", "subfile,,start,0,end,0,,:{out}/secret.mp4", "-c", "copy", "o.mp4"]),
    Row("20", ["-i", "concat:in.mp4|{out}/secret.mp4", "-c", "copy", "o.mp4"]),
    Row("20", [*IN, "-c", "copy", "-f", "mpegts", "md5:{out}/escaped.txt"]),
    Row("20", [*IN, "-c", "copy", "-f", "tee", "-map", "0", "[f=mpegts]a.ts|{out}/escaped.ts"]),
    Row("20", [*IN, "-c", "copy", "-f", "mpegts", "tee:a.ts|{out}/escaped.ts"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A film, the same as a stream of its own, sound, and a film whose attachment has a name that leaves its folder."""
    able = next((found.ffmpeg for found in TOOLS if "png" in can(found.ffmpeg)), TOOLS[0].ffmpeg)
    folder = tmp_path_factory.mktemp("media")
    samples = Samples(able, folder)
    made = {name: samples.of(f"x.{name}") for name in ("mp4", "ts", "wav")}
    (folder / "note").write_text(SECRET)
    attach = ["-i", folder / "sample.mp4", "-attach", folder / "note", "-metadata:s:t", "mimetype=text/plain"]
    told = ["-metadata:s:t", "filename=../escaped.txt", "-c", "copy", folder / "attached.mkv"]
    run(able, [str(word) for word in (*attach, *told)], folder)
    return made | {"attached.mkv": (folder / "attached.mkv").read_bytes()}


@pytest.fixture(scope="module")
def port() -> Iterator[tuple[int, list[bytes]]]:
    with listener() as found:
        yield found


def planted(around: Path, media: Mapping[str, bytes], row: Row, port: int) -> tuple[Path, list[str]]:
    """The session's folder with the secrets around it, and the row's argv."""
    session = around / "session"
    session.mkdir()
    (session / "in.mp4").write_bytes(media["mp4"])
    (session / "attached.mkv").write_bytes(media["attached.mkv"])
    for name in ("mp4", "ts", "wav"):
        (around / f"secret.{name}").write_bytes(media[name])
    (around / "secret.txt").write_text(SECRET * 100)
    (around / "child.txt").write_text(playlist("secret.ts"))

    def whole(text: str) -> str:
        return text.replace("{port}", str(port)).replace("{out}", str(around))

    for name, text in row.staged.items():
        (session / name).write_text(whole(text))
    for name, target in row.links.items():
        (session / name).symlink_to(target)
    return session, [whole(word) for word in row.argv]


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@EACH
@pytest.mark.parametrize("row", ROWS, ids=[f"row{row.number}-{index}" for index, row in enumerate(ROWS)])
def test_nothing_outside_of_the_session_is_touched(
    row: Row, found: Found, media: dict[str, bytes], tmp_path: Path, port: tuple[int, list[bytes]]
) -> None:
    session, argv = planted(tmp_path, media, row, port[0])
    before = content_of(tmp_path)
    try:
        compiled = compile_argv(row.tool, argv, SessionFolder(session))
    except ArgvNotAllowed as error:
        assert error.reason and SECRET not in str(error)
        return
    done = run(found.ffmpeg if row.tool == "ffmpeg" else found.ffprobe, compiled.argv, session)
    assert SECRET.encode() not in done.stdout + done.stderr
    after = content_of(tmp_path)
    assert {name: after[name] for name in before} == before
    # The film that was staged is not what these rows read: whatever was made is made of something else.
    assert {name: content for name, content in after.items() if name not in before and content} == {}
    assert port[1] == []


def row_of(number: str, *, last: str) -> Row:
    return next(row for row in ROWS if row.number == number and row.argv[-1] == last.replace("{url}", URL))


REAL = [
    (row_of("1", last="-"), 99), (row_of("2", last="{url}"), 99), (row_of("7", last="o.ts"), 99),
    (row_of("9", last="o.ts"), 99), (row_of("6", last="o.ts"), 5), (row_of("10", last="-"), 5),
]  # fmt: skip
"""Rows, and the last version of ffmpeg that they get out of."""


@pytest.mark.parametrize(("row", "last"), REAL, ids=[f"row{row.number}" for row, _ in REAL])
def test_without_the_gate_the_way_out_is_real(
    row: Row, last: int, media: dict[str, bytes], tmp_path: Path, port: tuple[int, list[bytes]]
) -> None:
    tools = [found for found in TOOLS if found.major <= last]
    if not tools:
        unavailable("ffmpeg5", "only an old ffmpeg does this")
    for found in tools:
        around = tmp_path / found.name
        around.mkdir()
        del port[1][:]
        session, argv = planted(around, media, row, port[0])
        before = content_of(around)
        # As simple gates do it: one list of protocols in front of everything.
        run(found.ffmpeg, ["-protocol_whitelist", "file,pipe", "-rw_timeout", "500000", *argv], session)
        made = [name for name, content in content_of(around).items() if name not in before and content]
        assert made or heard(port[1]), found.name
    del port[1][:]
