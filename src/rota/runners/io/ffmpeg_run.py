"""One ffmpeg run of a session while it goes on: its answer, and the progress that the runner reports meanwhile.

Progress is a runner's claim, for people and to show that the run moves. It is read from the job once a second, so that
a run costs the gateway next to nothing, and only while it is somebody's turn to wait for it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from typing import Any, Final

from rota.runners.engine_answers import JobView
from rota.sessions import FfmpegDone, FfmpegProgress

LOOK_S: Final = 1.0


class FfmpegTask:
    """Implements `rota.sessions.FfmpegRun`. Nothing runs until it is awaited or iterated over.

    Args:
        op_id: of the op, by which its progress is known.
        run: runs it.
        look: reads the job.
        moved: called when the run is seen to move.
        look_s: how often progress is read.
    """

    def __init__(
        self,
        op_id: str,
        *,
        run: Callable[[], Coroutine[Any, Any, FfmpegDone]],
        look: Callable[[], Awaitable[JobView | None]],
        moved: Callable[[], None],
        look_s: float = LOOK_S,
    ) -> None:
        self._op_id = op_id
        self._run = run
        self._look = look
        self._moved = moved
        self._look_s = look_s
        self._done: FfmpegDone | None = None
        self._begun = False

    @property
    def done(self) -> FfmpegDone:
        """How it ended."""
        if self._done is None:
            raise RuntimeError("This ffmpeg run has not ended well: await it, or iterate to its end.")
        return self._done

    def __await__(self) -> Generator[Any, None, FfmpegDone]:
        return self._whole().__await__()

    async def _whole(self) -> FfmpegDone:
        if self._done is None:
            async for _ in self:
                pass
        return self.done

    async def __aiter__(self) -> AsyncIterator[FfmpegProgress]:
        if self._begun:
            raise RuntimeError("This ffmpeg run was begun already. Call `s.ffmpeg(…)` again for another.")
        self._begun = True
        task = asyncio.get_running_loop().create_task(self._run())
        last: FfmpegProgress | None = None
        try:
            while not (await asyncio.wait({task}, timeout=self._look_s))[0]:
                job = await self._look()
                progress = None if job is None else progress_of(job, self._op_id)
                if progress is not None and progress != last:
                    last = progress
                    self._moved()
                    yield progress
            self._done = task.result()
        finally:
            if not task.done():
                # The caller went away: the session is at this op still, and whoever opened it ends that.
                task.cancel()
                await asyncio.wait({task})


def progress_of(job: JobView, op_id: str) -> FfmpegProgress | None:
    """What a job's last report says of an op; None: it is about another, or is no report."""
    told = job.progress
    if told is None or told.get("opId", op_id) != op_id:
        return None
    stage, percent, detail = told.get("stage"), told.get("percent"), told.get("detail")
    if not isinstance(stage, str):
        return None
    known = isinstance(percent, int | float) and not isinstance(percent, bool)
    return FfmpegProgress(
        stage,
        min(1.0, max(0.0, float(percent) / 100)) if known and percent is not None else None,
        detail if isinstance(detail, str) else None,
    )
