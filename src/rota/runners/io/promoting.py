"""What becomes of a staged output: it is judged by the platform, and promoted or removed."""

import asyncio
from pathlib import Path
from uuid import UUID

from rota.io.ffmpeg import Tools, find_tools
from rota.objects.keys import staging_key
from rota.objects.store import ObjectStore
from rota.runners.expectation import Media
from rota.runners.io.tool_run import ToolRunner
from rota.runners.io.verifier import Verifier
from rota.runners.io.walls import find_walls
from rota.runners.isolation import Isolation
from rota.sessions import Moved, Published


class Promoting:
    """Promotes the outputs of one program's sessions.

    What ffprobe is run with, and behind which walls, is found when an output first has to be judged: a program that
    publishes nothing needs no ffprobe.

    Args:
        objects: where outputs are staged and delivered.
        ffmpeg: the ffmpeg to use, whose ffprobe stands beside it; None: the one on PATH.
    """

    def __init__(self, objects: ObjectStore, *, ffmpeg: Path | str | None = None) -> None:
        self._objects = objects
        self._ffmpeg = ffmpeg
        self._finding = asyncio.Lock()
        self._tools: ToolRunner | None = None

    async def promote(
        self, job_id: UUID, n: int, *, to: str, expect: object, bytes_max: int, claimed: Moved
    ) -> Published:
        """Promotes one staged output.

        Args:
            job_id, n: name the staging key.
            to: the final key.
            expect: what it must be: a `rota.Media`, or None.
            bytes_max: how large it may be.
            claimed: what the runner says of it: a hint.

        Raises: VerificationFailed, after it was removed; MediaError if there is no ffprobe; ObjectError.
        """
        if expect is not None and not isinstance(expect, Media):
            raise TypeError(f"expect is a rota.Media or None, and this is a {type(expect).__name__}")
        async with self._finding:
            tools = self._tools
            if tools is None:
                found, walls = await asyncio.to_thread(self._found)
                tools = self._tools = ToolRunner(found, walls)
        promoted = await Verifier(self._objects, tools).promote(
            staging_key(job_id, n), to, bytes_max=bytes_max, expect=expect, sha256_hint=claimed.sha256
        )
        return Published(promoted.key, promoted.size_bytes, promoted.sha256)

    async def close(self) -> None:
        """Ends what runs; safe to repeat."""
        tools, self._tools = self._tools, None
        if tools is not None:
            await tools.close()

    def _found(self) -> tuple[Tools, Isolation]:
        found = find_tools(None if self._ffmpeg is None else str(self._ffmpeg))
        return found, find_walls(found.ffprobe)
