"""Lines between runners and gateways as they are in the world. Time is the test's own: nothing here waits for it.

S47: a slow line. S49: a proxy that ends what is silent. S50: a middlebox that swallows pings.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rota.runners import gateway_events as events
from rota.runners import messages
from rota.runners.agent import Phase
from rota.runners.frames import PAYLOAD_BYTES_MAX
from rota.runners.io import gateway_link, gateway_server
from rota.runners.io.replica import Replica
from tests.integration.gateways import STILL, WAIT_S, Engine, connected, gateway, pair
from tests.integration.slow_line import DOWN, UP, line
from tests.integration.test_runner_fabric import our_runner, session_of


class Clock:
    """A clock that stands until the test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    for module in (gateway_server, gateway_link):
        monkeypatch.setattr(module, "HEARD_EVERY_S", 0.0)
    return Clock()


@pytest.fixture
async def replica(migrated_dsn: str, clock: Clock) -> AsyncIterator[Replica]:
    async with gateway(migrated_dsn, pace=STILL, clock=clock) as one:
        yield one


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)


def tick(replica: Replica) -> None:
    replica.exchange.happened(events.Tick())


async def test_s47_a_large_message_on_a_slow_line_is_life(replica: Replica, clock: Clock) -> None:
    async with Engine(replica) as engine, line(replica.server.serving.port, clock) as slow:
        device = await pair(replica, engine)
        # The runner's own library gives a peer 20 s to answer its pings; this line lets none through in that time.
        async with connected(replica, device.auth(), port=slow.port) as runner:
            job = await engine.create()
            assign = await runner.take()
            session = await session_of(engine, job)
            asked = asyncio.create_task(engine.op(session, "read", {"path": "a", "maxBytes": 4_000_000}))
            request = await runner.hear("op.request")
            (link,) = replica.exchange.gateway.registry.links.values()
            content = "x" * (PAYLOAD_BYTES_MAX - 2000)
            slow.allow(0)
            sending = asyncio.create_task(
                runner.of_job(
                    "op.response", assign, request["sessionId"], opId=request["payload"]["opId"], ok=True,
                    result={"content": content, "encoding": "utf8", "bytes": len(content)},
                )
            )  # fmt: skip
            for piece in range(20):
                clock.now += 2
                slow.allow(len(content) // 20 if piece < 19 else None)
                await until(lambda: link.heard_at == clock.now)
                tick(replica)
                assert link.number in replica.exchange.gateway.registry.links
            status, answer = await asyncio.wait_for(asked, WAIT_S)
            assert (status, answer["result"]["bytes"]) == (200, len(content)) and clock.now == 1040
            await sending
            held = [{"jobId": assign["jobId"], "leaseEpoch": assign["payload"]["leaseEpoch"]}]
            await runner.say("heartbeat", {"freeSlots": 0, "running": held})
            assert (await runner.hear("heartbeat"))["payload"]["leases"] == [{"jobId": assign["jobId"], "ok": True}]
            # Bytes that make no message for three times the limit are life as well.
            text = json.dumps({"v": 1, "type": "invented", "id": str(uuid4()), "payload": {"text": "x" * 4_000_000}})
            slow.allow(0)
            sending = asyncio.create_task(runner.socket.send(text))
            for _ in range(30):
                clock.now += 4.5
                slow.allow(100_000)
                await until(lambda: link.heard_at == clock.now)
                tick(replica)
            assert link.number in replica.exchange.gateway.registry.links
            # And only the rule of 45 s closes: not a moment before.
            slow.allow(None)
            await sending
            await runner.say("heartbeat", {"freeSlots": 0, "running": []})
            await runner.hear("heartbeat")
            clock.now += messages.DEAD_AFTER_S - 0.001
            tick(replica)
            assert link.number in replica.exchange.gateway.registry.links
            clock.now += 0.001
            tick(replica)
            assert (await runner.closed())[0] == 4408


@pytest.mark.parametrize("deaf", [False, True], ids=["s49", "s50"])
async def test_heartbeats_keep_both_directions_of_an_idle_session_busy(
    replica: Replica, clock: Clock, tmp_path: Path, deaf: bool
) -> None:
    async with (
        Engine(replica) as engine,
        line(replica.server.serving.port, clock, idle_s=60, deaf=deaf) as between,
        our_runner(replica, tmp_path, port=between.port, clock=clock) as (runner, _made, _task),
    ):
        job = await engine.create()
        session = await session_of(engine, job)
        agent, rules = runner._agent, replica.exchange.gateway
        (link,) = rules.registry.links.values()
        beats = 0
        while clock.now < 1600:
            at = agent.next_at()
            assert at is not None, "a runner that is connected has something to do in time"
            clock.now = max(clock.now, min(at, clock.now + 5))
            between.look()
            tick(replica)
            runner._look()
            if agent._beats:
                beats += 1
                await until(lambda: not agent._beats and not link.beats)
        assert beats >= 40
        assert (between.connections, between.cuts, agent.phase) == (1, 0, Phase.OPEN)
        assert 14 < between.longest_s[UP] < 20 and 14 < between.longest_s[DOWN] < 20
        # Its lease was renewed all along, and it works.
        assert (await engine.op(session, "stat", {"path": "a"}))[0] == 200
        assert (await engine.job(job))["leaseEpoch"] == 1


async def test_s50_pings_that_are_swallowed_change_nothing(replica: Replica, clock: Clock) -> None:
    async with Engine(replica) as engine, line(replica.server.serving.port, clock, deaf=True) as deaf:
        device = await pair(replica, engine)
        async with connected(replica, device.auth(), port=deaf.port) as runner:
            pong = await runner.socket.ping()
            for _ in range(3):
                clock.now += 40
                await runner.say("heartbeat", {"freeSlots": 0, "running": []})
                await runner.hear("heartbeat")  # a pong would have come before it
                tick(replica)
            assert not pong.done() and deaf.swallowed >= 1
            assert len(replica.exchange.gateway.registry.links) == 1
