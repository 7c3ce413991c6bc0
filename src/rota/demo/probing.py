"""What a media file is, by ffprobe: container, length, streams, and the picture as a person sees it.

It reads the head of a file, at most its index at the end; that the rest is there is for those to find who read it all.
"""

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from rota.demo.files import checked, shown, size_of
from rota.demo.results import ProbeResult, StreamFacts
from rota.errors import MediaError
from rota.io.ffmpeg import Tools, ffprobe_argv, find_tools
from rota.io.ffmpeg_run import OnProgress, run_tool

PROBE_TIMEOUT_S = 60.0  # it reads the start and the end of a file; more means a dead disk

# Formats that say how long they are. Of the others ffprobe only estimates a length, which proves nothing.
_STATES_LENGTH: Final = frozenset(
    ("aiff", "asf", "au", "avi", "caf", "flac", "flv", "matroska", "mov", "mxf", "ogg", "w64", "wav")
)


async def probe(path: Path | str, *, tools: Tools | None = None, progress: OnProgress | None = None) -> ProbeResult:
    """Describe a media file.

    Args:
        path: The file; any name.
        tools: ffmpeg and ffprobe; found if None.
        progress: Told 1.0 at the end.

    Returns:
        Its container, length, streams and picture.

    Raises:
        MediaError: The file is missing, no media, or of a format that opens other files.
    """
    facts = await describe(checked(path), tools or find_tools())
    if progress is not None:
        await progress(1.0)
    return facts


class _SideData(msgspec.Struct):
    rotation: float = 0.0


class _Stream(msgspec.Struct):
    """A stream as ffprobe writes it; numbers that may be fractions are strings."""

    index: int
    codec_type: str = ""
    codec_name: str = "unknown"
    width: int = 0
    height: int = 0
    sample_aspect_ratio: str = "1:1"
    avg_frame_rate: str = "0/0"
    duration: str = ""
    sample_rate: str = ""
    channels: int = 0
    disposition: dict[str, int] = {}
    side_data_list: list[_SideData] = []
    tags: dict[str, str] = {}


class _Format(msgspec.Struct):
    format_name: str
    duration: str = ""


class _Probed(msgspec.Struct):
    format: _Format
    streams: list[_Stream]


async def describe(source: Path, tools: Tools) -> ProbeResult:
    """Do what `probe` does, for a file that has been checked. Raises MediaError as it does."""
    try:
        result = await run_tool(ffprobe_argv(tools, source), timeout_s=PROBE_TIMEOUT_S, about=shown(source))
    except MediaError as error:
        raise MediaError(f"{error} Is it a whole media file?") from error
    try:
        probed = msgspec.json.decode(result.stdout, type=_Probed)
    except msgspec.DecodeError as error:
        raise MediaError(f"ffprobe described {shown(source)} in a way that is not understood: {error}.") from error
    video = next((s for s in probed.streams if _is_video(s)), None)
    audio = next((s for s in probed.streams if s.codec_type == "audio" and s.channels), None)
    if video is None and audio is None:
        raise MediaError(f"{shown(source)} holds neither video nor audio.")
    names = probed.format.format_name.split(",")
    width, height = _shown_size(video) if video else (None, None)
    return ProbeResult(
        container=names[0],
        size_bytes=size_of(source),
        duration_s=_seconds(probed.format.duration),
        audio_duration_s=_seconds(audio.duration) if audio else None,
        reliable_length=not _STATES_LENGTH.isdisjoint(names),
        streams=[
            StreamFacts(index=s.index, type=s.codec_type, codec=s.codec_name, summary=_summary(s))
            for s in probed.streams
        ],
        codecs=[s.codec_name for s in (video, audio) if s],
        width=width,
        height=height,
        fps=_ratio(video.avg_frame_rate) if video else None,
        video_index=video.index if video else None,
        audio_index=audio.index if audio else None,
    )


def _is_video(stream: _Stream) -> bool:
    return stream.codec_type == "video" and not stream.disposition.get("attached_pic") and bool(stream.width)


def _shown_size(stream: _Stream) -> tuple[int, int]:
    shape = _ratio(stream.sample_aspect_ratio.replace(":", "/")) or 1.0
    shape = shape if 0.1 <= shape <= 10 else 1.0  # broken headers ask for pictures of a million columns
    width, height = max(1, round(stream.width * shape)), stream.height
    turned = any(abs(round(data.rotation)) % 180 == 90 for data in stream.side_data_list)
    turned = turned or stream.tags.get("rotate") in ("90", "270", "-90")  # before ffmpeg 5
    return (height, width) if turned else (width, height)


def _ratio(text: str) -> float | None:
    over, _, under = text.partition("/")
    with contextlib.suppress(ValueError, ZeroDivisionError):
        return round(int(over) / int(under or 1), 3) or None
    return None


def _seconds(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return max(0.0, float(text))
    return None


def _summary(stream: _Stream) -> str:
    words = [stream.codec_name]
    if stream.codec_type == "video":
        fps = _ratio(stream.avg_frame_rate)
        words += [f"{stream.width}×{stream.height}"] + ([f"{fps:g} fps"] if fps else [])
    elif stream.codec_type == "audio":
        rate = f"{int(stream.sample_rate) / 1000:g} kHz" if stream.sample_rate.isdigit() else ""
        words += [rate, {1: "mono", 2: "stereo"}.get(stream.channels, f"{stream.channels} channels")]
    return " ".join(word for word in words if word)
