"""How much disk there is, and how much of it a runner's sessions take.

Blocks count and not lengths, so that a sparse file costs what it costs; so does each name, because a disk also runs
out of inodes (S80). What vanishes while it is counted counts as nothing.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIB: Final = 1024 * 1024
FULL_BYTES: Final = 256 * 1024
"""Less is as good as nothing: a program that writes has ended with an error before the last block."""
NAME_BYTES: Final = 4096
"""What a file or folder counts beside its blocks: a block of the usual size."""


@dataclass(frozen=True, slots=True)
class Lack:
    """Why no work can be taken now.

    Attributes:
        why: in words for a person.
        over_quota: the sessions themselves take too much.
    """

    why: str
    over_quota: bool


@dataclass(frozen=True, slots=True)
class Room:
    """The bounds of a runner's folder of sessions.

    Attributes:
        floor_bytes: with less free disk than this there is no room for more work.
        quota_bytes: what its sessions may take together.
    """

    floor_bytes: int
    quota_bytes: int

    def lacks(self, folder: Path) -> Lack | None:
        """Why there is no room; None: there is. It reads the disk: call it in a thread.

        Args:
            folder: of all sessions.

        Raises: OSError if the folder cannot be read.
        """
        used = used_bytes(folder)
        if used >= self.quota_bytes:
            return Lack(f"the sessions take {used // MIB:,} MiB of disk; allowed are {self.quota_bytes // MIB:,}", True)
        free = shutil.disk_usage(folder).free
        if free < self.floor_bytes:
            return Lack(f"only {free // MIB:,} MiB of disk are free; {self.floor_bytes // MIB:,} must stay", False)
        return None


def is_full(folder: Path) -> bool:
    """Whether the disk that a folder lies on takes no more: no bytes, or no names.

    Raises: OSError if the folder cannot be read.
    """
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < FULL_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


def used_bytes(folder: Path | str) -> int:
    """What the files below a folder take."""
    used, folders = 0, [os.fspath(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    try:
                        used += entry.stat(follow_symlinks=False).st_blocks * 512 + NAME_BYTES
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
                    except OSError:
                        continue
        except OSError:
            continue
    return used
