"""The ops of a media session on a runner, with a real ffmpeg and real transfers. S60, S66, S72, S77, S78, S83–S90."""

import asyncio
import contextlib
import hashlib
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rota.io.ffmpeg import Tools, find_tools
from rota.objects.io.folder import FolderStore
from rota.runners import ops
from rota.runners.io.media import MediaLimits, MediaSession
from rota.runners.io.tool_run import ToolRunner
from rota.runners.io.transfers import Transfers, TransferSettings
from rota.runners.io.walls import find_walls
from rota.runners.isolation import Isolation, Wall
from rota.runners.messages import OpError, Part
from tests.integration.object_stands import folder_store, raw_server
from tests.postgres_servers import unavailable

LIMIT_S = 30.0
MIB = 1024 * 1024
GONE = "S3cr3tS1gnatur3"


@pytest.fixture(scope="session")
def tools() -> Tools:
    return find_tools()


@pytest.fixture(scope="session")
def film(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("film") / "film.mp4"
    subprocess.run(
        [
            tools.ffmpeg, "-v", "error", "-f", "lavfi", "-i", "testsrc=size=160x90:rate=10:duration=3",
            "-f", "lavfi", "-i", "sine=duration=3", "-c:v", "mpeg4", "-c:a", "aac", "-shortest", path,
        ],
        check=True,
    )  # fmt: skip
    return path.read_bytes()


class Stand:
    """One session with a store."""

    def __init__(self, folder: Path, store: FolderStore, tools: ToolRunner, transfers: Transfers) -> None:
        self.folder, self.store, self.tools, self.transfers = folder, store, tools, transfers
        self.limits = MediaLimits(output_bytes_max=64 * MIB, session_bytes_max=256 * MIB)
        self.progress: list[tuple[float | None, str | None]] = []
        self.cancelled = asyncio.Event()

    async def ask(self, op: str, *, timeout_s: float = LIMIT_S, **args: Any) -> Part | OpError:
        session = MediaSession(self.folder, self.tools, self.limits, self.transfers)
        return await session.run(
            op, args, timeout_s=timeout_s, progress=lambda *told: self.progress.append(told), cancelled=self.cancelled
        )

    async def fails(self, op: str, code: str, **args: Any) -> OpError:
        answer = await self.ask(op, **args)
        assert isinstance(answer, OpError), answer
        assert answer.code == code, answer
        assert str(self.folder) not in answer.message
        return answer

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if not path.is_dir())

    def put(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.fixture
async def stand(tmp_path: Path, tools: Tools) -> AsyncIterator[Stand]:
    runner = ToolRunner(tools, await asyncio.to_thread(find_walls, tools.ffmpeg))
    transfers = Transfers(TransferSettings(stall_s=20))
    (tmp_path / "session").mkdir()
    async with folder_store(tmp_path / "store") as store:
        yield Stand(tmp_path / "session", store, runner, transfers)
        await transfers.close()
        await runner.close()


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.02)


async def test_a_film_is_staged_probed_cut_read_and_published(stand: Stand, film: bytes) -> None:
    await stand.store.write("project/in.mp4", film)
    staged = await stand.ask(
        "stage", url=await stand.store.mint_get("project/in.mp4"), path="in/film.mp4", maxBytes=10 * MIB,
        sha256=hashlib.sha256(film).hexdigest().upper(),
    )  # fmt: skip
    assert staged == ops.Moved(bytes=len(film), sha256=hashlib.sha256(film).hexdigest())
    probed = await stand.ask(
        "ffprobe", argv=["-v", "error", "-show_format", "-of", "json", "in/film.mp4"], timeoutSec=30
    )
    assert isinstance(probed, ops.FfprobeResult) and probed.exit_code == 0
    assert '"nb_streams": 2' in probed.stdout and str(stand.folder) not in probed.stdout
    cut = await stand.ask(
        "ffmpeg", argv=["-ss", "1", "-i", "in/film.mp4", "-t", "1", "-c:v", "mpeg4", "out/cut.mp4"], timeoutSec=30
    )
    assert isinstance(cut, ops.FfmpegResult) and cut.exit_code == 0, cut
    assert cut.stderr_tail.isprintable() or "\n" in cut.stderr_tail
    assert (1.0, None) in stand.progress and all(told is None or 0 <= told <= 1 for told, _ in stand.progress)
    stat = await stand.ask("stat", path="out/cut.mp4")
    assert isinstance(stat, ops.StatResult) and stat.exists and stat.bytes > 1000
    assert await stand.ask("stat", path="out/none.mp4") == ops.StatResult(exists=False, bytes=0)
    url = await stand.store.mint_put("runner-staging/1/2", content_type="video/mp4")
    published = await stand.ask("publish", path="out/cut.mp4", putUrl=url, maxBytes=stat.bytes, contentType="video/mp4")
    content = (stand.folder / "out/cut.mp4").read_bytes()
    assert published == ops.Moved(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    assert b"".join([chunk async for chunk in stand.store.read("runner-staging/1/2")]) == content
    stand.put("list.txt", "größe".encode())
    assert await stand.ask("read", path="list.txt", maxBytes=100) == ops.ReadResult(
        content="größe", encoding="utf8", bytes=7
    )
    assert await stand.ask("close") == ops.Nothing()
    await stand.fails("exec", "unsupported_op", command="npm")
    await stand.fails("stage", "invalid_args", url="https://x.invalid")


@pytest.mark.parametrize("wall", [None, Wall.BUBBLEWRAP, Wall.LANDLOCK], ids=str)
async def test_ffmpeg_does_its_work_behind_each_set_of_walls(
    stand: Stand, film: bytes, tools: Tools, wall: Wall | None
) -> None:
    if wall is None:
        found = find_walls(tools.ffmpeg, bubblewrap="/absent")
        isolation = Isolation(found.python, found.launcher)
    else:
        isolation = find_walls(tools.ffmpeg, bubblewrap=None if wall == Wall.BUBBLEWRAP else "/absent")
        if wall not in isolation.walls:
            unavailable("walls", f"{wall} does not stand on this machine")
    stand.tools = behind = ToolRunner(tools, isolation)
    stand.put("in/film.mp4", film)
    stand.put("list.txt", b"file in/film.mp4\nfile in/film.mp4\n")
    two_pass = ["-i", "in/film.mp4", "-c:v", "mpeg4", "-b:v", "100k", "-an", "-passlogfile", "log/two", "-pass"]
    try:
        for argv in (
            ["-f", "concat", "-safe", "0", "-i", "list.txt", "-c", "copy", "out/twice.mp4"],
            ["-i", "in/film.mp4", "-c", "copy", "-f", "segment", "-segment_time", "1", "parts/%03d.mp4"],
            [*two_pass, "1", "-f", "null", "-"],
            [*two_pass, "2", "out/two.mp4"],
            ["-i", "out/twice.mp4", "-vf", "fps=1,scale=40:-2,tile=3x2", "-frames:v", "1", "out/grid.jpg"],
        ):
            answer = await stand.ask("ffmpeg", argv=argv, timeoutSec=60, timeout_s=60)
            assert isinstance(answer, ops.FfmpegResult) and answer.exit_code == 0, (argv, answer)
    finally:
        await behind.close()
    assert {"out/twice.mp4", "out/two.mp4", "out/grid.jpg", "parts/000.mp4"} <= set(stand.files())


async def test_argv_is_judged_here(stand: Stand, film: bytes) -> None:
    stand.put("in.mp4", film)
    error = await stand.fails("ffmpeg", "argv_not_allowed", argv=["-i", "http://x.invalid/", "o.mp4"], timeoutSec=30)
    assert not error.retryable
    await stand.fails("ffprobe", "argv_not_allowed", argv=["/etc/passwd"], timeoutSec=30)
    await stand.fails(
        "ffmpeg",
        "argv_not_allowed",
        argv=["-i", "in.mp4"] + ["-metadata", "a=" + "b" * 90_000] * 9 + ["o.mp4"],
        timeoutSec=30,
    )
    assert stand.files() == ["in.mp4"]


async def test_a_run_that_fails_leaves_no_output(stand: Stand, film: bytes) -> None:
    stand.put("in.mp4", film[: len(film) // 2])
    stand.put("keep.txt", b"kept")
    for argv in (["-i", "in.mp4", "o.mp4"], ["-xerror", "-i", "keep.txt", "-f", "mp4", "p.mp4"]):
        answer = await stand.ask("ffmpeg", argv=argv, timeoutSec=30)
        assert isinstance(answer, OpError) or (isinstance(answer, ops.FfmpegResult) and answer.exit_code != 0)
    assert stand.files() == ["in.mp4", "keep.txt"]


@pytest.mark.parametrize("how", ["cancelled", "timeout"])
async def test_a_long_run_is_ended_with_its_tree(stand: Stand, film: bytes, how: str) -> None:
    stand.put("in.mp4", film)
    argv = ["-re", "-stream_loop", "1000", "-i", "in.mp4", "-c", "copy", "long.mkv"]
    asked = asyncio.create_task(
        stand.ask("ffmpeg", argv=argv, timeoutSec=2 if how == "timeout" else 600, timeout_s=600)
    )
    if how == "cancelled":
        await eventually(lambda: any(told for _, told in stand.progress))
        assert of_session(stand.folder)
        stand.cancelled.set()
    async with asyncio.timeout(LIMIT_S):
        answer = await asked
    assert isinstance(answer, OpError) and answer.code == how
    await eventually(lambda: not of_session(stand.folder))
    assert stand.files() == ["in.mp4"]


def of_session(folder: Path) -> list[int]:
    """The processes that were started for a session."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


async def test_a_session_has_a_quota(stand: Stand, film: bytes) -> None:
    stand.put("in.mp4", film)
    stand.limits = MediaLimits(output_bytes_max=MIB, session_bytes_max=3 * MIB)
    # One file is stopped by the kernel, many by looking.
    one = ["-stream_loop", "-1", "-i", "in.mp4", "-c:v", "rawvideo", "-an", "one.nut"]
    many = ["-stream_loop", "-1", "-i", "in.mp4", "-an", "-c:v", "rawvideo", "-f", "segment", "-segment_time", "0.1",
            "-segment_format", "nut", "m%d.nut"]  # fmt: skip
    for argv in (one, many):
        answer = await stand.ask("ffmpeg", argv=argv, timeoutSec=60, timeout_s=60)
        assert isinstance(answer, OpError) and answer.code == "disk_full", answer
        assert stand.files() == ["in.mp4"]
    await stand.store.write("big", b"x" * 4 * MIB)
    await stand.fails("stage", "disk_full", url=await stand.store.mint_get("big"), path="big", maxBytes=10 * MIB)
    assert stand.files() == ["in.mp4"]


async def test_S72_what_ffmpeg_says_never_blocks_it(tmp_path: Path, stand: Stand) -> None:
    # Stands for ffmpeg: half a million lines, lines of a megabyte, no text at all, and its report beside it.
    program = tmp_path / "ffmpeg"
    program.write_text(
        "#!/usr/bin/python3\nimport sys\nerr = sys.stderr.buffer\n"
        "err.write(b'  Duration: 00:00:10.00, start\\n' + b'warning: x\\n' * 500000)\n"
        "err.write((b'\\xff\\xfe' * 500000 + b'\\r') * 5 + b'\\x1b[31mthe last\\x00 line')\nerr.flush()\n"
        "print('out_time_us=5000000\\nprogress=continue', flush=True)\n"
    )
    program.chmod(0o755)
    stand.put("in.mp4", b"\0\0\0\x18ftypmp42")
    walls = find_walls(program)
    runner = ToolRunner(
        Tools(ffmpeg=program, ffprobe=program, source="settings"), Isolation(walls.python, walls.launcher)
    )
    stand.tools = runner
    try:
        answer = await stand.ask("ffmpeg", argv=["-i", "in.mp4", "o.mp4"], timeoutSec=60, timeout_s=60)
    finally:
        await runner.close()
    assert isinstance(answer, ops.FfmpegResult) and answer.exit_code == 0, answer
    assert len(answer.stderr_tail) <= 20_000 and answer.stderr_tail.endswith("the last line")
    assert (0.5, "5.0 s written") in stand.progress


async def test_S77_read_gives_all_or_nothing(stand: Stand) -> None:
    stand.put("ten", b"0123456789")
    assert await stand.ask("read", path="ten", maxBytes=10) == ops.ReadResult(
        content="0123456789", encoding="utf8", bytes=10
    )
    await stand.fails("read", "file_too_large", path="ten", maxBytes=9)
    await stand.fails("read", "invalid_args", path="ten", maxBytes=4 * MIB + 1)
    stand.put("raw", b"\xff\x00")
    assert await stand.ask("read", path="raw", maxBytes=10) == ops.ReadResult(
        content="/wA=", encoding="base64", bytes=2
    )
    stand.put("grows", b"x")
    stop = asyncio.Event()

    def grow() -> None:
        with (stand.folder / "grows").open("ab", buffering=0) as file:
            while not stop.is_set():
                file.write(b"x" * 1000)

    growing = asyncio.create_task(asyncio.to_thread(grow))
    for _ in range(5):
        answer = await stand.ask("read", path="grows", maxBytes=50_000)
        if isinstance(answer, OpError):
            assert answer.code == "file_too_large"
        else:
            assert isinstance(answer, ops.ReadResult) and answer.bytes == len(answer.content) <= 50_000
    stop.set()
    await growing


async def test_S78_what_is_no_file_is_refused_at_once(stand: Stand, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("not yours")
    stand.put("real", b"x")
    os.mkfifo(stand.folder / "fifo")
    (stand.folder / "folder").mkdir()
    (stand.folder / "link").symlink_to(tmp_path / "secret")
    (stand.folder / "inside").symlink_to("real")
    (stand.folder / "out").symlink_to(tmp_path)
    os.link(tmp_path / "secret", stand.folder / "second")
    listening = socket.socket(socket.AF_UNIX)
    (stand.folder / "socket").parent.mkdir(exist_ok=True)
    here = os.open(stand.folder, os.O_RDONLY)
    listening.bind(f"/proc/self/fd/{here}/socket")
    url = await stand.store.mint_put("runner-staging/1/1")
    for name in (
        "fifo",
        "socket",
        "folder",
        "link",
        "inside",
        "out/secret",
        "second",
        "../secret",
        "/etc/passwd",
        "absent",
    ):
        await stand.fails("read", "invalid_path", path=name, maxBytes=100)
        await stand.fails("publish", "invalid_path", path=name, putUrl=url, maxBytes=100, contentType="text/plain")
        if name not in ("second", "absent"):
            await stand.fails("stat", "invalid_path", path=name)
    for name in ("folder", "out/new", "real/x"):
        get = await stand.store.mint_get("x")
        await stand.fails("stage", "invalid_path", url=get, path=name, maxBytes=100)
    listening.close()
    os.close(here)
    assert (tmp_path / "secret").read_text() == "not yours" and await stand.store.head("runner-staging/1/1") is None


async def test_S60_a_transfer_that_hangs_is_dropped_when_the_op_is_cancelled(stand: Stand) -> None:
    begun = asyncio.Event()

    async def trickle(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx")
        await writer.drain()
        begun.set()
        await asyncio.Event().wait()

    async with raw_server(trickle) as address:
        asked = asyncio.create_task(stand.ask("stage", url=address, path="a/b", maxBytes=10_000, timeout_s=600))
        async with asyncio.timeout(LIMIT_S):
            await begun.wait()
            stand.cancelled.set()
            answer = await asked
    assert isinstance(answer, OpError) and answer.code == "cancelled"
    assert stand.files() == []


def answers(text: bytes, *, endless: bytes = b"") -> Callable[..., Any]:
    async def answer(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        while endless:
            writer.write(endless)
            await writer.drain()
        await writer.drain()

    return answer


OK = b"HTTP/1.1 200 OK\r\n"
BOMB = b"\x1f\x8b" + b"bomb" * 100


@pytest.mark.parametrize(
    ("server", "code"),
    [
        (answers(b"HTTP/1.1 200 OK\r\n\r\n", endless=b"x" * 65536), "file_too_large"),
        (answers(OK + b"Transfer-Encoding: chunked\r\n\r\n", endless=b"5\r\nhello\r\n" * 999), "file_too_large"),
        (answers(OK + b"Content-Length: 10000000000\r\n\r\n", endless=b"x" * 65536), "file_too_large"),
        (answers(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort"), "stage_failed"),
        (answers(b"HTTP/1.1 302 Found\r\nLocation: https://x.invalid/\r\nContent-Length: 0\r\n\r\n"), "stage_failed"),
        (answers(b"this is not HTTP\r\n\r\n"), "stage_failed"),
        (answers(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"), "stage_failed"),
        (answers(b"HTTP/1.1 206 Partial\r\nContent-Length: 1\r\n\r\nx"), "stage_failed"),
        (answers(b""), "stage_failed"),
    ],
    ids=["no length", "chunked", "huge", "short", "redirect", "no HTTP", "500", "partial", "closed"],
)  # fmt: skip
async def test_S88_servers_that_behave_badly(stand: Stand, server: Callable[..., Any], code: str) -> None:
    async with raw_server(server) as address:
        url = f"{address}/x?signature={GONE}"
        error = await stand.fails("stage", code, url=url, path="x", maxBytes=100_000)
    assert GONE not in repr(error)
    assert stand.files() == []


async def test_S88_a_server_that_says_ten_bytes_gives_ten_and_a_bomb_stays_packed(stand: Stand) -> None:
    more = answers(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\n0123456789" + b"more" * 9)
    async with raw_server(more) as address:
        answer = await stand.ask("stage", url=address, path="ten", maxBytes=100)
    # What is too much may be seen, and is a server that cannot be trusted then; it is never taken.
    if isinstance(answer, OpError):
        assert answer.code == "stage_failed" and stand.files() == []
    else:
        assert (stand.folder / "ten").read_bytes() == b"0123456789"
    packed = answers(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB)
    async with raw_server(packed) as address:
        await stand.ask("stage", url=address, path="bomb", maxBytes=len(BOMB))
    assert (stand.folder / "bomb").read_bytes() == BOMB


async def test_S84_an_upload_says_its_length_and_is_bounded_before_it_begins(stand: Stand) -> None:
    heads: list[bytes] = []

    async def keep(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()

    stand.put("empty", b"")
    stand.put("some", b"x" * 3 * MIB)
    with (stand.folder / "sparse").open("wb") as file:
        file.truncate(4 * 1024**3 + 1)
    stand.limits = MediaLimits(output_bytes_max=4 * 1024**3, session_bytes_max=256 * MIB)
    async with raw_server(keep) as address:
        for name, size in (("empty", 0), ("some", 3 * MIB)):
            answer = await stand.ask("publish", path=name, putUrl=address, maxBytes=3 * MIB, contentType="Video/MP4")
            assert isinstance(answer, ops.Moved) and answer.bytes == size
        await stand.fails(
            "publish", "output_too_large", path="sparse", putUrl=address, maxBytes=2**50, contentType="video/mp4"
        )
    assert len(heads) == 2
    for head in heads:
        assert b"Content-Type: Video/MP4\r\n" in head and b"chunked" not in head.lower()
        assert head.lower().count(b"content-length: ") == 1


async def test_S83_and_S89_a_refusal_is_told_in_the_stores_word(stand: Stand) -> None:
    stand.put("x", b"x" * 5 * MIB)
    url = await stand.store.mint_put("s83", content_type="video/mp4")
    error = await stand.fails(
        "publish", "publish_failed", path="x", putUrl=url, maxBytes=10 * MIB, contentType="video/webm"
    )
    assert "403 (SignatureDoesNotMatch)" in error.message and "http" not in error.message
    late = await stand.store.mint_get("s89", expires_s=1)
    late = late.replace("expires=1&", "expires=0&")
    await stand.store.write("s89", b"x")
    error = await stand.fails("stage", "stage_failed", url=late, path="y", maxBytes=100)
    assert error.retryable and "403" in error.message


async def test_S86_a_clock_that_is_ahead_is_named(stand: Stand) -> None:
    ahead = FolderStore(
        stand.folder.parent / "store", base_url=(await stand.store.mint_get("x")).partition("/x?")[0],
        clock=lambda: time.time() + 1200,
    )  # fmt: skip
    await stand.store.write("s86", b"x")
    error = await stand.fails("stage", "stage_failed", url=await ahead.mint_get("s86"), path="x", maxBytes=9)
    assert error.retryable and "RequestTimeTooSkewed" in error.message and "clocks" in error.message


async def test_S90_digests(stand: Stand) -> None:
    await stand.store.write("s90", b"content")
    digest = hashlib.sha256(b"content").hexdigest()
    url = await stand.store.mint_get("s90")
    await stand.fails("stage", "stage_failed", url=url, path="x", maxBytes=100, sha256="0" * 64)
    assert stand.files() == []
    await stand.fails("stage", "invalid_args", url="https://never.invalid/", path="x", maxBytes=100, sha256=digest[1:])
    await stand.fails("stage", "invalid_args", url="https://never.invalid/", path="x", maxBytes=100, sha256="g" * 64)
    assert isinstance(await stand.ask("stage", url=url, path="x", maxBytes=100, sha256=digest.upper()), ops.Moved)


@pytest.mark.parametrize(
    "url",
    [
        "http://store.invalid/x", "ftp://store.invalid/x", "file:///etc/passwd", "https://user:pass@store.invalid/", "https://",
        "https://[::1", "https://store.invalid:99999/x", "//store.invalid/", "x", "http://127.0.0.1:1/x",
    ],
)  # fmt: skip
async def test_urls_that_are_none(stand: Stand, url: str) -> None:
    await stand.fails("stage", "stage_failed", url=f"{url}?s={GONE}" if "://" in url else url, path="x", maxBytes=100)


async def test_S66_no_secret_of_a_url_is_told_anywhere(
    stand: Stand, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    asyncio.get_running_loop().set_debug(True)
    stand.put("x", b"x" * 100)
    await stand.store.write("s66", b"x")
    good = await stand.store.mint_get("s66")
    stand.transfers = quick = Transfers(TransferSettings(stall_s=0.3, connect_s=0.3))

    async def silent(_head: bytes, _reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with raw_server(silent) as address:
        tls = address.replace("http:", "https:")
        for url in (
            f"{good}&canary={GONE}",
            f"{address}/?s={GONE}",
            f"{tls}/?s={GONE}",
            f"https://nowhere.invalid/?{GONE}",
        ):
            for answer in (
                await stand.ask("stage", url=url, path="y", maxBytes=100),
                await stand.ask("publish", path="x", putUrl=url, maxBytes=100, contentType="video/mp4"),
            ):
                assert isinstance(answer, (OpError, ops.Moved)) and GONE not in repr(answer)
                assert not isinstance(answer, OpError) or ("?" not in answer.message and address not in answer.message)
    await quick.close()
    said = capfd.readouterr()
    # The store of these tests stands in this process too; what it logs of itself is not the runner's.
    logged = [
        record.getMessage() + str(record.exc_text) for record in caplog.records if record.name != "uvicorn.access"
    ]
    assert logged and GONE not in "".join(logged) + said.out + said.err
