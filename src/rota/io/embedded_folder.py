"""The folder of an embedded PostgreSQL: what lies in it, and who may use it.

It runs no program and makes no data. The layout:

    lock              held (flock) by who makes data, then by all processes of the server, until the last is gone
    data              PGDATA; complete or absent
    data.new          data being made; what a crash left of it is thrown away
    postgres.log      the server's log since its last start; postgres.log.1 is the one before
    .s.PGSQL.5432     the socket, if this path is short and plain enough; else it is in a private folder elsewhere

Invariant: whoever does not hold the lock changes nothing here.
"""

import fcntl
import hashlib
import os
import stat
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

from rota.errors import EmbeddedError
from rota.io.embedded_binaries import ServerUser, parse_major
from rota.io.embedded_probe import DATABASE, PORT, ROLE, State, ask, socket_file

SOCKET_PATH_BYTES_MAX = 107 if sys.platform == "linux" else 103  # sun_path in sys/un.h, less its closing zero
LOG_LINES_MAX = 12  # in an error: PostgreSQL says what is wrong in its last few lines
LOG_TAIL_BYTES_MAX = 8_192

_OWN_NAMES = frozenset(
    {"data", "data.new", "lock", "postgres.log", "postgres.log.1", f".s.PGSQL.{PORT}", f".s.PGSQL.{PORT}.lock"}
)


@dataclass(frozen=True, slots=True)
class Postmaster:
    """What a server says about itself in `postmaster.pid`; the socket comes a moment after the pid."""

    pid: int
    port: int = PORT
    socket_folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Folder:
    """One folder, as an absolute path without symbolic links: two programs must mean the same place by it."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> Self:
        """Makes it from any path."""
        return cls(path.expanduser().resolve())

    @property
    def data(self) -> Path:
        """PGDATA."""
        return self.path / "data"

    @property
    def new_data(self) -> Path:
        """Where data is made before it gets its name."""
        return self.path / "data.new"

    @property
    def log(self) -> Path:
        """The server's log."""
        return self.path / "postgres.log"

    @property
    def pidfile(self) -> Path:
        """The file in which a running server says its pid and its socket folder."""
        return self.data / "postmaster.pid"

    @property
    def socket_folder(self) -> Path:
        """Where a server of this folder makes its socket: here, or in a private folder named by a hash of the path.

        Raises:
            EmbeddedError: even the folder for temporary files has too long a path.
        """
        if socket_fits(self.path):
            return self.path
        name = "rota-" + hashlib.sha256(os.fsencode(self.path) + b"\0%d" % os.geteuid()).hexdigest()[:16]
        for place in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - the folder in it is checked for its owner and mode
            if socket_fits(folder := Path(place, name)):
                return folder
        raise EmbeddedError(f"{tempfile.gettempdir()} is too long a path for a socket: set TMPDIR to a shorter one.")

    def prepare(self) -> None:
        """Makes the folder, for its owner alone, and refuses one that holds something else.

        Raises:
            EmbeddedError: it holds something that is not ours.
            OSError: it cannot be made, read or closed to others.
        """
        if "\n" in str(self.path):
            raise EmbeddedError(f"{str(self.path)!r} has a line break in it, which PostgreSQL cannot use as a folder.")
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._refuse_foreign()
        if stat.S_IMODE(self.path.stat().st_mode) & 0o077:  # whoever reaches the socket is superuser
            self.path.chmod(0o700)

    def give_to(self, user: ServerUser) -> None:
        """Gives the folder and all in it to the server's user, if it is not that user's already."""
        if user.uid is not None and self.path.stat().st_uid != user.uid:
            user.own_tree(self.path)

    def _refuse_foreign(self) -> None:
        if (self.data / "PG_VERSION").is_file():
            return
        names = {entry.name for entry in self.path.iterdir()}
        if "data" in names and not (self.data.is_dir() and not any(self.data.iterdir())):
            raise EmbeddedError(f"{self.data} is not a PostgreSQL data folder: choose another folder.")
        if "PG_VERSION" in names:
            raise EmbeddedError(f"{self.path} is itself a PostgreSQL data folder: choose a new folder for Rota.")
        if foreign := sorted(names - _OWN_NAMES):
            raise EmbeddedError(
                f"{self.path} is not empty and holds no PostgreSQL data (it has {foreign[0]!r}): choose another folder."
            )

    def try_lock(self) -> int | None:
        """Takes the lock, if nobody holds it, and writes this process's pid into it.

        Returns:
            A descriptor that the caller closes. The lock is over when it and all its copies in children are closed.
        """
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.geteuid() == 0:  # the folder's owner must be able to open it later
                owner = self.path.stat()
                os.fchown(lock, owner.st_uid, owner.st_gid)
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            os.close(lock)
            return None
        except BaseException:
            os.close(lock)
            raise
        return lock

    def lock_holder(self) -> str:
        """Names the process that last took the lock, for a message."""
        text = (self.path / "lock").read_text("ascii", errors="replace").strip()
        return f"process {text}" if text.isdigit() else "another process"

    def postmaster(self) -> Postmaster | None:
        """Reads what the running server says, or what a dead one left; None without either."""
        try:
            return parse_postmaster(self.pidfile.read_bytes())
        except FileNotFoundError:
            return None

    def major(self) -> int | None:
        """Reads the major version of the data; None without data.

        Raises:
            EmbeddedError: the data names no version.
        """
        try:
            return parse_major((self.data / "PG_VERSION").read_text("ascii", errors="replace"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise EmbeddedError(f"{self.data} is not a PostgreSQL data folder: choose another folder.") from error

    def log_tail(self) -> str:
        """Reads the last lines of the server's log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - LOG_TAIL_BYTES_MAX))
                return tail(file.read())
        except OSError:
            return ""

    def clear_stale(self) -> None:
        """Removes what a server left that was killed. The caller holds the lock, so no server of ours runs.

        PostgreSQL would do it, but not when an unrelated process has the dead server's pid, which is common after the
        restart of a container.

        Raises:
            EmbeddedError: a server that Rota did not start runs on the data.
        """
        left = self.postmaster()
        if left is None:
            return
        answers = left.socket_folder and ask(left.socket_folder, port=left.port).state is not State.AWAY
        if answers or _works_in(left.pid, self.data):
            raise EmbeddedError(
                f"A PostgreSQL server that Rota did not start (process {left.pid}) runs on {self.data}: stop it first."
            )
        self.pidfile.unlink(missing_ok=True)
        file = socket_file(self.socket_folder)
        file.unlink(missing_ok=True)
        file.with_name(file.name + ".lock").unlink(missing_ok=True)

    def open_log(self, user: ServerUser) -> int:
        """Keeps the log of the start before as `postgres.log.1`, and opens a new one, which the caller closes."""
        if self.log.exists():
            self.log.replace(self.log.with_name("postgres.log.1"))
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        user.own(self.log)
        return log

    def make_socket_folder(self, user: ServerUser) -> Path:
        """Makes the socket folder, if it is not this folder.

        Raises:
            EmbeddedError: somebody else made a folder of that name, or opened it to others.
        """
        folder = self.socket_folder
        if folder == self.path:
            return folder
        try:
            folder.mkdir(mode=0o700)
            user.own(folder)
        except FileExistsError:
            found = folder.lstat()
            private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
            if not private or found.st_uid != (os.geteuid() if user.uid is None else user.uid):
                raise EmbeddedError(
                    f"{folder} is needed for a socket and belongs to somebody else: remove it."
                ) from None
        return folder

    def drop_socket_folder(self) -> None:
        """Removes the private socket folder, if there is one. The caller holds the lock."""
        if self.socket_folder != self.path:
            with suppress(OSError):  # gone, or not empty: then it is not ours to remove
                self.socket_folder.rmdir()

    def drop_socket_folder_if_free(self) -> None:
        """Removes the private socket folder after a stop, unless the next server already uses it."""
        with suppress(OSError):  # somebody may have removed the whole folder
            if self.socket_folder != self.path and (lock := self.try_lock()) is not None:
                try:
                    self.drop_socket_folder()
                finally:
                    os.close(lock)


def socket_fits(folder: Path) -> bool:
    """Says whether a socket in this folder can be named: to the kernel (short), and in a DSN (UTF-8, no list)."""
    path = os.fsencode(socket_file(folder))
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return len(path) <= SOCKET_PATH_BYTES_MAX and "," not in text and text.isprintable()


def dsn_of(socket_folder: Path) -> str:
    """Writes the address of database `rota` behind a socket folder, as every driver reads it.

    The port is said too: drivers would else take PGPORT from the user's environment.
    """
    return f"postgresql://{ROLE}@/{DATABASE}?host={quote(str(socket_folder), safe='')}&port={PORT}"


def parse_postmaster(content: bytes) -> Postmaster | None:
    """Reads `postmaster.pid`: line 1 is the pid, line 4 the port, line 5 the socket folder; None without a pid."""
    lines = content.split(b"\n")
    if not lines[0].strip().isdigit():
        return None
    pid = int(lines[0])
    if len(lines) < 6 or not lines[3].isdigit() or not lines[4]:  # the last of the lines is not complete
        return Postmaster(pid)
    return Postmaster(pid, int(lines[3]), Path(os.fsdecode(lines[4])))


def tail(output: bytes) -> str:
    """Keeps the last lines of a program's output, each on a line of its own after a line break; empty without any."""
    lines = [line for line in output[-LOG_TAIL_BYTES_MAX:].decode("utf-8", "replace").splitlines() if line.strip()]
    return "".join(f"\n  {line}" for line in lines[-LOG_LINES_MAX:])


def _works_in(pid: int, folder: Path) -> bool:
    """Says whether a process has this working folder, as a PostgreSQL server has its data; only Linux tells."""
    try:
        return Path("/proc", str(pid), "cwd").samefile(folder)
    except OSError:
        return False
