"""Several exec servers behind one address, links that go silent, and output that nobody reads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from rota.commands import Call
from rota.errors import ExecFailed, ExecLost
from rota.io.commands import run_whole
from rota.slots import pool
from rota.slots.address import Address
from rota.slots.io import links
from rota.slots.io.client import ClientOptions, SlotClient
from rota.slots.io.survey import look_at
from rota.slots.messages import Want
from tests.integration.balancer import Balancer
from tests.integration.exec_stand_in import StandIn, hang, say
from tests.integration.real_exec_server import real_exec_server, slots_in_use

COMMANDS = {"say": say, "hang": hang}


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits of the policy, shortened alike."""
    monkeypatch.setattr(pool, "TICK_S", 0.05)
    monkeypatch.setattr(pool, "GROW_EVERY_S", 0.1)
    monkeypatch.setattr(pool, "REPROBE_FIRST_S", 0.1)
    monkeypatch.setattr(pool, "REPROBE_S", 0.4)


@asynccontextmanager
async def client_at(*ports: int, **options: Any) -> AsyncIterator[SlotClient]:
    client = SlotClient(ClientOptions(tuple(Address("127.0.0.1", port) for port in ports), **options))
    client.start()
    try:
        async with asyncio.timeout(60):
            yield client
    finally:
        await client.stop()


async def all_connections(pods: list[StandIn], counts: list[int]) -> None:
    async with asyncio.timeout(30):
        while [len(pod.connections) for pod in pods] != counts:
            await asyncio.sleep(0.01)


async def test_demand_reaches_every_pod_behind_one_address_and_no_pod_twice_s35() -> None:
    async with AsyncExitStack() as stack:
        pods = [await stack.enter_async_context(StandIn(COMMANDS, slots=1, name=f"pod-{n}")) for n in range(3)]
        balancer = await stack.enter_async_context(Balancer([pod.port for pod in pods[:2]]))
        client = await stack.enter_async_context(client_at(balancer.port))
        await all_connections(pods, [1, 0, 0])
        assert (await run_whole(client, Call("say", ("a",)))).output == b"a"
        await all_connections(pods, [1, 0, 0])
        calls = [asyncio.create_task(run_whole(client, Call("hang"))) for _ in range(4)]
        await pods[1].until(lambda: pods[1].running)
        await all_connections(pods, [1, 1, 0])
        # Probes circle back to a known pod, are closed and get no wants.
        site = client._sites[0]
        async with asyncio.timeout(30):
            while site.pool.covered_until is None:
                await asyncio.sleep(0.01)
        balancer.backends = [pod.port for pod in pods]
        await pods[2].until(lambda: pods[2].running)
        await all_connections(pods, [1, 1, 1])
        assert sum(len(pod.running) for pod in pods) == 3
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_a_survey_finds_the_pods_behind_a_balancer() -> None:
    async with (
        real_exec_server(name="one") as one,
        real_exec_server(name="two") as two,
        Balancer([one.port, two.port]) as balancer,
    ):
        seen = await look_at([Address("127.0.0.1", balancer.port), Address("127.0.0.1", 9)], token=None, tls=None)
        assert [found.overview and found.overview.instance_id for found in seen] == ["one", "two", None]
        assert seen[2].error


async def test_a_link_that_goes_silent_is_noticed_and_wants_are_parked_again_s39(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "PING_EVERY_S", 0.2)
    monkeypatch.setattr(links, "PING_TIMEOUT_S", 0.2)
    monkeypatch.setattr(links, "OPEN_TIMEOUT_S", 0.5)
    async with StandIn(COMMANDS, slots=1) as pod, Balancer([pod.port]) as balancer, client_at(balancer.port) as client:
        running = asyncio.create_task(run_whole(client, Call("hang")))
        await pod.until(lambda: pod.running)
        waiting = asyncio.create_task(run_whole(client, Call("say", ("again",))))
        await pod.until(lambda: pod.wants)
        balancer.swallows = True
        with pytest.raises(ExecLost):
            await running
        assert not waiting.done()
        wants = pod.count(Want)
        balancer.swallows = False
        await pod.until(lambda: pod.count(Want) > wants)
        # The exec server of this test has no pings; the real one kills the command, as it would at a drop.
        for task in list(pod.running.values()):
            task.cancel()
        assert (await waiting).output == b"again"


async def test_output_that_nobody_reads_holds_the_command_until_its_own_limit_s43() -> None:
    text = """
    [services.flood]
    command = ["head", "-c", "2000000000", "/dev/zero"]
    """
    async with real_exec_server(text) as server, client_at(server.port) as client:
        with pytest.raises(ExecFailed, match="which is its limit") as raised:
            async with client.exec(Call("flood", timeout_s=1.0)) as run:
                chunks = aiter(run.stdout)
                assert await anext(chunks)
                async with asyncio.timeout(30):
                    while slots_in_use(server):
                        await asyncio.sleep(0.05)
                async for _ in chunks:
                    pass
        receipt = raised.value.receipt
        assert receipt.ended_by == "timeout"
        assert receipt.bytes_out < 50_000_000, "it was held back"


async def test_idle_is_silent_i8() -> None:
    async with StandIn(COMMANDS) as pod, client_at(pod.port) as client:
        assert (await run_whole(client, Call("say", ("a",)))).output == b"a"
        heard = len(pod.heard)
        async with asyncio.timeout(30):
            while client._tick_at is not None:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert len(pod.heard) == heard
