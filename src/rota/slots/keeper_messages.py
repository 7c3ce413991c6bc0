"""What an exec server and a keeper, the process that runs its commands, say to each other. Pure.

A frame is four bytes of length and MessagePack. A keeper runs one command at a time, so nothing needs a number.

A command whose streams are elsewhere gets them as file descriptors that travel beside its `Run`. All others read
nothing, and what they say at first is kept by the keeper: a command that has ended by then costs one message each way.
"""

import struct
from typing import Final

import msgspec
from msgspec import Struct

HEAD: Final = struct.Struct(">I")
FRAME_BYTES_MAX: Final = 1024 * 1024
"""Arguments and variables are bounded far below this."""


class Run(Struct, frozen=True, tag=True):
    """Start this command: with the three descriptors that come along, or, without any, with outputs of the keeper.

    `data_bytes_max`: what each of its processes may have for itself, by the system's own limit; 0: no such limit.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    folder: str
    descriptors: int = 0  # how many come along: fewer arrive where the keeper has too many open
    data_bytes_max: int = 0


class Stop(Struct, frozen=True, tag=True):
    """End the command: all its processes get SIGTERM, or, if `now`, SIGKILL."""

    now: bool


class Ready(Struct, frozen=True, tag=True):
    """The keeper can take a command."""

    pid: int


class Outputs(Struct, frozen=True, tag=True):
    """The command goes on for longer: stdout and stderr come along as descriptors, after what they said so far."""

    stdout: bytes = b""
    stderr: bytes = b""


class Ended(Struct, frozen=True, tag=True):
    """The command and everything that it had started is gone.

    `status` is as from wait(2); None with an `error`: it could not be started. `peak_memory_bytes` is of its largest
    process, 0 where that was no larger than the keeper itself, which the system counts along. `stdout` and `stderr` are
    all that it said, unless descriptors for them came along or were handed over by `Outputs`.
    """

    status: int | None
    peak_memory_bytes: int = 0
    error: str | None = None
    stdout: bytes = b""
    stderr: bytes = b""


Message = Run | Stop | Ready | Outputs | Ended

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
        if not self._buffer and len(data) > HEAD.size and HEAD.unpack_from(data)[0] == len(data) - HEAD.size:
            return [_decoder.decode(memoryview(data)[HEAD.size :])]  # one whole message, as nearly always
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
