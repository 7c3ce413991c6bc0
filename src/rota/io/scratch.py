"""A folder for each command or session: empty when it begins, gone when it has ended.

All lie in one folder of this process, which holds a lock: what a process that was killed has left behind is
recognised by its free lock and removed at the next start (S82). Should somebody remove a folder of ours, as what cleans
up temp folders does, another is made.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

LOCK: Final = "lock"
MODE: Final = 0o700
SETTLED_S: Final = 0.1
"""A folder whose change time is known for so long shows any later change by another one: systems that tell parts of a
second tell them finer than this."""
SECOND_NS: Final = 1_000_000_000


class Scratch:
    """The folders of one process.

    Args:
        root: under it they lie, and whoever may write there is trusted; None: in a folder of this user's own in the
            system's temp folder.
        prefix: how the names of such processes' folders begin.
        left: told of each folder that could not be removed; it is tried again when this process is gone.
    """

    def __init__(
        self, root: Path | None, *, prefix: str = "commands-", left: Callable[[str], None] | None = None
    ) -> None:
        self._root = root if root is not None else Path(tempfile.gettempdir()) / f"rota-scratch-{os.getuid()}"
        self._root_is_own = root is None
        self._prefix = prefix
        self._left = left
        self._folder: Path | None = None
        self._lock = -1
        self._count = 0
        self._spare: list[str] = []
        self._known: dict[str, tuple[int, float]] = {}  # change times of empty folders, and since when they are known
        self._unchanged: dict[str, int] = {}  # of folders that are taken: the change time that says that nothing was
        self._removals: set[asyncio.Future[None]] = set()

    def open(self) -> Path:
        """Removes what dead processes have left, and returns the folder of this process; safe to repeat.

        Raises: OSError, among them a disk that is full, and a temp folder in whose place somebody else has put another.
        """
        if self._folder is not None:
            if self._folder.is_dir():
                return self._folder
            self._forget()
        return self._open()

    def take(self) -> str:
        """A new, empty folder.

        Raises: OSError, among them a disk that is full.
        """
        while self._spare:
            path = self._spare.pop()
            changed_ns, since = self._known[path]
            if not os.path.lexists(path):
                del self._known[path]
                continue
            if changed_ns % SECOND_NS and time.monotonic() - since > SETTLED_S:
                self._unchanged[path] = changed_ns
            return path
        folder = self.open()
        self._count += 1
        path = f"{folder}/{self._count}"
        os.mkdir(path, MODE)
        return path

    def give_back(self, path: str) -> None:
        """Takes a folder back: one that is as it was serves again, which costs a quarter; any other is removed."""
        unchanged_ns = self._unchanged.pop(path, None)
        try:
            found = os.lstat(path)  # it may have put a link in its place, for the next command to be led elsewhere
            changed_ns = found.st_ctime_ns
            if changed_ns == unchanged_ns:  # nothing was made in it, nor done to it: it need not be listed
                self._spare.append(path)
                return
            as_new = found.st_mode == stat.S_IFDIR | MODE and found.st_uid == os.geteuid() and not os.listdir(path)
        except OSError:
            as_new = False
        known = self._known.pop(path, None)
        if as_new:
            same = known is not None and known[0] == changed_ns
            self._known[path] = known if known is not None and same else (changed_ns, time.monotonic())
            self._spare.append(path)
            return
        removal = asyncio.get_running_loop().run_in_executor(None, _remove, path)
        self._removals.add(removal)
        removal.add_done_callback(lambda done: self._removed(done, path))

    def _removed(self, removal: "asyncio.Future[None]", path: str) -> None:
        self._removals.discard(removal)
        if self._left is not None and os.path.lexists(path):
            self._left(path)

    async def close(self) -> None:
        """Removes everything; safe to repeat."""
        while self._removals:
            await asyncio.wait(set(self._removals))
        if self._folder is not None:
            await asyncio.to_thread(_remove, str(self._folder))
            self._forget()

    def _forget(self) -> None:
        self._folder = None
        self._spare.clear()
        self._known.clear()
        self._unchanged.clear()
        os.close(self._lock)

    def _open(self) -> Path:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._root_is_own:
            _check_own(self._root)
        for left in self._root.glob(f"{self._prefix}*"):
            _remove_if_left(left)
        while True:
            folder = Path(tempfile.mkdtemp(prefix=self._prefix, dir=self._root))
            self._lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if (folder / LOCK).exists():
                self._folder = folder
                return folder
            # Another process began at the same time, and took what was not locked yet for one that is dead.
            os.close(self._lock)


def _check_own(root: Path) -> None:
    """Raises: OSError if others could put their own folders in the place of ours there: in a temp folder anybody makes
    folders of any name."""
    found = os.lstat(root)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise OSError(errno.EPERM, "It is there already, and others may write to it: remove it", str(root))


def _remove_if_left(folder: Path) -> None:
    """Removes the folder of a process that is gone."""
    with contextlib.suppress(OSError):
        lock = os.open(folder / LOCK, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(str(folder))
        finally:
            os.close(lock)


def _remove(path: str) -> None:
    shutil.rmtree(path, onerror=_unlock_and_remove)


def _unlock_and_remove(function: Callable[..., Any], path: str, _error: object) -> None:
    """What ran there may have taken its own rights to a folder away."""
    with contextlib.suppress(OSError):
        os.chmod(os.path.dirname(path), 0o700)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, 0o700)
            shutil.rmtree(path, ignore_errors=True)
        else:
            function(path)
