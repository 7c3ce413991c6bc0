"""A session's folder as the argv gate sees it.

Nothing is followed on the way: a link is shown as a link, and the gate decides. What is no regular file is shown as
such and never opened, so that a pipe cannot hold the gate up.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from rota.runners.argv.files import HEAD_BYTES, PROBED_BYTES, TEXT_BYTES_MAX, Entry

NAMES_MAX = 100_000


class SessionFolder:
    """A view of a folder on disk; each look reads it anew."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def entry(self, path: str) -> Entry | None:
        """What a path names itself; None where there is nothing, or where a link stands on its way."""
        real = self._folder / path
        try:
            found = real.lstat()
        except (OSError, ValueError):
            return None
        if stat.S_ISLNK(found.st_mode):
            return Entry(kind="link", target=os.readlink(real))
        if stat.S_ISDIR(found.st_mode):
            return Entry(kind="folder")
        # A second name of a file may lie outside: neither read nor written here, nor by any other op.
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            return Entry(kind="other")
        return Entry(kind="file", size=found.st_size, head=self._read(real, HEAD_BYTES))

    def paths(self) -> Sequence[str]:
        """All names below the folder that are no folders, at most `NAMES_MAX`."""
        names: list[str] = []
        for folder, folders, files in os.walk(self._folder):
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            names += [os.path.relpath(os.path.join(folder, name), self._folder) for name in (*files, *links)]
            if len(names) > NAMES_MAX:
                break
        return [name.replace(os.sep, "/") for name in names[:NAMES_MAX]]

    def text(self, path: str) -> str | None:
        """The whole text of a file; None where it is too long or no UTF-8."""
        raw = self._read(self._folder / path, TEXT_BYTES_MAX + 1)
        if raw is None or len(raw) > TEXT_BYTES_MAX:
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return None

    def probed(self, path: str) -> bytes | None:
        """The first bytes of a file."""
        return self._read(self._folder / path, PROBED_BYTES)

    @staticmethod
    def _read(path: Path, size: int) -> bytes | None:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        try:
            descriptor = os.open(path, flags)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read(size)
