"""Opens files of a session by their virtual path: one folder after the other, from its descriptor, following no link.

So nothing that is renamed or replaced meanwhile can lead a read or a write out of the session (S73, S74), and what is
no regular file is refused at once instead of waited for (S78). The rule for links is short: none is followed, and a
file with a second name is none of the session's.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from rota.errors import PathNotAllowed
from rota.runners.codes import OpCode
from rota.runners.failures import OpFailure
from rota.runners.paths import session_path

PART_PREFIX: Final = "part-"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def checked(path: str) -> str:
    """A path's one spelling.

    Raises: OpFailure with `invalid_path`.
    """
    try:
        return session_path(path)
    except PathNotAllowed as error:
        raise _invalid(path, str(error)) from None


def open_to_read(root: Path, path: str) -> BinaryIO:
    """A regular file of the session, opened.

    Args:
        root: the session's folder.
        path: as it came.

    Raises: OpFailure with `invalid_path`: it is not there, not a file, or could be another's.
    """
    name = checked(path)
    try:
        with _parent(root, name) as (folder, last):
            descriptor = os.open(last, _READ, dir_fd=folder)
    except OSError as error:
        raise _invalid(path, _why(error)) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _invalid(path, "it is not a regular file")
        if found.st_nlink > 1:
            raise _invalid(path, "the file has a second name, which may lie outside of the session")
    except OpFailure:
        os.close(descriptor)
        raise
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb", buffering=0)


def size_of(root: Path, path: str) -> int | None:
    """The size of a regular file of the session; None: there is none.

    Raises: OpFailure with `invalid_path` for a bad path and for what is no regular file.
    """
    name = checked(path)
    try:
        with _parent(root, name) as (folder, last):
            found = os.stat(last, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _invalid(path, _why(error)) from None
    if not stat.S_ISREG(found.st_mode):
        raise _invalid(path, "it is not a regular file")
    return found.st_size


def make_folders(root: Path, path: str) -> None:
    """Makes the folders that a file of the session is to lie in.

    Raises: OpFailure with `invalid_path`.
    """
    try:
        with _parent(root, checked(path), make=True):
            return
    except OSError as error:
        raise _from_os(path, error) from None


class NewFile:
    """A file of the session that is there when it is whole, and not at all otherwise.

    Raises: OpFailure with `invalid_path` or `disk_full` when it cannot be begun.
    """

    def __init__(self, root: Path, path: str) -> None:
        self._root, self._path, self._name = root, path, checked(path)
        self._part = PART_PREFIX + secrets.token_hex(8)
        try:
            with _parent(root, self._name, make=True) as (folder, last):
                with contextlib.suppress(FileNotFoundError):
                    if stat.S_ISDIR(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode):
                        raise _invalid(path, "it is a folder")
                self._file = os.fdopen(os.open(self._part, _CREATE, 0o600, dir_fd=folder), "wb", buffering=0)
        except OSError as error:
            raise _from_os(path, error) from None

    def write(self, data: bytes) -> None:
        """Appends all of it.

        Raises: OpFailure with `disk_full`.
        """
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise _from_os(self._path, error) from None

    def keep(self) -> None:
        """It is whole: takes its name, in place of what had it."""
        self._file.close()
        with _parent(self._root, self._name) as (folder, last):
            os.replace(self._part, last, src_dir_fd=folder, dst_dir_fd=folder)

    def discard(self) -> None:
        """Removes it unless it was kept; safe to repeat."""
        self._file.close()
        with contextlib.suppress(OSError), _parent(self._root, self._name) as (folder, _):
            os.unlink(self._part, dir_fd=folder)


@contextlib.contextmanager
def _parent(root: Path, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    *folders, last = name.split("/")
    at = os.open(root, _FOLDER)
    try:
        for folder in folders:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o700, dir_fd=at)
            below = os.open(folder, _FOLDER, dir_fd=at)
            os.close(at)
            at = below
        yield at, last
    finally:
        os.close(at)


def _from_os(path: str, error: OSError) -> OpFailure:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OpFailure(OpCode.DISK_FULL, "The runner's disk is full.", retryable=True)
    return _invalid(path, _why(error))


def _why(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return "a link is on its way"
    if error.errno == errno.ENXIO:
        return "it is not a regular file"
    return (error.strerror or "it cannot be opened").lower()


def _invalid(path: str, why: str) -> OpFailure:
    return OpFailure(OpCode.INVALID_PATH, f"{path[:200]!r}: {why}.")
