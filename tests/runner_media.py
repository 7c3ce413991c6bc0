"""Media sessions of a test's own: what stands behind ops where ffmpeg and an object store are not the question."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rota.runners.codes import OpCode
from rota.runners.messages import Assign, OpError, Part
from rota.runners.ops import FfmpegResult, Moved, Nothing, ReadResult, StatResult


class SmallMedia:
    """`stage` writes its URL into the file; `ffmpeg` waits until it is told, or copies `argv[0]` to `argv[1]`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: list[str] = []
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.closed = False

    async def run(
        self,
        op: str,
        args: Mapping[str, Any],
        *,
        timeout_s: float,
        progress: Callable[[float | None, str | None], None],
        cancelled: asyncio.Event,
    ) -> Part | OpError:
        self.ran.append(op)
        self.began.set()
        if op == "stage":
            data = args["url"].encode()
            (self.folder / args["path"]).write_bytes(data)
            return Moved(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        if op == "stat":
            path = self.folder / args["path"]
            return StatResult(exists=path.exists(), bytes=path.stat().st_size if path.exists() else 0)
        if op == "read":
            text = (self.folder / args["path"]).read_text()
            return ReadResult(content=text, encoding="utf8", bytes=len(text))
        if op == "ffmpeg":
            return await self._ffmpeg(args["argv"], progress, cancelled)
        assert op == "close", op
        return Nothing()

    async def _ffmpeg(
        self, argv: list[str], progress: Callable[[float | None, str | None], None], cancelled: asyncio.Event
    ) -> Part | OpError:
        match argv:
            case ["wait"]:
                progress(0.25, "frame 25")
                waits = [asyncio.create_task(event.wait()) for event in (self.go_on, cancelled)]
                _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for task in pending:
                    task.cancel()
                if cancelled.is_set():
                    return OpError(code=OpCode.CANCELLED, message="it was cancelled", retryable=False)
            case ["deaf"]:
                await asyncio.Event().wait()
            case ["break"]:
                raise RuntimeError("https://store.invalid/x?X-Signature=canary")
            case _:
                pass
        return FfmpegResult(exit_code=0, stderr_tail="", duration_ms=1)

    async def close(self) -> None:
        self.closed = True


class Made:
    """Makes them, and keeps each for the test."""

    def __init__(self) -> None:
        self.sessions: list[SmallMedia] = []

    def __call__(self, folder: Path, assign: Assign) -> SmallMedia:
        self.sessions.append(SmallMedia(folder))
        return self.sessions[-1]
