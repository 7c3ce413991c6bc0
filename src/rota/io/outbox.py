"""What is still to be written to one websocket, so that nobody waits for a slow reader.

Frames go out in the order in which they were put. An outbox has a bound: a client that reads so slowly that it is
reached loses its connection instead of filling the memory.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

OUTBOX_BYTES_MAX: Final = 8 * 1024 * 1024
"""Unsent bytes of one client; some tens of thousands of frames, what a burst of grants and receipts may take."""
FRAME_COST_BYTES: Final = 64
"""What a frame takes beside its bytes, so that many empty ones are bounded too."""
WRITE_TIMEOUT_S: Final = 20.0
"""A frame that cannot be written for so long, while there are more, means that nobody reads."""


class Outbox:
    """The frames to one client.

    Args:
        send: writes one frame; waits while the connection takes no more.
        clock: seconds of a clock that never steps.
        bytes_max: what may be unsent.
        at_once: writes one frame if that can be done without waiting; says whether it did. None: it never can.
    """

    def __init__(
        self,
        send: Callable[[str], Awaitable[None]],
        clock: Callable[[], float],
        *,
        bytes_max: int = OUTBOX_BYTES_MAX,
        at_once: Callable[[str], bool] | None = None,
    ) -> None:
        self._at_once = at_once
        self._bytes_max = bytes_max
        self._send = send
        self._clock = clock
        self._frames: deque[str] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._began_at: float | None = None  # when the frame that is being written began to be
        self._closed = False
        self.overflowed = False

    def put(self, frame: str) -> None:
        """Adds a frame; after `overflowed`, or `close`, it is thrown away."""
        if self._closed or self.overflowed:
            return
        if self._write_at_once(frame):
            return
        self._frames.append(frame)
        self._bytes += len(frame) + FRAME_COST_BYTES
        began_at = self._began_at
        if self._bytes > self._bytes_max or (began_at is not None and self._clock() - began_at > WRITE_TIMEOUT_S):
            self.overflowed = True
            self._frames.clear()
            if self._writer is not None:
                self._writer.cancel()  # it waits for the one who does not read
        self._wake.set()

    def _write_at_once(self, frame: str) -> bool:
        """Writes a frame after all that are there; False: nobody can, now. What is there may be fewer then."""
        write = self._at_once
        if write is None or self._began_at is not None:
            return False
        while self._frames:
            if not write(self._frames[0]):
                return False
            self._bytes -= len(self._frames.popleft()) + FRAME_COST_BYTES
        return write(frame)

    def close(self) -> None:
        """No frame comes any more; what is there is still written."""
        self._closed = True
        self._wake.set()

    async def run(self) -> None:
        """Writes until the outbox is closed and empty, or overflowed."""
        self._writer = asyncio.current_task()
        try:
            await self._write()
        except asyncio.CancelledError:
            if not self.overflowed:
                raise
        finally:
            self._writer = None

    async def _write(self) -> None:
        while not self.overflowed:
            if not self._frames:
                if self._closed:
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            frame = self._frames.popleft()
            self._began_at = self._clock()
            await self._send(frame)
            self._began_at = None
            self._bytes -= len(frame) + FRAME_COST_BYTES
