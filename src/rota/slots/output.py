"""What is kept of a command's stdout and stderr while they go by: bounded, counted to the byte. Pure."""

import re
from typing import Final, TypeVar

from blake3 import blake3

from rota.slots.messages import STDOUT_PREFIX_BYTES_MAX

STDERR_HEAD_BYTES: Final = 4 * 1024
STDERR_TAIL_BYTES: Final = 16 * 1024
"""Where the line that says what went wrong is looked for: at the end, then at the beginning."""
LINE_LENGTH_MAX: Final = 500
_DIGEST_PREFIX: Final = "blake3:"

Data = TypeVar("Data", bytes, memoryview)

_TELLING: Final = re.compile(
    r"error|exception|fatal|panic|fail|cannot|can't|could not|unable|invalid|denied|refused|not found|no such|no space"
    r"|killed|abort|unknown|unrecognized|unsupported|missing|out of memory",
    re.IGNORECASE,
)
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f\x7f]")
_BREAKS: Final = re.compile(r"[\r\n]+")


class Digest:
    """What a stream is summed up in on both of its sides: BLAKE3, which keeps up with a fast network."""

    def __init__(self) -> None:
        self._hash = blake3()

    def update(self, data: bytes | memoryview) -> None:
        """What has come."""
        self._hash.update(data)

    @property
    def text(self) -> str:
        """The name of the digest, a colon, and 64 hexadecimal digits."""
        return _DIGEST_PREFIX + self._hash.hexdigest()

    def denies(self, said: str | None) -> bool:
        """Whether the other side tells of other bytes; what is another kind of digest denies nothing."""
        return said is not None and said.startswith(_DIGEST_PREFIX) and said != self.text


def digest_of(data: bytes) -> str:
    """The digest of bytes that are all there, as `Digest.text`."""
    digest = Digest()
    digest.update(data)
    return digest.text


DIGEST_OF_NOTHING: Final = digest_of(b"")


class Stdout:
    """Counts and digests stdout, and keeps its beginning.

    Attributes:
        count: bytes that the command wrote.
    """

    def __init__(self, bytes_max: int) -> None:
        self.count = 0
        self._bytes_max = bytes_max
        self._prefix = bytearray()
        self._digest: Digest | None = None  # many commands say nothing

    @property
    def over(self) -> bool:
        """Whether the command wrote more than it may."""
        return self.count > self._bytes_max

    def take(self, data: Data) -> Data:
        """What has come; returns what of it may go on."""
        allowed = data[: max(0, self._bytes_max - self.count)] if self.count + len(data) > self._bytes_max else data
        self.count += len(data)
        if self._digest is None:
            self._digest = Digest()
        self._digest.update(data)
        room = STDOUT_PREFIX_BYTES_MAX - len(self._prefix)
        if room > 0:
            self._prefix += allowed[:room]
        return allowed

    @property
    def prefix(self) -> bytes:
        """The first bytes."""
        return bytes(self._prefix)

    @property
    def digest(self) -> str:
        """Of all of it, as `Digest.text`."""
        return DIGEST_OF_NOTHING if self._digest is None else self._digest.text

    def dropped(self, *, delivered: bool, streamed: bool) -> int:
        """How many bytes reached nobody.

        Args:
            delivered: whether a stream took all of it and ended well.
            streamed: whether there was to be a stream.
        """
        if streamed:
            return 0 if delivered else max(0, self.count - len(self._prefix))
        return self.count - len(self._prefix)


class Stderr:
    """Keeps the beginning and the end of stderr, and the line that it shows last."""

    def __init__(self) -> None:
        self.count = 0
        self._head = bytearray()
        self._tail = bytearray()

    def take(self, data: bytes) -> None:
        """What has come."""
        self.count += len(data)
        if len(self._head) < STDERR_HEAD_BYTES:
            self._head += data[: STDERR_HEAD_BYTES - len(self._head)]
        self._tail += data[-STDERR_TAIL_BYTES:]
        if len(self._tail) > 2 * STDERR_TAIL_BYTES:
            del self._tail[:-STDERR_TAIL_BYTES]

    @property
    def last_line(self) -> str | None:
        """The newest line, for people who watch."""
        lines = lines_of(bytes(self._tail[-2048:]))
        return lines[-1] if lines else None

    @property
    def decisive_line(self) -> str | None:
        """The line that says most about why the command failed."""
        tail = lines_of(bytes(self._tail))
        return (
            next((line for line in reversed(tail) if _TELLING.search(line)), None)
            or next((line for line in lines_of(bytes(self._head)) if _TELLING.search(line)), None)
            or (tail[-1] if tail else None)
        )


def lines_of(data: bytes) -> list[str]:
    """The lines that hold something, without escapes and cut to a bounded length; a carriage return ends one too."""
    found = []
    for line in _BREAKS.split(data.decode("utf-8", "replace")):
        text = _ESCAPES.sub("", line).strip()
        if text:
            found.append(text[:LINE_LENGTH_MAX])
    return found
