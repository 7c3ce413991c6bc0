"""A websocket as its client needs it at the least: whole text frames, and nothing else.

The mask of its frames is zero, which leaves the text as it is. It checks nothing: the other end is ours.
"""

import base64
import os
import struct
from typing import Final

TEXT: Final = 1
CLOSE: Final = 8
LONG: Final = 126
VERY_LONG: Final = 127


def request(host: str, path: str, *, subprotocol: str | None = None) -> bytes:
    """The request that opens it."""
    key = base64.b64encode(os.urandom(16)).decode()
    asked = "" if subprotocol is None else f"Sec-WebSocket-Protocol: {subprotocol}\r\n"
    return (
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n{asked}\r\n"
    ).encode()


def frame(text: bytes) -> bytes:
    """A text as it travels."""
    size = len(text)
    if size < LONG:
        head = struct.pack("!BB4x", 0x81, 0x80 | size)
    elif size < 65_536:
        head = struct.pack("!BBH4x", 0x81, 0x80 | LONG, size)
    else:
        head = struct.pack("!BBQ4x", 0x81, 0x80 | VERY_LONG, size)
    return head + text


def whole(data: bytes) -> tuple[int, bytes, bytes] | None:
    """The first frame: its opcode, what it says, and what follows it; None: it is not whole yet."""
    if len(data) < 2:
        return None
    size, at = data[1], 2
    if size == LONG:
        size, at = int.from_bytes(data[2:4]), 4
    elif size == VERY_LONG:
        size, at = int.from_bytes(data[2:10]), 10
    if len(data) < at + size:
        return None
    return data[0] & 0x0F, data[at : at + size], data[at + size :]
