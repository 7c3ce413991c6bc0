"""What an exec server and a keeper, the process that runs its commands, say to each other. Pure.

A frame is four bytes of length and MessagePack. The command's stdin, stdout and stderr travel beside a `Run` as file
descriptors. A keeper runs one command at a time, so nothing needs a number.
"""

import struct
from typing import Final

import msgspec
from msgspec import Struct

HEAD: Final = struct.Struct(">I")
FRAME_BYTES_MAX: Final = 1024 * 1024
"""Arguments and variables are bounded far below this."""


class Run(Struct, frozen=True, tag=True):
    """Start this command with the three descriptors that come along. `data_bytes_max`: what each of its processes may
    have for itself, by the system's own limit; 0: no such limit."""

    argv: tuple[str, ...]
    env: dict[str, str]
    folder: str
    data_bytes_max: int = 0


class Stop(Struct, frozen=True, tag=True):
    """End the command: all its processes get SIGTERM, or, if `now`, SIGKILL."""

    now: bool


class Ready(Struct, frozen=True, tag=True):
    """The keeper can take a command."""

    pid: int


class Ended(Struct, frozen=True, tag=True):
    """The command and everything that it had started is gone.

    `status` is as from wait(2); None with an `error`: it could not be started. `peak_memory_bytes` is of its largest
    process, 0 where that was no larger than the keeper itself, which the system counts along.
    """

    status: int | None
    peak_memory_bytes: int = 0
    error: str | None = None


Message = Run | Stop | Ready | Ended

_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)
_encoder: Final = msgspec.msgpack.Encoder()


def frame(message: Message) -> bytes:
    """The message as it travels."""
    body = _encoder.encode(message)
    return HEAD.pack(len(body)) + body


class Frames:
    """Cuts what arrives into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Takes bytes as they come; returns the messages that are complete."""
        self._buffer += data
        found: list[Message] = []
        while len(self._buffer) >= HEAD.size:
            (length,) = HEAD.unpack_from(self._buffer)
            assert length <= FRAME_BYTES_MAX, "the other end is ours"
            if len(self._buffer) < HEAD.size + length:
                break
            found.append(_decoder.decode(memoryview(self._buffer)[HEAD.size : HEAD.size + length]))
            del self._buffer[: HEAD.size + length]
        return found
