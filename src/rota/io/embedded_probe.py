"""Asks a PostgreSQL server on a unix socket whether it takes connections, by making one.

Not a driver: it speaks just enough of the protocol (version 3.0, no password) to log in as role `rota` to database
`rota` and leave again. That is a stronger answer than an open socket or a pid file: the role and the database exist,
and a server that still recovers or already shuts down says so.
"""

import socket
import struct
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ROLE = "rota"
DATABASE = "rota"
PORT = 5432  # only part of the socket's name: nothing listens on a network
ANSWER_S_MAX = 2.0  # a server that accepts and then says nothing for so long counts as away
MESSAGE_BYTES_MAX = 65_536  # server messages before the first query are a few hundred bytes

_PROTOCOL_VERSION = 3 << 16
_CANNOT_CONNECT_NOW = "57P03"
_TOO_MANY_CONNECTIONS = "53300"


class State(StrEnum):
    """What a server says to a new connection."""

    READY = "ready"
    STARTING = "starting"  # or stopping: the server uses one code for both
    AWAY = "away"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Answer:
    """The state, and the server's own words when it refused."""

    state: State
    text: str = ""


def socket_file(folder: Path, *, port: int = PORT) -> Path:
    """Names the socket that a server makes in its socket folder."""
    return folder / f".s.PGSQL.{port}"


def startup_message() -> bytes:
    """Encodes the first message of a connection."""
    body = struct.pack("!I", _PROTOCOL_VERSION)
    body += f"user\0{ROLE}\0database\0{DATABASE}\0application_name\0rota\0\0".encode()
    return struct.pack("!I", len(body) + 4) + body


def judge(kind: bytes, body: bytes) -> Answer | None:
    """Reads one message of the server.

    Args:
        kind: the message's type, one byte.
        body: what follows the length.

    Returns:
        The answer, or None when another message must be read first.
    """
    if kind == b"Z":
        return Answer(State.READY)
    if kind == b"R" and body != b"\0\0\0\0":
        return Answer(State.REFUSED, "the server asks for a password")
    if kind != b"E":
        return None
    fields = {part[:1]: part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}
    code = fields.get(b"C", "")
    if code == _CANNOT_CONNECT_NOW:
        return Answer(State.STARTING, fields.get(b"M", ""))
    if code == _TOO_MANY_CONNECTIONS:  # it serves others, so it is up
        return Answer(State.READY)
    return Answer(State.REFUSED, fields.get(b"M", code))


def ask(folder: Path, *, port: int = PORT) -> Answer:
    """Connects to the server whose socket is in this folder.

    Args:
        folder: the socket folder.
        port: the number in the socket's name.

    Returns:
        What the server says, within `ANSWER_S_MAX` per message; no server is `State.AWAY`, never an exception.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_S_MAX)
            connection.connect(bytes(socket_file(folder, port=port)))
            connection.sendall(startup_message())
            while True:
                kind, length = struct.unpack("!cI", _read(connection, 5))
                if not 4 <= length <= MESSAGE_BYTES_MAX:
                    return Answer(State.REFUSED, "what listens there is not PostgreSQL")
                answer = judge(kind, _read(connection, length - 4))
                if answer is not None:
                    if answer.state is State.READY:
                        connection.sendall(b"X\0\0\0\4")  # goodbye, so that the server logs no broken connection
                    return answer
    except OSError:
        return Answer(State.AWAY)


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the server closed the connection")
        data += part
    return data
