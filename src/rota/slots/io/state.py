"""What an exec server knows that outlives it: small JSON files, and the record of what runs.

A file is replaced whole. One that cannot be read is set aside and named in the log: the exec server starts without
what it held, because it is only experience.
"""

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from rota.errors import SettingsError
from rota.io.log import get_logger
from rota.slots.poison import BEGAN, ENDED, PoisonGuard, Suspect, left_running

SUSPECTS_FILE: Final = "suspects.json"
RECORD_FILE: Final = "running.log"
RECORD_BYTES_MAX: Final = 4 * 1024 * 1024
"""The record is written anew when it is longer, so that it stays small however long the exec server runs."""

T = TypeVar("T")

log = get_logger("rota.execserver")


class StateFile:
    """One JSON file that is replaced whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, kind: type[T]) -> T | None:
        """What was saved last; None: nothing, or nothing that can be read."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            log.warning("a state file cannot be read; it is set aside", path=str(self._path), error=str(error))
            with contextlib.suppress(OSError):
                self._path.replace(self._path.with_suffix(".bad"))
            return None

    def save(self, value: Any) -> None:
        """Replaces what was saved; a disk that refuses is named in the log."""
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(value))
            new.replace(self._path)
        except OSError as error:
            log.warning("a state file cannot be written", path=str(self._path), error=str(error))


class RunningRecord:
    """The record of what runs, in the state folder: a line when a command begins and one when it has ended.

    It is not forced to the disk for each command: it has to outlive the exec server, and a machine that dies is rarer.
    Without a folder nothing is recorded and nothing is refused.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._guard = PoisonGuard()
        self._descriptor = -1
        self._bytes = 0
        self._running: dict[str, int] = {}

    def open(self) -> None:
        """Reads what the exec server before this one left behind, and begins a new record; safe to repeat.

        Raises: SettingsError if the folder cannot be used, or another exec server uses it.
        """
        if self._folder is None or self._descriptor >= 0:
            return
        path = self._folder / RECORD_FILE
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close_file()
            raise SettingsError(
                f"The state folder {self._folder} is used by another exec server: give each its own."
            ) from None
        except OSError as error:
            self._close_file()
            raise SettingsError(f"The state folder {self._folder} cannot be used: {error.strerror}.") from None
        suspects = StateFile(self._folder / SUSPECTS_FILE)
        self._guard = PoisonGuard(suspects.load(dict[str, Suspect]))
        left = left_running(path.read_text("utf-8", "replace").splitlines())
        if left:
            log.warning("the exec server before this one ended while commands ran", commands=len(left))
            self._guard.crashed(left, time.time())
            suspects.save(self._guard.suspects())
        self._rewrite()

    @property
    def kept(self) -> bool:
        """Whether there is a record at all."""
        return self._folder is not None

    def refuses(self, subject: str) -> str | None:
        """Why this work is not begun; None: it may."""
        return self._guard.refuses(subject, time.time())

    def began(self, subject: str) -> None:
        """A command is about to run."""
        self._running[subject] = self._running.get(subject, 0) + 1
        self._write(f"{BEGAN} {subject}\n")

    def ended(self, subject: str) -> None:
        """It is over, however it ended."""
        self._running[subject] -= 1
        if not self._running[subject]:
            del self._running[subject]
        self._write(f"{ENDED} {subject}\n")
        if self._bytes > RECORD_BYTES_MAX:
            self._rewrite()

    def close(self) -> None:
        """The exec server ends in good order; safe to repeat."""
        if self._descriptor >= 0 and not self._running:
            self._rewrite()
        self._close_file()

    def _write(self, line: str) -> None:
        if self._descriptor >= 0:
            data = line.encode()
            with contextlib.suppress(OSError):  # a full disk: the guard sees less, commands go on
                os.write(self._descriptor, data)
            self._bytes += len(data)

    def _rewrite(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        self._bytes = 0
        for subject, count in self._running.items():
            for _ in range(count):
                self._write(f"{BEGAN} {subject}\n")

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
