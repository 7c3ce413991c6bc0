"""What the demo does to one media file: describe it, picture it, measure it, shrink it, draw its sound.

Each function is one job's work and answers what a job stores as its result, so all values are JSON. None of them
changes its input. It is not a media library: it does the five things that make a good demo, with whatever ffmpeg was
found.

Invariant (I9): a result file is written under a temporary name beside its place and renamed when it is whole. A run
that is killed, fails or reads a file that was cut short leaves no file that looks whole; a second run makes the same
again.
"""

import asyncio
import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rota.demo.files import checked, publish, shown, write_whole, writing
from rota.demo.probing import PROBE_TIMEOUT_S, describe, probe
from rota.demo.results import LoudnessResult, ProbeResult, SheetResult, Skipped, TranscodeResult, WaveformResult
from rota.errors import MediaError
from rota.io.ffmpeg import Tools, ffmpeg_argv, find_tools, input_args, output_args
from rota.io.ffmpeg_run import OnProgress, ToolResult, run_tool

__all__ = [
    "LoudnessResult",
    "ProbeResult",
    "SheetResult",
    "Skipped",
    "TranscodeResult",
    "WaveformResult",
    "contact_sheet",
    "loudness",
    "probe",
    "transcode",
    "waveform",
]

FRAME_TIMEOUT_S = 120.0  # one picture decodes at most one keyframe interval, some 250 frames
WHOLE_TIMEOUT_S = 6 * 3600.0  # a transcode of a long film on two cores; the lease stops what does not move

SHEET_CELLS = 12
SHEET_CELL_PX = 320  # the longer side of a cell
WAVEFORM_PX = (1200, 200)
WAVEFORM_COLOUR = "0x6366f1"  # reads well on white and on near black; the rest is transparent
WAVEFORM_RATE_HZ = 8000  # more than enough for a column per 1/1200 of the file, and small on disk: 16 kB a second
SHORT_SIDE_PX_MAX = 720
LONG_SIDE_PX_MAX = 4096  # what browsers' decoders take; only odd shapes come near

# Best first: the first one that the found ffmpeg has is taken. Browsers do not play the last one.
_VIDEO_ENCODERS: Final = {
    "libx264": ("-preset", "veryfast", "-crf", "23", "-profile:v", "high"),
    "libopenh264": ("-b:v", "2500k"),
    "h264_videotoolbox": ("-b:v", "2500k"),
    "mpeg4": ("-q:v", "4"),
}

# Filled once for each ffmpeg: what it has does not change while we run.
_encoders_of: dict[Path, frozenset[str]] = {}


async def contact_sheet(
    path: Path | str, out: Path | str, *, tools: Tools | None = None, progress: OnProgress | None = None
) -> SheetResult | Skipped:
    """Make one JPEG of pictures spread evenly over a video: 4 by 3, or 6 by 2 if they are upright.

    Args:
        path: The file; any name.
        out: The JPEG to write.
        tools: ffmpeg and ffprobe; found if None.
        progress: Told after each picture.

    Returns:
        Size and instants of the pictures, or `{"skipped": "no video"}`.

    Raises:
        MediaError: The file is missing, no media, damaged or cut short, or `out` cannot be written.
    """
    source, tools = checked(path, out=out), tools or find_tools()
    facts = await describe(source, tools)
    if facts["video_index"] is None or not facts["width"] or not facts["height"]:
        return Skipped(skipped="no video")
    cell = _cell_size(facts["width"], facts["height"])
    length_s = facts["duration_s"] or 0.0
    # Below half a second there are hardly twelve different pictures.
    at_s = [length_s * (n + 0.5) / SHEET_CELLS for n in range(SHEET_CELLS)] if length_s >= 0.5 else [0.0]
    cells: list[bytes] = []
    checked_whole = False
    for done, instant in enumerate(at_s, start=1):
        picture = await _picture(source, tools, facts["video_index"], cell, instant)
        if picture is None:
            if not checked_whole:
                await _check_readable(source, tools, facts["video_index"], at_s=instant)
                checked_whole = True
            # The pictures end before the sound, or the last one stays to the end: it stands for the rest.
            picture = cells[-1] if cells else await _picture(source, tools, facts["video_index"], cell, 0.0)
        if picture is None:
            raise MediaError(f"ffmpeg found no picture in {shown(source)}.")
        cells.append(picture)
        await _tell(progress, done / (len(at_s) + 1))
    grid = (1, 1) if len(cells) == 1 else (4, 3) if cell[0] >= cell[1] else (6, 2)
    with writing(out) as part, writing(out) as raw:
        await asyncio.to_thread(write_whole, raw, b"".join(cells))
        await run_tool(
            ffmpeg_argv(
                tools,
                [
                    *("-f", "rawvideo", "-pixel_format", "yuvj420p", "-video_size", f"{cell[0]}x{cell[1]}"),
                    *("-framerate", "1", "-i", f"file:{raw}"),
                    *("-vf", f"tile={grid[0]}x{grid[1]}:padding=4:margin=4:color=0x14161c", "-frames:v", "1"),
                    *("-c:v", "mjpeg", "-q:v", "3", *output_args(part, muxer="mjpeg")),
                ],
            ),
            timeout_s=FRAME_TIMEOUT_S,
            about=shown(source),
        )
        size_bytes = await publish(part, out)
    await _tell(progress, 1.0)
    return SheetResult(
        width=grid[0] * (cell[0] + 4) + 4,
        height=grid[1] * (cell[1] + 4) + 4,
        size_bytes=size_bytes,
        at_s=[round(instant, 3) for instant in at_s],
    )


async def loudness(
    path: Path | str, *, tools: Tools | None = None, progress: OnProgress | None = None
) -> LoudnessResult | Skipped:
    """Measure the loudness of a file's first audio stream by EBU R128.

    Args:
        path: The file; any name.
        tools: ffmpeg and ffprobe; found if None.
        progress: Told as the file is read.

    Returns:
        The three numbers, or `{"skipped": "no audio"}`.

    Raises:
        MediaError: The file is missing, no media, damaged or cut short.
    """
    source, tools = checked(path), tools or find_tools()
    facts = await describe(source, tools)
    if facts["audio_index"] is None:
        return Skipped(skipped="no audio")
    # The filter reports its sums on stderr, at level info; its running log, ten lines a second, goes a level lower.
    argv = ffmpeg_argv(
        tools,
        [
            *input_args(source),
            *("-map", f"0:{facts['audio_index']}", "-af", "ebur128=peak=true:framelog=verbose", "-f", "null", "-"),
        ],
        level="info",
    )
    result = await _whole_file(argv, source, facts, progress)
    return read_loudness(result.stderr)


async def transcode(
    path: Path | str, out: Path | str, *, tools: Tools | None = None, progress: OnProgress | None = None
) -> TranscodeResult:
    """Make an MP4 for the browser: at most 720 pixels on the short side, H.264 and AAC, its index at the front.

    A smaller picture keeps its size, sides become even, rotation and pixel shape are applied. A file without video
    becomes an MP4 with sound alone. If the found ffmpeg has no H.264 encoder, the video is MPEG-4, which browsers do
    not play.

    Args:
        path: The file; any name.
        out: The MP4 to write.
        tools: ffmpeg and ffprobe; found if None.
        progress: Told as the file is written.

    Returns:
        What was written.

    Raises:
        MediaError: The file is missing, no media, damaged or cut short, `out` cannot be written, or ffmpeg has no
            encoder.
    """
    source, tools = checked(path, out=out), tools or find_tools()
    facts = await describe(source, tools)
    video_encoder: str | None = None
    args = [*input_args(source), "-map_metadata", "-1", "-map_chapters", "-1"]
    if facts["video_index"] is not None and facts["width"] and facts["height"]:
        width, height = fit_720(facts["width"], facts["height"])
        video_encoder, encoder_args = await pick_video_encoder(tools)
        args += ["-map", f"0:{facts['video_index']}", "-vf", f"scale={width}:{height},setsar=1,format=yuv420p"]
        args += ["-c:v", video_encoder, *encoder_args]
    if facts["audio_index"] is not None:
        args += ["-map", f"0:{facts['audio_index']}", "-c:a", "aac", "-b:a", "160k", "-ac", "2"]
    with writing(out) as part:
        argv = ffmpeg_argv(tools, [*args, "-movflags", "+faststart", *output_args(part, muxer="mp4")])
        await _whole_file(argv, source, facts, progress)
        made = await describe(part, tools)
        size_bytes = await publish(part, out)
    return TranscodeResult(
        width=made["width"],
        height=made["height"],
        video_encoder=video_encoder,
        audio_encoder=None if facts["audio_index"] is None else "aac",
        duration_s=made["duration_s"],
        size_bytes=size_bytes,
    )


async def waveform(
    path: Path | str, out: Path | str, *, tools: Tools | None = None, progress: OnProgress | None = None
) -> WaveformResult | Skipped:
    """Draw the first audio stream as a waveform on a transparent ground.

    Args:
        path: The file; any name.
        out: The PNG to write.
        tools: ffmpeg and ffprobe; found if None.
        progress: Told as the file is read.

    Returns:
        Size of the picture, or `{"skipped": "no audio"}`.

    Raises:
        MediaError: The file is missing, no media, damaged or cut short, or `out` cannot be written.
    """
    source, tools = checked(path, out=out), tools or find_tools()
    facts = await describe(source, tools)
    if facts["audio_index"] is None:
        return Skipped(skipped="no audio")
    width, height = WAVEFORM_PX
    # Two steps: while the picture filter runs, ffmpeg tells neither progress nor how much it has read. The filter also
    # keeps all samples in memory, so it gets them small.
    with writing(out) as part, writing(out) as samples:
        small = ("-ac", "1", "-ar", str(WAVEFORM_RATE_HZ), "-c:a", "pcm_s16le")
        args = [*input_args(source), "-map", f"0:{facts['audio_index']}", *small, *output_args(samples, muxer="s16le")]
        await _whole_file(ffmpeg_argv(tools, args), source, facts, progress)
        # Peaks, on a square root scale: quiet passages stay visible beside loud ones.
        picture = f"showwavespic=s={width}x{height}:colors={WAVEFORM_COLOUR}:draw=full:filter=peak:scale=sqrt"
        args = [
            *("-f", "s16le", "-ar", str(WAVEFORM_RATE_HZ), "-ac", "1", "-i", f"file:{samples}"),
            *("-filter_complex", picture),
            *("-frames:v", "1", "-c:v", "rawvideo", "-pix_fmt", "rgba", "-f", "rawvideo", "pipe:1"),
        ]
        argv = ffmpeg_argv(tools, args, report_progress=False)
        drawn = await run_tool(argv, timeout_s=FRAME_TIMEOUT_S, about=shown(source))
        if len(drawn.stdout) != width * height * 4:
            return Skipped(skipped="no audio")  # the stream is there and holds no sample
        await asyncio.to_thread(write_whole, part, png(drawn.stdout, width=width))
        size_bytes = await publish(part, out)
    return WaveformResult(width=width, height=height, size_bytes=size_bytes)


def fit_720(width: int, height: int) -> tuple[int, int]:
    """Size a picture for 720p: never larger than it is, sides even (4:2:0 colour needs it).

    Args:
        width: Pixels, at least 1.
        height: Pixels, at least 1.

    Returns:
        Width and height in pixels; the short side is at most SHORT_SIDE_PX_MAX, the long one LONG_SIDE_PX_MAX.
    """
    scale = min(1.0, SHORT_SIDE_PX_MAX / min(width, height), LONG_SIDE_PX_MAX / max(width, height))
    return _even(width * scale), _even(height * scale)


def misses_an_end(facts: ProbeResult, *, read_s: float, has_errors: bool) -> bool:
    """Tell whether a file holds less than it states. ffmpeg itself takes a cut file for a whole one.

    Args:
        facts: What the file states.
        read_s: Seconds of sound or pictures that came out of it.
        has_errors: Whether ffmpeg complained while it read.

    Returns:
        True if an end is missing.
    """
    if not facts["reliable_length"]:
        return False
    # Sound has no holes: a shortfall alone tells. The bounds are above encoder delays, edit lists and rounding.
    audio_s = facts["audio_duration_s"] or 0.0
    if read_s < audio_s * 0.995 - 0.5:
        return True
    # Pictures may stand still to the end, and subtitles may outlast them: there a complaint must go with it.
    return has_errors and read_s < max(audio_s, facts["duration_s"] or 0.0) * 0.998 - 0.1


def read_loudness(stderr: str) -> LoudnessResult:
    """Read the summary that ffmpeg's ebur128 filter writes at its end.

    Args:
        stderr: What ffmpeg wrote at level info.

    Returns:
        The three numbers; None for one that ffmpeg could not tell (silence, or less than 0.4 s).
    """
    summary = stderr.rpartition("Summary:")[2]  # the last one: a tag of the file may hold this word too

    def number(label: str, unit: str) -> float | None:
        found = re.search(rf"^\s+{label}:\s+(-?\d+(?:\.\d+)?) {unit}\s*$", summary, re.MULTILINE)
        return float(found[1]) if found else None

    integrated = number("I", "LUFS")
    if integrated is None or integrated <= -70.0:  # the gate of the standard: nothing was louder
        return LoudnessResult(integrated_lufs=None, range_lu=None, true_peak_dbtp=number("Peak", "dBFS"))
    return LoudnessResult(
        integrated_lufs=integrated, range_lu=number("LRA", "LU"), true_peak_dbtp=number("Peak", "dBFS")
    )


def png(rgba: bytes, *, width: int) -> bytes:
    """Pack raw pixels as a PNG. Written here because the ffmpeg of `rota[media]` is built without zlib.

    Args:
        rgba: Rows of 4 bytes a pixel.
        width: Pixels in a row.

    Returns:
        The file.
    """
    row_bytes = width * 4
    height = len(rgba) // row_bytes
    rows = b"".join(b"\0" + rgba[n * row_bytes : (n + 1) * row_bytes] for n in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)  # 8 bits, colour with alpha
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


async def pick_video_encoder(tools: Tools) -> tuple[str, Sequence[str]]:
    """Choose the best video encoder for MP4 that the found ffmpeg has.

    Args:
        tools: The programs; what one ffmpeg has is asked once.

    Returns:
        ffmpeg's name of it, and its options.

    Raises:
        MediaError: It has none of them.
    """
    if tools.ffmpeg not in _encoders_of:
        argv = ffmpeg_argv(tools, ["-encoders"], report_progress=False)
        listing = (await run_tool(argv, timeout_s=PROBE_TIMEOUT_S)).stdout.decode(errors="replace")
        _encoders_of[tools.ffmpeg] = frozenset(re.findall(r"^ [VAS]\S{5} (\S+)", listing, re.MULTILINE))
    for name, options in _VIDEO_ENCODERS.items():
        if name in _encoders_of[tools.ffmpeg]:
            return name, options
    raise MediaError(f"{tools.ffmpeg} has no H.264 or MPEG-4 encoder: use another one, `pip install 'rota[media]'`.")


async def _picture(source: Path, tools: Tools, index: int, cell: tuple[int, int], at_s: float) -> bytes | None:
    """One picture as raw pixels, or None if the video has ended before `at_s`."""
    args = [
        *input_args(source, seek_s=at_s),
        *("-map", f"0:{index}", "-frames:v", "1", "-vf", f"scale={cell[0]}:{cell[1]},setsar=1"),
        *("-c:v", "rawvideo", "-pix_fmt", "yuvj420p", "-f", "rawvideo", "pipe:1"),
    ]
    result = await run_tool(
        ffmpeg_argv(tools, args, report_progress=False), timeout_s=FRAME_TIMEOUT_S, about=shown(source)
    )
    if len(result.stdout) == cell[0] * cell[1] * 3 // 2:
        return result.stdout
    if result.has_errors:
        raise _no_picture(source, at_s)
    return None


async def _check_readable(source: Path, tools: Tools, index: int, *, at_s: float) -> None:
    """Raise if a stream's packets cannot all be read. Seeking past the end of a cut MP4 is silent, reading is not."""
    argv = ffmpeg_argv(tools, [*input_args(source), "-map", f"0:{index}", "-c", "copy", "-f", "null", "-"])
    result = await run_tool(argv, timeout_s=WHOLE_TIMEOUT_S, about=shown(source))
    if result.has_errors:
        raise _no_picture(source, at_s)


def _no_picture(source: Path, at_s: float) -> MediaError:
    return MediaError(f"{shown(source)} is damaged or cut short: there is no picture at {at_s:.1f} s.")


async def _whole_file(argv: Sequence[str], source: Path, facts: ProbeResult, progress: OnProgress | None) -> ToolResult:
    """Run ffmpeg over all of a file; it is an error if less came out than the file states to hold."""
    result = await run_tool(
        argv, timeout_s=WHOLE_TIMEOUT_S, on_progress=progress, duration_s=facts["duration_s"], about=shown(source)
    )
    read_s = result.out_time_s or 0.0
    if misses_an_end(facts, read_s=read_s, has_errors=result.has_errors):
        stated_s = facts["audio_duration_s"] or facts["duration_s"]
        raise MediaError(f"{shown(source)} is damaged or cut short: {read_s:.1f} s of {stated_s:.1f} s could be read.")
    return result


async def _tell(progress: OnProgress | None, fraction: float) -> None:
    if progress is not None:
        await progress(fraction)


def _cell_size(width: int, height: int) -> tuple[int, int]:
    scale = SHEET_CELL_PX / max(width, height)
    return _even(width * scale), _even(height * scale)


def _even(length_px: float) -> int:
    return max(2, int(length_px + 1e-6) // 2 * 2)
