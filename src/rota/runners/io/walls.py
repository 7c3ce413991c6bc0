"""Finds out which walls this machine can put around ffmpeg, by putting each around a small program and looking."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rota.runners.isolation import Isolation, Limits, Wall

LAUNCHER: Final = str(Path(__file__).with_name("launcher.py"))
TRY_S: Final = 20.0
_LIMITS: Final = Limits(cpu_s=10, file_bytes=1 << 20, memory_bytes=4 << 30)


def find_walls(program: Path | str, *, bubblewrap: str | None = None) -> Isolation:
    """The walls that stand on this machine; it runs programs: call it in a thread.

    Args:
        program: what is run behind them: it has to start with `-version`.
        bubblewrap: the program; None: the one on PATH.

    Returns: bubblewrap, with seccomp if that stands inside of it, or each smaller wall that stands; none at all is
        possible.
    """
    # Without the symbolic link of a virtual environment the interpreter finds its library by itself, and faster.
    python = os.path.realpath(sys.executable)
    plain = Isolation(python, LAUNCHER)
    if sys.platform != "linux":
        return plain
    wrapped = bubblewrap if bubblewrap is not None else shutil.which("bwrap")
    if wrapped is not None:
        for walls in ((Wall.BUBBLEWRAP, Wall.SECCOMP), (Wall.BUBBLEWRAP,)):
            whole = Isolation(python, LAUNCHER, walls, os.path.abspath(wrapped))
            if _stands(whole, program):
                return whole
    standing = [
        wall
        for wall in (Wall.NETWORK_NAMESPACE, Wall.LANDLOCK, Wall.SECCOMP)
        if _stands(Isolation(python, LAUNCHER, (wall,)), program)
    ]
    return Isolation(python, LAUNCHER, tuple(standing))


def _stands(isolation: Isolation, program: Path | str) -> bool:
    with tempfile.TemporaryDirectory(prefix="rota-wall-") as folder:
        command = isolation.command(str(program), ["-version"], folder=folder, limits=_LIMITS)
        try:
            done = subprocess.run(  # noqa: S603 - our own launcher and a program of the settings
                command, cwd=folder, env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRY_S, check=False
            )
        except (OSError, subprocess.SubprocessError):
            return False
    return done.returncode == 0
