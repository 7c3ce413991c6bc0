"""What a server's first messages mean; the connection itself is tested with real servers."""

from pathlib import Path

import pytest

from rota.io.embedded_probe import Answer, State, ask, judge, startup_message


def error(code: str, text: str = "words") -> bytes:
    return f"SFATAL\0VFATAL\0C{code}\0M{text}\0\0".encode()


def test_first_message_is_counted_and_names_role_and_database() -> None:
    message = startup_message()
    assert int.from_bytes(message[:4]) == len(message)
    assert message[4:8] == b"\0\3\0\0"
    assert message[8:].startswith(b"user\0rota\0database\0rota\0")
    assert message.endswith(b"\0\0")


@pytest.mark.parametrize(
    ("kind", "body", "answer"),
    [
        (b"Z", b"I", Answer(State.READY)),
        (b"R", b"\0\0\0\0", None),
        (b"R", b"\0\0\0\3", Answer(State.REFUSED, "the server asks for a password")),
        (b"S", b"TimeZone\0UTC\0", None),
        (b"K", b"12345678", None),
        (b"N", error("01000"), None),
        (
            b"E",
            error("57P03", "the database system is starting up"),
            Answer(State.STARTING, "the database system is starting up"),
        ),
        (b"E", error("53300"), Answer(State.READY)),
        (
            b"E",
            error("3D000", 'database "rota" does not exist'),
            Answer(State.REFUSED, 'database "rota" does not exist'),
        ),
        (b"E", b"", Answer(State.REFUSED, "")),
    ],
)
def test_messages(kind: bytes, body: bytes, answer: Answer | None) -> None:
    assert judge(kind, body) == answer


def test_no_socket_is_an_answer_and_no_exception(tmp_path: Path) -> None:
    assert ask(tmp_path) == Answer(State.AWAY)
    assert ask(tmp_path / ("long" * 100)) == Answer(State.AWAY)
