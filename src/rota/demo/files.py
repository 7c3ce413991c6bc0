"""Files of a person and files of ours: what may be read, and how a result gets its name only when it is whole."""

import asyncio
import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from rota.errors import MediaError


def checked(path: Path | str, *, out: Path | str | None = None) -> Path:
    """Make sure that a person's file is a file, and not the one that is about to be written.

    Args:
        path: The file to be read.
        out: What will be written, if anything.

    Returns:
        The absolute path.

    Raises:
        MediaError: It is missing, no regular file, or the same as `out`.
    """
    source = Path(os.path.abspath(path))
    try:
        mode = source.stat().st_mode
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise MediaError(f"{shown(source)} cannot be read: {reason}.") from error
    if not stat.S_ISREG(mode):  # a pipe or a device would never end
        raise MediaError(f"{shown(source)} is not a file.")
    if out is not None and os.path.exists(out) and os.path.samefile(source, out):
        raise MediaError(f"{shown(source)} would be overwritten by what is made from it: write it elsewhere.")
    return source


def size_of(path: Path) -> int:
    """Size in bytes of a file that was checked."""
    return path.stat().st_size


def shown(path: Path | str) -> str:
    """A path for a message: whatever cannot be printed (line breaks, undecodable bytes) is replaced."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(path))


@contextlib.contextmanager
def writing(out: Path | str) -> Iterator[Path]:
    """Give a temporary name beside `out`, and make sure that nothing stays under it; makes the folder if needed.

    Args:
        out: The file to be written. Call `publish` inside when it is whole.

    Yields:
        The absolute path to write to.

    Raises:
        MediaError: It cannot be written.
    """
    target = Path(os.path.abspath(out))
    part = target.with_name(f".rota-{secrets.token_hex(8)}.part")  # short: `out` may have the longest name allowed
    with _as_media_error(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield part
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


async def publish(part: Path, out: Path | str) -> int:
    """Give a whole file its name, in one step, replacing an older one.

    Args:
        part: The file, from `writing(out)`.
        out: Its name.

    Returns:
        Its size in bytes.

    Raises:
        MediaError: It cannot be written.
    """

    def rename() -> int:
        with _as_media_error(out):
            with part.open("rb+") as file:
                os.fsync(file.fileno())  # else a power cut may leave the name on an empty file
                size_bytes = os.fstat(file.fileno()).st_size
            os.replace(part, out)
        return size_bytes

    return await asyncio.to_thread(rename)


def remove_leftovers(folder: Path | str) -> int:
    """Delete what killed runs left under temporary names, in a folder and below. Call it when nothing writes there.

    Args:
        folder: Where results are written; may be missing.

    Returns:
        How many files were deleted.
    """
    leftovers = list(Path(folder).rglob(".rota-*.part"))
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    return len(leftovers)


def write_whole(path: Path, data: bytes) -> None:
    """Write all of a file under a temporary name from `writing`. Raises MediaError if it cannot be written."""
    with _as_media_error(path):
        path.write_bytes(data)


@contextlib.contextmanager
def _as_media_error(path: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MediaError(f"{shown(path)} cannot be written: {error.strerror}.") from error
