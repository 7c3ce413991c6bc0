"""A websocket's client of the least size, so that thousands fit into one process: whole text frames, and nothing else.

The mask of its frames is zero, which leaves the text as it is. It checks nothing: the other end is ours.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from bench.websocket import CLOSE, TEXT, frame, request, whole


class Wire(asyncio.Protocol):
    """One connection.

    Args:
        host, path, subprotocol: of the request.
        opened: called when it is a websocket.
        heard: called with each text.
        lost: called once with the close code, or the status of an HTTP answer, or 0.
    """

    __slots__ = ("_buffer", "_code", "_request", "_upgraded", "heard", "lost", "opened", "transport")

    def __init__(
        self,
        host: str,
        path: str,
        subprotocol: str,
        *,
        opened: Callable[[], None],
        heard: Callable[[bytes], None],
        lost: Callable[[int], None],
    ) -> None:
        self._request = request(host, path, subprotocol=subprotocol)
        self._buffer = b""
        self._upgraded = False
        self._code = 0
        self.opened, self.heard, self.lost = opened, heard, lost
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asks for the upgrade."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        self.transport.write(self._request)
        self._request = b""

    def data_received(self, data: bytes) -> None:
        """Hands on each whole text."""
        rest = self._buffer + data
        if not self._upgraded:
            head, ended, rest = rest.partition(b"\r\n\r\n")
            if not ended:
                self._buffer = head
                return
            status = int(head.split(b" ", 2)[1])
            if status != 101:
                self._code = status
                self.cut()
                return
            self._upgraded = True
            self.opened()
        while (found := whole(rest)) is not None:
            opcode, text, rest = found
            if opcode == TEXT:
                self.heard(text)
            elif opcode == CLOSE:
                self._code = int.from_bytes(text[:2]) if text else 1005
                self.cut()
                return
        self._buffer = rest

    def connection_lost(self, exc: Exception | None) -> None:
        """Says so, once."""
        self.transport = None
        self.lost(self._code)

    def send(self, text: bytes) -> None:
        """Sends a text; nothing where there is no connection any more."""
        if self.transport is not None:
            self.transport.write(frame(text))

    def cut(self) -> None:
        """Ends it as a cut line does, without a goodbye."""
        if self.transport is not None:
            self.transport.abort()
