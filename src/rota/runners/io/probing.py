"""What this machine can do, found by trying and not by asking: the capabilities of a hello.

A runner without ffmpeg has no job types, and connects all the same, so that a fleet shows it with what it lacks.

Spec: runners, "Capabilities".
"""

import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from rota.errors import MediaError
from rota.io.ffmpeg import Tools, find_tools
from rota.runners.codes import JobType
from rota.runners.io.disk import MIB
from rota.runners.io.walls import find_walls
from rota.runners.isolation import Isolation
from rota.runners.messages import PROTOCOL_VERSION, Capabilities
from rota.settings import Settings
from rota.version import __version__

VERSION_TIMEOUT_S: Final = 20.0
"""A program that takes longer to say its version is broken; a cold disk takes a second or two."""
_ARCHES: Final = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_SYSTEMS: Final = {"linux": "linux", "darwin": "darwin", "win32": "windows"}


@dataclass(frozen=True, slots=True)
class Ability:
    """What was found.

    Attributes:
        capabilities: what a gateway is told.
        tools: ffmpeg and ffprobe; None: there is none.
        isolation: what stands around them; None: there are none.
        lacks: what is missing, in words for a person; empty: nothing.
    """

    capabilities: Capabilities
    tools: Tools | None
    isolation: Isolation | None = None
    lacks: str = ""


def system() -> tuple[str, str]:
    """This machine's `os` and `arch`, in the words of the protocol."""
    machine = platform.machine()
    return _SYSTEMS.get(sys.platform, sys.platform), _ARCHES.get(machine, machine or "unknown")


def probe(settings: Settings) -> Ability:
    """Tries what is here; it runs programs: call it in a thread.

    Args:
        settings: where ffmpeg is, how many slots, how large outputs may be.
    """
    tools, isolation, version, lacks = None, None, "none", ""
    try:
        tools = find_tools(settings.ffmpeg)
        version = _version_of(tools)
        isolation = find_walls(tools.ffmpeg)
    except MediaError as error:
        tools, lacks = None, str(error)
    name, arch = system()
    return Ability(
        Capabilities(
            protocol_version=PROTOCOL_VERSION, agent_version=__version__, os=name, arch=arch,
            slots=settings.runner_slots, container="none", runtime_image_digest=None, ffmpeg_version=version,
            fontset_version=settings.runner_fontset,
            job_types=(JobType.COMPILE, JobType.EXTRACT) if tools is not None else (),
            max_output_bytes=settings.runner_output_mib * MIB,
            isolation=tuple(isolation.walls) if isolation is not None else (),
        ),
        tools,
        isolation,
        lacks,
    )  # fmt: skip


def _version_of(tools: Tools) -> str:
    found = ""
    for program in (tools.ffprobe, tools.ffmpeg):
        try:
            said = subprocess.run(  # noqa: S603 - the very programs that are to be run
                [program, "-version"], env={}, stdin=subprocess.DEVNULL, capture_output=True, check=True,
                timeout=VERSION_TIMEOUT_S,
            ).stdout.decode(errors="replace")  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise MediaError(f"{program} cannot be used: {error}. Give another one in ROTA_FFMPEG.") from None
        match = re.match(r"ff\w+ version (\S{1,100})", said)
        found = match[1] if match else "unknown"
    return found
