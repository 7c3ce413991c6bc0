"""Several exec servers behind one address of a real nginx or HAProxy, with the configuration that the guide shows."""

import asyncio
import io
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route
from websockets.asyncio.client import connect

from rota.commands import Call
from rota.demo.balancers import NAMES, Balancer, Front, Name, find, free_port, haproxy_text, nginx_text
from rota.io.commands import run_whole
from rota.objects.io.folder import FolderStore
from rota.objects.io.folder_server import FolderServer
from rota.objects.store import CONTENT_TYPE
from rota.slots import pool
from rota.slots.address import Address
from rota.slots.config import read_exec_config
from rota.slots.io import links
from rota.slots.io.client import ClientOptions, SlotClient
from rota.slots.io.server import ExecServer
from rota.slots.io.survey import look_at
from tests.integration.exec_servers import exec_server
from tests.integration.object_stands import served
from tests.integration.real_exec_server import real_exec_server, running
from tests.postgres_servers import unavailable

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "load-balancers.md"
SLEEPER = """
[waitgroups.all]
processes = 1
[services.hang]
command = ["sleep", "600"]
waitgroup = "all"
[services.cat]
command = ["cat"]
waitgroup = "all"
"""


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> Name:
    chosen: Name = request.param
    if find(chosen) is None:
        unavailable(chosen, f"{chosen} is not installed")
    return chosen


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits of the policy, shortened alike."""
    monkeypatch.setattr(pool, "TICK_S", 0.1)
    monkeypatch.setattr(pool, "GROW_EVERY_S", 0.2)
    monkeypatch.setattr(pool, "REPROBE_FIRST_S", 0.2)
    monkeypatch.setattr(pool, "REPROBE_S", 0.8)


@asynccontextmanager
async def client_at(*addresses: Address, **options: Any) -> AsyncIterator[SlotClient]:
    client = SlotClient(ClientOptions(addresses, **options))
    client.start()
    try:
        async with asyncio.timeout(90):
            yield client
    finally:
        await client.stop()


async def reaches(what: Any) -> None:
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.02)


def clients(server: ExecServer) -> int:
    return server.broker.hello().clients


@pytest.mark.usefixtures("hurry")
async def test_demand_reaches_all_exec_servers_and_those_added_later_s35(name: Name, tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    async with AsyncExitStack() as stack:
        pods = [
            await stack.enter_async_context(real_exec_server(SLEEPER, name=f"pod-{n}", port=ports[n])) for n in range(2)
        ]
        balancer = stack.enter_context(Balancer(name, tmp_path, [f"127.0.0.1:{port}" for port in ports]))
        client = await stack.enter_async_context(client_at(Address("127.0.0.1", balancer.port)))
        assert (await run_whole(client, Call("cat", stdin=b"through"))).output == b"through"
        assert [clients(pod) for pod in pods] in ([1, 0], [0, 1]), "without a backlog nothing grows"
        calls = [asyncio.create_task(run_whole(client, Call("hang", wait_s=600))) for _ in range(4)]
        stack.push_async_callback(ended, calls)
        await reaches(lambda: [running(pod) for pod in pods] == [1, 1])
        # A connection that circled back is closed again, and the address is covered for a while.
        await reaches(lambda: client._sites[0].pool.covered_until is not None)
        await reaches(lambda: [clients(pod) for pod in pods] == [1, 1])
        pods.append(await stack.enter_async_context(real_exec_server(SLEEPER, name="pod-2", port=ports[2])))
        await reaches(lambda: [running(pod) for pod in pods] == [1, 1, 1])
        await reaches(lambda: [clients(pod) for pod in pods] == [1, 1, 1])
        assert [instance.instance_id for instance in client.instances()] == ["pod-0", "pod-1", "pod-2"]


async def ended(calls: "list[asyncio.Task[Any]]") -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.usefixtures("hurry")
async def test_what_waits_goes_on_at_the_others_when_an_exec_server_dies(name: Name, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        pods = [await stack.enter_async_context(real_exec_server(SLEEPER, name=f"pod-{n}")) for n in range(2)]
        places = [f"127.0.0.1:{pod.port}" for pod in pods]
        balancer = stack.enter_context(Balancer(name, tmp_path, places))
        client = await stack.enter_async_context(client_at(Address("127.0.0.1", balancer.port)))
        calls = [asyncio.create_task(run_whole(client, Call("hang", wait_s=600))) for _ in range(3)]
        stack.push_async_callback(ended, calls)
        await reaches(lambda: [running(pod) for pod in pods] == [1, 1])
        await pods[0].stop()
        await reaches(lambda: sum(call.done() for call in calls) == 1)
        other = next(pod for pod in pods[1:])
        await reaches(lambda: other.broker.waiting == 1)
        next(call for call in calls if not call.done()).cancel()
        await reaches(lambda: (running(other), other.broker.waiting) == (1, 0))


async def test_tls_ends_at_the_balancer_and_the_token_goes_through(name: Name, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        unavailable("openssl", "openssl makes the certificate, and is not here")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    cert, key, both = (tmp_path / file for file in ("cert.pem", "key.pem", "both.pem"))
    both.write_text(cert.read_text() + key.read_text())
    files = (str(both), str(both)) if name == "haproxy" else (str(cert), str(key))
    trusting = ssl.create_default_context(cafile=cert)
    async with AsyncExitStack() as stack:
        pods = [
            await stack.enter_async_context(real_exec_server(SLEEPER, name=f"pod-{n}", token="s3cret"))
            for n in range(2)
        ]  # fmt: skip
        balancer = stack.enter_context(
            Balancer(name, tmp_path / "balancer", [f"127.0.0.1:{pod.port}" for pod in pods], tls=files)
        )
        address = Address("127.0.0.1", balancer.port, tls=True)
        client = await stack.enter_async_context(client_at(address, token="s3cret", tls=trusting))
        text = b"line\n" * 100_000
        assert (await run_whole(client, Call("cat", stdin=text))).output == text
        wrong = await look_at([address], token="guess", tls=trusting)
        assert [(seen.overview, "another token" in (seen.error or "")) for seen in wrong] == [(None, True)]
        seen = await look_at([address], token="s3cret", tls=trusting)
        assert sorted(one.overview.instance_id for one in seen if one.overview) == ["pod-0", "pod-1"]


async def test_an_idle_session_outlives_the_idle_limits_of_balancers_s49(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Scaled: a limit of 3 s, pings every 0.25 s, and 8 s of silence. A connection without pings is cut meanwhile."""
    monkeypatch.setattr(links, "PING_EVERY_S", 0.25)
    names: list[Name] = [name for name in NAMES if find(name)]
    if len(names) < len(NAMES):
        unavailable(next(name for name in NAMES if name not in names), "it is not installed")
    async with AsyncExitStack() as stack:
        server, hands = await stack.enter_async_context(exec_server())
        balancers = [
            stack.enter_context(Balancer(name, tmp_path / name, [f"127.0.0.1:{server.port}"], idle_s=3))
            for name in names
        ]
        sites = [
            await stack.enter_async_context(client_at(Address("127.0.0.1", balancer.port))) for balancer in balancers
        ]
        mute = [
            await stack.enter_async_context(
                connect(f"ws://127.0.0.1:{balancer.port}/broker", proxy=None, ping_interval=None)
            )
            for balancer in balancers
        ]
        await reaches(lambda: all(client._hellos for client in sites))
        before = [client._numbers for client in sites]
        await asyncio.gather(asyncio.sleep(8), *(asyncio.wait_for(websocket.wait_closed(), 60) for websocket in mute))
        assert [client._numbers for client in sites] == before, "nobody had to dial again"
        hands.at_once = True
        for client in sites:
            assert (await run_whole(client, Call("cut"))).receipt.ok


async def test_whole_outputs_go_through_to_a_folder_of_objects(name: Name, tmp_path: Path) -> None:
    """nginx takes a body of one MiB unless it is told otherwise; an op's is up to four."""
    content = b"x" * (8 << 20)
    app = Starlette(routes=[Route("/readyz", lambda _request: Response())])
    async with served(app) as address:
        with Balancer(name, tmp_path / "balancer", [urlsplit(address).netloc], kind="gateways") as balancer:
            store = FolderStore(tmp_path / "objects", base_url=f"http://127.0.0.1:{balancer.port}/objects")
            app.routes.append(Mount("/objects", FolderServer(store).app()))
            async with aiohttp.ClientSession() as http:
                url = await store.mint_put("films/a.mp4")
                async with http.put(url, data=io.BytesIO(content), headers={"Content-Type": CONTENT_TYPE}) as answer:
                    assert answer.status == 200
                async with http.get(await store.mint_get("films/a.mp4")) as answer:
                    assert await answer.read() == content


def test_the_exec_toml_of_the_sizing_guide_is_one() -> None:
    text = (GUIDE.parent / "sizing-slots.md").read_text(encoding="utf-8")
    config = read_exec_config(text.partition("```toml\n")[2].partition("```")[0])
    assert set(config.services) == {"thumbnail", "upscale"}


def test_the_guide_shows_these_very_texts() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    servers = ["10.0.0.11:8750", "10.0.0.12:8750", "10.0.0.13:8750"]
    assert f"```nginx\n{nginx_text(Front('8750', servers))}```" in guide
    assert f"```haproxy\n{haproxy_text(Front('8750', servers))}```" in guide
    gateways = ["10.0.0.21:8760", "10.0.0.22:8760"]
    assert f"```nginx\n{nginx_text(Front('8760', gateways, kind='gateways'))}```" in guide
    assert f"```haproxy\n{haproxy_text(Front('8760', gateways, kind='gateways'))}```" in guide
    with_tls = nginx_text(Front("8750", servers, tls=("/etc/ssl/exec.pem", "/etc/ssl/exec.key")))
    assert all(line in guide for line in with_tls.splitlines() if "ssl" in line)
    assert "bind :8750 ssl crt /etc/ssl/exec.pem" in guide
    assert "bind :8750 ssl crt /etc/ssl/exec.pem" in haproxy_text(
        Front("8750", servers, tls=("/etc/ssl/exec.pem", "/etc/ssl/exec.key"))
    )
