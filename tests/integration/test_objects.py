"""Stores of objects: the folder that we serve, and an S3-compatible server, by one suite. S83–S87."""

import asyncio
import contextlib
import io
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from yarl import URL

from rota.errors import ObjectError, ObjectNotFound
from rota.objects.io.folder import FolderStore
from rota.objects.io.folder_server import FolderServer
from rota.objects.io.s3 import S3ObjectStore, S3Settings
from rota.objects.store import ObjectStore
from tests.integration.object_stands import S3Server, folder_store, raw_server, served, small_disk


@pytest.fixture(params=["folder", "s3"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    if request.param == "folder":
        async with folder_store(tmp_path / "store") as made:
            yield made
    else:
        s3 = S3ObjectStore(request.getfixturevalue("s3_server").settings)
        yield s3
        await s3.close()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(skip_auto_headers=["Content-Type"]) as session:
        yield session


async def status(client: aiohttp.ClientSession, method: str, url: str, *, data: bytes = b"", kind: str = "") -> int:
    headers = {"Content-Type": kind} if kind else {}
    async with client.request(method, URL(url, encoded=True), data=data or None, headers=headers) as answer:
        await answer.read()
        return answer.status


async def content(store: ObjectStore, key: str) -> bytes:
    return b"".join([chunk async for chunk in store.read(key)])


async def test_long_names_are_names(store: ObjectStore, client: aiohttp.ClientSession) -> None:
    """A letter of many scripts takes nine characters where it is quoted, so that thirty of them are a long name."""
    place = f"project-{uuid4()}"
    keys = sorted(
        f"{place}/{name}"
        for name in ("動" * 60 + ".mp4", "動" * 60 + "/a", "a" * 240 + ".", "a" * 240, "a" * 240 + "/.." + "b")
    )
    for key in keys:
        url = await store.mint_put(key, content_type="video/mp4")
        assert await status(client, "PUT", url, data=key.encode(), kind="video/mp4") == 200
    assert [key async for key in store.keys(f"{place}/")] == keys
    for key in keys:
        assert await content(store, key) == key.encode()
        head = await store.head(key)
        assert head is not None and head.content_type == "video/mp4"


async def pieces() -> AsyncIterator[bytes]:
    for _ in range(3):
        yield b"x" * 100_000


async def test_an_object_is_written_read_copied_listed_and_deleted(store: ObjectStore) -> None:
    place = f"project-{uuid4()}"
    for name in ("a", "a/b", "ü ~+'(1)&?.mp4"):
        await store.write(f"{place}/{name}", name.encode(), content_type="video/mp4")
    await store.write(f"{place}/large", pieces())
    head = await store.head(f"{place}/a")
    assert head is not None and (head.size_bytes, head.content_type) == (1, "video/mp4") and head.etag
    assert [key async for key in store.keys(f"{place}/")] == sorted(
        f"{place}/{name}" for name in ("a", "a/b", "ü ~+'(1)&?.mp4", "large")
    )
    assert [key async for key in store.keys(f"{place}/a")] == [f"{place}/a", f"{place}/a/b"]
    assert await content(store, f"{place}/large") == b"x" * 300_000
    await store.copy(f"{place}/a/b", f"{place}/a")
    assert await content(store, f"{place}/a") == b"a/b"
    copied = await store.head(f"{place}/a")
    assert copied is not None and copied.etag != head.etag
    await store.delete(f"{place}/a")
    await store.delete(f"{place}/a")
    assert await store.head(f"{place}/a") is None
    assert await content(store, f"{place}/a/b") == b"a/b"


async def test_what_is_not_there_is_said_to_be_not_there(store: ObjectStore) -> None:
    assert await store.head("absent/x") is None
    with pytest.raises(ObjectNotFound):
        await content(store, "absent/x")
    with pytest.raises(ObjectNotFound):
        await store.copy("absent/x", "absent/y")
    with pytest.raises(ObjectError):
        await store.write("../outside", b"x")


async def test_a_write_that_breaks_off_leaves_what_was_there(store: ObjectStore) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise RuntimeError("the source broke")

    await store.write("broken/x", b"before")
    with pytest.raises((RuntimeError, ObjectError)):
        await store.write("broken/x", broken())
    assert await content(store, "broken/x") == b"before"


async def test_a_url_is_good_for_one_object_and_one_method(store: ObjectStore, client: aiohttp.ClientSession) -> None:
    await store.write("one/in.mp4", b"film")
    get, put = await store.mint_get("one/in.mp4"), await store.mint_put("one/out.mp4", content_type="video/mp4")
    async with client.get(URL(get, encoded=True)) as answer:
        assert (answer.status, await answer.read()) == (200, b"film")
        assert answer.headers["Content-Length"] == "4"
    assert await status(client, "PUT", get, data=b"x") == 403
    assert await status(client, "DELETE", get) in (403, 405)
    assert await status(client, "GET", get.replace("in.mp4", "out.mp4")) == 403
    assert await status(client, "GET", get.partition("?")[0]) == 403
    assert await status(client, "GET", put) == 403
    assert await status(client, "PUT", put.replace("out.mp4", "in.mp4"), data=b"x", kind="video/mp4") == 403
    assert await status(client, "PUT", put, data=b"cut", kind="video/mp4") == 200
    assert await content(store, "one/out.mp4") == b"cut"
    assert await content(store, "one/in.mp4") == b"film"


async def test_S83_a_content_type_is_part_of_the_signature(store: ObjectStore, client: aiohttp.ClientSession) -> None:
    put = await store.mint_put("s83/x", content_type="video/mp4")
    for other in ("video/webm", "", "video/mp4; charset=utf-8"):
        assert await status(client, "PUT", put, data=b"x", kind=other) == 403, other
    assert await store.head("s83/x") is None
    assert await status(client, "PUT", put, data=b"x", kind="video/mp4") == 200


async def test_a_url_that_is_over_is_refused(store: ObjectStore, client: aiohttp.ClientSession) -> None:
    await store.write("over/x", b"x")
    get, put = await store.mint_get("over/x", expires_s=1), await store.mint_put("over/y", expires_s=1)
    until = time.time() + 2.1
    while time.time() < until:  # a store that is not ours has its own clock
        await asyncio.sleep(0.1)
    assert await status(client, "GET", get) == 403
    assert await status(client, "PUT", put, data=b"x", kind="application/octet-stream") == 403


async def test_S85_a_span_is_judged_once_and_by_its_own_length(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    now = 1_000_000.0
    async with folder_store(tmp_path / "store", clock=lambda: now) as store:
        await store.write("s85/x", b"x" * 3_000_000)
        url, week = await store.mint_get("s85/x"), await store.mint_get("s85/x", expires_s=7 * 24 * 3600)
        now += 14 * 60 + 59
        async with client.get(URL(url, encoded=True)) as answer:
            now += 10 * 60
            assert answer.status == 200 and len(await answer.read()) == 3_000_000
        assert await status(client, "GET", url) == 403
        assert await status(client, "GET", week) == 200


@pytest.mark.parametrize("expires_s", [0, -1, 604_801])
async def test_a_url_is_good_for_a_second_to_a_week(store: ObjectStore, expires_s: int) -> None:
    for mint in (store.mint_get, store.mint_put):
        with pytest.raises(ObjectError, match="1 to 604,800 seconds"):
            await mint("x", expires_s=expires_s)
    assert "604800" in await store.mint_get("x", expires_s=604_800)


async def test_an_upload_that_stands_still_is_given_up(tmp_path: Path) -> None:
    app = Starlette()
    async with served(app) as address:
        store = FolderStore(tmp_path / "store", base_url=f"{address}/objects")
        app.routes.append(Mount("/objects", FolderServer(store, stall_s=0.2).app()))
        url = URL(await store.mint_put("still/x"), encoded=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", url.port)
        writer.write(
            f"PUT {url.raw_path_qs} HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
            "Content-Length: 900\r\n\r\nhalf".encode()
        )
        async with asyncio.timeout(30):
            answer = await reader.readuntil(b"</Error>")
        writer.close()
        assert b" 408 " in answer and b"RequestTimeout" in answer
        assert await store.head("still/x") is None and not list((tmp_path / "store" / "incoming").iterdir())


@pytest.mark.parametrize(("ahead_s", "code"), [(2, None), (300, None), (1200, "RequestTimeTooSkewed")])
async def test_S86_a_signer_whose_clock_is_ahead(
    tmp_path: Path, client: aiohttp.ClientSession, ahead_s: int, code: str | None
) -> None:
    now = 1_000_000.0
    async with folder_store(tmp_path / "store", clock=lambda: now) as store:
        await store.write("s86/x", b"x")
        now += ahead_s
        url = await store.mint_get("s86/x")
        now -= ahead_s
        async with client.get(URL(url, encoded=True)) as answer:
            text = await answer.text()
        assert answer.status == (200 if code is None else 403)
        assert code is None or (code in text and "clock" in text)


DATED = b'Last-Modified: Mon, 30 Nov 2026 21:00:00 GMT\r\nETag: "x"\r\n'


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 403 No\r\nContent-Length: 39\r\n\r\n<Error><Code>AccessDenied</Code></Error>", "privileges"),
        (b"this is no HTTP\r\n\r\n", "HTTP error"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n" + DATED + b"\r\nabc", ""),
    ],
    ids=["403", "no HTTP", "short"],
)  # fmt: skip
async def test_an_S3_store_that_behaves_badly_is_an_error_without_secrets(answer: bytes, said: str) -> None:
    async def say(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async with raw_server(say) as address:
        store = S3ObjectStore(
            S3Settings(endpoint=address, bucket="media", access_key_id="k", secret_access_key="s3cret-canary")
        )
        for work in (content(store, "x"), store.copy("x", "y"), store.delete("x"), store.write("x", b"x")):
            with pytest.raises(ObjectError, match="cannot be used") as failed:
                await work
            assert "canary" not in str(failed.value) and "X-Amz" not in str(failed.value)


async def test_S87_urls_name_the_outer_host(s3_server: S3Server, client: aiohttp.ClientSession) -> None:
    inner = s3_server.settings
    outer = inner.endpoint.replace("127.0.0.1", "localhost")
    store = S3ObjectStore(
        type(inner)(
            endpoint=inner.endpoint, public_endpoint=outer, bucket=inner.bucket, access_key_id=inner.access_key_id,
            secret_access_key=inner.secret_access_key,
        )
    )  # fmt: skip
    put, get = await store.mint_put("s87/x"), await store.mint_get("s87/x")
    assert put.startswith(outer) and get.startswith(outer)
    assert await status(client, "PUT", put, data=b"x", kind="application/octet-stream") == 200
    assert await status(client, "GET", get) == 200
    assert "fixture-secret" not in repr(inner)


async def test_an_upload_has_a_length_and_a_bound_and_is_whole_or_nothing(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    async with folder_store(tmp_path / "store", upload_bytes_max=1000) as store:
        put = await store.mint_put("bound/x")
        url, kind = URL(put, encoded=True), {"Content-Type": "application/octet-stream"}
        async with client.put(url, data=pieces(), headers=kind) as answer:
            assert answer.status == 411
        assert await status(client, "PUT", put, data=b"x" * 1001, kind=kind["Content-Type"]) == 413
        reader, writer = await asyncio.open_connection("127.0.0.1", url.port)
        writer.write(
            f"PUT {url.raw_path_qs} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind['Content-Type']}\r\n"
            "Content-Length: 900\r\n\r\nhalf".encode()
        )
        await writer.drain()
        writer.write_eof()
        await reader.read()
        writer.close()
        assert await store.head("bound/x") is None
        for _ in range(300):
            if not list((tmp_path / "store" / "incoming").iterdir()):
                break
            await asyncio.sleep(0.1)
        assert not list((tmp_path / "store" / "incoming").iterdir())


async def test_the_secret_of_a_folder_is_shared_by_all_who_use_it(tmp_path: Path) -> None:
    async with folder_store(tmp_path / "store") as one, folder_store(tmp_path / "store") as other:
        assert one.secret == other.secret and len(one.secret) == 32
        assert (tmp_path / "store" / "secret").stat().st_mode & 0o077 == 0


async def test_a_folder_on_a_full_disk_says_so_and_keeps_what_it_has(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    """S88's other side: 507, in S3's words, and nothing of what did not fit."""
    with small_disk(tmp_path / "disk") as disk:
        async with folder_store(disk / "store") as store:
            put = await store.mint_put("full/x", content_type="video/mp4")
            assert await status(client, "PUT", put, data=b"x" * 1000, kind="video/mp4") == 200
            async with client.put(
                URL(put, encoded=True), data=io.BytesIO(b"x" * 5_000_000), headers={"Content-Type": "video/mp4"}
            ) as answer:
                assert (answer.status, "InsufficientStorage" in await answer.text()) == (507, True)
            with pytest.raises(ObjectError, match="No space left"), (disk / "rest").open("wb", buffering=0) as file:
                with contextlib.suppress(OSError):
                    while file.write(b"x" * 4096):
                        pass
                await store.write("full/y", b"small")
            with pytest.raises(ObjectError):
                await store.copy("full/x", "full/z")
            assert [key async for key in store.keys("full/")] == ["full/x"]
            assert await content(store, "full/x") == b"x" * 1000
            assert not list((disk / "store" / "incoming").iterdir())
            (disk / "rest").unlink()
            assert await status(client, "PUT", put, data=b"y", kind="video/mp4") == 200


async def test_what_nobody_waits_for_is_removed_from_a_folder_a_day_later(tmp_path: Path) -> None:
    now = time.time()
    async with folder_store(tmp_path / "store") as store:
        incoming = tmp_path / "store" / "incoming"
        for name, age_s in (("old", 90_000), ("new", 3600)):
            (incoming / name).write_bytes(b"half")
            os.utime(incoming / name, (now - age_s, now - age_s))
        for key in ("x", "runner-staging/1/0", "runner-verifying/1/0", "runner-stagings/x"):
            await store.write(key, b"x")
        for path in (tmp_path / "store" / "objects").rglob("*"):
            os.utime(path, (now - 90_000, now - 90_000))
        await store.write("runner-staging/1/1", b"x")
    async with folder_store(tmp_path / "store") as store:
        assert [path.name for path in incoming.iterdir()] == ["new"]
        assert [key async for key in store.keys("")] == ["runner-staging/1/1", "runner-stagings/x", "x"]
