"""The folder's pure parts: names, addresses, and what a server's files say."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from rota.io.embedded_folder import (
    LOG_LINES_MAX,
    SOCKET_PATH_BYTES_MAX,
    Folder,
    Postmaster,
    dsn_of,
    parse_postmaster,
    socket_fits,
    tail,
)

SOCKET_NAME_BYTES = len("/.s.PGSQL.5432")


def folder_of_bytes(count: int) -> Path:
    return Path("/" + "x" * (count - 1))


def test_socket_path_may_be_as_long_as_the_kernel_allows() -> None:
    longest = SOCKET_PATH_BYTES_MAX - SOCKET_NAME_BYTES
    assert socket_fits(folder_of_bytes(longest))
    assert not socket_fits(folder_of_bytes(longest + 1))
    assert not socket_fits(Path("/" + "ü" * (longest // 2 + 1)))  # bytes count, not letters


@pytest.mark.parametrize("path", ["/a b", "/it's", '/"', "/ü", "/a?b&c=%20#@:+"])
def test_plain_path_holds_its_socket_and_its_address_reads_back(path: str) -> None:
    assert socket_fits(Path(path))
    parts = urlsplit(dsn_of(Path(path)))
    assert (parts.scheme, parts.netloc, parts.path) == ("postgresql", "rota@", "/rota")
    assert parse_qs(parts.query, strict_parsing=True) == {"host": [path], "port": ["5432"]}


@pytest.mark.parametrize("path", ["/a,b", "/a\tb", "/\udcff"])
def test_path_that_no_address_can_name_does_not_hold_its_socket(path: str) -> None:
    assert not socket_fits(Path(path))


def test_private_socket_folder_is_found_again_and_is_each_folder_s_own() -> None:
    long = Folder(folder_of_bytes(200))
    assert long.socket_folder == Folder(folder_of_bytes(200)).socket_folder
    assert long.socket_folder != Folder(folder_of_bytes(201)).socket_folder
    assert socket_fits(long.socket_folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", None),
        (b"garbage\n", None),
        (b"17\n/data\n", Postmaster(17)),
        (b"17\n/data\n1700000000\n5499\n/so", Postmaster(17)),  # caught in the middle of a line
        (b"17\n/data\n1700000000\n5499\n/socket\n", Postmaster(17, 5499, Path("/socket"))),
        (b"17\n/data\n1700000000\n5499\n\n*\n", Postmaster(17)),
        (b"17\n/d\n1\n5432\n/\xc3\xbc b\n\n  1  2\nready   \n", Postmaster(17, 5432, Path("/ü b"))),
    ],
)
def test_pid_file_is_read_at_each_stage(content: bytes, said: Postmaster | None) -> None:
    assert parse_postmaster(content) == said


def test_tail_keeps_the_last_lines_and_is_bounded() -> None:
    assert tail(b"") == ""
    assert tail(b"one\n\n \ntwo \xff\n") == "\n  one\n  two \ufffd"
    lines = tail(b"".join(b"line %d\n" % number for number in range(1000))).split("\n  ")
    assert lines[1:] == [f"line {number}" for number in range(1000 - LOG_LINES_MAX, 1000)]
    assert len(tail(b"x" * 1_000_000)) < 10_000
