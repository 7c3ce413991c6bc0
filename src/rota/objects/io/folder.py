"""A folder as a store of objects, so that a laptop needs nothing else.

Each object is one file, written beside its place and moved there when it is whole: a reader never sees half of one, and
what an upload that broke off has left is removed. A folder of a key ends in `+`, which no quoted name has, so that `a`
and `a/b` are both objects; a name that is too long for one file goes on in a folder that ends in `++`.
`rota.objects.io.folder_server` serves the URLs that are minted here.
"""

import asyncio
import contextlib
import itertools
import mimetypes
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO, Final, TypeVar
from urllib.parse import quote, unquote

from rota.errors import ObjectError, ObjectNotFound
from rota.objects.keys import STAGING, VERIFYING, check_key
from rota.objects.signing import Grant, signed_url
from rota.objects.store import CONTENT_TYPE, GET_S, PUT_S, Head, check_content_type, check_expires_s

CHUNK_BYTES: Final = 1024 * 1024
SECRET_BYTES: Final = 32
LEFT_S: Final = 24 * 3600
"""After so long no upload goes on, and no output waits to be judged; as the lifecycle rule that a bucket is given."""
T = TypeVar("T")

NAME_MAX: Final = 240
"""Of the 255 bytes that a name of a file has on most systems: room for what is added. A letter may take twelve."""
TYPE: Final = "+type"
"""Ends the name of the file that holds an object's content type."""


class FolderStore:
    """The objects in one folder.

    Args:
        folder: is made if it is not there; nobody else may write to it.
        base_url: where `folder_server` serves it, as a runner dials it, such as `https://media.example.org/objects`.
        secret: signs the URLs; None: one that is kept in the folder and shared by all who use it.
        clock: seconds since 1970.
    """

    def __init__(
        self, folder: Path, *, base_url: str, secret: bytes | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._objects = folder / "objects"
        self._incoming = folder / "incoming"
        for path in (folder, self._objects, self._incoming):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (self._incoming, *(self._objects / f"{name}+" for name in (STAGING, VERIFYING))):
            _remove_left(path, clock())
        self._base_url = base_url.rstrip("/")
        self.secret: Final = secret if secret is not None else _kept_secret(folder / "secret")
        self.clock: Final = clock

    async def mint_get(self, key: str, *, expires_s: int = GET_S) -> str:
        """See `ObjectStore`."""
        return self._minted("GET", key, expires_s, "")

    async def mint_put(self, key: str, *, content_type: str = CONTENT_TYPE, expires_s: int = PUT_S) -> str:
        """See `ObjectStore`."""
        return self._minted("PUT", key, expires_s, check_content_type(content_type))

    async def head(self, key: str) -> Head | None:
        """See `ObjectStore`."""
        path = self._path(key)
        return await _in_thread(lambda: _head(path))

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        """See `ObjectStore`."""
        for key in await asyncio.to_thread(self._found, prefix):
            yield key

    async def copy(self, source: str, target: str) -> None:
        """See `ObjectStore`."""
        found, to = self._path(source), self._path(target)

        def copied() -> None:
            part = self._part()
            try:
                shutil.copyfile(found, part)
                _place(part, to, _type_of(found))
            except FileNotFoundError:
                raise ObjectNotFound(f"There is no object {source!r}.") from None
            finally:
                part.unlink(missing_ok=True)

        await _in_thread(copied)

    async def delete(self, key: str) -> None:
        """See `ObjectStore`."""
        path = self._path(key)

        def removed() -> None:
            path.unlink(missing_ok=True)
            _type_path(path).unlink(missing_ok=True)

        await _in_thread(removed)

    async def read(self, key: str) -> AsyncIterator[bytes]:
        """See `ObjectStore`."""
        with await self.open(key) as file:
            while chunk := await _in_thread(lambda: file.read(CHUNK_BYTES)):
                yield chunk

    async def open(self, key: str) -> BinaryIO:
        """The object's file; what is written to the key from now on does not change it.

        Raises: ObjectNotFound.
        """
        path = self._path(key)

        def opened() -> BinaryIO:
            try:
                return path.open("rb")
            except (FileNotFoundError, NotADirectoryError):
                raise ObjectNotFound(f"There is no object {key!r}.") from None

        return await _in_thread(opened)

    async def write(self, key: str, content: bytes | AsyncIterable[bytes], *, content_type: str = CONTENT_TYPE) -> None:
        """See `ObjectStore`."""
        check_content_type(content_type)
        path, part = self._path(key), self._part()
        try:
            file = await _in_thread(lambda: part.open("xb"))
            try:
                if isinstance(content, bytes):
                    await _in_thread(lambda: file.write(content))
                else:
                    async for chunk in content:
                        await _in_thread(lambda data=chunk: file.write(data))  # type: ignore[misc]
                await _in_thread(file.flush)
            finally:
                # What could not be written before is tried again here, and was told already.
                with contextlib.suppress(OSError):
                    file.close()
            await _in_thread(lambda: _place(part, path, content_type))
        finally:
            part.unlink(missing_ok=True)

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _minted(self, method: str, key: str, expires_s: int, content_type: str) -> str:
        grant = Grant(method, check_key(key), int(self.clock()), check_expires_s(expires_s), content_type)
        return signed_url(self._base_url, self.secret, grant)

    def _path(self, key: str) -> Path:
        *folders, name = (_pieces(part) for part in check_key(key).split("/"))
        ended = [[*begin, f"{end}+"] for *begin, end in folders]
        return self._objects.joinpath(*itertools.chain(*ended, name))

    def _part(self) -> Path:
        return self._incoming / secrets.token_hex(16)

    def _found(self, prefix: str) -> list[str]:
        found = []
        for folder, _, names in os.walk(self._objects):
            parts = Path(folder).relative_to(self._objects).parts
            begin = "".join(part[:-2] if part.endswith("++") else f"{part[:-1]}/" for part in parts)
            for name in names:
                key = unquote(begin + name)
                if not name.endswith(TYPE) and key.startswith(prefix):
                    found.append(key)
        return sorted(found)


def _pieces(part: str) -> list[str]:
    """The names that one part of a key has: a long one is a folder for its beginning, which ends in `++`."""
    quoted = quote(part, safe="")
    if len(quoted) > NAME_MAX:
        quoted = quoted.replace(".", "%2E")  # the end alone could be a dot, or two
    *begin, end = (quoted[at : at + NAME_MAX] for at in range(0, len(quoted), NAME_MAX))
    return [*(f"{piece}++" for piece in begin), end]


async def _in_thread(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        raise ObjectError(f"The folder of objects cannot be used: {error.strerror}.") from None


def _remove_left(folder: Path, now: float) -> None:
    """Removes what nobody waits for any more: uploads to a server that was killed, and those that came when the job
    was over."""
    for within, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                path = Path(within, name)
                if path.stat().st_mtime < now - LEFT_S:
                    path.unlink()


def _head(path: Path) -> Head | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Head(found.st_size, f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}", _type_of(path))


def _type_path(path: Path) -> Path:
    return path.with_name(path.name + TYPE)


def _type_of(path: Path) -> str:
    with contextlib.suppress(OSError):
        return _type_path(path).read_text()
    return mimetypes.guess_type(path.name)[0] or CONTENT_TYPE


def _place(part: Path, path: Path, content_type: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kind = part.with_name(part.name + TYPE)
    kind.write_text(content_type)
    os.replace(kind, _type_path(path))
    os.replace(part, path)


def _kept_secret(path: Path) -> bytes:
    """Made by whoever comes first, whole from its first moment."""
    own = path.with_name(f"secret-{secrets.token_hex(8)}")
    own.write_bytes(secrets.token_bytes(SECRET_BYTES))
    own.chmod(0o600)
    try:
        os.link(own, path)
    except FileExistsError:
        pass
    finally:
        own.unlink()
    return path.read_bytes()
