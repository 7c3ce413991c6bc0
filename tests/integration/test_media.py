"""The demo's media work on real ffmpeg: what it makes, what it refuses, and that nothing of it stays behind.

The clips are small (a second or two of 320 by 180), so that the whole file takes well under half a minute.
"""

import asyncio
import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rota.demo import media, samples
from rota.demo.files import remove_leftovers
from rota.demo.samples import make_samples
from rota.errors import MediaError
from rota.io import ffmpeg_run
from rota.io.ffmpeg import Tools, ffmpeg_argv, find_tools
from rota.io.ffmpeg_run import STDERR_KEPT_BYTES_MAX, STDOUT_KEPT_BYTES_MAX, run_tool

PATIENCE_S = 20.0  # for what takes milliseconds on a machine that is not busy

FIVE = ["probe", "contact_sheet", "loudness", "transcode", "waveform"]


@pytest.fixture(scope="module")
def tools() -> Tools:
    return find_tools(os.environ.get("ROTA_FFMPEG"))


@pytest.fixture(scope="module")
def clips(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of small clips, made once."""
    folder = tmp_path_factory.mktemp("clips")
    picture = ["-f", "lavfi", "-i", "testsrc2=size=320x180:rate=25:duration=2"]
    sound = ["-f", "lavfi", "-i", "aevalsrc=0.1*sin(2000*PI*t):sample_rate=48000:duration=2"]
    small = ["-c:v", "libx264", "-preset", "ultrafast", "-g", "25", "-pix_fmt", "yuv420p", "-c:a", "aac"]
    wholes: dict[str, list[str]] = {
        "clip.mp4": [*picture, *sound, *small, "-movflags", "+faststart"],
        "clip.mkv": [*picture, *sound, *small],
        "tone.wav": sound,
        "silence.wav": ["-f", "lavfi", "-i", "anullsrc=r=48000", "-t", "1"],
        "mute.mp4": [*picture, *small],
        "wide.mp4": ["-f", "lavfi", "-i", "testsrc2=size=1920x1080:rate=10:duration=1", *small],
        "tall.mp4": ["-f", "lavfi", "-i", "testsrc2=size=180x320:rate=25:duration=1", *small],
        "odd.mkv": [
            "-f",
            "lavfi",
            "-i",
            "testsrc2=size=321x181:rate=5:duration=1",
            "-c:v",
            "ffv1",
            "-pix_fmt",
            "yuv444p",
        ],
        "stretched.mkv": [*picture, "-vf", "setsar=4/3", *small],
    }
    for name, args in wholes.items():
        make(tools, folder / name, *args)
    for name in ("clip.mp4", "clip.mkv"):
        whole = (folder / name).read_bytes()
        (folder / f"cut {name}").write_bytes(whole[: len(whole) // 2])
        (folder / f"nicked {name}").write_bytes(whole[: len(whole) * 9 // 10])
    yield folder


def make(tools: Tools, path: Path, *args: str | Path) -> None:
    """Make a file with ffmpeg itself, without anything of Rota."""
    subprocess.run([tools.ffmpeg, "-v", "error", *args, path], check=True, stdin=subprocess.DEVNULL)


def stream_hashes(path: Path, tools: Tools) -> bytes:
    """What is in a result; ffmpeg interleaves picture and sound as its threads happen to run, so the bytes differ."""
    if path.read_bytes().startswith(b"\x89PNG"):
        return path.read_bytes()
    argv = [tools.ffmpeg, "-v", "error", "-i", path, "-c", "copy", "-f", "streamhash", "-"]
    return subprocess.run(argv, check=True, capture_output=True, stdin=subprocess.DEVNULL).stdout


def streams_and_frames(path: Path, tools: Tools) -> bytes:
    """What a film is made of: its streams, their sizes and lengths, and how many frames can be decoded of each."""
    entries = "stream=codec_name,width,height,duration,sample_rate,nb_read_frames"
    argv = [tools.ffprobe, "-v", "error", "-count_frames", "-show_entries", entries, "-of", "csv", path]
    found = subprocess.run(argv, check=True, capture_output=True, stdin=subprocess.DEVNULL).stdout
    assert b"h264" in found and b"aac" in found
    return found


def succeeds(argv: Sequence[str | Path]) -> bool:
    return subprocess.run(argv, check=False, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0


def names(folder: Path | str) -> list[str]:
    return sorted(os.listdir(folder))


async def run_one(name: str, path: Path | str, out: Path, tools: Tools) -> object:
    """One of the five by its name; `out` is given to those that write."""
    if name in ("probe", "loudness"):
        return await getattr(media, name)(path, tools=tools)
    return await getattr(media, name)(path, out, tools=tools)


def described(path: Path, tools: Tools) -> dict[str, str]:
    """What ffprobe itself says of the first stream of a result."""
    argv = [tools.ffprobe, "-v", "error", "-of", "json", "-show_streams", path]
    streams = json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)["streams"]
    return {key: str(value) for key, value in streams[0].items()}


def eventually(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Ended; a zombie whose parent (whoever took it over) has not looked yet has ended too."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# --- what it makes ---


async def test_probe(clips: Path, tools: Tools) -> None:
    told: list[float] = []

    async def progress(fraction: float) -> None:
        told.append(fraction)

    facts = await media.probe(clips / "clip.mp4", tools=tools, progress=progress)

    assert facts["container"] == "mov"
    assert facts["duration_s"] == pytest.approx(2.0, abs=0.1)
    assert facts["audio_duration_s"] == pytest.approx(2.0, abs=0.1)
    assert (facts["width"], facts["height"], facts["fps"]) == (320, 180, 25.0)
    assert facts["codecs"] == ["h264", "aac"]
    assert facts["size_bytes"] == (clips / "clip.mp4").stat().st_size
    assert [stream["summary"] for stream in facts["streams"]] == ["h264 320×180 25 fps", "aac 48 kHz mono"]
    assert told == [1.0]
    json.dumps(facts, allow_nan=False)


async def test_probe_tells_the_picture_as_it_is_shown(clips: Path, tools: Tools, tmp_path: Path) -> None:
    turned = tmp_path / "turned.mp4"
    turn = ["-display_rotation", "90", "-i", clips / "clip.mp4", "-c", "copy"]
    can_turn = succeeds([tools.ffmpeg, "-v", "error", *turn, turned])
    stretched = await media.probe(clips / "stretched.mkv", tools=tools)

    assert (stretched["width"], stretched["height"]) == (427, 180)
    if can_turn:  # ffmpeg before 6 cannot make one
        facts = await media.probe(turned, tools=tools)
        assert (facts["width"], facts["height"]) == (180, 320)
        result = await media.transcode(turned, tmp_path / "out.mp4", tools=tools)
        assert (result["width"], result["height"]) == (180, 320)


async def test_contact_sheet(clips: Path, tools: Tools, tmp_path: Path) -> None:
    told: list[float] = []

    async def progress(fraction: float) -> None:
        told.append(fraction)

    result = await media.contact_sheet(clips / "clip.mp4", tmp_path / "sheet.jpg", tools=tools, progress=progress)

    assert "skipped" not in result
    assert (result["width"], result["height"]) == (4 * 324 + 4, 3 * 184 + 4)
    assert result["at_s"][0] == pytest.approx(2 / 24, abs=0.01)
    assert result["at_s"][11] == pytest.approx(2 * 23 / 24, abs=0.01)
    jpeg = described(tmp_path / "sheet.jpg", tools)
    assert (jpeg["codec_name"], jpeg["width"], jpeg["height"]) == ("mjpeg", "1300", "556")
    assert result["size_bytes"] == (tmp_path / "sheet.jpg").stat().st_size
    assert len(told) == 13
    assert told == sorted(told)
    assert told[-1] == 1.0


async def test_contact_sheet_of_upright_and_of_short_video(clips: Path, tools: Tools, tmp_path: Path) -> None:
    upright = await media.contact_sheet(clips / "tall.mp4", tmp_path / "a.jpg", tools=tools)
    still = tmp_path / "still.mkv"
    one = ["-f", "lavfi", "-i", "testsrc2=size=64x48:rate=25", "-frames:v", "1", "-c:v", "mjpeg"]
    make(tools, still, *one)
    single = await media.contact_sheet(still, tmp_path / "b.jpg", tools=tools)

    assert "skipped" not in upright
    assert "skipped" not in single
    assert (upright["width"], upright["height"]) == (6 * 184 + 4, 2 * 324 + 4)
    assert single["at_s"] == [0.0]


async def test_sound_that_outlasts_the_picture_is_no_damage(clips: Path, tools: Tools, tmp_path: Path) -> None:
    path = tmp_path / "long sound.mkv"
    args = ["-i", clips / "mute.mp4", "-f", "lavfi", "-i", "sine=duration=6", "-c:v", "copy", "-c:a", "aac"]
    make(tools, path, *args)

    sheet = await media.contact_sheet(path, tmp_path / "sheet.jpg", tools=tools)

    assert "skipped" not in sheet
    assert len(sheet["at_s"]) == 12
    assert (await media.transcode(path, tmp_path / "out.mp4", tools=tools))["duration_s"] == pytest.approx(6, abs=0.2)


async def test_pictures_that_stand_still_are_no_damage(tools: Tools, tmp_path: Path) -> None:
    path = tmp_path / "slides.mp4"
    slides = "testsrc2=size=320x180:rate=1:duration=3,setpts=if(eq(N\\,0)\\,0\\,10/TB)"  # one at 0 s, one at 10 s
    make(tools, path, "-f", "lavfi", "-i", slides, "-fps_mode", "vfr", "-c:v", "libx264", "-preset", "ultrafast")

    sheet = await media.contact_sheet(path, tmp_path / "sheet.jpg", tools=tools)

    assert "skipped" not in sheet
    assert len(sheet["at_s"]) == 12
    assert (await media.transcode(path, tmp_path / "out.mp4", tools=tools))["width"] == 320


async def test_loudness(clips: Path, tools: Tools) -> None:
    result = await media.loudness(clips / "tone.wav", tools=tools)

    assert "skipped" not in result
    assert result["integrated_lufs"] == pytest.approx(-23.0, abs=0.2)  # EBU: a 1 kHz tone at -20 dBFS in one channel
    assert result["true_peak_dbtp"] == pytest.approx(-20.0, abs=0.2)


async def test_true_peak_lies_between_the_samples(tools: Tools, tmp_path: Path) -> None:
    wave = "aevalsrc=0.1*sin(24000*PI*t+PI/4):sample_rate=48000:duration=1"  # its samples reach only 0.0707, -23 dBFS
    make(tools, tmp_path / "a.wav", "-f", "lavfi", "-i", wave)

    result = await media.loudness(tmp_path / "a.wav", tools=tools)

    assert "skipped" not in result
    assert result["true_peak_dbtp"] is not None
    assert -21.0 < result["true_peak_dbtp"] < -18.0


async def test_loudness_of_silence_can_be_stored_as_json(clips: Path, tools: Tools) -> None:
    result = await media.loudness(clips / "silence.wav", tools=tools)

    assert result == {"integrated_lufs": None, "range_lu": None, "true_peak_dbtp": None}


async def test_transcode(clips: Path, tools: Tools, tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "out.mp4"
    told: list[float] = []

    async def progress(fraction: float) -> None:
        told.append(fraction)

    result = await media.transcode(clips / "clip.mkv", out, tools=tools, progress=progress)

    assert (result["width"], result["height"]) == (320, 180)  # never larger
    assert result["video_encoder"] == "libx264"
    assert result["audio_encoder"] == "aac"
    assert result["duration_s"] == pytest.approx(2.0, abs=0.15)
    whole = out.read_bytes()
    assert result["size_bytes"] == len(whole)
    assert 0 < whole.index(b"moov") < whole.index(b"mdat")  # it plays before it is all loaded
    assert described(out, tools)["pix_fmt"] == "yuv420p"
    assert told == sorted(told)
    assert told[-1] == 1.0


@pytest.mark.parametrize(
    ("name", "size"), [("wide.mp4", (1280, 720)), ("odd.mkv", (320, 180)), ("stretched.mkv", (426, 180))]
)
async def test_transcode_sizes(name: str, size: tuple[int, int], clips: Path, tools: Tools, tmp_path: Path) -> None:
    result = await media.transcode(clips / name, tmp_path / "out.mp4", tools=tools)

    assert (result["width"], result["height"]) == size


async def test_transcode_of_sound_alone(clips: Path, tools: Tools, tmp_path: Path) -> None:
    result = await media.transcode(clips / "tone.wav", tmp_path / "out.mp4", tools=tools)

    assert (result["width"], result["video_encoder"], result["audio_encoder"]) == (None, None, "aac")
    assert described(tmp_path / "out.mp4", tools)["codec_type"] == "audio"


async def test_waveform(clips: Path, tools: Tools, tmp_path: Path) -> None:
    result = await media.waveform(clips / "clip.mp4", tmp_path / "wave.png", tools=tools)

    file = (tmp_path / "wave.png").read_bytes()
    assert result == {"width": 1200, "height": 200, "size_bytes": len(file)}
    assert struct.unpack(">II", file[16:24]) == (1200, 200)
    pixels = zlib.decompress(file[file.index(b"IDAT") + 4 : file.index(b"IEND") - 8])
    opaque = sum(alpha > 0 for alpha in pixels[4::4])
    assert opaque > 1200  # a tone has at least a line


async def test_what_is_not_there_is_skipped_and_writes_nothing(clips: Path, tools: Tools, tmp_path: Path) -> None:
    out = tmp_path / "out"

    assert await media.contact_sheet(clips / "tone.wav", out, tools=tools) == {"skipped": "no video"}
    assert await media.loudness(clips / "mute.mp4", tools=tools) == {"skipped": "no audio"}
    assert await media.waveform(clips / "mute.mp4", out, tools=tools) == {"skipped": "no audio"}
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["contact_sheet", "transcode", "waveform"])
async def test_second_run_makes_the_same_again(name: str, clips: Path, tools: Tools, tmp_path: Path) -> None:
    out = tmp_path / "out"
    # An encoder with several threads on a busy machine may choose other bits for the same pictures.
    made = streams_and_frames if name == "transcode" else stream_hashes
    await run_one(name, clips / "clip.mp4", out, tools)
    content = made(out, tools)

    await run_one(name, clips / "clip.mp4", out, tools)

    assert made(out, tools) == content
    assert names(tmp_path) == ["out"]


async def test_samples_are_made_once_and_are_what_they_say(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = tuple(replace(sample, length_s=1) for sample in samples._SAMPLES)
    monkeypatch.setattr(samples, "_SAMPLES", short)
    made = await make_samples(tmp_path, tools=tools)
    written_at = [path.stat().st_mtime_ns for path in made]
    facts = [await media.probe(path, tools=tools) for path in made]

    assert await make_samples(tmp_path, tools=tools) == made
    assert [path.stat().st_mtime_ns for path in made] == written_at
    assert names(tmp_path) == sorted(path.name for path in made)
    assert [(fact["width"], fact["height"]) for fact in facts] == [
        (1920, 1080),
        (720, 1280),
        (640, 360),
        (None, None),
        (1280, 720),
    ]
    assert [fact["audio_index"] is not None for fact in facts] == [True, True, True, True, False]


# --- names and files that are not what they seem ---


@pytest.mark.parametrize(
    "name",
    [
        "with space.mp4",
        "-y.mp4",
        "ünïcödé 映画.mp4",
        "concat:a|b.mp4",
        "http:x.mp4",
        "%03d.mp4",
        "line\nbreak.mp4",
        "quote'\"[in].mp4",
        os.fsdecode(b"latin \xe9.mp4"),
        "a" * 251 + ".mp4",
    ],
)
async def test_any_name_is_only_a_name(
    name: str, clips: Path, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.link(clips / "clip.mp4", name)
    out = Path("out") / name  # relative, as a person gives it

    assert (await media.probe(name, tools=tools))["width"] == 320
    assert (await media.transcode(name, out, tools=tools))["width"] == 320
    assert await media.waveform(name, out.with_suffix(".png"), tools=tools)
    assert sorted(os.listdir("out")) == sorted([out.name, out.with_suffix(".png").name])
    assert os.listdir(".") in (["out", name], [name, "out"])


@pytest.mark.parametrize("name", FIVE)
@pytest.mark.parametrize("content", ["just text\n", "", "ftypisom" * 500, b"\x00\x00\x00\x18ftypmp42" + bytes(5000)])
async def test_broken_file_is_an_error_that_names_it(
    name: str, content: str | bytes, tools: Tools, tmp_path: Path
) -> None:
    path = tmp_path / "broken.mp4"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(MediaError, match=r"ffprobe on .*/broken\.mp4 failed: \S+") as caught:
        await run_one(name, path, tmp_path / "out", tools)

    assert "\n" not in str(caught.value)
    assert names(tmp_path) == ["broken.mp4"]


@pytest.mark.parametrize("name", ["contact_sheet", "loudness", "transcode", "waveform"])
@pytest.mark.parametrize("clip", ["cut clip.mp4", "cut clip.mkv", "nicked clip.mp4", "nicked clip.mkv"])
async def test_file_cut_short_never_looks_whole(
    name: str, clip: str, clips: Path, tools: Tools, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.write_text("of an earlier run")

    with pytest.raises(MediaError, match=rf"{clip} is damaged or cut short"):
        await run_one(name, clips / clip, out, tools)

    assert out.read_text() == "of an earlier run"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("name", FIVE)
@pytest.mark.parametrize("lure", ["list.mp4", "list.m3u8", "concat.mp4", "list.mpd"])
async def test_a_playlist_is_not_followed(name: str, lure: str, clips: Path, tools: Tools, tmp_path: Path) -> None:
    secret = tmp_path / "secret.ts"
    args = ["-i", clips / "clip.mp4", "-c", "copy", "-f", "mpegts"]
    make(tools, secret, *args)
    hls = "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:2,\nsecret.ts\n#EXT-X-ENDLIST\n"
    texts = {
        "list.mp4": hls,
        "list.m3u8": hls,
        "concat.mp4": "ffconcat version 1.0\nfile secret.ts\n",
        "list.mpd": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><Period><AdaptationSet>'
        '<Representation id="1" mimeType="video/mp2t"><BaseURL>secret.ts</BaseURL></Representation>'
        "</AdaptationSet></Period></MPD>",
    }
    path = tmp_path / lure
    path.write_text(texts[lure])
    if lure in ("list.m3u8", "concat.mp4"):  # the lure works on an ffmpeg that is only kept to files
        argv = [tools.ffprobe, "-v", "error", "-protocol_whitelist", "file", "-i", path]
        assert succeeds(argv)

    with pytest.raises(MediaError, match=rf"ffprobe on .*/{lure} failed"):
        await run_one(name, path, tmp_path / "out", tools)


async def test_what_is_no_file_is_not_opened(clips: Path, tools: Tools, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")

    with pytest.raises(MediaError, match=r"missing\.mp4 cannot be read: No such file"):
        await media.probe(tmp_path / "missing.mp4", tools=tools)
    for path in (tmp_path, tmp_path / "pipe.mp4", Path("/dev/zero")):
        with pytest.raises(MediaError, match=rf"{path} is not a file"):
            await media.probe(path, tools=tools)
    with pytest.raises(MediaError, match="cannot be read: embedded null"):
        await media.probe("a\0b.mp4", tools=tools)


async def test_results_that_cannot_be_written(clips: Path, tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "file").write_text("")
    own = tmp_path / "own.mp4"
    own.write_bytes((clips / "clip.mp4").read_bytes())

    with pytest.raises(MediaError, match=r"folder\.mp4 cannot be written: Is a directory"):
        await media.transcode(clips / "clip.mp4", tmp_path / "folder.mp4", tools=tools)
    with pytest.raises(MediaError, match=r"file/out\.mp4 cannot be written: File exists|Not a directory"):
        await media.transcode(clips / "clip.mp4", tmp_path / "file" / "out.mp4", tools=tools)
    with pytest.raises(MediaError, match=r"own\.mp4 would be overwritten"):
        await media.transcode(own, own, tools=tools)
    assert names(tmp_path) == ["file", "folder.mp4", "own.mp4"]
    assert own.read_bytes() == (clips / "clip.mp4").read_bytes()


# --- how a run ends ---


def python(program: str) -> list[str]:
    return [sys.executable, "-I", "-c", textwrap.dedent(program)]


async def test_much_output_neither_hangs_nor_is_kept() -> None:
    program = """
        import sys
        for n in range(10):
            sys.stderr.write(f"err {n} " + "x" * 1_000_000 + chr(10))
            sys.stdout.write(f"out {n} " + "x" * 1_000_000 + chr(10))
    """
    result = await run_tool(python(program), timeout_s=PATIENCE_S)

    assert result.stdout_cut
    assert result.stderr_cut
    assert STDOUT_KEPT_BYTES_MAX <= len(result.stdout) < STDOUT_KEPT_BYTES_MAX + 100
    assert STDERR_KEPT_BYTES_MAX <= len(result.stderr) < STDERR_KEPT_BYTES_MAX + 100
    assert result.stderr.startswith("err 0")
    assert "bytes cut" in result.stderr
    assert result.stderr.endswith("x\n")


async def test_failure_says_why() -> None:
    with pytest.raises(MediaError, match=r"^python\S* on a\.mp4 failed: no such codec\.$"):
        await run_tool(python("import sys; sys.exit('[error] no such codec')"), timeout_s=PATIENCE_S, about="a.mp4")
    with pytest.raises(MediaError, match="failed: exit code 7, and it gave no reason"):
        await run_tool(python("import sys; sys.exit(7)"), timeout_s=PATIENCE_S)
    with pytest.raises(MediaError, match=r"was ended by signal 9 \(Killed\); the machine may be short of memory"):
        await run_tool(python("import os; os.kill(os.getpid(), 9)"), timeout_s=PATIENCE_S)
    with pytest.raises(MediaError, match="cannot be started"):
        await run_tool(["/nowhere/ffmpeg"], timeout_s=PATIENCE_S)


async def test_the_tool_gets_no_stdin_no_tty_and_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFREPORT", "file=/tmp/never")
    program = """
        import os, sys
        print(repr(sys.stdin.read()), sorted(set(os.environ) - {"LC_CTYPE"}), os.getsid(0) == os.getpid())
    """
    result = await run_tool(python(program), timeout_s=PATIENCE_S)

    assert result.stdout == b"'' ['LC_ALL', 'PATH'] True\n"


async def start_family(tmp_path: Path, **options: object) -> tuple[asyncio.Task[object], list[int]]:
    """Run a tool that ignores SIGTERM and has a child that does too; gives the run and both process ids."""
    family = tmp_path / "family"
    program = f"""
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open({str(family)!r} + ".part", "w") as file:
            file.write(f"{{os.getpid()}} {{child.pid}}")
        os.rename({str(family)!r} + ".part", {str(family)!r})
        print("out_time_us=1", "progress=continue", sep=chr(10), flush=True)
        time.sleep(600)
    """
    run: asyncio.Task[object] = asyncio.create_task(run_tool(python(program), **options))  # type: ignore[arg-type]
    deadline = time.monotonic() + PATIENCE_S
    while not family.exists():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    return run, [int(pid) for pid in family.read_text().split()]


async def test_cancel_kills_the_whole_group_though_it_ignores_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ffmpeg_run, "TERM_GRACE_S", 0.1)
    run, pids = await start_family(tmp_path, timeout_s=600)

    run.cancel()
    await asyncio.sleep(0)
    run.cancel()  # a second one does not make it leave early
    with pytest.raises(asyncio.CancelledError):
        await run

    assert not psutil.pid_exists(pids[0])  # gone and reaped when the call is left
    eventually(lambda: is_gone(pids[1]), "the child of the tool lives on")


async def test_timeout_kills_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffmpeg_run, "TERM_GRACE_S", 0.1)
    run, pids = await start_family(tmp_path, timeout_s=1.0, about="a.mp4")

    with pytest.raises(MediaError, match=r"on a\.mp4 did not end within 1 s and was stopped"):
        await run

    assert not psutil.pid_exists(pids[0])
    eventually(lambda: is_gone(pids[1]), "the child of the tool lives on")


async def test_an_error_of_the_progress_call_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffmpeg_run, "TERM_GRACE_S", 0.1)

    async def lost(fraction: float) -> None:
        raise TimeoutError("the database is away")  # must not be taken for our own timeout

    run, pids = await start_family(tmp_path, timeout_s=600, on_progress=lost)

    with pytest.raises(TimeoutError, match="the database is away"):
        await run
    assert not psutil.pid_exists(pids[0])


async def test_a_slow_progress_call_does_not_hold_up_the_tool(tools: Tools) -> None:
    told: list[float] = []

    async def slow(fraction: float) -> None:
        told.append(fraction)
        await asyncio.sleep(0.2)

    program = """
        import sys
        for n in range(1, 20001):
            print(f"out_time_us={n}", "progress=continue", "x" * 50, sep=chr(10))
        sys.stderr.write("done")
    """
    result = await run_tool(python(program), timeout_s=PATIENCE_S, on_progress=slow, duration_s=0.02)

    assert result.stderr == "done"
    assert told[-1] == 1.0
    assert len(told) < 20


async def test_what_the_tool_leaves_behind_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ffmpeg_run, "TERM_GRACE_S", 0.1)
    program = f"""
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # it holds both pipes
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
    """
    with pytest.raises(MediaError, match="did not end within 1 s"):
        await run_tool(python(program), timeout_s=1.0)

    eventually(lambda: is_gone(int((tmp_path / "pid").read_text())), "the child of the tool lives on")


async def test_cancelled_transcode_leaves_nothing(tools: Tools, tmp_path: Path) -> None:
    source = tmp_path / "long.mkv"
    args = ["-f", "lavfi", "-i", "testsrc2=size=1280x720:rate=25:duration=8", "-c:v", "mjpeg"]
    make(tools, source, *args)
    moved = asyncio.Event()

    async def progress(fraction: float) -> None:
        moved.set()

    run = asyncio.create_task(media.transcode(source, tmp_path / "out" / "a.mp4", tools=tools, progress=progress))
    await asyncio.wait_for(moved.wait(), PATIENCE_S)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert names(tmp_path / "out") == []
    assert [p for p in psutil.Process().children(recursive=True) if "ffmpeg" in p.name()] == []


def test_it_runs_in_a_loop_of_another_thread(clips: Path, tools: Tools) -> None:
    results: list[media.ProbeResult] = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(media.probe(clips / "clip.mp4", tools=tools))))
    thread.start()
    thread.join(PATIENCE_S)

    assert [result["width"] for result in results] == [320]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_killed_worker_leaves_no_ffmpeg_and_no_file_that_looks_whole(
    loop: str, clips: Path, tools: Tools, tmp_path: Path
) -> None:
    endless = [str(tools.ffmpeg), "-nostdin", "-v", "error", "-re", "-stream_loop", "-1"]
    endless += ["-i", str(clips / "clip.mp4"), "-f", "mp4"]
    program = f"""
        import asyncio
        from rota.demo.files import publish, writing
        from rota.io.ffmpeg_run import run_tool

        async def main():
            with writing({str(tmp_path / "out.mp4")!r}) as part:
                await run_tool([*{endless!r}, str(part)], timeout_s=600)
                await publish(part, {str(tmp_path / "out.mp4")!r})

        if {loop!r} == "uvloop":
            import uvloop
            uvloop.run(main())
        else:
            asyncio.run(main())
    """
    source = Path(media.__file__).parents[2]
    worker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], env={**os.environ, "PYTHONPATH": str(source)}
    )
    try:
        children: list[psutil.Process] = []

        def ffmpeg_runs() -> bool:
            children[:] = [p for p in psutil.Process(worker.pid).children() if p.name().startswith("ffmpeg")]
            return bool(children) and any(part.stat().st_size for part in tmp_path.glob(".rota-*.part"))

        eventually(ffmpeg_runs, "ffmpeg did not start")
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    eventually(lambda: is_gone(children[0].pid), "ffmpeg outlives its worker")
    assert not (tmp_path / "out.mp4").exists()
    assert remove_leftovers(tmp_path) == 1
    assert names(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_tool_whose_parent_is_gone_already_does_not_start() -> None:
    not_our_parent = str(os.getppid())
    argv = [sys.executable, "-I", "-S", "-c", ffmpeg_run._DIE_WITH_PARENT, not_our_parent, "/bin/echo", "started"]

    ended = subprocess.run(argv, capture_output=True, check=False)

    assert (ended.returncode, ended.stdout) == (1, b"")


async def test_many_runs_at_once(clips: Path, tools: Tools) -> None:
    work: list[Awaitable[media.ProbeResult]] = [media.probe(clips / "clip.mp4", tools=tools) for _ in range(20)]

    results = await asyncio.gather(*work)

    assert {result["width"] for result in results} == {320}


async def test_levels_tell_errors_from_news(clips: Path, tools: Tools) -> None:
    argv = ffmpeg_argv(tools, ["-i", str(clips / "clip.mp4"), "-f", "null", "-"], level="info")
    whole = await run_tool(argv, timeout_s=PATIENCE_S)
    argv = ffmpeg_argv(tools, ["-i", str(clips / "cut clip.mkv"), "-f", "null", "-"], level="info")
    cut = await run_tool(argv, timeout_s=PATIENCE_S)

    assert "Stream" in whole.stderr
    assert not whole.has_errors
    assert cut.has_errors
