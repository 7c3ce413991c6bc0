"""The HTTP of pipes: bodies come whole or not at all, however they are cut; what is malformed is refused by name."""

from collections.abc import Sequence
from http import HTTPStatus

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.slots.pipe_http import (
    CHUNK_END,
    HEAD_BYTES_MAX,
    LAST_CHUNK,
    LINE_BYTES_MAX,
    TRAILER_BYTES_MAX,
    AnswerReader,
    BadMessage,
    Body,
    RequestReader,
    answer_head,
    size_line,
)

CHUNKS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
CUTS = st.lists(st.integers(1, 30), max_size=40)


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """The data in pieces of these sizes, and the rest."""
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [piece for piece in [*pieces, data[at:]] if piece]


def read(body: Body, pieces: Sequence[bytes]) -> bytes:
    return b"".join(bytes(part) for piece in pieces for part in body.feed(memoryview(piece)))


def ours(chunks: Sequence[bytes]) -> bytes:
    return b"".join(size_line(len(chunk)) + chunk + CHUNK_END for chunk in chunks) + LAST_CHUNK


def theirs(chunks: Sequence[bytes]) -> bytes:
    """The same as h11 writes it."""
    connection = h11.Connection(h11.CLIENT)
    headers = [("Host", "x"), ("Transfer-Encoding", "chunked")]
    connection.send(h11.Request(method="PUT", target="/", headers=headers))
    sent = b"".join(connection.send(h11.Data(data=chunk)) or b"" for chunk in chunks)
    return sent + (connection.send(h11.EndOfMessage()) or b"")


@given(CHUNKS, CUTS)
def test_chunks_come_whole_however_they_are_cut(chunks: list[bytes], sizes: list[int]) -> None:
    assert ours(chunks) == theirs(chunks)
    body = Body(None)
    assert read(body, cut(theirs(chunks) + b"what follows", sizes)) == b"".join(chunks)
    assert (body.ended, body.count) == (True, len(b"".join(chunks)))


@given(CHUNKS, st.data())
def test_a_part_of_a_body_never_looks_whole_i9(chunks: list[bytes], data: st.DataObject) -> None:
    whole = ours(chunks)
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    body = Body(None)
    assert b"".join(chunks).startswith(read(body, [part] if part else []))
    assert not body.ended


@given(st.binary(max_size=60), CUTS)
def test_a_length_is_kept_to_the_byte(data: bytes, sizes: list[int]) -> None:
    body = Body(len(data))
    assert read(body, cut(data + b"what follows", sizes)) == data
    assert body.ended
    short = Body(len(data) + 1)
    assert read(short, cut(data, sizes)) == data
    assert not short.ended


def test_pieces_are_not_copied() -> None:
    data = bytearray(ours([b"abc"]))
    (piece,) = Body(None).feed(memoryview(data))
    data[3:6] = b"xyz"
    assert bytes(piece) == b"xyz"


@pytest.mark.parametrize(
    "said",
    [b"3\r\nabc\r\n0\r\n\r\n", b"3;name=value\r\nabc\r\n0\r\n\r\n", b"0003 \r\nabc\r\n00\r\nSum: 1\r\nMore: 2\r\n\r\n"],
)
def test_what_the_rules_allow_is_read(said: bytes) -> None:
    for pieces in ([said], [said[at : at + 1] for at in range(len(said))]):
        body = Body(None)
        assert read(body, pieces) == b"abc"
        assert body.ended


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"\r\nabc", "does not say its size"),
        (b"3\nabc\r\n", "does not say its size"),
        (b"-3\r\nabc", "does not say its size"),
        (b"0x3\r\nabc", "does not say its size"),
        (b"g\r\nabc", "does not say its size"),
        (b"f" * 16 + b"\r\nabc", "does not say its size"),
        (b"3\r\nabcd\r\n", "longer than it says"),
        (b"3\r\nabc\n0\r\n\r\n", "longer than it says"),
        (b"3;" + b"x" * LINE_BYTES_MAX, "too long"),
        (b"0\r\n" + b"Name: value\r\n" * (TRAILER_BYTES_MAX // 13 + 1), "trailer is too long"),
    ],
)
def test_what_is_malformed_is_refused(said: bytes, why: str) -> None:
    for pieces in ([said], [said[at : at + 1] for at in range(len(said))]):
        with pytest.raises(BadMessage, match=why):
            read(Body(None), pieces)


@given(CUTS)
def test_the_head_of_a_request_is_read_however_it_is_cut(sizes: list[int]) -> None:
    said = AnswerReader().request("PUT", "[::1]:80", "/pipe/abc", chunked=True)
    reader = RequestReader()
    heads = [reader.feed(piece) for piece in cut(said, sizes)]
    assert all(head is None for head in heads[:-1])
    assert heads[-1] is not None
    assert (heads[-1].method, heads[-1].target, heads[-1].body.length, heads[-1].rest) == (
        "PUT",
        "/pipe/abc",
        None,
        b"",
    )


def test_what_a_request_says_of_its_body() -> None:
    def head(more: str) -> tuple[int | None, bool, bool, bool, bytes]:
        request = RequestReader().feed(f"PUT /a HTTP/1.1\r\nHost: x\r\n{more}\r\nbody".encode())
        assert request is not None
        return request.body.length, request.body.ended, request.asks_first, request.ranged, request.rest

    assert head("") == (0, True, False, False, b"body")
    assert head("Content-Length: 4\r\n") == (4, False, False, False, b"body")
    assert head("Transfer-Encoding: chunked\r\nExpect: 100-Continue\r\n") == (None, False, True, False, b"body")
    assert head("Range: bytes=0-3\r\n") == (0, True, False, True, b"body")
    assert head("Content-Range: bytes 0-3/9\r\n") == (0, True, False, True, b"body")


@pytest.mark.parametrize(
    "said",
    [
        b"\0\1\r\n\r\n",
        b"GET /a HTTP/1.0\r\n\r\n",
        b"GET /a HTTP/1.1\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"GET /" + b"a" * HEAD_BYTES_MAX,
    ],
)
def test_a_head_that_breaks_the_rules_is_refused(said: bytes) -> None:
    with pytest.raises(BadMessage):
        RequestReader().feed(said)


def test_the_head_of_an_answer() -> None:
    reader = AnswerReader()
    reader.request("GET", "x", "/a", chunked=False)
    assert reader.feed(b"HTTP/1.1 100 Continue\r\n\r\n") is None
    answer = reader.feed(answer_head(HTTPStatus.OK, [("Transfer-Encoding", "chunked")]) + b"1\r\na\r\n")
    assert answer is not None
    assert answer.body is not None
    assert (answer.status, answer.body.length, answer.rest) == (200, None, b"1\r\na\r\n")


def test_an_answer_whose_end_is_not_said_has_no_body_to_trust_i9() -> None:
    reader = AnswerReader()
    reader.request("GET", "x", "/a", chunked=False)
    answer = reader.feed(answer_head(HTTPStatus.OK) + b"bytes")
    assert answer is not None
    assert answer.body is None
