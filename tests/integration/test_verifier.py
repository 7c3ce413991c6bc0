"""Outputs of runners are judged by the platform, promoted by copy, or removed; late uploads change nothing (I11)."""

import asyncio
import hashlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest
from yarl import URL

from rota.errors import VerificationFailed
from rota.io.ffmpeg import Tools, find_tools
from rota.objects.io.folder import FolderStore
from rota.objects.keys import staging_key
from rota.runners.expectation import Media
from rota.runners.io.tool_run import ToolRunner
from rota.runners.io.verifier import Verifier
from rota.runners.io.walls import find_walls
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
    def __init__(self, store: FolderStore, tools: ToolRunner) -> None:
        self.store = store
        self.verifier = Verifier(store, tools)
        self.staged = staging_key(uuid4(), 0)

    async def keys(self) -> list[str]:
        return [key async for key in self.store.keys("")]

    async def read(self, key: str) -> bytes:
        return b"".join([chunk async for chunk in self.store.read(key)])


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    tools: Tools = find_tools()
    runner = ToolRunner(tools, await asyncio.to_thread(find_walls, tools.ffprobe))
    async with folder_store(tmp_path / "store") as store:
        yield Stand(store, runner)
    await runner.close()


async def test_what_was_asked_for_is_promoted(stand: Stand, film: bytes) -> None:
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


async def test_a_truncated_film_is_no_film(stand: Stand, film: bytes) -> None:
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


@pytest.mark.parametrize("when", ["during", "after"])
async def test_a_late_upload_changes_nothing(stand: Stand, film: bytes, when: str) -> None:
    url = URL(await stand.store.mint_put(stand.staged, content_type="video/mp4"), encoded=True)

    async def upload(content: bytes) -> None:
        async with (
            aiohttp.ClientSession() as client,
            client.put(url, data=content, headers={"Content-Type": "video/mp4"}) as answer,
        ):
            assert answer.status == 200

    await upload(film)
    if when == "during":
        copy = stand.store.copy

        async def copy_then_upload(source: str, target: str) -> None:
            # The staged bytes change right after they were copied to where they are judged.
            await copy(source, target)
            await upload(b"something else")

        stand.store.copy = copy_then_upload  # type: ignore[method-assign]
    await stand.verifier.promote(stand.staged, "project/final.mp4", bytes_max=MIB, expect=FILM)
    if when == "after":
        await upload(b"something else")
    assert await stand.read("project/final.mp4") == film
