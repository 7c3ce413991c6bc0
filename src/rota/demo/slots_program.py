"""What the demo of slots runs: the services of its exec servers, and the program of its workers.

Previews are what somebody waits for, conversions are work in the background: same slots, higher priority.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rota.app import App
from rota.demo.files import publish, writing
from rota.demo.media import pick_video_encoder
from rota.demo.probing import probe
from rota.errors import MediaError
from rota.io.ffmpeg import MEDIA_FORMATS, Tools, ffmpeg_argv
from rota.queue.io.context import Context
from rota.queue.retry import Fixed
from rota.settings import Settings

PREVIEW: Final = "preview"
CONVERSION: Final = "conversion"
PREVIEW_PRIORITY: Final = 100
HEIGHTS: Final = (240, 360, 480)
LEASE_S: Final = 6.0
SLOTS: Final = 1
"""Of each exec server."""
# A file comes through a pipe, and not every format can be read from one: the command keeps it in its own folder first.
SAVED: Final = ("sh", "-c", 'cat >in && exec "$0" "$@"')
WAVES: Final = "showwavespic=s=640x120:colors=white,format=yuvj420p"
INPUT: Final = ("-protocol_whitelist", "file", "-format_whitelist", MEDIA_FORMATS, "-i", "file:in")


async def exec_toml(tools: Tools, *, scratch: Path) -> str:
    """The settings of one exec server."""
    encoder, options = await pick_video_encoder(tools)

    def ffmpeg(*args: str) -> str:
        line = [*INPUT, *args, "-protocol_whitelist", "pipe", "pipe:1"]
        return json.dumps([*SAVED, *ffmpeg_argv(tools, line, report_progress=False)], ensure_ascii=False)

    film = ("-c:v", encoder, *options, "-pix_fmt", "yuv420p", "-c:a", "aac", "-movflags", "frag_keyframe+empty_moov")
    services = {
        "thumbnail": (ffmpeg("-vf", "thumbnail=50,scale=320:-2", "-frames:v", "1", "-f", "mjpeg"), ""),
        "waveform": (ffmpeg("-filter_complex", WAVES, "-frames:v", "1", "-f", "mjpeg"), ""),
        "film": (ffmpeg("-vf", "scale=-2:{height}", *film, "-f", "mp4"), 'height = "int 64..2160"'),
        "sound": (ffmpeg("-vn", "-c:a", "aac", "-b:a", "{rate}k", "-f", "adts"), 'rate = "int 32..320"'),
    }
    text = f"[server]\nscratch = {_quoted(scratch)}\ndrain_s = 2\n[waitgroups.media]\nprocesses = {SLOTS}\n"
    for name, (command, args) in services.items():
        text += (
            f'[services.{name}]\nwaitgroup = "media"\ntimeout_s = 1800\ncommand = {command}\nargs = {{ {args} }}\n'
            'env = { PATH = "/usr/local/bin:/usr/bin:/bin" }\n'
        )
    return text


def _quoted(value: object) -> str:
    return json.dumps(str(value), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Work:
    """One file to make from another: by which service, with which arguments, and where it goes."""

    source: str
    out: str
    service: str
    args: dict[str, int]


def make_app(settings: Settings) -> App:
    """The program, for these settings."""
    app = App(settings=settings)

    async def make(ctx: Context, work: Work) -> Any:
        size_bytes = 0
        with writing(work.out) as part:
            async with ctx.exec(work.service, work.args, stdin=Path(work.source)) as run:
                with part.open("wb") as file:
                    async for chunk in run.stdout:
                        file.write(chunk)
                        size_bytes += len(chunk)
            await publish(part, work.out)
        return {"size_bytes": size_bytes, "ran_s": None if run.receipt is None else round(run.receipt.duration_s, 3)}

    for kind, services in ((PREVIEW, ("thumbnail", "waveform")), (CONVERSION, ("film", "sound"))):
        app.job(kind, exec=services, lease_s=LEASE_S, heartbeat_s=1.0, max_tries=5, retry=Fixed(0.5))(make)
    return app


@dataclass(frozen=True, slots=True)
class Planned:
    """One job of the demo: what it works on, as people call it."""

    kind: str
    work: Work
    label: str


def plan(sources: Mapping[Path, bool], results: Path, *, conversions: int) -> tuple[list[Planned], list[Planned]]:
    """What there is to do.

    Args:
        sources: the files, and whether each has a picture.
        results: the folder for what is made.
        conversions: how many at least; every file gets the same number.

    Returns: conversions and previews.
    """
    if not sources:
        raise MediaError("There is no file to work on.")
    rounds = max(len(HEIGHTS), -(-conversions // len(sources)))
    background, previews = [], []
    for turn in range(rounds):
        height = HEIGHTS[turn % len(HEIGHTS)]
        for number, (source, pictures) in enumerate(sources.items(), start=1):
            service, args = ("film", {"height": height}) if pictures else ("sound", {"rate": height // 5})
            name = f"{number:02} {turn + 1} {height}{'.mp4' if pictures else '.aac'}"
            label = f"{source.name} {height}{'p' if pictures else ''}"
            background.append(
                Planned(CONVERSION, Work(str(source), str(results / name), service, args), label)
            )  # fmt: skip
    for number, (source, pictures) in enumerate(sources.items(), start=1):
        name = f"{number:02} preview.jpg"
        work = Work(str(source), str(results / name), "thumbnail" if pictures else "waveform", {})
        previews.append(Planned(PREVIEW, work, source.name))
    return background, previews


async def has_picture(source: Path, tools: Tools) -> bool:
    """Whether a media file has one.

    Raises: MediaError if it is no media file.
    """
    return (await probe(source, tools=tools))["width"] is not None
