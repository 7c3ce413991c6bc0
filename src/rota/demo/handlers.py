"""The demo's program: five kinds of job on media files, as a person would write them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rota.app import App
from rota.demo import media, probing
from rota.errors import MediaError
from rota.io.ffmpeg import Tools
from rota.io.ffmpeg_run import OnProgress
from rota.queue.io.context import Context
from rota.queue.outcomes import Fail
from rota.queue.retry import Fixed
from rota.settings import Settings

KINDS: Final = ("probe", "contact_sheet", "loudness", "transcode", "waveform")
SUFFIXES: Final = {"contact_sheet": ".jpg", "transcode": ".mp4", "waveform": ".png"}
LEASE_S: Final = 5.0
"""Short, so that a person need not wait long to see the jobs of a killed worker taken again."""


@dataclass(frozen=True, slots=True)
class MediaJob:
    """What every kind works on: a file, and where its result goes (empty where there is none but the answer)."""

    source: str
    out: str = ""


def make_app(settings: Settings, *, tools: Tools) -> App:
    """The program, for these settings and this ffmpeg."""
    app = App(settings=settings)

    def register(kind: str, work: Callable[[MediaJob, OnProgress], Awaitable[Any]]) -> None:
        async def handler(ctx: Context, job: MediaJob) -> Any:
            async def report(fraction: float) -> None:
                ctx.progress(fraction)

            try:
                return await work(job, report)
            except MediaError as error:
                # A file that cannot be read now cannot be read in a second either.
                return Fail(str(error))

        app.job(kind, limit=1, lease_s=LEASE_S, heartbeat_s=1.0, retry=Fixed(1.0))(handler)

    register("probe", lambda job, report: probing.probe(job.source, tools=tools, progress=report))
    register(
        "contact_sheet", lambda job, report: media.contact_sheet(job.source, job.out, tools=tools, progress=report)
    )
    register("loudness", lambda job, report: media.loudness(job.source, tools=tools, progress=report))
    register("transcode", lambda job, report: media.transcode(job.source, job.out, tools=tools, progress=report))
    register("waveform", lambda job, report: media.waveform(job.source, job.out, tools=tools, progress=report))
    return app


def result_name(source: Path, *, number: int, kind: str) -> str:
    """The name of a kind's result for the file with this number, or nothing where it writes none."""
    if kind not in SUFFIXES:
        return ""
    stem = "".join(char if char.isalnum() or char in "-_ " else "_" for char in source.stem)[:60].strip() or "file"
    return f"{number:02} {stem} {kind.replace('_', '-')}{SUFFIXES[kind]}"
