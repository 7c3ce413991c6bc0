"""Five small media files to show the demo with, drawn and played by ffmpeg itself: nothing is downloaded.

They differ in what the demo must cope with: a large picture, an upright one, one with noisy sound, sound alone, and a
picture without sound. All are made of ffmpeg's own sources, so they come out the same wherever its version is the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rota.demo.files import publish, writing
from rota.demo.media import pick_video_encoder
from rota.io.ffmpeg import Tools, ffmpeg_argv, find_tools, output_args
from rota.io.ffmpeg_run import OnProgress, run_tool

SAMPLE_TIMEOUT_S = 300.0  # each takes a second or two; this is for a machine that is busy with other things


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """One file: its name, format, length, and the lavfi sources of picture and sound with the filter after each."""

    name: str
    muxer: str
    length_s: int
    video: str | None = None
    audio: str | None = None
    audio_codec: Sequence[str] = ("-c:a", "aac", "-b:a", "128k")


_SAMPLES = (
    _Sample(
        name="test card.mp4",  # the space is on purpose
        muxer="mp4",
        length_s=12,
        video="testsrc2=size=1920x1080:rate=25",
        # A tone that moves from left to right and back, with a tick each second.
        audio="aevalsrc='0.25*sin(880*PI*t)*(0.5+0.5*cos(PI*t/3))+0.3*sin(2400*PI*t)*lt(mod(t,1),0.04)"
        "|0.25*sin(880*PI*t)*(0.5-0.5*cos(PI*t/3))+0.3*sin(2400*PI*t)*lt(mod(t,1),0.04)':sample_rate=48000",
    ),
    _Sample(
        name="upright.mp4",
        muxer="mp4",
        length_s=8,
        video="gradients=size=720x1280:rate=30:c0=0xff5f6d:c1=0xffc371:c2=0x6a82fb:c3=0x00c9a7:nb_colors=4:speed=0.03"
        ":x0=60:y0=60:x1=660:y1=1220",
        # Three notes that swell one after the other.
        audio="aevalsrc='0.7*sin(440*PI*t)*pow(max(0,sin(t)),2)+0.6*sin(554.4*PI*t)*pow(max(0,sin(t-2)),2)"
        "+0.5*sin(659.2*PI*t)*pow(max(0,sin(t-4)),2)':sample_rate=44100",
    ),
    _Sample(
        name="mandelbrot.mkv",
        muxer="matroska",
        length_s=8,
        video="mandelbrot=size=640x360:rate=24:maxiter=200:end_pts=200:end_scale=0.02",
        audio="anoisesrc=color=brown:amplitude=0.6:sample_rate=48000:seed=3,tremolo=f=0.5:d=0.9",
        audio_codec=("-c:a", "flac"),
    ),
    _Sample(
        name="voice-like.wav",
        muxer="wav",
        length_s=10,
        # A low buzz with changing formants in bursts of syllables, and pauses between the sentences.
        audio="aevalsrc='1.3*(mod(118*t+2*sin(2*t),1)-0.5)*pow(abs(sin(9*t+2*sin(3*t))),1.5)*(0.4+0.6*abs(sin(1.3*t)))"
        "*gt(mod(t,3.3),0.7)':sample_rate=48000,aphaser=speed=0.7:in_gain=0.9:out_gain=0.9,lowpass=f=2600",
        audio_codec=("-c:a", "pcm_s16le"),
    ),
    _Sample(
        name="life, silent.mov",
        muxer="mov",
        length_s=8,
        video="life=size=160x90:rate=15:mold=20:ratio=0.3:seed=5:death_color=0x203070:life_color=0x7ef0c0"
        ":mold_color=0x0b1030,scale=1280:720:flags=neighbor",
    ),
)


async def make_samples(
    folder: Path | str, *, count: int = len(_SAMPLES), tools: Tools | None = None, progress: OnProgress | None = None
) -> list[Path]:
    """Make the sample files in a folder; those that are there are kept as they are.

    Args:
        folder: Where they go; made if missing.
        count: How many of the five, from the first on.
        tools: ffmpeg and ffprobe; found if None.
        progress: Told after each file.

    Returns:
        The files in `folder`, in a fixed order.

    Raises:
        MediaError: ffmpeg is missing or failed, or the folder cannot be written.
    """
    tools = tools or find_tools()
    samples = _SAMPLES[:count]
    paths = [Path(folder) / sample.name for sample in samples]
    for done, (sample, path) in enumerate(zip(samples, paths, strict=True), start=1):
        if not _is_there(path):
            await _make(sample, path, tools)
        if progress is not None:
            await progress(done / len(paths))
    return paths


async def _make(sample: _Sample, path: Path, tools: Tools) -> None:
    args: list[str] = []
    for source in (sample.video, sample.audio):
        args += ["-f", "lavfi", "-i", source] if source else []
    if sample.video:
        encoder, options = await pick_video_encoder(tools)
        # Made to be worked on, not to be looked at: quick to write. A keyframe each second, as cameras have them.
        quick = ("-preset", "ultrafast", "-crf", "28") if encoder == "libx264" else options
        args += ["-c:v", encoder, *quick, "-g", "25", "-pix_fmt", "yuv420p"]
    if sample.audio:
        args += sample.audio_codec
    with writing(path) as part:
        args += ["-t", str(sample.length_s), *output_args(part, muxer=sample.muxer)]
        await run_tool(ffmpeg_argv(tools, args), timeout_s=SAMPLE_TIMEOUT_S, about=f"the sample {sample.name}")
        await publish(part, path)


def _is_there(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0
