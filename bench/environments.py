"""Python environments of peers, each installed once under the user's cache."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.queue.peers import NotInstalled
from bench.report import NotMeasured


async def answer(place: Path, program: Path, *args: str, what: str, within_s: float) -> Any:
    """Runs a program in the environment of peers.

    Args:
        place: the environment's folder.
        program: what Python runs.
        args: its arguments.
        what: how a message calls the peer.
        within_s: how long it may take.

    Returns: what it says in its last line, as JSON.

    Raises: NotMeasured if it fails, or takes longer.
    """
    process = await asyncio.create_subprocess_exec(
        place / "bin" / "python", program, *args, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), within_s)
    except TimeoutError:
        raise NotMeasured(f"{what} took longer than {within_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise NotMeasured(f"{what}: {err.decode(errors='replace').strip()[-300:]}")
    return json.loads(out.splitlines()[-1])


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
