"""Descriptors that arrive by a socket, kept from whatever this process starts."""

import os
import socket
from array import array
from typing import Final

_CLOSE_ON_EXEC: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
COUNT_MAX: Final = 3
_ROOM: Final = socket.CMSG_SPACE(COUNT_MAX * array("i").itemsize)


def receive(wire: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """Receives up to `size` bytes, and descriptors if they come along, up to COUNT_MAX.

    What arrives is inherited by new programs unless it is told otherwise: with a keeper's own socket a command could
    say that it has ended. Where this process has too many files open, fewer arrive than were sent.

    Raises: OSError as `socket.recvmsg`.
    """
    # Not by `socket.recv_fds`, which passes its flags over.
    data, beside, _, _ = wire.recvmsg(size, _ROOM, _CLOSE_ON_EXEC)
    if not beside:
        return data, []
    found = array("i")
    for level, kind, items in beside:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(items[: len(items) - len(items) % found.itemsize])
    if not _CLOSE_ON_EXEC:
        for descriptor in found:
            os.set_inheritable(descriptor, False)
    return data, list(found)
