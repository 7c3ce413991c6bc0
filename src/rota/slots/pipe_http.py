"""What pipes use of HTTP/1.1: one request on a connection, its answer, and bodies whose end is said. Pure.

Heads are read and written by h11. Bodies are not: they are gigabytes, and here they are looked at where they lie.

Spec: RFC 9112, sections 6 and 7.
"""

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from http import HTTPStatus
from typing import Final, NamedTuple

import h11

HEAD_BYTES_MAX: Final = 8 * 1024
"""What a head may be long: one of ours has 200 bytes."""
LINE_BYTES_MAX: Final = 256
"""What the line with a chunk's size may be long, with extensions, which nobody uses; and a line of a trailer."""
TRAILER_BYTES_MAX: Final = 8 * 1024
GO_ON: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""The word for who asks before it sends."""
CHUNK_END: Final = b"\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"

_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")


class BadMessage(Exception):
    """The other side does not speak HTTP/1.1, or breaks its rules."""


class _Part(Enum):
    """What of a body comes next."""

    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILER = auto()
    NOTHING = auto()


class Body:
    """The body of a message, told piece by piece as it comes.

    Attributes:
        length: how many bytes were announced; None: it comes in chunks.
        count: how many have come.

    Args:
        length: as the attribute.
    """

    def __init__(self, length: int | None) -> None:
        self.length = length
        self.count = 0
        self._left = length or 0
        """Bytes that are still to come, of this chunk or of all of it."""
        self._line = bytearray()
        self._trailer_bytes = 0
        self._next = _Part.SIZE if length is None else _Part.DATA if length else _Part.NOTHING

    @property
    def ended(self) -> bool:
        """Whether all of it has come."""
        return self._next is _Part.NOTHING

    def feed(self, data: memoryview) -> Iterator[memoryview]:
        """The parts of what has come that belong to the body, not copied. What follows the body is left out.

        Raises: BadMessage where its chunks are not well-formed, after the parts before that.
        """
        while data and self._next is not _Part.NOTHING:
            if self._next is _Part.DATA:
                piece = data[: self._left]
                data = data[len(piece) :]
                self._took(len(piece))
                yield piece
            else:
                data = self._take_line(data)

    def _took(self, count: int) -> None:
        self.count += count
        self._left -= count
        if self._left == 0:
            self._next = _Part.DATA_END if self.length is None else _Part.NOTHING

    def _take_line(self, data: memoryview) -> memoryview:
        """Takes what is no data, at most to the end of its line; returns the rest."""
        room = LINE_BYTES_MAX - len(self._line)
        found = bytes(data[:room]).find(b"\n") + 1
        if not found and len(data) >= room:
            raise BadMessage("a line between its chunks is too long")
        self._line += data[: found or len(data)]
        if found:
            line = bytes(self._line)
            self._line.clear()
            self._next = self._after(line)
        return data[found:] if found else data[:0]

    def _after(self, line: bytes) -> _Part:
        if self._next is _Part.TRAILER:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > TRAILER_BYTES_MAX:
                raise BadMessage("its trailer is too long")
            return _Part.NOTHING if line == CHUNK_END else _Part.TRAILER
        if self._next is _Part.DATA_END:
            if line != CHUNK_END:
                raise BadMessage("a chunk is longer than it says")
            return _Part.SIZE
        size = _SIZE_LINE.fullmatch(line)
        if size is None:
            raise BadMessage("a chunk does not say its size")
        self._left = int(size[1], 16)
        return _Part.DATA if self._left else _Part.TRAILER


def size_line(size: int) -> bytes:
    """What stands before a chunk of so many bytes, at least one; CHUNK_END follows it."""
    return b"%x\r\n" % size


class Request(NamedTuple):
    """The head of a request.

    Attributes:
        method: in capitals, as the other side wrote it.
        target: what stands in its first line, as it stands there.
        body: what follows; empty where none is announced.
        asks_first: whether the other side waits for GO_ON before it sends the body.
        ranged: whether it is about a part of what the target names.
        rest: what has come after the head: the beginning of the body.
    """

    method: str
    target: str
    body: Body
    asks_first: bool
    ranged: bool
    rest: bytes


class Answer(NamedTuple):
    """The head of an answer.

    Attributes:
        status: 200 to 999.
        body: what follows; None: it ends where the connection ends, so that its end cannot be trusted.
        rest: what has come after the head: the beginning of the body.
    """

    status: int
    body: Body | None
    rest: bytes


class RequestReader:
    """Reads the head of a request."""

    def __init__(self) -> None:
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)

    def feed(self, data: bytes) -> Request | None:
        """What has come; returns the head when it is whole.

        Raises: BadMessage.
        """
        event = _next_event(self._connection, data)
        if not isinstance(event, h11.Request):
            return None
        if event.http_version != b"1.1":
            raise BadMessage("it is not HTTP/1.1")
        headers = dict(event.headers)
        return Request(
            method=event.method.decode("ascii"),
            target=event.target.decode("latin-1"),
            body=_framing(headers) or Body(0),
            asks_first=headers.get(b"expect", b"").lower() == b"100-continue",
            ranged=b"range" in headers or b"content-range" in headers,
            rest=self._connection.trailing_data[0],
        )


class AnswerReader:
    """Writes the head of a request, and reads that of its answer."""

    def __init__(self) -> None:
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)

    def request(self, method: str, host: str, target: str, *, chunked: bool) -> bytes:
        """The head of a request, whose body comes in chunks or is empty.

        Args:
            host: with the port; an IPv6 address in brackets.
        """
        headers = [("Host", host), ("Accept-Encoding", "identity"), ("Connection", "close")]
        if chunked:
            headers += [("Content-Type", "application/octet-stream"), ("Transfer-Encoding", "chunked")]
        said = self._connection.send(h11.Request(method=method, target=target, headers=headers))
        assert said is not None, "a request is something to send"
        return said

    def feed(self, data: bytes) -> Answer | None:
        """What has come; returns the head when it is whole.

        Raises: BadMessage.
        """
        event = _next_event(self._connection, data)
        while isinstance(event, h11.InformationalResponse):
            event = _next_event(self._connection)
        if not isinstance(event, h11.Response):
            return None
        headers = dict(event.headers)
        return Answer(event.status_code, _framing(headers), self._connection.trailing_data[0])


def answer_head(status: HTTPStatus, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """The head of an answer, after which the connection ends."""
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("ascii")


def _next_event(connection: h11.Connection, data: bytes = b"") -> object:
    try:
        if data:
            connection.receive_data(data)
        return connection.next_event()
    except h11.RemoteProtocolError as error:
        raise BadMessage(str(error)) from None


def _framing(headers: dict[bytes, bytes]) -> Body | None:
    """How the end of a body is said; None: not at all. h11 has refused what is malformed."""
    length = headers.get(b"content-length")
    if b"transfer-encoding" in headers:
        if length is not None:
            raise BadMessage("its body has a length and chunks")
        return Body(None)
    return None if length is None else Body(int(length))
