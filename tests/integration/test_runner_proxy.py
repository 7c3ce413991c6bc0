"""A runner behind a company's proxy: pairing, its link and its transfers take the same way, and nobody is told the
proxy's account."""

import asyncio
import base64
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web

from rota.errors import RunnerError, SettingsError
from rota.runners.agent_events import Connected, DialFailed, Heard
from rota.runners.dial import Gateway
from rota.runners.failures import OpFailure
from rota.runners.io.gateway_link import GatewayLink, LinkEvent
from rota.runners.io.pairing import pair
from rota.runners.io.transfers import Transfers, TransferSettings
from rota.runners.io.trust import proxy_to, trusted, with_plain_account
from tests.integration.certificates import make_authority
from tests.integration.stand_in_gateway import stand_in

CODE = "ABCD-EFGH-JKMN"
HOST = "gateway.test"
ACCOUNT = "us@er:p%41ss:canary%"
ENCODED = "us%40er:p%2541ss:canary%25"


class Proxy:
    """A proxy that wants an account; for tests it finds every name on this machine."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: bytes | None = None
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.asked.append(head.splitlines()[0])
            wanted = f"Proxy-Authorization: Basic {base64.b64encode(ACCOUNT.encode()).decode()}\r\n"
            if self.answer is not None:
                writer.write(self.answer)
            elif wanted not in head:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            else:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", head.split()[1].rpartition(":")[2])
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
            await writer.drain()
        writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


Setting = Callable[[str], None]


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Setting:
    """Names a proxy in the environment."""
    for name in ("NO_PROXY", "no_proxy", "HTTP_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    return lambda address: monkeypatch.setenv("HTTPS_PROXY", address)


@pytest.fixture
async def proxy(named: Setting) -> AsyncIterator[Proxy]:
    made = Proxy()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    named(f"http://{ENCODED}@127.0.0.1:{made.port}")
    yield made
    server.close()
    await server.wait_closed()


async def linked(gateway: Gateway, tls: ssl.SSLContext) -> LinkEvent:
    """What a link says first."""
    told: asyncio.Queue[LinkEvent] = asyncio.Queue()
    link = GatewayLink(1, gateway, tls=tls, say=told.put_nowait)
    while isinstance(first := await told.get(), Heard):
        pass
    link.drop()
    await link.closed()
    return first


async def paired(gateway: Gateway, tls: ssl.SSLContext, folder: Path) -> str:
    return (await pair(gateway, CODE, folder, name="n", os="linux", arch="amd64", tls=tls)).device_id


async def fetched(port: int, tls: ssl.SSLContext) -> bytes:
    """What an object is, of a store of which only the proxy knows where it is."""
    got = bytearray()
    transfers = Transfers(TransferSettings(tls=tls, near=False, gateway=HOST))
    try:
        await transfers.get(
            f"https://store.test:{port}/a?X-Amz-Signature=canary", got.extend, bytes_max=10,
            too_large=OpFailure("file_too_large", ""), moved=lambda _count, _of: None,
        )  # fmt: skip
    finally:
        await transfers.close()
    return bytes(got)


@contextlib.asynccontextmanager
async def store(tls: ssl.SSLContext) -> AsyncIterator[int]:
    async def give(_request: web.Request) -> web.Response:
        return web.Response(body=b"film")

    app = web.Application()
    app.add_routes([web.get("/a", give)])
    served = web.AppRunner(app, shutdown_timeout=0.1)
    await served.setup()
    await web.TCPSite(served, "127.0.0.1", 0, ssl_context=tls).start()
    yield served.addresses[0][1]
    await served.cleanup()


async def test_all_that_goes_out_takes_the_proxy_with_its_account(proxy: Proxy, tmp_path: Path) -> None:
    ca, server = make_authority(tmp_path)
    tls = trusted(str(ca))
    tls.check_hostname = False
    async with stand_in(tls=server, host=HOST) as gateway, store(server) as store_port:
        gateway.codes[CODE] = "org-1"
        there = Gateway(HOST, gateway.port, True)
        assert await paired(there, tls, tmp_path) == "device-1"
        assert await linked(there, tls) == Connected(1)
        assert await fetched(store_port, tls) == b"film"
        place = f"CONNECT {HOST}:{gateway.port} HTTP/1.1"
        assert proxy.asked == [place, place, f"CONNECT store.test:{store_port} HTTP/1.1"]


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "407"),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", "502"),
        (b"no HTTP at all\r\n\r\n", "HTTP"),
        (b"", "o"),
    ],
)
async def test_a_proxy_that_refuses_is_told_and_its_account_is_not(
    answer: bytes, word: str, proxy: Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    proxy.answer, tls = answer, trusted(None)
    there = Gateway(HOST, 443, True)
    with pytest.raises(RunnerError, match=word) as at_pairing:
        await paired(there, tls, tmp_path)
    with pytest.raises(OpFailure, match=word) as at_stage:
        await fetched(443, tls)
    at_link = await linked(there, tls)
    assert isinstance(at_link, DialFailed)
    assert word in at_link.reason
    assert at_stage.value.error.retryable
    for told in (str(at_pairing.value), str(at_stage.value.error), at_link.reason, caplog.text):
        assert "canary" not in told
        assert "us%40er" not in told


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("socks5h://user:canary@127.0.0.1:1", "neither http nor https"),
        ("ftp://user:canary@127.0.0.1:1", "neither http nor https"),
        ("http://user:canary@127.0.0.1:1/x y", "not like"),
        ("http://user:canary@127.0.0.1:port", "not like"),
        ("http://user:canary@[::1", "not like"),
        ("http://", "not like"),
    ],
)
async def test_a_proxy_that_is_none_is_told_everywhere(
    address: str, word: str, named: Setting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    named(address)
    there, tls = Gateway(HOST, 443, True), trusted(None)
    with pytest.raises(SettingsError, match=word) as at_pairing:
        await paired(there, tls, tmp_path)
    with pytest.raises(OpFailure, match=word) as at_stage:
        await fetched(443, tls)
    at_link = await linked(there, tls)
    assert isinstance(at_link, DialFailed)
    assert word in at_link.reason
    for told in (str(at_pairing.value), str(at_stage.value.error), at_link.reason, caplog.text):
        assert "canary" not in told


def test_which_proxy_it_is(named: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    named("proxy.test:3128")
    assert proxy_to(HOST, 443, tls=True) == "http://proxy.test:3128"
    assert proxy_to(HOST, 80, tls=False) is None
    for here in ("localhost", "127.0.0.1", "::1"):
        assert proxy_to(here, 443, tls=True) is None
    monkeypatch.setenv("NO_PROXY", f"{HOST}:9000,.inside.test")
    assert proxy_to(HOST, 9000, tls=True) is None
    assert proxy_to("store.inside.test", 443, tls=True) is None
    assert proxy_to(HOST, 443, tls=True) is not None
    monkeypatch.setenv("HTTPS_PROXY", " ")
    assert proxy_to(HOST, 443, tls=True) is None


@pytest.mark.parametrize(
    ("address", "plain"),
    [
        ("http://h:1", "http://h:1"),
        ("http://a%40b:c@h:1", "http://a@b:c@h:1"),
        ("http://token@[::1]:8/", "http://token:@[::1]:8"),
        ("https://a:%2541@h", "https://a:%41@h"),
    ],
)
def test_an_account_is_written_as_it_is_sent(address: str, plain: str) -> None:
    assert with_plain_account(address) == plain


@pytest.mark.parametrize(
    "account", ["a:%2Fcanary", "a:canary%3F", "a:canary%23", "a%3Ab:canary", "a:canary%C3%A9", "a:%5Bcanary"]
)
def test_an_account_that_cannot_be_written_so_is_refused(account: str) -> None:
    with pytest.raises(SettingsError, match="account has characters") as refused:
        with_plain_account(f"http://{account}@h:1")
    assert "canary" not in str(refused.value)
