"""Some hundred runners on one gateway: what they cost it, and that a storm takes no lease from them. The bench does the
same with thousands."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from bench.runners import storm
from bench.runners.children import Child, child
from bench.runners.crowd import Crowd, Told
from rota.io.postgres import Database
from rota.runners.ramp import Ramp
from tests.integration.gateways import WAIT_S, gateway

RUNNERS = 300
JOBS = 60
MEMORY_KIB_MAX = 150.0
"""An idle runner takes about 35. Two contexts of a compressor alone would take it past this."""
RENEWALS_MAX = 12
"""Statements for the heartbeats of all that hold a job, sent at the same moment: two or three, and some to spare."""
REFUSED = 100


class Full(Ramp):
    """Has no room for the first hundred, whatever the time is."""

    refused = 0

    def admit(self, now: float) -> float | None:
        self.refused += 1
        return 1.0 + self.refused / 100 if self.refused <= REFUSED else None


@asynccontextmanager
async def crowd(port: int, secrets: tuple[str, str]) -> AsyncIterator[Crowd]:
    """The runners, in this loop. They beat when they are told to, unless a test takes very long."""
    credential, key = secrets
    made = Crowd(Told(port, 0, RUNNERS, key, credential, beat_s=storm.BEAT_S), Random(1))
    made.come(0.5)
    try:
        await until(lambda: made.facts.connected == RUNNERS, made)
        yield made
    finally:
        await made.stop()


async def until(good: Callable[[], bool], made: Crowd) -> None:
    """Waits until something is so, and tells what is instead if it never is."""
    try:
        async with asyncio.timeout(2 * WAIT_S):
            while not good():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"it did not come to pass: {made.facts}") from None


async def back(made: Crowd) -> None:
    """Waits until all were welcomed once more."""
    await until(lambda: made.facts.welcomes >= 2 * RUNNERS and made.facts.connected == RUNNERS, made)


async def deal(port: int, made: Crowd) -> None:
    """Gives jobs to some of them."""
    await storm.create(port, JOBS)
    await until(lambda: made.facts.held == JOBS, made)


async def lost(dsn: str, made: Crowd) -> tuple[int, int]:
    """Leases that the runners and the database know to be lost."""
    return made.facts.lost, await storm.lost_in_database(dsn, JOBS)


@pytest.mark.timeout(180)
async def test_all_lines_cut_at_once_cost_no_lease_and_few_statements(
    migrated_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    fetch = Database.fetch

    async def counted(self: Database, text: str, *args: Any, **options: Any) -> list[Any]:
        asked[text.partition("\n")[0]] += 1
        return await fetch(self, text, *args, **options)

    secrets = await storm.prepare(migrated_dsn, RUNNERS)
    async with (
        gateway(migrated_dsn, gateway_token=storm.TOKEN) as replica,
        crowd(replica.server.serving.port, secrets) as made,
    ):
        monkeypatch.setattr(Database, "fetch", counted)
        await deal(replica.server.serving.port, made)
        links = replica.exchange.gateway.registry.links
        await until(lambda: not any(link.claiming for link in links.values()), made)  # some asked in vain
        made.facts.answered = 0
        asked.clear()
        for runner in made.runners:
            runner.beat()
        await until(lambda: made.facts.answered >= RUNNERS, made)
        renewals = sum(count for text, count in asked.items() if text.startswith("-- Extends the leases"))
        assert 1 <= renewals <= RENEWALS_MAX, asked
        asked.clear()
        begun = time.monotonic()
        replica.exchange.gateway._admission._ramp = Full(1.0)
        made.cut()
        await back(made)
        assert made.facts.refused == REFUSED
        # Who holds a job that this gateway knows does not stand in line with the others.
        assert made.facts.refused_holding == 0
        assert await lost(migrated_dsn, made) == (0, 0)
        # There are two sorts of runners, and of each sort one asks for all, once a second at most.
        claims = sum(count for text, count in asked.items() if text.startswith("-- Takes the next jobs"))
        assert claims <= RUNNERS // 3 + 4 * (time.monotonic() - begun), asked


@pytest.mark.timeout(180)
async def test_a_gateway_that_is_killed_loses_no_lease_and_each_runner_takes_little_memory(dsn: str) -> None:
    secrets = await storm.prepare(dsn, RUNNERS)
    async with (
        child("gateway", {"dsn": dsn, "instance": "first"}) as first,
        child("gateway", {"dsn": dsn, "instance": "second"}) as second,
    ):
        before = await first.ask("memory")
        async with crowd(first.says["port"], secrets) as made:
            assert await memory_kib(first, before) < MEMORY_KIB_MAX
            await deal(first.says["port"], made)
            made.told.port = second.says["port"]  # as a balancer would
            await first.kill()
            await back(made)
            assert await lost(dsn, made) == (0, 0)
            assert (await second.ask())["connected"] == RUNNERS


async def memory_kib(server: Child, before: dict[str, Any]) -> float:
    """What each runner takes of a gateway's process."""
    taken: float = (await server.ask("memory"))["rss_bytes"] - before["rss_bytes"]
    return taken / RUNNERS / 1024
