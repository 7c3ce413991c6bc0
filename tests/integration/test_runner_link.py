"""The link of a runner to its gateway, over real sockets: TLS, proxies, bytes as life, ends, and nothing in any log."""

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web

from rota.errors import RunnerError
from rota.runners.agent_events import Connected, DialFailed, Dropped, Heard, Received
from rota.runners.dial import Gateway, parse_gateway
from rota.runners.frames import READ_BYTES_MAX
from rota.runners.io import gateway_link
from rota.runners.io.gateway_link import GatewayLink, LinkEvent
from rota.runners.io.pairing import pair
from rota.runners.io.trust import trusted
from rota.runners.messages import GatewayHeartbeat
from tests.integration.certificates import make_authority
from tests.integration.stand_in_gateway import WAIT_S, StandIn, stand_in

HELLO = json.dumps(
    {
        "v": 1,
        "type": "hello",
        "id": "h",
        "payload": {"auth": {"kind": "pool", "credential": "canary", "workerName": "w"}},
    }
).encode()


class Heap:
    """What a link told, in order."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[LinkEvent] = asyncio.Queue()

    async def next(self, *kinds: type) -> LinkEvent:
        async with asyncio.timeout(WAIT_S):
            while True:
                event = await self.told.get()
                if isinstance(event, kinds):
                    return event
                assert isinstance(event, Heard | Received | Connected), event


def linked(gateway: Gateway, tls: ssl.SSLContext | None = None) -> tuple[GatewayLink, Heap]:
    heap = Heap()
    return GatewayLink(1, gateway, tls=tls or trusted(None), say=heap.told.put_nowait), heap


def at(gateway: StandIn, *, tls: bool = False, host: str = "127.0.0.1") -> Gateway:
    return parse_gateway(f"{'wss' if tls else 'ws'}://{host}:{gateway.port}")


async def test_a_link_stands_carries_frames_both_ways_and_ends_with_the_gateways_code() -> None:
    async with stand_in() as gateway:
        link, heap = linked(at(gateway))
        assert await heap.next(Connected) == Connected(1)
        link.send(HELLO)
        connection = await gateway.connected()
        await connection.send("heartbeat", {"serverTime": "now", "leases": [], "new": {"field": 1}})
        await connection.send("invented", {"a": 1})
        await connection.socket.send_bytes(b"\x00")
        await connection.socket.send_str("no json")
        received = await heap.next(Received)
        assert isinstance(received, Received)
        assert received.frame.message == GatewayHeartbeat(server_time="now", leases=())
        await connection.socket.close(code=4409, message=b"superseded")
        assert await heap.next(Dropped) == Dropped(1, 4409, "superseded")
        await link.closed()


async def test_a_runner_hangs_up_after_what_it_had_to_say() -> None:
    async with stand_in() as gateway:
        link, heap = linked(at(gateway))
        link.send(HELLO)
        for number in range(50):
            link.send(json.dumps({"v": 1, "type": "bye", "id": str(number), "payload": {}}).encode())
        link.hang(1000, "done")
        connection = await gateway.connected()
        assert await connection.ended() == 1000
        assert [frame["id"] for frame in connection.seen] == [str(number) for number in range(50)]
        assert isinstance(await heap.next(Dropped), Dropped)


async def test_bytes_of_a_frame_that_still_arrives_are_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """S47: a frame that comes slowly is heard long before it is there. S50: no ping is needed for it."""
    monkeypatch.setattr(gateway_link, "HEARD_EVERY_S", 0.0)
    async with stand_in() as gateway:
        link, heap = linked(at(gateway))
        link.send(HELLO)
        connection = await gateway.connected()
        await heap.next(Connected)
        while not heap.told.empty():
            heap.told.get_nowait()
        transport = connection.transport()
        text = json.dumps({"v": 1, "type": "invented", "id": "x", "payload": {"text": "x" * 200}}).encode()
        transport.write(b"\x81\x7e" + len(text).to_bytes(2, "big") + text[:10])
        assert isinstance(await heap.next(Heard), Heard)
        assert heap.told.empty(), "the frame is not whole"
        transport.write(text[10:])
        assert isinstance(await heap.next(Heard), Heard)
        link.drop()
        await link.closed()


async def test_a_frame_above_the_read_limit_ends_the_link_with_1009() -> None:
    """S48, at the runner's end."""
    async with stand_in() as gateway:
        link, heap = linked(at(gateway))
        link.send(HELLO)
        connection = await gateway.connected()
        await connection.socket.send_str("x" * READ_BYTES_MAX)
        await connection.socket.send_str("x" * (READ_BYTES_MAX + 1))
        dropped = await heap.next(Dropped)
        assert isinstance(dropped, Dropped)
        assert dropped.code == gateway_link.ABNORMAL
        assert "1009" in dropped.reason
        assert await connection.ended() == 1009
        await link.closed()


async def test_a_gateway_on_tls_is_trusted_by_the_extra_certificates_only(tmp_path: Path) -> None:
    ca, context = make_authority(tmp_path)
    async with stand_in(tls=context, host="localhost") as gateway:
        link, heap = linked(at(gateway, tls=True, host="localhost"))
        failed = await heap.next(DialFailed)
        assert isinstance(failed, DialFailed)
        assert "certificate is not trusted" in failed.reason
        assert "runner_ca" in failed.reason
        link, heap = linked(at(gateway, tls=True, host="localhost"), trusted(str(ca)))
        await heap.next(Connected)
        link.drop()
        await link.closed()
        gateway.codes["ABCD-EFGH-JKMN"] = "org-1"
        made = await pair(
            at(gateway, tls=True, host="localhost"), "ABCD-EFGH-JKMN", tmp_path, name="n", os="linux", arch="amd64",
            tls=trusted(str(ca)),
        )  # fmt: skip
        assert made.device_id == "device-1"


async def test_the_proxy_of_the_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ca, context = make_authority(tmp_path)

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[0]
        asked.append(first)
        port = first.split()[1].rpartition(":")[2]
        with contextlib.suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(port))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    async with stand_in(tls=context, host="gateway.test") as gateway, raw_server(proxy) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        # A name that only the proxy can resolve.
        link, heap = linked(at(gateway, tls=True, host="gateway.test"), trusting_any_name(ca))
        await heap.next(Connected)
        assert asked == [f"CONNECT gateway.test:{gateway.port} HTTP/1.1"]
        link.drop()
        await link.closed()


async def test_ends_that_are_no_connection_say_why(unused_tcp_port: int) -> None:
    link, heap = linked(parse_gateway(f"ws://127.0.0.1:{unused_tcp_port}"))
    failed = await heap.next(DialFailed)
    assert isinstance(failed, DialFailed)
    assert "refused" in failed.reason or "Connect call failed" in failed.reason
    async with stand_in() as gateway:
        gateway.refuses = web.Response(status=503, headers={"Retry-After": "17"})
        link, heap = linked(at(gateway))
        assert await heap.next(DialFailed) == DialFailed(1, "it is not ready", 17.0)
        gateway.refuses = web.Response(status=307, headers={"Location": f"ws://127.0.0.1:{gateway.port}/v1/connect"})
        link, heap = linked(at(gateway))
        assert await heap.next(DialFailed) == DialFailed(1, "it answered with status 307", None)
        await link.closed()


async def test_a_server_without_the_subprotocol_is_no_gateway() -> None:
    async def plain(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            pass
        return socket

    app = web.Application()
    app.add_routes([web.get("/v1/connect", plain)])
    served = web.AppRunner(app, shutdown_timeout=0.1)
    await served.setup()
    await web.TCPSite(served, "127.0.0.1", 0).start()
    link, heap = linked(parse_gateway(f"ws://127.0.0.1:{served.addresses[0][1]}"))
    failed = await heap.next(DialFailed)
    assert isinstance(failed, DialFailed)
    assert "does not speak" in failed.reason
    await link.closed()
    await served.cleanup()


async def test_a_link_logs_nothing_of_what_passes_at_any_level(caplog: pytest.LogCaptureFixture) -> None:
    """S66 for the link: credentials, signatures and tokens pass here."""
    caplog.set_level(logging.DEBUG)
    async with stand_in() as gateway:
        link, heap = linked(at(gateway))
        link.send(HELLO)
        connection = await gateway.connected()
        await connection.send("op.request", {"url": "https://store.invalid/x?X-Signature=canary"})
        await connection.socket.send_str('{"v": 1, "type": "assign", "id": "x", "payload": {"jobToken": "canary"}}')
        await connection.socket.close(code=1000)
        await heap.next(Dropped)
        await link.closed()
    assert "canary" not in caplog.text


@pytest.mark.parametrize("proxy", ["ftp://user:canary@127.0.0.1:1", "http://user:canary@127.0.0.1:1/x y"])
async def test_the_account_of_a_proxy_is_not_told(
    proxy: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S66 for a proxy that the environment names."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    link, heap = linked(parse_gateway("wss://runner.invalid"))
    failed = await heap.next(DialFailed)
    await link.closed()
    assert "canary" not in failed.reason + caplog.text


async def test_pairing_says_why_it_did_not_work(unused_tcp_port: int, tmp_path: Path) -> None:
    async def told(gateway: Gateway, code: str) -> str:
        with pytest.raises(RunnerError) as caught:
            await pair(gateway, code, tmp_path, name="n", os="linux", arch="amd64", tls=trusted(None))
        assert code not in str(caught.value)
        return str(caught.value)

    async with stand_in() as gateway:
        gateway.codes["ABCD-EFGH-JKMN"] = "org-1"
        made = await pair(
            at(gateway), "ABCD-EFGH-JKMN", tmp_path, name="n", os="linux", arch="amd64", tls=trusted(None)
        )
        assert (made.device_id, made.org_id, made.gateway) == ("device-1", "org-1", at(gateway).shown)
        assert gateway.devices["device-1"] == made.key.public_key().public_bytes_raw()
        assert "Ask for a new one" in await told(at(gateway), "ABCD-EFGH-JKMN")
        assert "pairing" in await told(parse_gateway(f"ws://127.0.0.1:{gateway.port}/elsewhere"), "ABCD-EFGH-ZZZZ")
    assert "was not reached" in await told(parse_gateway(f"ws://127.0.0.1:{unused_tcp_port}"), "ABCD-EFGH-YYYY")


def trusting_any_name(ca: Path) -> ssl.SSLContext:
    context = trusted(str(ca))
    context.check_hostname = False
    return context


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def raw_server(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]) -> AsyncIterator[int]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)  # type: ignore[arg-type]
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
