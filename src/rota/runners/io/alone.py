"""One runner on a machine works with one state folder: two with the key of one device would end each other's
connections for ever, because the newest wins.

The lock ends with the process, however that ends.

Spec: runners, "Connection handshake and authentication".
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rota.errors import SettingsError

LOCK_NAME: Final = "lock"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds a state folder, which is made if it is missing.

    Raises: SettingsError if another runner holds it, or it cannot be used.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(f"The state folder {folder} cannot be used: {error.strerror}.") from None
    try:
        _lock(folder, descriptor)
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SettingsError(
            f"The state folder {folder} is used by another runner on this machine. One is enough: ROTA_RUNNER_SLOTS "
            "says how many jobs it takes at once. Another one needs its own ROTA_RUNNER_STATE, and name or pairing."
        ) from None
    except OSError as error:
        raise SettingsError(f"The state folder {folder} cannot be locked: {error.strerror}.") from None
