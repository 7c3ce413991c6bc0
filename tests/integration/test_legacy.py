"""Mixed fleets: the older routes of an exec server, the client that polls them, and each against the other."""

import asyncio
import io
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rota.commands import Call
from rota.errors import ExecFailed, NoSlot
from rota.io.commands import run_whole
from rota.settings import Settings
from rota.slots.address import Address
from rota.slots.io.client import ClientOptions, SlotClient
from rota.slots.io.from_settings import client_of as client_from
from rota.slots.io.legacy import RECEIPT_HEADER
from rota.slots.io.server import ExecServer
from tests.integration.real_exec_server import real_exec_server, running, slots_in_use


async def until(condition: Callable[[], Any], what: str) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def client_of(*servers: ExecServer, **options: Any) -> AsyncIterator[SlotClient]:
    client = SlotClient(ClientOptions(tuple(Address("127.0.0.1", server.port) for server in servers), **options))
    client.start()
    try:
        async with asyncio.timeout(60):
            yield client
    finally:
        await client.stop()


async def token_of(session: aiohttp.ClientSession, server: ExecServer, service: str) -> str:
    async with session.get(f"{server.address}/token/{service}") as answer:
        assert answer.status == 200, await answer.text()
        return str((await answer.json())["token"])


async def put(
    session: aiohttp.ClientSession, server: ExecServer, token: str, job: dict[str, Any], data: Any = None
) -> tuple[int, bytes, str | None]:
    query = {"token": token, "job": json.dumps(job)}
    async with session.put(f"{server.address}/job", params=query, data=data) as answer:
        return answer.status, await answer.read(), answer.headers.get(RECEIPT_HEADER)


async def test_an_old_client_runs_commands_on_a_new_exec_server() -> None:
    async with real_exec_server() as server, aiohttp.ClientSession() as session:
        data = bytes(range(256)) * 8000
        assert await put(session, server, await token_of(session, server, "cat"), {}, io.BytesIO(data)) == (
            200,
            data,
            None,
        )
        status, body, _ = await put(session, server, await token_of(session, server, "say"), {"args": ["hello"]})
        assert (status, body) == (200, b"hello")
        status, body, _ = await put(session, server, await token_of(session, server, "cat"), {})
        assert (status, body) == (200, b""), "an empty output is whole too"
        assert slots_in_use(server) == 0


async def test_a_command_that_fails_never_looks_whole_to_an_old_client_i9() -> None:
    async with real_exec_server() as server, aiohttp.ClientSession() as session:
        status, body, _ = await put(session, server, await token_of(session, server, "fail"), {})
        receipt = json.loads(body)
        assert (status, receipt["exit"], receipt["stderr_line"]) == (500, 3, "no such codec")
        with pytest.raises(aiohttp.ClientError):
            await put(session, server, await token_of(session, server, "break"), {})
        await until(lambda: slots_in_use(server) == 0, "the slots are free")


async def test_old_clients_steal_no_slot_from_parked_calls() -> None:
    async with real_exec_server() as server, client_of(server) as client, aiohttp.ClientSession() as session:
        tasks = [asyncio.create_task(run_whole(client, Call("hang"))) for _ in range(3)]
        await until(lambda: server.broker.waiting == 1 and running(server) == 2, "two run and one waits")
        async with session.get(f"{server.address}/token/cat") as answer:
            assert answer.status == 503
        tasks.pop().cancel()
        await until(lambda: server.broker.waiting == 0, "nobody waits")
        async with session.get(f"{server.address}/token/cat") as answer:
            assert answer.status == 503, "all slots are taken"
        assert server.broker.waiting == 0, "it parked nothing"
        for task in tasks:
            task.cancel()
        await until(lambda: slots_in_use(server) == 0, "the slots are free")
        assert await token_of(session, server, "cat")


async def test_a_token_is_used_once_and_in_time() -> None:
    async with real_exec_server(offer_timeout_s=0.2) as server, aiohttp.ClientSession() as session:
        token = await token_of(session, server, "say")
        assert (await put(session, server, token, {"args": ["x"]}))[0] == 200
        assert (await put(session, server, token, {"args": ["x"]}))[:2] == (404, b"Token not found\n")
        late = await token_of(session, server, "say")
        await until(lambda: slots_in_use(server) == 0, "the reservation ends by itself")
        assert (await put(session, server, late, {"args": ["x"]}))[0] == 404
        assert not server.broker.clients, "nothing is kept of it"


async def test_bad_requests_are_named_and_keep_no_slot() -> None:
    async with real_exec_server() as server, aiohttp.ClientSession() as session:
        async with session.get(f"{server.address}/token/unknown") as answer:
            assert answer.status == 404
        token = await token_of(session, server, "say")
        async with session.put(f"{server.address}/job", params={"token": token, "job": "{"}) as answer:
            assert answer.status == 400
        status, body, _ = await put(session, server, await token_of(session, server, "say"), {"args": {"size": 1}})
        assert status == 500
        assert b"size" in body
        assert slots_in_use(server) == 0


async def test_the_shared_token_is_wanted_here_too() -> None:
    async with real_exec_server(token="s3cret") as server, aiohttp.ClientSession() as session:
        async with session.get(f"{server.address}/token/say") as answer:
            assert answer.status == 401
        headers = {"Authorization": "Bearer s3cret"}
        async with session.get(f"{server.address}/token/say", headers=headers) as answer:
            assert answer.status == 200


async def test_an_old_client_that_goes_away_leaves_no_process() -> None:
    async with real_exec_server() as server, aiohttp.ClientSession() as session:
        token = await token_of(session, server, "hang")
        call = asyncio.create_task(put(session, server, token, {}))
        await until(lambda: running(server) == 1, "it runs")
        call.cancel()
        await asyncio.wait([call])
        await until(lambda: slots_in_use(server) == 0, "its command is killed and its slot is free")


async def test_a_new_client_polls_an_old_exec_server(caplog: pytest.LogCaptureFixture) -> None:
    async with real_exec_server(old=True) as server, client_of(server) as client:
        data = b"y" * 2_000_000
        assert (await run_whole(client, Call("cat", stdin=data))).output == data
        assert (await run_whole(client, Call("say", ("hello",)))).output == b"hello"
        assert (await run_whole(client, Call("cat", stdin=b""))).output == b""
        with pytest.raises(ExecFailed, match="no such codec"):
            await run_whole(client, Call("fail"))
        with pytest.raises(ExecFailed):
            await run_whole(client, Call("break"))
        with pytest.raises(NoSlot):
            await run_whole(client, Call("unknown", wait_s=0.3))
        assert "exec server has no broker" in caplog.text
        assert client.room("k", services={"k": ["cat"]}, running={}) == 4, "a little may be claimed"


async def test_calls_wait_for_an_old_exec_server_by_polling() -> None:
    async with real_exec_server(old=True) as server, client_of(server) as client:
        hanging = [asyncio.create_task(run_whole(client, Call("hang"))) for _ in range(2)]
        await until(lambda: running(server) == 2, "both run")
        waiting = asyncio.create_task(run_whole(client, Call("say", ("at last",))))
        hanging.pop().cancel()
        assert (await waiting).output == b"at last"
        for task in hanging:
            task.cancel()
        await until(lambda: slots_in_use(server) == 0, "the slots are free")


async def test_a_mixed_fleet_takes_work_wherever_there_is_a_slot() -> None:
    async with real_exec_server() as new, real_exec_server(old=True) as old, client_of(new, old) as client:
        calls = [asyncio.create_task(run_whole(client, Call("hang"))) for _ in range(4)]
        await until(lambda: (running(new), running(old)) == (2, 2), "all four run")
        for call in calls:
            call.cancel()
        await until(lambda: slots_in_use(new) + slots_in_use(old) == 0, "all slots are free")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize("old", [False, True])
async def test_over_tls_with_a_certificate_of_ones_own(tmp_path: Path, old: bool) -> None:
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=exec", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    async with real_exec_server(old=old, tls=(certificate, key), token="s3cret") as server:
        settings = Settings(exec_addresses=server.address, exec_token="s3cret", exec_ca=certificate)
        client = client_from(settings)
        try:
            assert (await run_whole(client, Call("cat", stdin=b"abc"))).output == b"abc"
        finally:
            await client.stop()
        client = client_from(Settings(exec_addresses=server.address, exec_token="s3cret"))
        with pytest.raises(NoSlot):
            await run_whole(client, Call("cat", stdin=b"abc", wait_s=0.5))
        await client.stop()
