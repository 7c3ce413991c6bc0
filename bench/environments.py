"""Python environments of peers, each installed once under the user's cache."""

import subprocess
import sys
from pathlib import Path

from bench.queue.peers import NotInstalled


def install(place: Path, wanted_file: Path, what: str) -> None:
    """Makes an environment with the packages that a file names, or brings it up to date.

    Args:
        place: the environment's folder.
        wanted_file: what pip reads.
        what: how a message calls the peers.

    Raises: NotInstalled.
    """
    wanted = wanted_file.read_text()
    stamp = place / "peers.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        pip = [place / "bin" / "python", "-m", "pip", "install", "-q", "-r", wanted_file]
        subprocess.run(pip, check=True, stdout=sys.stderr)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotInstalled(f"{what} could not be installed: {error}") from error
    stamp.write_text(wanted)
