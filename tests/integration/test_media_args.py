"""Ops of media sessions with arguments, names and files that are none: each gets a code at once. S74 to S78, S80.

The argv of ffmpeg has tests of its own, in `tests/runners`.
"""

import asyncio
import hashlib
import math
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from rota.objects.io.folder import FolderStore
from rota.runners import ops
from rota.runners.codes import OpCode
from rota.runners.io.media import MediaLimits
from rota.runners.messages import OpError
from tests.integration.object_stands import folder_store, raw_server
from tests.integration.test_media_stores import LIMIT_S, MIB, Stand, stand_of

GOOD: dict[str, dict[str, Any]] = {
    "stage": {"url": "http://127.0.0.1:1/", "path": "a", "maxBytes": 10, "sha256": "0" * 64},
    "read": {"path": "real", "maxBytes": 10},
    "publish": {"path": "real", "putUrl": "http://127.0.0.1:1/", "maxBytes": 10, "contentType": "a/b"},
    "stat": {"path": "real"},
    "ffmpeg": {"argv": ["-i", "real"], "timeoutSec": 5},
    "ffprobe": {"argv": ["-i", "real"], "timeoutSec": 5},
}
NUMBERS: list[Any] = [None, True, "5", "", [], {}, -1, -(2**63), 2**63, 2**64, 10**400, 1.5, 5.0, math.nan, math.inf]
TEXTS: list[Any] = [None, True, 5, 1.5, [], {}, ["a"], "", "a" * 20_000]
LISTS: list[Any] = [None, True, 5, "-i", {}, [1], [None], [["-i"]], ["a" * 100_001], ["-i"] * 10_001]


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    folder = tmp_path / "session"
    folder.mkdir()
    (folder / "real").write_bytes(b"real")
    async with stand_of(folder) as made:
        yield made


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FolderStore]:
    async with folder_store(tmp_path / "store") as made:
        yield made


async def test_arguments_of_a_wrong_kind_are_invalid_args(stand: Stand) -> None:
    wrong = {"maxBytes": NUMBERS, "timeoutSec": NUMBERS, "argv": LISTS}
    for op, good in GOOD.items():
        for name in good:
            for value in wrong.get(name, TEXTS):
                if (value is None and name == "sha256") or (value == "" and name == "contentType"):
                    continue  # may be left out, or empty
                answer = await stand.ask(op, **(good | {name: value}))
                assert isinstance(answer, OpError) and answer.code == OpCode.INVALID_ARGS, (op, name, value, answer)
                assert not answer.retryable
            missing = await stand.ask(op, **{key: value for key, value in good.items() if key != name})
            assert name == "sha256" or (isinstance(missing, OpError) and missing.code == OpCode.INVALID_ARGS)
    assert isinstance(await stand.ask("stat", path="real", later={"more": [1]}), ops.StatResult)


@pytest.mark.parametrize(
    "op", ["", "exec", "writeFile", "hydrate", "STAGE", "stage ", "close\0", "__init__", "x" * 9999]
)
async def test_ops_that_a_media_session_does_not_have(stand: Stand, op: str) -> None:
    answer = await stand.ask(op, path="real")
    assert isinstance(answer, OpError) and answer.code == OpCode.UNSUPPORTED_OP
    assert answer.message.isprintable() and len(answer.message) < 300


NAMES = [
    ".", "..", "./", "/", "/etc/passwd", "../secret", "a/../../secret", "real/..", "real/../../secret", "a\0b", "a\nb",
    "~", "~/x", "$HOME/x", "%2e%2e/secret", "C:x", "file:real", "\\\\host\\x", "..\\secret", "\u2024\u2024/secret",
    "\uff0e\uff0e\uff0fsecret", "a\u2215b", "\ud800", "\u202egpj.x",
    ".. /x", "a./b", "x...", "x ", "dir/ /f",  # S75
    "NUL", "nul.txt", "COM1.log", "COM\u00b9", "aux.c", "CONIN$", "a/prn/b", "LPT9",  # S76
    "a" * 256, "\u00e9" * 128, "a/" * 600 + "b", "a" * 1025,
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=ascii)
async def test_S75_S76_names_that_are_none_are_invalid_path_in_each_op(stand: Stand, name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("not yours")
    for op in ("stage", "read", "publish", "stat"):
        answer = await stand.ask(op, **(GOOD[op] | {"path": name}))
        assert isinstance(answer, OpError) and answer.code == OpCode.INVALID_PATH, (op, answer)
        assert "not yours" not in answer.message and str(tmp_path) not in answer.message
    assert stand.files() == [str(tmp_path / "session" / "real")]


@pytest.mark.parametrize(
    "name",
    [
        "prefix.NUL.json",
        "console.txt",
        "nullable.ts",
        "..x",
        "a b/\u6620\u753b.mp4",
        "./-i",
        "a" * 255,
        "d/" * 500 + "f",
    ],
    ids=lambda name: name[:20],
)
async def test_S76_names_that_only_look_odd_are_good(stand: Stand, store: FolderStore, name: str) -> None:
    await store.write("x", b"content")
    staged = await stand.ask("stage", url=await store.mint_get("x"), path=name, maxBytes=100)
    assert isinstance(staged, ops.Moved), staged
    assert await stand.ask("read", path=name, maxBytes=100) == ops.ReadResult(
        content="content", encoding="utf8", bytes=7
    )


async def test_two_forms_of_one_name_are_one_file(stand: Stand, store: FolderStore) -> None:
    await store.write("x", b"content")
    url = await store.mint_get("x")
    assert isinstance(await stand.ask("stage", url=url, path="cafe\u0301", maxBytes=100), ops.Moved)
    assert await stand.ask("stat", path="caf\u00e9") == ops.StatResult(exists=True, bytes=7)
    assert sorted(os.listdir(stand.folder)) == ["caf\u00e9", "real"]


async def test_S74_S78_links_and_what_is_no_file(stand: Stand, store: FolderStore, tmp_path: Path) -> None:
    folder, secret = stand.folder, tmp_path / "secret"
    secret.write_text("not yours")
    (folder / "link").symlink_to(secret)
    (folder / "link2").symlink_to("link")
    (folder / "inside").symlink_to("real")
    (folder / "up").symlink_to("..")
    (folder / "loop").symlink_to("loop")
    (folder / "null").symlink_to("/dev/zero")
    (folder / "fd").symlink_to("/proc/self/fd/0")
    os.link(secret, folder / "hard")
    os.link(folder / "real", folder / "twice")
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    here = os.open(folder, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
        put = await store.mint_put("runner-staging/1/1", content_type="a/b")
        names = (
            "link", "link2", "inside", "up/secret", "up/session/real", "loop", "null", "fd", "hard", "twice", "real",
            "fifo", "folder", "socket", "real/x", "absent", "absent/x",
        )  # fmt: skip
        async with asyncio.timeout(LIMIT_S):
            for name in names:
                for op in ("read", "publish"):
                    answer = await stand.ask(
                        op, **(GOOD[op] | {"path": name} | ({"putUrl": put} if op == "publish" else {}))
                    )
                    assert isinstance(answer, OpError) and answer.code == OpCode.INVALID_PATH, (name, answer)
                if name not in ("hard", "twice", "real", "absent", "absent/x"):
                    answer = await stand.ask("stat", path=name)
                    assert isinstance(answer, OpError) and answer.code == OpCode.INVALID_PATH, (name, answer)
            # What is staged takes a name and is written through none.
            await store.write("x", b"content")
            for name in ("link", "inside", "hard", "fifo", "socket", "loop", "null"):
                answer = await stand.ask("stage", url=await store.mint_get("x"), path=name, maxBytes=100)
                assert isinstance(answer, ops.Moved), (name, answer)
                assert (folder / name).read_bytes() == b"content" and not (folder / name).is_symlink()
    assert secret.read_text() == "not yours"
    assert (folder / "real").read_bytes() == b"real"
    assert await store.head("runner-staging/1/1") is None


async def test_S80_a_quota_counts_blocks_and_names(stand: Stand, store: FolderStore) -> None:
    stand.session._limits = MediaLimits(output_bytes_max=MIB, session_bytes_max=MIB // 4)
    await store.write("empty", b"")
    url = await store.mint_get("empty")
    answers = [await stand.ask("stage", url=url, path=f"d/{number}", maxBytes=0) for number in range(70)]
    codes = [answer.code for answer in answers if isinstance(answer, OpError)]
    assert 0 < len(codes) < 20 and set(codes) == {OpCode.DISK_FULL}, codes
    assert len(os.listdir(stand.folder / "d")) == 70 - len(codes)


async def test_S80_a_sparse_file_costs_what_it_costs_and_is_never_read_whole(stand: Stand) -> None:
    with (stand.folder / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert await stand.ask("stat", path="sparse") == ops.StatResult(exists=True, bytes=1 << 40)
    read = await stand.ask("read", path="sparse", maxBytes=4 * MIB)
    publish = await stand.ask("publish", **(GOOD["publish"] | {"path": "sparse", "maxBytes": 1 << 50}))
    for answer, code in ((read, OpCode.FILE_TOO_LARGE), (publish, OpCode.OUTPUT_TOO_LARGE)):
        assert isinstance(answer, OpError) and answer.code == code
    assert stand.session._bytes_left() > 32 * MIB


def grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more" * MIB)


def replaced(path: Path) -> None:
    (path.parent / "other").write_bytes(b"o" * path.stat().st_size)
    (path.parent / "other").rename(path)


def gone(path: Path) -> None:
    path.unlink()


def shortened(path: Path) -> None:
    os.truncate(path, 2 * MIB)


@pytest.mark.parametrize("change", [grown, replaced, gone, shortened], ids=lambda change: change.__name__)
async def test_what_is_published_is_what_is_told_though_the_file_changes(
    stand: Stand, change: Callable[[Path], None]
) -> None:
    content = os.urandom(8 * MIB)
    (stand.folder / "film").write_bytes(content)
    got = bytearray()

    async def takes(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        got.extend(await reader.readexactly(MIB))
        change(stand.folder / "film")
        while len(got) < length and (chunk := await reader.read(MIB)):
            got.extend(chunk)
        if len(got) == length:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with raw_server(takes) as address:
        answer = await stand.publish(address)
    if change is shortened:
        assert isinstance(answer, OpError) and answer.code == OpCode.PUBLISH_FAILED and answer.retryable, answer
    else:
        assert answer == ops.Moved(bytes=8 * MIB, sha256=hashlib.sha256(content).hexdigest())
        assert got == content
