"""A transport that writes once for all that is said in one turn of the event loop, and stops reading only when asked to
for longer than that.

A websocket library writes each frame on its own, and each write wakes whoever reads at the other end: two frames that
belong together cost it two turns. Some also stop and resume reading around every frame. Both are calls to the system
that change nothing. What is given here is safe with any protocol: bytes stay in order, and go out before a close.
"""

import asyncio
from typing import Any, Final

AT_ONCE_BYTES: Final = 64 * 1024
"""So much is written without waiting for the end of the turn: the transport says when it is enough."""


class BatchedTransport:
    """Stands in front of a transport, for the protocol that was handed this instead.

    Args:
        transport: what it writes to. Everything that is not said here is its own.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._reads = True
        self._wants_to_read = True
        self._due = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Takes bytes; they go out at the end of this turn of the loop."""
        self._pieces.append(data)
        self._bytes += len(data)
        if self._bytes >= AT_ONCE_BYTES:
            self._flush()
        else:
            self._at_end_of_turn()

    def writelines(self, pieces: list[bytes]) -> None:
        """Takes several."""
        self.write(b"".join(pieces))

    def pause_reading(self) -> None:
        """Stops reading, unless it is resumed in this turn of the loop."""
        self._wants_to_read = False
        self._at_end_of_turn()

    def resume_reading(self) -> None:
        """Reads on."""
        self._wants_to_read = True
        self._at_end_of_turn()

    def get_write_buffer_size(self) -> int:
        """Bytes that are not with the system yet."""
        return self._transport.get_write_buffer_size() + self._bytes

    def write_eof(self) -> None:
        """Says that this was all."""
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        """Closes when all is written."""
        self._flush()
        self._transport.close()

    def _at_end_of_turn(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn_ends)

    def _turn_ends(self) -> None:
        self._due = False
        self._flush()
        if self._reads != self._wants_to_read and not self._transport.is_closing():
            self._reads = self._wants_to_read
            (self._transport.resume_reading if self._reads else self._transport.pause_reading)()

    def _flush(self) -> None:
        pieces, self._pieces, self._bytes = self._pieces, [], 0
        if pieces:
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
