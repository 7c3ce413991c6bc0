"""Sessions on disk for tests of the argv gate: staged media, secrets beside them, a listener that nobody may call."""

import contextlib
import functools
import importlib.util
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from rota.errors import MediaError
from rota.io.ffmpeg import find_tools

SECRET = "s3cret-canary"


class Samples:
    """Small media, made once with ffmpeg and copied under any name."""

    def __init__(self, ffmpeg: Path, folder: Path) -> None:
        self._ffmpeg = ffmpeg
        self._folder = folder
        self._made: dict[str, Path] = {}

    def of(self, name: str) -> bytes:
        """The content of a file with this name's extension."""
        extension = name.rpartition(".")[2].lower() if "." in name.rpartition("/")[2] else ""
        if extension not in self._made:
            self._made[extension] = self._make(extension)
        return self._made[extension].read_bytes()

    def _make(self, extension: str) -> Path:
        path = self._folder / f"sample.{extension or 'bin'}"
        video = ["-f", "lavfi", "-i", "testsrc2=s=320x180:r=10:d=5"]
        audio = ["-f", "lavfi", "-i", "sine=frequency=440:duration=5"]
        encode = [
            "-c:v",
            "libx264",
            "-preset",
            "ultrafast",
            "-g",
            "10",
            "-pix_fmt",
            "yuv420p",
            "-c:a",
            "aac",
            "-shortest",
        ]
        if extension in {"png", "jpg", "jpeg"}:
            self._run(*video, "-frames:v", "1", path)
        elif extension in {"wav", "mp3", "m4a", "aac", "flac", "opus", "ogg"}:
            self._run(*audio, path)
        elif extension == "pcm":
            self._run(*audio, "-f", "s16le", "-ar", "8000", "-ac", "1", path)
        elif extension == "mkv":
            font = self._folder / "attached.ttf"
            font.write_bytes(b"a font of the tests")
            self._run(
                *video, *audio, "-attach", font, "-metadata:s:t", "mimetype=application/x-truetype-font", *encode, path
            )
        elif extension in {"mp4", "mov", "ts"}:
            self._run(*video, *audio, *encode, path)
        else:
            path.write_bytes(b"a file of the tests\n")
        return path

    def _run(self, *arguments: str | Path) -> None:
        subprocess.run([self._ffmpeg, "-v", "error", "-y", *arguments], check=True, capture_output=True)


def stage(
    folder: Path, samples: Samples, *, files: Sequence[str], contents: Mapping[str, str], links: Mapping[str, str]
) -> None:
    """Put the files of a corpus line into a session's folder."""
    for name in files:
        path = folder / name
        if name in links:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[name].encode() if name in contents else samples.of(name))
    for name, target in links.items():
        (folder / name).symlink_to(target)


@contextlib.contextmanager
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """A port on loopback, and what was sent to it; a call without a byte counts too."""
    calls: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(0.2)
                try:
                    calls.append(connection.recv(1000))
                except OSError:
                    calls.append(b"")

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1], calls
    finally:
        # Wakes the thread, which close alone does not.
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)


def heard(calls: Sequence[bytes], *, timeout_s: float = 30) -> bool:
    """Whether a listener is called, now or soon: its thread may have its turn after what called it has ended."""
    deadline = time.monotonic() + timeout_s
    while not calls and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(calls)


class Found(NamedTuple):
    """One ffmpeg, and an ffprobe to go with it."""

    name: str
    """Its version, for the name of a test."""
    ffmpeg: Path
    ffprobe: Path

    @property
    def major(self) -> int:
        """5, 8, 9 …; 0 for a build that counts otherwise."""
        numbers = re.match(r"n?(\d+)\.", self.name)
        return int(numbers[1]) if numbers else 0


@functools.cache
def found_tools() -> tuple[Found, ...]:
    """The ffmpegs to run on, the oldest first: Debian's, the media extra's, that of `imageio-ffmpeg`, the one on PATH
    and those of the folders in ROTA_DEV_FFMPEG.

    Debian's 5.1 and a new one behave differently in many ways that matter here; CI has both.
    """
    folders = [Path(folder) for folder in os.environ.get("ROTA_DEV_FFMPEG", "").split(os.pathsep) if folder]
    tools = {folder / "ffmpeg": folder / "ffprobe" for folder in [Path("/usr/bin"), *folders]}
    for path in (os.environ.get("PATH", ""), ""):  # without a PATH the package's is found
        with contextlib.suppress(MediaError), pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", path)
            found = find_tools()
            tools[found.ffmpeg] = found.ffprobe
    probes = [ffprobe for ffprobe in tools.values() if ffprobe.exists()]
    spec = importlib.util.find_spec("imageio_ffmpeg")
    for folder in map(Path, (spec.submodule_search_locations or ()) if spec and probes else ()):
        # It has no ffprobe: another's reads what it made.
        tools |= {ffmpeg: probes[-1] for ffmpeg in (folder / "binaries").glob("ffmpeg-*")}
    made = {
        os.path.realpath(ffmpeg): Found(version_of(ffmpeg), ffmpeg, ffprobe)
        for ffmpeg, ffprobe in tools.items()
        if os.access(ffmpeg, os.X_OK)
    }
    return tuple(sorted(made.values(), key=lambda found: found.major))


def version_of(ffmpeg: Path) -> str:
    """What it says of itself, such as `5.1.9-0+deb12u1`."""
    said = subprocess.run([ffmpeg, "-version"], check=True, capture_output=True, text=True).stdout
    return said.split()[2]


@functools.cache
def can(ffmpeg: Path) -> frozenset[str]:
    """The filters, encoders and decoders that a build has: small ones lack many."""
    lists = [
        subprocess.run([ffmpeg, "-hide_banner", option], check=True, capture_output=True, text=True).stdout
        for option in ("-filters", "-encoders", "-decoders")
    ]
    return frozenset(words[1] for text in lists for words in map(str.split, text.splitlines()) if len(words) > 2)


def run(program: Path, argv: Sequence[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run a compiled command as a runner does: in the session's folder, with an empty environment, without stdin."""
    return subprocess.run(
        [program, *argv], cwd=folder, env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    )
