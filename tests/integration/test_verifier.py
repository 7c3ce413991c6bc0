"""Outputs of runners are judged by the platform, promoted by copy, or removed; late uploads change nothing (I11)."""

import asyncio
import hashlib
import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest
from yarl import URL

from rota.errors import ObjectError, VerificationFailed
from rota.io.ffmpeg import Tools, find_tools
from rota.objects.io.s3 import S3ObjectStore
from rota.objects.keys import staging_key
from rota.objects.store import Head, ObjectStore
from rota.runners.expectation import Media
from rota.runners.io.tool_run import ToolRunner
from rota.runners.io.verifier import Verifier
from rota.runners.io.walls import LAUNCHER, find_walls
from rota.runners.isolation import Isolation
from tests.integration.object_stands import folder_store

MIB = 1024 * 1024
FILM = Media(duration_s=2, video="mpeg4", audio=False, width=64, height=48, format="mp4")


@pytest.fixture(scope="session")
def film(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("film") / "film.mp4"
    source = ["-f", "lavfi", "-i", "testsrc=size=64x48:rate=5:duration=2", "-c:v", "mpeg4"]
    subprocess.run([find_tools().ffmpeg, "-v", "error", *source, path], check=True)
    return path.read_bytes()


class Stand:
    def __init__(self, store: ObjectStore, tools: ToolRunner) -> None:
        self.store = store
        self.verifier = Verifier(store, tools)
        self.staged = staging_key(uuid4(), 0)

    async def keys(self) -> list[str]:
        return [key async for key in self.store.keys("")]

    async def clear(self) -> None:
        await self.store.write("x", b"")  # a bucket is made with its first object
        for key in await self.keys():
            await self.store.delete(key)

    async def read(self, key: str) -> bytes:
        return b"".join([chunk async for chunk in self.store.read(key)])


@pytest.fixture
async def tools() -> AsyncIterator[ToolRunner]:
    found: Tools = find_tools()
    runner = ToolRunner(found, await asyncio.to_thread(find_walls, found.ffprobe))
    yield runner
    await runner.close()


@pytest.fixture
async def stand(tmp_path: Path, tools: ToolRunner) -> AsyncIterator[Stand]:
    async with folder_store(tmp_path / "store") as store:
        yield Stand(store, tools)


@pytest.fixture(params=["folder", "s3"])
async def each_stand(request: pytest.FixtureRequest, tmp_path: Path, tools: ToolRunner) -> AsyncIterator[Stand]:
    """With each kind of store."""
    if request.param == "folder":
        async with folder_store(tmp_path / "store") as folder:
            yield Stand(folder, tools)
        return
    store = S3ObjectStore(request.getfixturevalue("s3_server").settings)
    stand = Stand(store, tools)
    await stand.clear()
    yield stand
    await store.close()


async def test_what_was_asked_for_is_promoted(each_stand: Stand, film: bytes) -> None:
    stand = each_stand
    await stand.store.write(stand.staged, film, content_type="video/mp4")
    digest = hashlib.sha256(film).hexdigest()
    done = await stand.verifier.promote(
        stand.staged, "project/final.mp4", bytes_max=MIB, expect=FILM, sha256_hint=digest.upper()
    )
    assert (done.key, done.size_bytes, done.sha256) == ("project/final.mp4", len(film), digest)
    assert await stand.keys() == ["project/final.mp4"] and await stand.read("project/final.mp4") == film
    head = await stand.store.head("project/final.mp4")
    assert head is not None and head.content_type == "video/mp4"


@pytest.mark.parametrize(
    ("content", "bytes_max", "expect", "hint", "word"),  # None: the film
    [
        (None, 100, FILM, None, "asked for"),
        (None, MIB, FILM, "0" * 64, "said"),
        (None, MIB, Media(duration_s=5), None, "lasts 2 s"),
        (None, MIB, Media(video="h264"), None, "mpeg4"),
        (None, MIB, Media(audio=True), None, "no audio"),
        (None, MIB, Media(width=1920), None, "width"),
        (b"", MIB, FILM, None, "no media"),
        (b"these are words and no film", MIB, FILM, None, "no media"),
        (b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n", MIB, FILM, None, "no media"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", MIB, Media(), None, "no media"),
        (b"\0\0\0\x18ftypmp42" + b"\xff" * 100_000, MIB, Media(), None, "no media"),
    ],
)
async def test_what_was_not_asked_for_is_removed(  # noqa: PLR0917 - one argument for each column
    stand: Stand, film: bytes, content: bytes | None, bytes_max: int, expect: Media, hint: str | None, word: str
) -> None:
    await stand.store.write("project/final.mp4", b"before")
    await stand.store.write(stand.staged, film if content is None else content)
    if bytes_max == 100:
        word = "100 are allowed"
    with pytest.raises(VerificationFailed, match=word):
        await stand.verifier.promote(
            stand.staged, "project/final.mp4", bytes_max=bytes_max, expect=expect, sha256_hint=hint
        )
    assert await stand.keys() == ["project/final.mp4"] and await stand.read("project/final.mp4") == b"before"


async def test_a_truncated_film_is_no_film(each_stand: Stand, film: bytes) -> None:
    stand = each_stand
    await stand.store.write(stand.staged, film[:-200])
    with pytest.raises(VerificationFailed):
        await stand.verifier.promote(stand.staged, "project/final.mp4", bytes_max=MIB, expect=FILM)
    assert await stand.keys() == []


async def test_nothing_published_and_keys_that_are_none_of_staged_objects(stand: Stand) -> None:
    with pytest.raises(VerificationFailed, match="Nothing was published"):
        await stand.verifier.promote(stand.staged, "project/final.mp4", bytes_max=MIB)
    await stand.store.write("project/other.mp4", b"not staged")
    for key in ("project/other.mp4", "runner-staging/1/2/3", "runner-staging/x"):
        with pytest.raises(Exception, match="no staged object"):
            await stand.verifier.promote(key, "project/final.mp4", bytes_max=MIB)
    assert await stand.keys() == ["project/other.mp4"]


async def test_what_is_no_media_is_delivered_as_it_is(stand: Stand) -> None:
    await stand.store.write(stand.staged, b'{"shots": []}')
    await stand.verifier.promote(stand.staged, "project/shots.json", bytes_max=MIB)
    assert await stand.read("project/shots.json") == b'{"shots": []}'


ASTRAY = {
    "waits": "import time; time.sleep(600)",
    "takes memory": "held = []\nwhile True: held.append(bytes(10_000_000))",
    "says too much": "print('[' * 9**6)",
}


@pytest.mark.parametrize("does", ASTRAY.values(), ids=ASTRAY)
async def test_what_ffprobe_cannot_be_got_through_is_no_media(
    stand: Stand, tmp_path: Path, film: bytes, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    """A stand-in for an ffprobe that a hostile file has led astray."""
    program = tmp_path / "ffprobe"
    program.write_text(f"#!/usr/bin/python3\n{does}\n")
    program.chmod(0o755)
    bare = Isolation(os.path.realpath(sys.executable), LAUNCHER)
    tools = ToolRunner(Tools(ffmpeg=program, ffprobe=program, source="settings"), bare, memory_bytes_max=100 * MIB)
    if "sleep" in does:
        monkeypatch.setattr("rota.runners.io.verifier.PROBE_S", 0.5)
    await stand.store.write(stand.staged, film)
    try:
        with pytest.raises(VerificationFailed, match="no media"):
            await Verifier(stand.store, tools).promote(stand.staged, "project/x.mp4", bytes_max=MIB, expect=FILM)
    finally:
        await tools.close()
    assert await stand.keys() == []


async def upload(url: str, content: bytes) -> int:
    """What a runner does with a URL that it has."""
    async with (
        aiohttp.ClientSession() as client,
        client.put(URL(url, encoded=True), data=content, headers={"Content-Type": "video/mp4"}) as answer,
    ):
        return answer.status


@pytest.mark.parametrize("when", ["during", "after"])
async def test_a_late_upload_changes_nothing(each_stand: Stand, film: bytes, when: str) -> None:
    stand = each_stand
    url = await stand.store.mint_put(stand.staged, content_type="video/mp4")
    assert await upload(url, film) == 200
    if when == "during":
        copy = stand.store.copy

        async def copy_then_upload(source: str, target: str) -> None:
            # The staged bytes change right after they were copied to where they are judged.
            await copy(source, target)
            await upload(url, b"something else")

        stand.store.copy = copy_then_upload  # type: ignore[method-assign]
    await stand.verifier.promote(stand.staged, "project/final.mp4", bytes_max=MIB, expect=FILM)
    if when == "after":
        # The URL is good still, and writes what nobody reads any more.
        assert await upload(url, b"something else") == 200
    assert await stand.read("project/final.mp4") == film


async def test_two_judgements_of_one_output_do_not_meet(each_stand: Stand, film: bytes) -> None:
    """One has judged the film; before it delivers it, a late upload comes, and a second one copies that."""
    stand = each_stand
    await stand.store.write(stand.staged, film)
    copy = stand.store.copy
    copied: list[str] = []

    async def copied_twice(source: str, target: str) -> None:
        copied.append(target)
        if target == "project/final.mp4" and len(copied) == 2:
            await stand.store.write(stand.staged, b"something else")
            with pytest.raises(VerificationFailed):
                await stand.verifier.promote(stand.staged, target, bytes_max=MIB, expect=FILM)
        await copy(source, target)

    stand.store.copy = copied_twice  # type: ignore[method-assign]
    await stand.verifier.promote(stand.staged, "project/final.mp4", bytes_max=MIB, expect=FILM)
    assert len(copied) == 3
    assert await stand.read("project/final.mp4") == film
    assert await stand.keys() == ["project/final.mp4"]


async def test_no_url_of_a_runner_reaches_what_is_judged_or_delivered(each_stand: Stand, film: bytes) -> None:
    stand = each_stand
    await stand.store.write("project/in.mp4", film)
    had = [
        await stand.store.mint_get("project/in.mp4"),
        await stand.store.mint_put(stand.staged, content_type="video/mp4"),
    ]
    assert await upload(had[1], film) == 200
    await stand.verifier.promote(stand.staged, "project/final.mp4", bytes_max=MIB, expect=FILM)
    judged = stand.staged.replace("runner-staging", "runner-verifying")
    for key in ("project/final.mp4", judged, staging_key(uuid4(), 0), f"{stand.staged}0", "project/in.mp4"):
        for url, named in zip(had, ("project/in.mp4", stand.staged), strict=True):
            for other in (url.replace(named, key), url.replace(named, f"{named}/../../../{key}")):
                status = await upload(other, b"something else")
                assert status in (400, 403, 404), (key, other)
    assert await stand.read("project/final.mp4") == await stand.read("project/in.mp4") == film
    assert await stand.keys() == ["project/final.mp4", "project/in.mp4"]


@pytest.mark.parametrize("final", ["runner-staging/x/1", "runner-verifying/x/1", "../x", ""])
async def test_nothing_is_delivered_to_where_runners_write(stand: Stand, final: str) -> None:
    await stand.store.write(stand.staged, b"x")
    with pytest.raises(ObjectError):
        await stand.verifier.promote(stand.staged, final, bytes_max=MIB)
    assert await stand.keys() == [stand.staged]


async def test_a_store_that_gives_more_or_less_than_it_says_decides_nothing(stand: Stand, film: bytes) -> None:
    await stand.store.write(stand.staged, film)
    head = stand.store.head
    for off in (-1, 1):

        async def told(key: str, off: int = off) -> Head | None:
            found = await head(key)
            return None if found is None else Head(found.size_bytes + off, found.etag)

        stand.store.head = told  # type: ignore[method-assign]
        with pytest.raises(ObjectError, match="repeat it"):
            await stand.verifier.promote(stand.staged, "project/final.mp4", bytes_max=MIB, expect=FILM)
        assert await stand.keys() == [stand.staged]
    stand.store.head = head  # type: ignore[method-assign]
    assert await stand.verifier.promote(stand.staged, "project/final.mp4", bytes_max=MIB, expect=FILM)


async def test_a_key_with_an_odd_ending_is_as_good_as_another(stand: Stand, film: bytes) -> None:
    for final in ("project/final cut.", "project/a.b:c", "project/x.mp4 (2)", "project/-y"):
        await stand.store.write(stand.staged, film)
        assert (await stand.verifier.promote(stand.staged, final, bytes_max=MIB, expect=FILM)).key == final


def made(*args: str, name: str = "x.mp4") -> Callable[[Path], bytes]:
    def make(folder: Path) -> bytes:
        subprocess.run([find_tools().ffmpeg, "-v", "error", *args, folder / name], check=True)
        return (folder / name).read_bytes()

    return make


def longer_by_its_header(folder: Path) -> bytes:
    """Two seconds, and a header that says ten."""
    content = bytearray(made(*PICTURE, *MPEG4)(folder))
    at = content.index(b"mvhd") + 4
    scale, _ = struct.unpack_from(">II", content, at + 12)
    struct.pack_into(">I", content, at + 16, 10 * scale)
    return bytes(content)


def with_words_behind(folder: Path) -> bytes:
    """A film, and after its end a page and an archive: other programs may look there first."""
    return made(*PICTURE, *MPEG4)(folder) + b"<html><script>alert(1)</script>PK\x05\x06" + bytes(18)


def with_words_before(folder: Path) -> bytes:
    """A playlist that is a box of a film, too: its first bytes are a length."""
    return b"#EXTM3U\n#EXTINF:9,\nfile:///etc/passwd\n" + made(*PICTURE, *MPEG4)(folder)


PICTURE = ("-f", "lavfi", "-i", "testsrc=size=64x48:rate=5:duration=2")
SOUND = ("-f", "lavfi", "-i", "sine=duration=2")
MPEG4 = ("-c:v", "mpeg4")
ASKED = Media(duration_s=10, video="h264", width=1920, height=1080, format="mp4")


@pytest.mark.parametrize(
    ("make", "expect", "word"),
    [
        (made(*PICTURE, *MPEG4), ASKED, "mpeg4"),
        (made(*PICTURE, *MPEG4, name="x.avi"), Media(format="mp4"), "avi"),
        (made(*SOUND, "-c:a", "aac"), ASKED, "no video"),
        (made(*PICTURE, *SOUND, *MPEG4), Media(video="mpeg4", streams=1), "2 streams"),
        (made(*PICTURE, *PICTURE, "-map", "0", "-map", "1", *MPEG4), Media(streams=1), "2 streams"),
        (made(*PICTURE, "-frames:v", "1", *MPEG4), Media(duration_s=2, video="mpeg4"), "0.2 s"),
        (longer_by_its_header, Media(duration_s=10, video="mpeg4"), "lasts 2 s"),
        (made("-f", "lavfi", "-i", "anullsrc", "-t", "10", "-c:a", "aac"), Media(duration_s=10, video=True), "no v"),
        (with_words_before, Media(), "no media"),
        (lambda _: b"", Media(), "no media"),
        (lambda _: b"\0\0\0\x18ftypisom\0\0\2\0isom" + b"\0\0\0\1moov\x7f" + b"\xff" * 7, Media(), "no media"),
        (lambda _: b"<html>", Media(), "no media"), (lambda _: b"\x7fELF" + bytes(1000), Media(), "no media"),
    ],
    ids=["another film", "another container", "sound alone", "one stream more", "two pictures", "one frame",
         "a header that lies", "silence", "a playlist before it", "nothing", "a box without an end", "a page",
         "a program"],
)  # fmt: skip
async def test_containers_that_lie(
    stand: Stand, tmp_path: Path, make: Callable[[Path], bytes], expect: Media, word: str
) -> None:
    await stand.store.write(stand.staged, make(tmp_path))
    with pytest.raises(VerificationFailed, match=word):
        await stand.verifier.promote(stand.staged, "project/final.mp4", bytes_max=MIB, expect=expect)
    assert await stand.keys() == []


async def test_what_stands_behind_a_film_is_delivered_as_a_film_and_never_as_a_page(
    stand: Stand, tmp_path: Path
) -> None:
    content = with_words_behind(tmp_path)
    await stand.store.write(stand.staged, content, content_type="video/mp4")
    await stand.verifier.promote(stand.staged, "project/final.html", bytes_max=MIB, expect=FILM)
    async with (
        aiohttp.ClientSession() as client,
        client.get(URL(await stand.store.mint_get("project/final.html"), encoded=True)) as answer,
    ):
        assert await answer.read() == content
        assert answer.headers["Content-Type"] == "video/mp4"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Disposition"] == "attachment"
