"""What a paired device keeps: its name at the gateway and its Ed25519 key, in one file that only its user may read.

The key is made here and never leaves this machine; a gateway gets its public half. The file is written whole or not at
all. One that others may read is refused, as ssh refuses such a key: it must count as known to them.

Spec: runners, "Connection handshake and authentication".
"""

import base64
import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rota.errors import SettingsError

FILE_NAME: Final = "device.json"
NEXT_NAME: Final = "device.next.json"
"""The pairing with its next key, while that is registered: one whose answer was lost on the way is not lost itself."""
MODE: Final = 0o600
BEGUN_NAME: Final = "device.begun.json"
"""A pairing that was asked for and not yet answered."""
FILE_BYTES_MAX: Final = 64 * 1024


class Identity(msgspec.Struct, frozen=True, rename="camel"):
    """One pairing: this device at one gateway. Its key is not shown."""

    gateway: str
    device_id: str
    org_id: str
    name: str
    private_key: str

    def __repr__(self) -> str:
        return f"Identity(gateway={self.gateway!r}, device_id={self.device_id!r}, org_id={self.org_id!r})"

    @property
    def public_key(self) -> str:
        """The public half of its key, in base64url."""
        return public_of(self.private_key)

    @property
    def key(self) -> Ed25519PrivateKey:
        """The private key.

        Raises: ValueError if the file holds something else.
        """
        return _key_of(self.private_key)


class Begun(msgspec.Struct, frozen=True, rename="camel"):
    """A pairing that was asked for: its key, which is not shown, and for which code, as SHA-256 in hexadecimal."""

    code_hash: str
    private_key: str

    def __repr__(self) -> str:
        return "Begun(…)"


Kept = TypeVar("Kept", Identity, Begun)


def new_key() -> tuple[str, str]:
    """A new key: its private and its public half, each 32 bytes in base64url without padding."""
    key = Ed25519PrivateKey.generate()
    return _text(key.private_bytes_raw()), _text(key.public_key().public_bytes_raw())


def write_identity(folder: Path, identity: Identity, *, name: str = FILE_NAME) -> Path:
    """Keeps a pairing, in place of any older one.

    Raises: OSError.
    """
    return _write(folder, name, identity)


def begun_key(folder: Path, code_hash: str) -> str:
    """The private key for a pairing with this code: that of a request before whose answer was lost, else a new one,
    kept until `end_pairing`.

    Raises: OSError.
    """
    try:
        begun = _read(folder / BEGUN_NAME, Begun)
    except SettingsError:
        begun = None  # nobody can have been promised anything by it
    if begun is None or begun.code_hash != code_hash:
        begun = Begun(code_hash, new_key()[0])
        _write(folder, BEGUN_NAME, begun)
    return begun.private_key


def end_pairing(folder: Path) -> None:
    """The pairing that was asked for is kept: its beginning is not needed any more.

    Raises: OSError.
    """
    (folder / BEGUN_NAME).unlink(missing_ok=True)


def _write(folder: Path, name: str, content: Identity | Begun) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, made = tempfile.mkstemp(prefix=FILE_NAME, dir=folder)  # made with 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), MODE)
            file.write(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, folder / name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise
    return folder / name


def take_next(folder: Path) -> Path:
    """The next key was registered: it is the device's key from now on.

    Raises: OSError.
    """
    os.replace(folder / NEXT_NAME, folder / FILE_NAME)
    return folder / FILE_NAME


def read_identity(folder: Path, *, name: str = FILE_NAME) -> Identity | None:
    """The pairing that is kept here; None: this device is not paired.

    Raises: SettingsError if the file may be read by others, or is not what `write_identity` writes.
    """
    return _read(folder / name, Identity)


def _read(path: Path, kind: type[Kept]) -> Kept | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise SettingsError(f"{path} is no file. Remove it, and pair this device with `rota runner pair CODE`.")
        if found.st_mode & 0o077:
            raise SettingsError(
                f"{path} may be read by others, and it holds the key of this device. Pair it again, "
                "or set its mode to 0600 if nobody has seen it."
            )
        content = file.read(FILE_BYTES_MAX)
    try:
        kept = msgspec.json.decode(content, type=kind)
        _key_of(kept.private_key)
    except (msgspec.DecodeError, ValueError):
        raise SettingsError(f"{path} holds no pairing. Pair this device again with `rota runner pair CODE`.") from None
    return kept


def public_of(private_key: str) -> str:
    """The public half of a key, in base64url.

    Raises: ValueError if it is no key.
    """
    return _text(_key_of(private_key).public_key().public_bytes_raw())


def _key_of(text: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(base64.urlsafe_b64decode(text + "=="))


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
