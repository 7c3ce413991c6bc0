"""Media that is none or too much, and ffmpegs that take too much: each run ends with a code or a status, in bounded
time and memory, and leaves no output. On the oldest and the newest ffmpeg that are here. S59, S69, S72.
"""

import asyncio
import contextlib
import struct
import subprocess
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rota.io.ffmpeg import Tools
from rota.runners import ops
from rota.runners.codes import OpCode
from rota.runners.io.media import MediaLimits, MediaSession
from rota.runners.io.tool_run import ToolRunner
from rota.runners.io.transfers import Transfers
from rota.runners.io.walls import find_walls
from rota.runners.isolation import Isolation
from rota.runners.messages import OpError, Part
from tests.integration.object_stands import raw_server, small_disk
from tests.runners.sessions import Found, found_tools

MIB = 1024 * 1024
LIMIT_S = 60.0
TOOLS = found_tools()
pytestmark = pytest.mark.skipif(not TOOLS, reason="no ffmpeg is here: pip install 'rota[media]'")
EACH = pytest.mark.parametrize("found", sorted({TOOLS[0], TOOLS[-1]}) if TOOLS else [], ids=lambda found: found.name)


class Stand:
    """One session, its ffmpeg behind this machine's walls unless told otherwise."""

    def __init__(self, folder: Path, tools: ToolRunner) -> None:
        self.folder, self.tools, self.transfers = folder, tools, Transfers()
        self.progress: list[tuple[float | None, str | None]] = []
        self.cancelled = asyncio.Event()

    async def ask(self, op: str, **args: Any) -> Part | OpError:
        limits = MediaLimits(output_bytes_max=64 * MIB, session_bytes_max=256 * MIB)
        session = MediaSession(self.folder, self.tools, limits, self.transfers)
        async with asyncio.timeout(2 * LIMIT_S):
            return await session.run(
                op, args, timeout_s=LIMIT_S, progress=lambda *told: self.progress.append(told),
                cancelled=self.cancelled,
            )  # fmt: skip

    async def ffmpeg(self, *argv: str, timeout_s: int = int(LIMIT_S)) -> Part | OpError:
        return await self.ask("ffmpeg", argv=argv, timeoutSec=timeout_s)

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


@contextlib.asynccontextmanager
async def stand_of(found: Found, folder: Path, **told: Any) -> AsyncIterator[Stand]:
    walls = await asyncio.to_thread(find_walls, found.ffmpeg)
    tools = ToolRunner(Tools(ffmpeg=found.ffmpeg, ffprobe=found.ffprobe, source="settings"), walls, **told)
    folder.mkdir(exist_ok=True)
    stand = Stand(folder, tools)
    try:
        yield stand
    finally:
        await stand.transfers.close()
        await tools.close()


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("film") / "film.mp4"
    source = ["-f", "lavfi", "-i", "testsrc=size=160x90:rate=10:duration=3", "-f", "lavfi", "-i", "sine=duration=3"]
    coded = ["-c:v", "mpeg4", "-c:a", "aac", "-shortest"]
    subprocess.run([TOOLS[0].ffmpeg, "-v", "error", *source, *coded, path], check=True)
    return path.read_bytes()


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content) + 8, kind) + content


def picture(width: int, height: int) -> bytes:
    """A PNG that claims to be this large, and is all black."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def tracks(count: int) -> bytes:
    """A Matroska file with this many tracks."""
    one = b"\xae\x8b" + b"\xd7\x81\x01" + b"\x83\x81\x01" + b"\x86\x83V_X"
    body = b"\x16\x54\xae\x6b\x08" + (len(one) * count).to_bytes(7, "big") + one * count
    body = body[:4] + b"\x01" + body[5:]
    head = b"\x1a\x45\xdf\xa3\x8b\x42\x82\x88matroska"
    return head + b"\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff" + body


def nested(kind: bytes, depth: int) -> bytes:
    content = b""
    for _ in range(depth):
        content = box(kind, content)
    return content


BRAND = box(b"ftyp", b"isom\0\0\2\0isom")
SOUND = struct.pack("<HHIIHH", 1, 65535, 2**31 - 1, 2**31 - 1, 65535, 16)
BAD: dict[str, bytes] = {
    "empty.mp4": b"",
    "one.mp4": b"\0",
    "words.mp4": b"these are words\n" * 1000,
    "archive.mp4": b"PK\x03\x04" + bytes(range(256)) * 10,
    "brand.mp4": BRAND,
    "endless-box.mp4": BRAND + struct.pack(">I4sQ", 1, b"moov", 2**63 - 1),
    "nested.mp4": BRAND + nested(b"moov", 3000),
    "noise.mkv": b"\x1a\x45\xdf\xa3\x01\xff\xff\xff\xff\xff\xff\xfe" + b"\xff" * 1000,
    "tracks.mkv": tracks(20_000),
    "large.png": picture(2**31 - 1, 2**31 - 1),
    "large.y4m": b"YUV4MPEG2 W30000 H30000 F30:1 Ip A1:1 C420\nFRAME\n" + bytes(1000),
    "channels.wav": b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0" + SOUND + b"data\xff\xff\xff\xff" + bytes(1000),
    "page.mp4": b"<html><script>alert(1)</script>",
    "list.mp4": b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n",
    "script.mp4": b"ffconcat version 1.0\nfile /etc/passwd\n",
}


@EACH
async def test_what_is_no_media_ends_with_a_code_or_a_status_and_no_output(found: Found, tmp_path: Path) -> None:
    async with stand_of(found, tmp_path / "session") as stand:
        for name, content in BAD.items():
            (stand.folder / name).write_bytes(content)
            answer = await stand.ffmpeg("-i", name, "-c:v", "mpeg4", "out/film.mp4")
            if name in ("page.mp4", "list.mp4", "script.mp4"):
                assert isinstance(answer, OpError) and answer.code == OpCode.ARGV_NOT_ALLOWED, (name, answer)
            else:
                assert isinstance(answer, ops.FfmpegResult) and answer.exit_code != 0, (name, answer)
                assert answer.stderr_tail and "/etc" not in answer.stderr_tail
            assert stand.files() == {name}
            (stand.folder / name).unlink()
        probed = await stand.ask("ffprobe", argv=["-v", "error", "-show_streams", "absent.mp4"], timeoutSec=30)
        assert isinstance(probed, ops.FfprobeResult) and probed.exit_code != 0


@EACH
async def test_a_film_that_is_cut_anywhere_ends_with_a_status(found: Found, film: bytes, tmp_path: Path) -> None:
    """Whatever comes of it is a whole file or none, and the session goes on."""
    async with stand_of(found, tmp_path / "session") as stand:
        # Cut in the brand, in the frames, in the index at the end, and with a hole.
        for cut in (
            *(film[: len(film) * share // 7] for share in range(1, 7)),
            film[:2000] + bytes(4000) + film[6000:],
        ):
            (stand.folder / "in.mp4").write_bytes(cut)
            answer = await stand.ffmpeg("-i", "in.mp4", "-c:v", "mpeg4", "-c:a", "aac", "out.mp4")
            assert isinstance(answer, ops.FfmpegResult), answer
            assert stand.files() == ({"in.mp4"} if answer.exit_code else {"in.mp4", "out.mp4"})
            (stand.folder / "out.mp4").unlink(missing_ok=True)
        (stand.folder / "in.mp4").write_bytes(film)
        answer = await stand.ffmpeg("-i", "in.mp4", "-c", "copy", "out.mp4")
        assert isinstance(answer, ops.FfmpegResult) and answer.exit_code == 0
        told = [fraction for fraction, _ in stand.progress if fraction is not None]
        assert told and all(0 <= fraction <= 1 for fraction in told) and told[-1] == 1


@EACH
async def test_a_filter_or_a_picture_that_eats_memory_is_stopped(found: Found, film: bytes, tmp_path: Path) -> None:
    async with stand_of(found, tmp_path / "session", memory_bytes_max=150 * MIB) as stand:
        (stand.folder / "in.mp4").write_bytes(film)
        (stand.folder / "in.png").write_bytes(picture(16_000, 16_000))
        for argv in (
            ["-stream_loop", "-1", "-i", "in.mp4", "-an", "-vf", "scale=1920:-2,reverse", "out.mp4"],
            ["-loop", "1", "-i", "in.png", "-vf", "scale=160:-2", "out.mp4"],
        ):
            answer = await stand.ffmpeg(*argv)
            assert isinstance(answer, OpError) and answer.code == OpCode.OUT_OF_MEMORY, (argv, answer)
            assert "150 are allowed" in answer.message and not answer.retryable
            assert stand.files() == {"in.mp4", "in.png"}
            assert ffmpegs_of(stand) == []
        answer = await stand.ffmpeg("-i", "in.mp4", "-c", "copy", "out.mp4")
        assert isinstance(answer, ops.FfmpegResult) and answer.exit_code == 0


@EACH
async def test_a_run_that_would_not_end_is_stopped_by_its_time(found: Found, film: bytes, tmp_path: Path) -> None:
    """A gap of a million years between two frames, which a constant rate fills with copies."""
    async with stand_of(found, tmp_path / "session") as stand:
        (stand.folder / "in.mp4").write_bytes(film)
        gap = ["-vf", r"setpts=PTS+3e13/TB*gte(N\,5)", "-fps_mode", "cfr", "-an", "-f", "null", "-"]
        answer = await stand.ffmpeg("-i", "in.mp4", *gap, timeout_s=2)
        # A newer ffmpeg may see that it is too much by itself.
        late = "The op did not end within 2 s and was stopped."
        assert isinstance(answer, ops.FfmpegResult) or answer == OpError(
            code=OpCode.TIMEOUT, message=late, retryable=True
        ), answer
        assert ffmpegs_of(stand) == []


async def test_a_disk_that_is_full_is_told_by_each_op_and_room_is_made_again(film: bytes, tmp_path: Path) -> None:
    """S80's other side: the disk of the whole machine, and not the session's quota."""

    async def gives(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n" + bytes(5_000_000))

    with small_disk(tmp_path / "disk") as disk:
        async with stand_of(TOOLS[0], disk / "session") as stand, raw_server(gives) as address:
            (stand.folder / "in.mp4").write_bytes(film)
            for answer in (
                await stand.ask("stage", url=address, path="big", maxBytes=5_000_000),
                await stand.ffmpeg("-stream_loop", "-1", "-i", "in.mp4", "-an", "-c:v", "rawvideo", "out.nut"),
            ):
                assert isinstance(answer, OpError) and answer.code == OpCode.DISK_FULL and answer.retryable, answer
                assert stand.files() == {"in.mp4"}
            answer = await stand.ffmpeg("-i", "in.mp4", "-c", "copy", "out.mp4")
            assert isinstance(answer, ops.FfmpegResult) and answer.exit_code == 0


async def test_a_program_that_the_system_kills_is_told_as_such(film: bytes, tmp_path: Path) -> None:
    async with stand_of(TOOLS[0], tmp_path / "session") as stand:
        (stand.folder / "in.mp4").write_bytes(film)
        asked = asyncio.create_task(stand.ffmpeg("-re", "-stream_loop", "-1", "-i", "in.mp4", "-c", "copy", "out.mkv"))
        async with asyncio.timeout(LIMIT_S):
            while not any(told for _, told in stand.progress):
                await asyncio.sleep(0.02)
        for process in ffmpegs_of(stand):
            # As the system does when memory runs out: this one, and nobody asked.
            assert Path(f"/proc/{process.pid}/oom_score_adj").read_text().strip() == "1000"
        for process in reversed(ffmpegs_of(stand)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        answer = await asked
    assert isinstance(answer, OpError) and answer.code == OpCode.OUT_OF_MEMORY, answer
    assert stand.files() == {"in.mp4"}


def ffmpegs_of(stand: Stand) -> list[psutil.Process]:
    """The processes of a session's run, outermost first."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "-progress" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


REPORTS = [
    "Duration: 00:00:10.00", "out_time_us=4000000", "progress=continue", "out_time_us=1000000", "progress=continue",
    "Duration: 00:01:40.00", "out_time_us=5000000", "progress=continue", "out_time_us=-7", "progress=continue",
    "out_time_us=N/A", "progress=continue", "out_time_us=" + "9" * 4000, "progress=continue",
    "out_time_us=" + "9" * 9000, "progress=continue", "out_time_us=6000000", "progress=continue",
    "Duration: " + "9" * 9000 + ":00:00.00", "Duration: 999999999:99:99.99", "out_time_us=nan", "frame=\x00\xff",
    "out_time_us=7000000", "progress=continue", "progress=", "=progress", "x" * 100_000, "progress=end",
]  # fmt: skip


async def test_S72_progress_never_falls_and_stays_in_its_bounds(tmp_path: Path) -> None:
    """A program that stands for an ffmpeg that was taken over says anything it likes."""
    program = tmp_path / "ffmpeg"
    program.write_text(
        f"#!/usr/bin/python3\nimport os, sys, time\nfor line in {REPORTS!r}:\n"
        "    at = 2 if line.startswith('Duration') else 1\n"
        "    os.write(at, ('  ' * (at == 2) + line).encode('latin-1') + b'\\n')\n    time.sleep(0.01)\n"
    )
    program.chmod(0o755)
    walls = await asyncio.to_thread(find_walls, program)
    tools = ToolRunner(
        Tools(ffmpeg=program, ffprobe=program, source="settings"), Isolation(walls.python, walls.launcher)
    )
    (tmp_path / "session").mkdir()
    stand = Stand(tmp_path / "session", tools)
    (stand.folder / "in.mp4").write_bytes(BRAND)
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    try:
        answer = await stand.ffmpeg("-i", "in.mp4", "out.mp4")
    finally:
        await tools.close()
    assert isinstance(answer, ops.FfmpegResult) and answer.exit_code == 0, answer
    told = [fraction for fraction, _ in stand.progress if fraction is not None]
    assert told == sorted(told) and told[-1] == 1.0 and 0.0 <= told[0] <= 1.0, told
    assert all(detail is None or len(detail) < 100 for _, detail in stand.progress)
    assert failures == []
