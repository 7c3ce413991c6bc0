"""What stands around ffmpeg on a runner: the words for it, and the command that puts it there. Pure.

The argv gate is the first wall and stands alone where a system has nothing else; these are the walls behind it. Either
bubblewrap (a namespace with the programs, their libraries and the session's folder in it) with seccomp inside, or as
much as there is of a network namespace, Landlock and seccomp. Limits of the process stand everywhere. What a runner
has, it tells.

Spec: runners, "Media session ops and argv validation".
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Wall(StrEnum):
    """One thing that stands around ffmpeg; the words of `capabilities.isolation`."""

    BUBBLEWRAP = "bubblewrap"
    NETWORK_NAMESPACE = "network-namespace"
    LANDLOCK = "landlock"
    SECCOMP = "seccomp"


SYSTEM_FOLDERS: Final = (
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/fonts",
    "/etc/alternatives",
)
"""Libraries and fonts: what a program of the system reads of it."""
_LOADERS: Final = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-linux-armhf.so.3")
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/urandom")
ENVIRONMENT: Final[Mapping[str, str]] = {"LC_ALL": "C"}
"""All that ffmpeg sees of the environment: nothing names a proxy, a report, a library or a home."""
INSIDE: Final = "/session"
"""What the session's folder is called inside of bubblewrap."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one process may use; `memory_bytes` is what it may map."""

    cpu_s: int
    file_bytes: int
    memory_bytes: int
    open_files: int = 1024


@dataclass(frozen=True, slots=True)
class Isolation:
    """The walls of one machine.

    Attributes:
        walls: those that were tried and stand.
        bubblewrap: the program, if it is one of them.
        python: the interpreter that runs `launcher`.
        launcher: the program that sets limits and the smaller walls.
    """

    python: str
    launcher: str
    walls: Sequence[Wall] = field(default=())
    bubblewrap: str | None = None

    def command(self, program: str, argv: Sequence[str], *, folder: str, limits: Limits) -> list[str]:
        """The command that runs a program behind the walls.

        Args:
            program: ffmpeg or ffprobe, by its absolute path.
            argv: its arguments, whose paths are relative to the folder.
            folder: the session's.
            limits: of the process.
        """
        asked: dict[str, object] = {
            "env": dict(ENVIRONMENT),
            "limits": {
                "core": 0, "cpu": limits.cpu_s, "file": limits.file_bytes, "files": limits.open_files,
                "memory": limits.memory_bytes,
            },
        }  # fmt: skip
        if Wall.BUBBLEWRAP in self.walls and self.bubblewrap is not None:
            asked["seccomp"] = "inside" if Wall.SECCOMP in self.walls else None
            command = [*self._bubblewrapped(self.bubblewrap, program, folder), *argv]
        else:
            asked["netns"] = Wall.NETWORK_NAMESPACE in self.walls
            asked["seccomp"] = Wall.SECCOMP in self.walls
            if Wall.LANDLOCK in self.walls:
                asked["landlock"] = {
                    "read": [*SYSTEM_FOLDERS, "/sys/devices/system/cpu", *_DEVICES],
                    "execute": [program, *_LOADERS],
                    "write": [folder, "/dev/null"],
                }
            command = [program, *argv]
        return [self.python, "-I", "-S", self.launcher, json.dumps(asked), *command]

    @staticmethod
    def _bubblewrapped(bubblewrap: str, program: str, folder: str) -> list[str]:
        shared = [word for path in SYSTEM_FOLDERS for word in ("--ro-bind-try", path, path)]
        tool = "/tool/program"
        return [
            bubblewrap, "--unshare-user", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
            *shared, "--ro-bind", program, tool, "--proc", "/proc", "--dev", "/dev", "--bind", folder, INSIDE,
            "--remount-ro", "/", "--chdir", INSIDE, "--clearenv",
            *(word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)),
            "--", tool,
        ]  # fmt: skip
