"""One media session on a runner: its folder, and the ops that work in it.

Each op is judged here, whatever the gateway or the engine thought of it (I12): paths and argv are resolved in the
folder, bytes are counted as they come, and what does not go well leaves nothing behind that looks as if it had. An op
answers with a result or with an error; what it raises is a fault of ours.

Spec: runners, "Media session ops and argv validation".
"""

import asyncio
import base64
import contextlib
import errno
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rota.errors import ArgvNotAllowed, ProtocolError
from rota.io.ffmpeg_run import ProgressReader
from rota.io.to_the_end import to_the_end
from rota.runners import ops
from rota.runners.argv import Compiled, compile_argv
from rota.runners.codes import JobType, OpCode
from rota.runners.failures import OpFailure
from rota.runners.ffmpeg_report import Complaints, expected_s
from rota.runners.frames import PAYLOAD_BYTES_MAX
from rota.runners.io.disk import is_full, used_bytes
from rota.runners.io.session_folder import SessionFolder
from rota.runners.io.session_paths import NewFile, make_folders, open_to_read, size_of
from rota.runners.io.tool_run import ToolRunner
from rota.runners.io.transfers import Transfers
from rota.runners.messages import OpError, Part

OnProgress = Callable[[float | None, str | None], None]
"""Told how far an op is, 0.0 to 1.0 where that is known, and a few words."""

STDOUT_BYTES_MAX: Final = PAYLOAD_BYTES_MAX
"""What ffprobe may say inline."""
PROGRESS_ARGS: Final = ("-progress", "pipe:1", "-nostats", "-stats_period", "1")
"""ffmpeg's own report. Its stdout is free for it: outputs of a session are files."""


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """What one session may use.

    Attributes:
        output_bytes_max: the largest object that it may publish.
        session_bytes_max: the disk that all its files may take.
    """

    output_bytes_max: int
    session_bytes_max: int


class MediaSession:
    """A session's ops, one at a time.

    Args:
        folder: its files; empty, and nobody else's.
        tools: runs ffmpeg and ffprobe.
        limits: what it may use.
        transfers: moves bytes by presigned URLs.
    """

    def __init__(self, folder: Path, tools: ToolRunner, limits: MediaLimits, transfers: Transfers) -> None:
        self._folder = folder
        self._tools = tools
        self._limits = limits
        self._transfers = transfers
        self._running: asyncio.Task[Part] | None = None

    async def run(
        self,
        op: str,
        args: Mapping[str, Any],
        *,
        timeout_s: float,
        progress: OnProgress,
        cancelled: asyncio.Event,
    ) -> Part | OpError:
        """Carries out one op.

        Args:
            op: its name.
            args: as they came.
            timeout_s: after which it is stopped: `timeout`.
            progress: is told how far it is.
            cancelled: set to stop it: `cancelled`.

        Returns: its result of `rota.runners.ops`, or why there is none.
        """
        try:
            typed = ops.args_of(JobType.COMPILE, op, dict(args))
        except ProtocolError as error:
            return OpError(code=error.code, message=str(error), retryable=False)
        if cancelled.is_set():
            return _stopped(cancelled, timeout_s)
        self._running = work = asyncio.create_task(self._work(typed, op, timeout_s, progress))
        stop = asyncio.create_task(cancelled.wait())
        try:
            await asyncio.wait({work, stop}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            if not work.done():
                work.cancel()
                _, gone = await to_the_end(_ended(work))
                if gone:
                    raise asyncio.CancelledError
        if work.cancelled():
            return _stopped(cancelled, timeout_s)
        broken = work.exception()
        if broken is None:
            return work.result()
        if isinstance(broken, OpFailure):
            return broken.error
        if isinstance(broken, OSError) and broken.errno in (errno.ENOSPC, errno.EDQUOT):
            return OpError(code=OpCode.DISK_FULL, message="The runner's disk is full.", retryable=True)
        raise broken

    async def close(self) -> None:
        """Ends what runs; safe to repeat. The folder is its owner's to remove."""
        work = self._running
        if work is not None and not work.done():
            work.cancel()
            await to_the_end(_ended(work))

    def _work(self, args: Part, op: str, timeout_s: float, progress: OnProgress) -> Coroutine[None, None, Part]:
        match args:
            case ops.StageArgs():
                return self._stage(args, progress)
            case ops.FfmpegArgs() if op == "ffmpeg":
                return self._ffmpeg(args, min(timeout_s, args.timeout_sec or timeout_s), progress)
            case ops.FfmpegArgs():
                return self._ffprobe(args, min(timeout_s, args.timeout_sec or timeout_s))
            case ops.ReadArgs():
                return asyncio.to_thread(_read, self._folder, args)
            case ops.PublishArgs():
                return self._publish(args, progress)
            case ops.PathArgs():
                return asyncio.to_thread(_stat, self._folder, args)
            case _:
                return _nothing()

    async def _stage(self, args: ops.StageArgs, progress: OnProgress) -> Part:
        room = await asyncio.to_thread(self._bytes_left)
        if room <= 0:
            # Also for an empty object: a name takes room, too (S80).
            raise OpFailure(OpCode.DISK_FULL, "The session's files take all that they may: nothing more is staged.")
        bytes_max = min(args.max_bytes, room)
        too_large = (
            OpFailure(OpCode.FILE_TOO_LARGE, f"The object has more than {args.max_bytes:,} bytes.")
            if bytes_max == args.max_bytes
            else OpFailure(
                OpCode.DISK_FULL, f"The object has more bytes than this session may take: {bytes_max:,} are left."
            )
        )
        part = await asyncio.to_thread(NewFile, self._folder, args.path)
        try:
            moved = await self._transfers.get(
                args.url, part.write, bytes_max=bytes_max, too_large=too_large, moved=_told(progress)
            )
            if args.sha256 is not None and args.sha256.lower() != moved.sha256:
                raise OpFailure(
                    OpCode.STAGE_FAILED, "What came does not have the SHA-256 that was named.", retryable=True
                )
            await asyncio.to_thread(part.keep)
        finally:
            await to_the_end(asyncio.to_thread(part.discard))
        return moved

    async def _publish(self, args: ops.PublishArgs, progress: OnProgress) -> Part:
        with await asyncio.to_thread(open_to_read, self._folder, args.path) as file:
            size = os.fstat(file.fileno()).st_size
            bytes_max = min(args.max_bytes, self._limits.output_bytes_max)
            if size > bytes_max:
                raise OpFailure(
                    OpCode.OUTPUT_TOO_LARGE, f"The file has {size:,} bytes, and {bytes_max:,} may be published."
                )
            return await self._transfers.put(
                args.put_url, file, size=size, content_type=args.content_type, moved=_told(progress)
            )

    async def _ffmpeg(self, args: ops.FfmpegArgs, timeout_s: float, progress: OnProgress) -> Part:
        compiled = await asyncio.to_thread(self._compiled, "ffmpeg", args)
        before = await asyncio.to_thread(_snapshot, self._folder)
        said, report = Complaints(), ProgressReader(None)
        furthest = 0.0

        def reported(data: bytes) -> None:
            nonlocal furthest
            fraction = report.feed(data)
            expected = expected_s(args.argv, said.duration_s)
            if fraction == 1.0:
                progress(1.0, None)
            elif fraction is not None and report.out_time_s is not None:
                if expected:
                    # What is expected may grow while more inputs are named.
                    furthest = max(furthest, min(0.999, report.out_time_s / expected))
                progress(furthest if expected else None, f"{report.out_time_s:.1f} s written")

        good = False
        try:
            # An option that the gate passed on counts more than ours: it comes later.
            end = await self._tools.run(
                "ffmpeg", (*PROGRESS_ARGS, *compiled.argv), folder=self._folder, timeout_s=timeout_s,
                bytes_left=self._bytes_left, stdout=reported, stderr=said.take,
            )  # fmt: skip
            good = end.exit_code == 0
            if not good and await asyncio.to_thread(is_full, self._folder):
                # Before what it has begun is removed, which makes room again.
                raise OpFailure(OpCode.DISK_FULL, "The runner's disk is full.", retryable=True)
        finally:
            if not good:
                # What a failed run has begun is never taken for its output.
                await to_the_end(asyncio.to_thread(_remove_new, self._folder, before))
        return ops.FfmpegResult(exit_code=end.exit_code, stderr_tail=said.tail, duration_ms=end.duration_ms)

    async def _ffprobe(self, args: ops.FfmpegArgs, timeout_s: float) -> Part:
        compiled = await asyncio.to_thread(self._compiled, "ffprobe", args)
        said, out, over = Complaints(), bytearray(), False

        def take(data: bytes) -> None:
            nonlocal over
            over = over or len(out) + len(data) > STDOUT_BYTES_MAX
            if not over:
                out.extend(data)

        end = await self._tools.run(
            "ffprobe", compiled.argv, folder=self._folder, timeout_s=timeout_s, bytes_left=self._bytes_left,
            stdout=take, stderr=said.take,
        )  # fmt: skip
        if over:
            # A part of it could be taken for all (I9).
            raise OpFailure(
                OpCode.OUTPUT_TOO_LARGE, f"ffprobe said more than {STDOUT_BYTES_MAX:,} bytes: ask for less at a time."
            )
        return ops.FfprobeResult(
            exit_code=end.exit_code, stdout=bytes(out).decode(errors="replace"), stderr_tail=said.tail
        )

    def _compiled(self, tool: str, args: ops.FfmpegArgs) -> Compiled:
        try:
            compiled = compile_argv(tool, args.argv, SessionFolder(self._folder))
        except ArgvNotAllowed as error:
            raise OpFailure(OpCode.ARGV_NOT_ALLOWED, str(error)[:2000]) from None
        for path in compiled.writes:
            make_folders(self._folder, path)
        return compiled

    def _bytes_left(self) -> int:
        return self._limits.session_bytes_max - used_bytes(self._folder)


def _read(folder: Path, args: ops.ReadArgs) -> Part:
    with open_to_read(folder, args.path) as file:
        content = bytearray()
        # Until the end and not as many bytes as the file had: one that grows is whole or too large, never cut.
        while chunk := file.read(args.max_bytes + 1 - len(content)):
            content += chunk
            if len(content) > args.max_bytes:
                raise OpFailure(
                    OpCode.FILE_TOO_LARGE,
                    f"{args.path[:200]!r} has more than {args.max_bytes:,} bytes: publish it, and read the object.",
                )
    try:
        text, encoding = content.decode(), "utf8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(content).decode(), "base64"
    return ops.ReadResult(content=text, encoding=encoding, bytes=len(content))


def _stat(folder: Path, args: ops.PathArgs) -> Part:
    size = size_of(folder, args.path)
    return ops.StatResult(exists=size is not None, bytes=size or 0)


async def _nothing() -> Part:
    return ops.Nothing()


def _told(progress: OnProgress) -> Callable[[int, int | None], None]:
    def moved(count: int, of: int | None) -> None:
        progress(count / of if of else None, f"{count:,} bytes")

    return moved


def _stopped(cancelled: asyncio.Event, timeout_s: float) -> OpError:
    if cancelled.is_set():
        return OpError(code=OpCode.CANCELLED, message="The op was stopped.", retryable=False)
    return OpError(
        code=OpCode.TIMEOUT, message=f"The op did not end within {timeout_s:g} s and was stopped.", retryable=True
    )


async def _ended(work: "asyncio.Task[Part]") -> None:
    await asyncio.wait([work])


Snapshot = dict[str, tuple[int, int, int]]


def _snapshot(folder: Path) -> Snapshot:
    """Each file with what changes when it is written."""
    found: Snapshot = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                whole = os.path.join(path, name)
                seen = os.lstat(whole)
                found[whole] = (seen.st_ino, seen.st_mtime_ns, seen.st_size)
    return found


def _remove_new(folder: Path, before: Snapshot) -> None:
    for path, seen in _snapshot(folder).items():
        if before.get(path) != seen:
            with contextlib.suppress(OSError):
                os.unlink(path)
