"""One run of ffmpeg or ffprobe as a process of our own: how it is started, followed, stopped and judged.

It does not build command lines: that is `rota.io.ffmpeg`.

Invariants: no shell is ever involved; what a tool says is kept only up to a bound; when `run_tool` is left, in whatever
way, the process is gone and reaped; and when this process is killed, the kernel kills the tool with it (Linux).
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rota.errors import MediaError
from rota.io.to_the_end import to_the_end

OnProgress = Callable[[float], Awaitable[None]]
"""Told how far a run is, 0.0 to 1.0, each time that it moved on. With no known length it is told 0.0 until the end."""

STDOUT_KEPT_BYTES_MAX = 8 * 1024 * 1024  # ffprobe's JSON of a file with thousands of chapters, or one raw picture
STDERR_KEPT_BYTES_MAX = 256 * 1024  # a broken file makes one line per frame; the first and the last ones tell
READ_BYTES = 64 * 1024  # what a pipe holds on Linux
LINE_BYTES_MAX = 4 * 1024  # a line of ffmpeg's progress has about 30 bytes
REASON_CHARS_MAX = 300  # a message is one or two sentences
TERM_GRACE_S = 2.0  # after SIGTERM ffmpeg writes the end of its file; we throw that file away
KILL_GRACE_S = 10.0  # only a process that hangs in the kernel (a dead network disk) outlives this

# An empty environment but for this: FFREPORT, proxies and library paths of the caller change nothing in a run.
_ENVIRONMENT: Mapping[str, str] = {"LC_ALL": "C", "PATH": os.defpath}

# Run in a fresh interpreter that then becomes the tool (13 ms). `preexec_fn` is not safe with threads; setpriv is not
# everywhere and leaves a gap: here a parent that died before the prctl call is noticed by its id.
_DIE_WITH_PARENT = """
import os, sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL; execv keeps it
except (ImportError, OSError, AttributeError):
    pass
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"it cannot be started: {error.strerror}")
"""

# Lines that ffmpeg adds to every failure and that tell nothing about it.
_GENERIC = (
    "Error opening input",
    "Error opening output",
    "Conversion failed",
    "Error while processing the decoded data",
)
_PREFIX = re.compile(r"^(?:\[[^\]]*\]\s*)+")
_SEVERE = re.compile(r"^(?:\[[^\]]*\]\s*)*\[(?:panic|fatal|error)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool that ended with exit code 0 left behind.

    `stdout` and `stderr` hold all that was written or, when `*_cut` is true, its first and last part.
    `out_time_s` is how much media was written, if the tool reported progress. `elapsed_s` is wall time.
    """

    stdout: bytes
    stdout_cut: bool
    stderr: str
    stderr_cut: bool
    out_time_s: float | None
    elapsed_s: float

    @property
    def has_errors(self) -> bool:
        """True if the tool complained of an error and went on all the same, as ffmpeg does on damaged media."""
        return any(_SEVERE.match(line) for line in self.stderr.splitlines())


class ProgressReader:
    """Reads what `ffmpeg -progress` writes. Pure: bytes in, fractions out."""

    def __init__(self, duration_s: float | None) -> None:
        self.out_time_s: float | None = None
        self._duration_s = duration_s
        self._rest = b""
        self._moved = False
        self._counters: dict[bytes, bytes] = {}
        self._fraction = 0.0

    def feed(self, chunk: bytes) -> float | None:
        """Take the next bytes, cut anywhere.

        Args:
            chunk: Bytes as they came.

        Returns:
            The newest fraction, 0.0 to 1.0 and never falling, if a report ended in these bytes and something moved;
            else None.
        """
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[-LINE_BYTES_MAX:]
        newest: float | None = None
        for line in lines:
            key, _, value = line.strip().partition(b"=")
            if key == b"progress":
                self._advance(ended=value == b"end")
                if self._moved:
                    newest = self._fraction
                self._moved = False
            elif key in (b"frame", b"total_size", b"out_time_us", b"out_time_ms"):
                self._moved |= self._counters.get(key) != value
                self._counters[key] = value
        return newest

    def _advance(self, *, ended: bool) -> None:
        # out_time_ms counts microseconds too, by an old mistake that ffmpeg keeps.
        with contextlib.suppress(ValueError, OverflowError):
            micros = int(self._counters.get(b"out_time_us", self._counters.get(b"out_time_ms", b"")))
            self.out_time_s = max(self.out_time_s or 0.0, micros / 1e6)
        if ended:
            self._moved = True
            self._fraction = 1.0
        elif self.out_time_s is not None and self._duration_s:
            self._fraction = max(self._fraction, min(1.0, self.out_time_s / self._duration_s))


def decisive_line(stderr: str) -> str:
    """Pick the line that says why a tool failed.

    Args:
        stderr: What the tool wrote.

    Returns:
        The first line marked as an error that is not one of ffmpeg's generic ones, else the last line; without its
        prefix, without control characters (media can hold any), at most REASON_CHARS_MAX long. Empty if nothing was
        written.
    """
    lines = [line for line in stderr.splitlines() if line.strip()]
    severe = [_PREFIX.sub("", line) for line in lines if _SEVERE.match(line)]
    telling = [line for line in severe if line and not line.startswith(_GENERIC)]
    if any("not on whitelist" in line for line in telling):
        return "its format can refer to other files, or is no media format, and is not read"
    line = next(iter(telling or severe or [_PREFIX.sub("", line) for line in lines[-1:]]), "")
    return "".join(c if c.isprintable() else " " for c in line).strip()[:REASON_CHARS_MAX]


async def run_tool(
    argv: Sequence[str],
    *,
    timeout_s: float,
    on_progress: OnProgress | None = None,
    duration_s: float | None = None,
    about: str | None = None,
) -> ToolResult:
    """Run one tool to its end, in a session and process group of its own, without stdin and with an empty environment.

    Both output streams are read all the time, so the tool never waits for us. If this call is left early (cancellation,
    the timeout, an exception of `on_progress`), the group gets SIGTERM, after TERM_GRACE_S SIGKILL, and is reaped
    before the call returns. On Linux the tool is also killed when the thread that runs the event loop ends, as it does
    by SIGKILL; elsewhere a killed process leaves its tool to finish alone.

    Args:
        argv: Program (absolute path) and arguments, from `ffmpeg_argv` or `ffprobe_argv`.
        timeout_s: Seconds of wall time after which the tool is killed.
        on_progress: Told each time that the tool moved on, at most about twice a second; a slow one skips reports.
        duration_s: Length in seconds of what is read, to tell progress as a fraction.
        about: The file at work, for messages.

    Returns:
        What the tool wrote; its exit code was 0.

    Raises:
        MediaError: It could not be started, failed, was killed or took too long. The message names `about` and the
            reason.
    """
    started = time.monotonic()
    process, cancelled = await to_the_end(_start(argv))
    run = _Run(process, ProgressReader(duration_s))
    try:
        if cancelled:
            raise asyncio.CancelledError
        async with asyncio.timeout(timeout_s) as limit:
            await run.follow(on_progress)
            code = await process.wait()
    except TimeoutError:
        if not limit.expired():
            raise
        raise MediaError(f"{_what(argv, about)} did not end within {timeout_s:g} s and was stopped.") from None
    finally:
        _, cancelled = await to_the_end(run.end())
        if cancelled:
            raise asyncio.CancelledError
    stderr = run.stderr.text()
    if code != 0:
        raise MediaError(_failure(argv, code, stderr, about=about))
    return ToolResult(
        stdout=run.stdout.kept(),
        stdout_cut=run.stdout.cut_bytes > 0,
        stderr=stderr,
        stderr_cut=run.stderr.cut_bytes > 0,
        out_time_s=run.reader.out_time_s,
        elapsed_s=time.monotonic() - started,
    )


class _Kept:
    """The first and the last half of a limit of bytes; what lies between is only counted."""

    def __init__(self, limit: int) -> None:
        self.cut_bytes = 0
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, chunk: bytes) -> None:
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        over = len(self._tail) - self._half
        if over > 0:
            del self._tail[:over]
            self.cut_bytes += over

    def kept(self) -> bytes:
        mark = f"\n[… {self.cut_bytes} bytes cut …]\n".encode() if self.cut_bytes else b""
        return bytes(self._head) + mark + bytes(self._tail)

    def text(self) -> str:
        return self.kept().decode(errors="replace")


class _Run:
    """One started process: its two streams, read until they end, and its end."""

    def __init__(self, process: asyncio.subprocess.Process, reader: ProgressReader) -> None:
        self.reader = reader
        self.stdout = _Kept(STDOUT_KEPT_BYTES_MAX)
        self.stderr = _Kept(STDERR_KEPT_BYTES_MAX)
        self._process = process
        self._news = asyncio.Event()
        self._fraction: float | None = None
        self._open = 2  # streams that have not ended
        self._pumps = [
            asyncio.create_task(self._pump(process.stdout, self.stdout, reader)),
            asyncio.create_task(self._pump(process.stderr, self.stderr, None)),
        ]

    async def follow(self, on_progress: OnProgress | None) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            fraction, self._fraction = self._fraction, None
            if fraction is not None and on_progress is not None:
                await on_progress(fraction)
            if self._open == 0 and self._fraction is None:
                return

    async def end(self) -> None:
        if self._process.returncode is None or self._open:
            try:
                self._signal(signal.SIGTERM)
                await self._wait(TERM_GRACE_S)
            finally:
                self._signal(signal.SIGKILL)  # the process, or what it left behind in its group
            await self._wait(KILL_GRACE_S)
        await asyncio.wait(self._pumps, timeout=TERM_GRACE_S)
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _pump(self, stream: asyncio.StreamReader | None, kept: _Kept, reader: ProgressReader | None) -> None:
        assert stream is not None, "both streams are pipes"
        try:
            while chunk := await stream.read(READ_BYTES):
                kept.add(chunk)
                fraction = None if reader is None else reader.feed(chunk)
                if fraction is not None:
                    self._fraction = fraction
                    self._news.set()
        finally:
            self._open -= 1
            self._news.set()

    async def _wait(self, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says EPERM of a group of zombies
            os.killpg(self._process.pid, number)


async def _start(argv: Sequence[str]) -> asyncio.subprocess.Process:
    # Both loops (asyncio's and uvloop) fork in the thread that calls, which is the loop's: the death signal fires when
    # that thread ends, and no run outlives its loop.
    launcher = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
    bound_to_us = sys.platform == "linux" and bool(sys.executable)
    try:
        return await asyncio.create_subprocess_exec(
            *(launcher if bound_to_us else []),
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=dict(_ENVIRONMENT),
        )
    except (OSError, ValueError) as error:
        raise MediaError(f"{Path(argv[0]).name} cannot be started: {error}.") from error


def _what(argv: Sequence[str], about: str | None) -> str:
    tool = Path(argv[0]).name.partition("-")[0]  # the package's programs are named ffmpeg-linux-x64 and the like
    return f"{tool} on {about}" if about else tool


def _failure(argv: Sequence[str], code: int, stderr: str, *, about: str | None) -> str:
    if code < 0:
        hint = "; the machine may be short of memory" if -code == signal.SIGKILL else ""
        return f"{_what(argv, about)} was ended by signal {-code} ({signal.strsignal(-code)}){hint}."
    line = decisive_line(stderr).rstrip(".")
    return f"{_what(argv, about)} failed: {line or f'exit code {code}, and it gave no reason'}."
