"""A client's connection that does as little as it can: all that comes in one read is answered by one write."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.report import NotMeasured
from bench.websocket import TEXT, frame, request, whole

READ_BYTES: Final = 64 * 1024
PATIENCE_S: Final = 60.0


class Wire:
    """One websocket; blocks while it waits."""

    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire
        self._said: list[bytes] = []
        self._rest = b""

    def say(self, text: bytes) -> None:
        """Takes a text; it goes out before the next read."""
        self._said.append(frame(text))

    def hear(self) -> list[bytes]:
        """Sends what was said, and waits for whatever comes."""
        if self._said:
            self._wire.sendall(b"".join(self._said))
            self._said.clear()
        self._rest += self._receive()
        heard = []
        while (found := whole(self._rest)) is not None:
            opcode, text, self._rest = found
            if opcode == TEXT:
                heard.append(text)
        return heard

    def open(self, host: str) -> None:
        """Asks for the websocket, and waits until it is one."""
        self._wire.sendall(request(host, "/broker"))
        head, found = b"", b""
        while not found:
            head, found, self._rest = (head + self._receive()).partition(b"\r\n\r\n")
        if head.split(b" ", 2)[1] != b"101":
            raise NotMeasured(f"the exec server answered {head[:80]!r}")

    def _receive(self) -> bytes:
        data = self._wire.recv(READ_BYTES)
        if not data:
            raise NotMeasured("the exec server has closed the connection")
        return data


@contextmanager
def open_wire(host: str, port: int) -> Iterator[Wire]:
    """A connection to an exec server."""
    with socket.create_connection((host, port), PATIENCE_S) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made = Wire(plain)
        made.open(f"{host}:{port}")
        yield made
