"""The program of the demo of runners: one kind of job, which cuts a film on a runner, as a person would write it."""

import json
from dataclasses import dataclass
from typing import Any, Final

from rota.app import App
from rota.queue.io.context import Context
from rota.queue.retry import Fixed
from rota.runners.expectation import Media
from rota.sessions import Target
from rota.settings import Settings

KIND: Final = "cut"
CUT_S: Final = 4


@dataclass(frozen=True, slots=True)
class Cut:
    """What is cut.

    Attributes:
        source: the film's key in the object store.
        to: the key of what comes of it.
        target: whose runners do it.
        slowly: read the film no faster than it plays, so that somebody can watch.
    """

    source: str
    to: str
    target: Target = "CloudPool"
    slowly: bool = False


def make_app(settings: Settings) -> App:
    """The program, for these settings."""
    app = App(settings=settings)

    @app.job(KIND, limit=4, lease_s=60, heartbeat_s=1, max_tries=5, retry=Fixed(1.0))
    async def cut(ctx: Context, job: Cut) -> dict[str, Any]:
        async with ctx.session("video.compile", target=job.target) as session:
            ctx.progress(0, f"session {session.id[:8]}")
            await session.stage("in.mp4", source=job.source)
            probed = await session.ffprobe(["-v", "error", "-show_format", "-of", "json", "in.mp4"])
            length_s = float(json.loads(probed.stdout)["format"]["duration"])
            pace = ["-re"] if job.slowly else []
            run = session.ffmpeg(
                [*pace, "-ss", "1", "-i", "in.mp4", "-t", str(CUT_S), "-vf", "scale=640:-2", "-an", "out.mp4"]
            )
            async for step in run:
                ctx.progress(step.fraction, step.detail)
            published = await session.publish(
                "out.mp4", to=job.to, expect=Media(duration_s=CUT_S, video=True, audio=False, width=640, format="mp4")
            )
        return {"key": published.key, "bytes": published.bytes, "source_s": round(length_s, 1)}

    return app
