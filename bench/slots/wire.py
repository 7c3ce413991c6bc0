"""A client's connection that does as little as it can: all that comes in one read is answered by one write."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

READ_BYTES: Final = 64 * 1024
PATIENCE_S: Final = 60.0


class Wire:
    """One websocket; blocks while it waits."""

    def __init__(self, wire: socket.socket, protocol: ClientProtocol) -> None:
        self._wire = wire
        self._protocol = protocol

    def say(self, frame: bytes) -> None:
        """Takes a frame; it goes out before the next read."""
        self._protocol.send_text(frame)

    def hear(self) -> list[bytes]:
        """Sends what was said, and waits for whatever comes."""
        self._flush()
        self._protocol.receive_data(self._wire.recv(READ_BYTES))
        return [
            bytes(event.data)
            for event in self._protocol.events_received()
            if isinstance(event, Frame) and event.opcode is Opcode.TEXT
        ]

    def _flush(self) -> None:
        data = b"".join(self._protocol.data_to_send())
        if data:
            self._wire.sendall(data)


@contextmanager
def open_wire(host: str, port: int) -> Iterator[Wire]:
    """A connection to an exec server."""
    with socket.create_connection((host, port), PATIENCE_S) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol = ClientProtocol(parse_uri(f"ws://{host}:{port}/broker"), max_size=None)
        protocol.send_request(protocol.connect())
        made = Wire(plain, protocol)
        made.hear()
        yield made
