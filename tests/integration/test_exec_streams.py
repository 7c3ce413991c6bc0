"""Pipes between a worker and commands: whole or broken, never short; once or never; and nobody drowns (S41 to S46)."""

import asyncio
import contextlib
import gc
import gzip
import os
import re
import resource
import socket
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from rota.errors import PipeError
from rota.slots.io import pipes as pipes_module
from rota.slots.io.pipes import HELD_BYTES_MAX, Pipes
from rota.slots.output import digest_of
from tests.integration.exec_bench import PATIENCE_S, SERVICES, bench, pieces, read_all

HOST = "127.0.0.1"
MIB = 1024 * 1024


async def zeros(count: int, *, size: int = 64 * 1024) -> AsyncIterator[bytes]:
    for at in range(0, count, size):
        yield b"\0" * min(size, count - at)


async def ask(pipes: Pipes, request: str) -> bytes:
    """Sends a raw request and gives the raw answer."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(HOST, pipes.port)
        writer.write(request.encode())
        await writer.drain()
        answer = await reader.read()
        writer.close()
        return answer


def get(path: str, *, method: str = "GET", more: str = "") -> str:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n"


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_bytes_go_through_a_command_and_come_whole(tmp_path: Path) -> None:
    data = os.urandom(3 * MIB)
    async with bench(tmp_path) as b:
        for part in (b"", b"x", data[:4000], data[:4001], data):
            source, sink = b.pipes.source(pieces(part)), b.pipes.sink()
            receipt = b.start("cat", stdin=source.url(HOST), stdout=sink.url(HOST))
            assert await read_all(sink) == part
            told = await receipt
            assert told.ok
            assert (told.bytes_in, told.bytes_out, told.dropped_bytes) == (len(part), len(part), 0)
            assert told.digest == digest_of(part)
        assert len(b.pipes) == 0


@pytest.mark.parametrize("order", ["write first", "read first", "in turn"])
async def test_no_command_waits_for_itself(tmp_path: Path, order: str) -> None:
    """S45: feeding and draining run at the same time."""
    write, read = "sys.stdout.buffer.write(b'x' * 2**20); sys.stdout.flush()", "left -= len(sys.stdin.buffer.read({}))"
    code = (
        "import sys; left = 2**20; "
        + {
            "write first": f"{write}; {read.format(-1)}",
            "read first": f"{read.format(-1)}; {write}",
            "in turn": "[sys.stdout.buffer.write(sys.stdin.buffer.read(1000)) for _ in range(1100)]",
        }[order]
    )
    async with bench(tmp_path) as b:
        source, sink = b.pipes.source(zeros(MIB)), b.pipes.sink()
        receipt = b.start("python", [code], stdin=source.url(HOST), stdout=sink.url(HOST))
        assert len(await read_all(sink)) == MIB
        assert (await receipt).ok


@pytest.mark.parametrize(("size", "begun"), [(10, False), (4000, False), (4001, True), (3 * MIB, True)])
async def test_a_command_that_fails_never_leaves_a_short_success(tmp_path: Path, size: int, begun: bool) -> None:
    """The 4,000-byte rule (I9): a small output of a failed command is in its receipt, a large one breaks off."""
    async with bench(tmp_path) as b:
        sink = b.pipes.sink()
        receipt = b.start("sh", [f"head -c {size} /dev/zero; echo failed >&2; exit 3"], stdout=sink.url(HOST))
        if begun:
            with pytest.raises(PipeError):
                await read_all(sink)
        told = await receipt
        assert (told.ended_by, told.exit, told.stderr_line, told.bytes_out) == ("exit", 3, "failed", size)
        assert told.stdout_prefix == "\0" * min(size, 4000)
        assert told.dropped_bytes == size - min(size, 4000)
        assert sink.begun == begun


async def test_a_source_that_fails_breaks_the_command(tmp_path: Path) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"half of it"
        raise RuntimeError("the disk is gone")

    async with bench(tmp_path) as b:
        source, sink = b.pipes.source(failing()), b.pipes.sink()
        # It would take an end of stdin for a whole one, and end well.
        told = await b.run("sh", ["cat > /dev/null; echo all read"], stdin=source.url(HOST), stdout=sink.url(HOST))
        assert (told.ended_by, told.retryable, told.bytes_out) == ("broken", True, 0)
        assert told.error is not None
        assert "stdin broke off" in told.error
        assert source.error is not None
        assert "the disk is gone" in source.error
        assert not sink.begun


async def test_a_command_need_not_read_all_of_its_stdin(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        source = b.pipes.source(zeros(100 * MIB))
        told = await b.run("sh", ["head -c 10 | wc -c"], stdin=source.url(HOST))
        assert (told.ok, told.stdout_prefix) == (True, "10\n")
        source.discard()


async def test_a_reader_that_goes_away_ends_the_command(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        sink = b.pipes.sink()
        receipt = b.start("sh", ["yes"], stdout=sink.url(HOST))
        async for _ in sink:
            break
        sink.discard()
        async with asyncio.timeout(PATIENCE_S):
            told = await receipt
        assert (told.ended_by, told.retryable) == ("broken", True)
        with pytest.raises(PipeError, match="discarded"):
            await read_all(sink)


async def test_a_slow_reader_stops_the_command_and_nobody_holds_much(tmp_path: Path) -> None:
    """S43: the consumer stops in the middle; the command waits, memory stays, and its own limit ends it."""
    async with bench(tmp_path) as b:
        sink = b.pipes.sink()
        before = psutil.Process().memory_info().rss
        receipt = b.start("sh", ["yes | head -c 2000000000"], stdout=sink.url(HOST), timeout_s=4.0)
        count = 0
        async for chunk in sink:
            count += len(chunk)
            if count > MIB:
                break
        async with asyncio.timeout(PATIENCE_S):
            told = await receipt
        assert told.ended_by == "timeout"
        # What it writes between its limit and its end is counted too, and that is a while on a busy machine.
        assert told.bytes_out < 512 * MIB
        assert psutil.Process().memory_info().rss - before < 64 * MIB
        assert sink._held_bytes < 2 * HELD_BYTES_MAX
        with pytest.raises(PipeError):
            await read_all(sink)


async def test_a_head_and_a_range_do_not_use_a_source_up() -> None:
    """S41: the first plain GET gets the bytes; every later one what an unknown id gets."""
    pipes = Pipes()
    await pipes.start()
    try:
        source = pipes.source(pieces(b"the bytes"))
        unknown = "/pipe/" + "A" * 22
        for path in (source.path, unknown):
            assert status(await ask(pipes, get(path, method="HEAD"))) == 405
            assert status(await ask(pipes, get(path, method="POST"))) == 405
            assert status(await ask(pipes, get(path, more="Range: bytes=0-3\r\n"))) == 416
        first = await ask(pipes, get(source.path))
        assert status(first) == 200
        assert b"the bytes" in first
        later = await ask(pipes, get(source.path))
        assert strip_date(later) == strip_date(await ask(pipes, get(unknown)))
        assert status(later) == 404
    finally:
        await pipes.stop()


async def test_of_many_at_once_exactly_one_is_served() -> None:
    pipes = Pipes()
    await pipes.start()
    try:
        go_on = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"begun"
            await go_on.wait()

        source = pipes.source(slow())
        asked = [asyncio.ensure_future(ask(pipes, get(source.path))) for _ in range(10)]
        refused = 0
        async with asyncio.timeout(PATIENCE_S):
            for answer in asyncio.as_completed(asked):
                refused += status(await answer) == 404
                if refused == 9:
                    go_on.set()
        assert sorted(status(answer.result()) for answer in asked) == [200] + [404] * 9
    finally:
        await pipes.stop()


def strip_date(answer: bytes) -> bytes:
    return re.sub(rb"Date: [^\r]*\r\n", b"", answer)


async def test_whatever_is_wrong_the_answer_is_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """S44."""
    pipes, sibling = Pipes(), Pipes()
    await pipes.start()
    await sibling.start()
    try:
        source, sink = pipes.source(pieces(b"secret")), pipes.sink()
        secret = source.path.removeprefix("/pipe/")
        assert len(secret) >= 22
        tries = [
            get(path)
            for path in (
                "/pipe/" + "x" * 22, source.path.swapcase(), source.path.upper(), source.path + "/",
                source.path + "?a=b",
                "/" + source.path, "/pipe/../pipe/" + secret, "/pipe/%2e%2e/pipe/" + secret, "/pipe", "/", sink.path,
                "/pipe/" + secret[:-1], source.path + "%20", "http://x" + source.path,
            )
        ]  # fmt: skip
        tries.append(get(source.path, method="PUT", more="Content-Length: 0\r\n"))
        answers = {strip_date(await ask(pipes, attempt)) for attempt in tries}
        answers.add(strip_date(await ask(sibling, get(source.path))))
        assert len(answers) == 1
        assert status(answers.pop()) == 404
        assert not source.begun
        assert not sink.begun
        assert b"secret" in await ask(pipes, get(source.path))
        assert secret not in repr(source)
        assert secret not in caplog.text
    finally:
        await pipes.stop()
        await sibling.stop()


@pytest.mark.parametrize(
    "body",
    [
        "Content-Length: 1000\r\n\r\n" + "x" * 600,
        "Transfer-Encoding: chunked\r\n\r\n258\r\n" + "x" * 600 + "\r\n",
        "Transfer-Encoding: chunked\r\n\r\n3E8\r\n" + "x" * 600,
    ],
)
async def test_a_put_that_breaks_off_is_an_error(body: str) -> None:
    """S42."""
    pipes = Pipes()
    await pipes.start()
    try:
        sink = pipes.sink()
        _, writer = await asyncio.open_connection(HOST, pipes.port)
        writer.write(f"PUT {sink.path} HTTP/1.1\r\nHost: x\r\n{body}".encode())
        got = 0
        with pytest.raises(PipeError, match="did not come whole"):
            async for chunk in sink:
                got += len(chunk)
                if got == 600:
                    writer.close()
        assert got == 600
        assert status(await ask(pipes, get(sink.path, method="PUT", more="Content-Length: 0\r\n"))) == 404
    finally:
        await pipes.stop()


async def answer_to(pipes: Pipes, head: str, body: bytes = b"") -> bytes:
    """Sends what it is told, and gives all that comes until the other side closes."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(HOST, pipes.port)
        writer.write(head.encode() + body)
        try:
            return await reader.read()
        finally:
            writer.close()


@pytest.mark.parametrize("head", ["", "GET /pipe/x HTTP/1.1\r\nHos"])
async def test_who_names_no_pipe_is_cut_off_and_who_has_named_one_may_be_slow(
    head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipes_module, "HEAD_S_MAX", 0.2)
    pipes = Pipes()
    await pipes.start()
    sink = pipes.sink()
    reader, writer = await asyncio.open_connection(HOST, pipes.port)
    writer.write(f"PUT {sink.path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na".encode())
    assert await answer_to(pipes, head) == b""
    writer.write(b"b")
    assert await read_all(sink) == b"ab"
    assert await asyncio.wait_for(reader.readline(), PATIENCE_S) == b"HTTP/1.1 204 No Content\r\n"
    writer.close()
    await pipes.stop()


async def test_bytes_that_say_they_are_packed_are_handed_on_as_they_are() -> None:
    packed = gzip.compress(bytes(100_000))
    pipes = Pipes()
    await pipes.start()
    sink = pipes.sink()
    head = get(sink.path, method="PUT", more=f"Content-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n")
    told, got = await asyncio.gather(answer_to(pipes, head, packed), read_all(sink))
    assert (status(told), got) == (204, packed)
    await pipes.stop()


async def test_who_asks_before_it_sends_is_told_to_go_on() -> None:
    pipes = Pipes()
    await pipes.start()
    sink = pipes.sink()
    reader, writer = await asyncio.open_connection(HOST, pipes.port)
    writer.write(get(sink.path, method="PUT", more="Expect: 100-continue\r\nContent-Length: 5\r\n").encode())
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"hello")
    assert await read_all(sink) == b"hello"
    writer.close()
    await pipes.stop()


async def test_what_strangers_send_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    pipes = Pipes()
    await pipes.start()
    long = "a" * 9000
    for odd in ("\0\1\r\n\r\n", "PUT / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", f"GET /{long} HTTP/1.1\r\n\r\n"):
        assert status(await answer_to(pipes, odd)) == 400
    assert caplog.records == []
    await pipes.stop()


async def test_a_pipe_that_nobody_fetches_expires() -> None:
    pipes = Pipes(pipes_max=2)
    await pipes.start()
    try:
        source, sink = pipes.source(pieces(b"x"), expires_s=0.05), pipes.sink(expires_s=0.05)
        with pytest.raises(PipeError, match="2 streams open"):
            pipes.sink()
        with pytest.raises(PipeError, match=r"nobody came for it within 0\.05 s"):
            await read_all(sink)
        assert status(await ask(pipes, get(source.path))) == 404
        assert len(pipes) == 0
    finally:
        await pipes.stop()


async def test_pipes_that_are_started_by_two_at_once_listen_once() -> None:
    pipes = Pipes()
    try:
        await asyncio.gather(pipes.start(), pipes.start())
        mine = [
            each
            for each in psutil.Process().net_connections(kind="tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr.port == pipes.port
        ]
        assert len(mine) == 1
    finally:
        await pipes.stop()
    # A second listener would be told of here: warnings are errors.
    gc.collect()


async def test_a_source_that_is_silent_ends_when_its_reader_is_gone() -> None:
    """Nothing is sent that would fail."""
    pipes = Pipes()
    await pipes.start()
    begun = asyncio.Event()

    async def silent() -> AsyncIterator[bytes]:
        begun.set()
        await asyncio.Event().wait()
        yield b""

    source = pipes.source(silent())
    _, writer = await asyncio.open_connection(HOST, pipes.port)
    writer.write(get(source.path).encode())
    await asyncio.wait_for(begun.wait(), PATIENCE_S)
    writer.close()
    async with asyncio.timeout(PATIENCE_S):
        while len(pipes):
            await asyncio.sleep(0.001)
    assert source.error is not None
    assert "stopped fetching" in source.error
    await pipes.stop()


async def test_any_buffer_is_fed_byte_by_byte_and_nothing_else_is() -> None:
    async def odd(last: object) -> AsyncIterator[bytes]:
        yield memoryview(array("i", [1, 2]))  # type: ignore[misc]
        yield b""
        yield bytearray(b"more")
        yield last  # type: ignore[misc]

    pipes = Pipes()
    await pipes.start()
    good, bad = pipes.source(odd(b".")), pipes.source(odd("text"))
    expected = array("i", [1, 2]).tobytes()
    assert (await ask(pipes, get(good.path))).endswith(b"8\r\n" + expected + b"\r\n4\r\nmore\r\n1\r\n.\r\n0\r\n\r\n")
    with pytest.raises(ConnectionResetError):
        await ask(pipes, get(bad.path))
    assert isinstance(bad.cause, TypeError)
    await pipes.stop()


async def test_a_process_that_is_full_lets_people_in_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes_module, "FULL_S", 0.05)
    pipes = Pipes()
    await pipes.start()
    source = pipes.source(pieces(b"late"))
    asking = socket.socket()
    asking.setblocking(False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    loop = asyncio.get_running_loop()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
        await loop.sock_connect(asking, (HOST, pipes.port))
        await loop.sock_sendall(asking, get(source.path).encode())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.sock_recv(asking, 1), 0.2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert await asyncio.wait_for(loop.sock_recv(asking, 12), PATIENCE_S) == b"HTTP/1.1 200"
    asking.close()
    await pipes.stop()


async def answering(*, word: bytes) -> asyncio.Server:
    """A server that reads a head, says the same to everybody, and closes when they have."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(word)
        with contextlib.suppress(OSError):
            while await reader.read(65536):
                pass
        writer.close()

    return await asyncio.start_server(answer, HOST)


@pytest.mark.parametrize(
    ("word", "stdin_error", "stdout_error"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "its pipe answers 503", "its pipe answers 503"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", "answers 302", "answers 302"),
        (b"HTTP/1.1 200 OK\r\n\r\nbytes", "neither a length nor chunks", "its pipe answers 200"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "does not say its size", "answers 200"),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", "broke off", "broke off"),
    ],
)
async def test_a_pipe_that_answers_something_else_breaks_the_command_i9(
    tmp_path: Path, word: bytes, stdin_error: str, stdout_error: str
) -> None:
    """Also an answer that all is well, before all was sent."""
    async with bench(tmp_path, SERVICES) as b, await answering(word=word) as server:
        url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}/pipe/{'x' * 22}"
        stdin = await b.run("cat", stdin=url)
        assert (stdin.ended_by, stdin.retryable) == ("broken", True)
        assert stdin_error in str(stdin.error)
        stdout = await b.run("sh", ["yes"], stdout=url)
        assert (stdout.ended_by, stdout.retryable) == ("broken", True)
        assert stdout_error in str(stdout.error)


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1:1/pipe/{}", "ftp://127.0.0.1:1/pipe/{}", "http://127.0.0.1:0/pipe/{}",
        "http://127.0.0.1:99999/pipe/{}", "http:///pipe/{}", "http://me@127.0.0.1:1/pipe/{}",
        "http://127.0.0.1:1/pipe/{}?a=b", "http://127.0.0.1:1/pipe/{}#a", "http://127.0.0.1:1/pipe/{}/a",
        "http://127.0.0.1:1/else/{}", "http://[::1:1/pipe/{}", "http://ü:1/pipe/{}", "http://a b:1/pipe/{}", "/pipe/{}",
    ],
)  # fmt: skip
async def test_what_is_no_pipe_is_refused_before_the_command_begins(tmp_path: Path, url: str) -> None:
    async with bench(tmp_path, SERVICES) as b:
        for stream in ("stdin", "stdout"):
            told = await b.run("cat", **{stream: url.format("x" * 22)})
            assert (told.ended_by, told.retryable) == ("refused", False)
            assert f"The {stream} is no pipe: give http://HOST:PORT/pipe/ID." in str(told.error)


async def test_an_ipv6_address_stands_in_brackets() -> None:
    pipes = Pipes(port=80)
    assert pipes.source(pieces()).url("::1").startswith("http://[::1]:80/pipe/")
    await pipes.stop()


async def test_a_pipe_that_is_not_there_breaks_the_command(tmp_path: Path) -> None:
    async with bench(tmp_path, SERVICES) as b:
        missing = f"http://{HOST}:{b.pipes.port}/pipe/{'x' * 22}"
        assert (await b.run("cat", stdin=missing)).error == "stdin cannot be fetched: its pipe answers 404."
        told = await b.run("sh", ["yes"], stdout=missing)
        assert (told.ended_by, told.retryable) == ("broken", True)
        assert missing[-22:] not in str(told.error)
        nobody = await b.run("cat", stdin="http://127.0.0.1:9/pipe/" + "x" * 22)
        assert nobody.ended_by == "broken"
        assert "127.0.0.1:9 cannot be reached" in str(nobody.error)
        for stream in ("stdin", "stdout"):
            nowhere = await b.run("sh", ["cat; yes"], **{stream: "http://a..b:1/pipe/" + "x" * 22})
            assert nowhere.ended_by == "broken"
            assert "xxx" not in str(nowhere.error)
