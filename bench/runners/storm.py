"""Many runners on one gateway: what each takes of its memory and of its time, and what happens when all of them lose
their connections at once, or the gateway is killed.

The gateway, a server of bare websockets and the runners are processes of their own, so that the memory of one is not
that of another.
"""

import asyncio
import base64
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final
from uuid import uuid4

import asyncpg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.machine import Bystanders
from bench.report import Sample
from bench.runners.children import Child, child, until
from bench.runners.host import TOKEN
from rota.io.migrate import up
from rota.io.postgres import Database, Target
from rota.runners.io.devices import Devices
from rota.runners.io.gateway_client import GatewayClient
from rota.runners.messages import HEARTBEAT_S

CROWDS: Final = 2
"""Processes of runners: one loop cannot sign thousands of hellos as fast as a gateway reads them."""
COME_PER_S: Final = 400
"""How many connect in a second where nothing hurries: below what a gateway lets in."""
BEAT_S: Final = float(HEARTBEAT_S)
WAIT_S: Final = 120.0
ORG: Final = "bench"


async def bare(bystanders: Bystanders, *, runners: int) -> list[Sample]:
    """As many bare websockets on the same stack: KiB of each."""
    since = bystanders.reading()
    async with child("bare", {}) as server:
        before = await server.ask("memory")
        async with crowds(server.says["port"], runners, None, BEAT_S) as made:
            await _all_come(made, [server], runners)
            taken = (await server.ask("memory"))["rss_bytes"] - before["rss_bytes"]
    return [Sample("memory.bare", taken / runners / 1024, bystanders.share(since))]


async def gateway(bystanders: Bystanders, dsn: str, *, runners: int, jobs: int, idle_s: float) -> list[Sample]:
    """One gateway with all runners: first idle, then with their lines cut at once, then killed and started anew.

    Args:
        bystanders: who else uses the machine.
        dsn: an empty database.
        runners: how many.
        jobs: how many of them hold a running job while the storms come.
        idle_s: how long the heartbeats are looked at.

    Raises: NotMeasured if one of these does not come to its end.
    """
    secrets = await prepare(dsn, runners)
    async with AsyncExitStack() as stack:
        since = bystanders.reading()
        server = await stack.enter_async_context(child("gateway", {"dsn": dsn, "instance": "first"}))
        port, before = server.says["port"], await server.ask("memory")
        made = await stack.enter_async_context(crowds(port, runners, secrets, BEAT_S))
        await _all_come(made, [server], runners)
        beats = await _beats(made, server, idle_s)
        taken = (await server.ask("memory"))["rss_bytes"] - before["rss_bytes"]
        share = bystanders.share(since)
        samples = [Sample("memory.rota", taken / runners / 1024, share)]
        samples += [Sample(key, value, share) for key, value in beats.items()]
        await create(port, jobs)
        await until("dealing jobs", lambda found: _sum(found, "held") == jobs, made, within_s=WAIT_S)
        for kind in ("cut", "kill"):
            since = bystanders.reading()
            await asyncio.gather(server.ask(), *(one.ask("forget") for one in made))
            begun = time.time()
            if kind == "cut":
                await asyncio.gather(*(one.ask("cut") for one in made))
            else:
                await server.kill()
                told = {"dsn": dsn, "instance": "second", "port": port}
                server = await stack.enter_async_context(child("gateway", told))
            await until("reconnecting", lambda found: _sum(found, "welcomes") == runners, made, within_s=WAIT_S)
            facts, loop = [await one.ask() for one in made], await server.ask()
            lost = _sum(facts, "lost") + await lost_in_database(dsn, jobs)
            values = {
                "lost": lost, "seconds": max(one["connected_at"] for one in facts) - begun,
                "lag": 1000 * loop["lag_max_s"], "refused": _sum(facts, "refused") / runners,
            }  # fmt: skip
            share = bystanders.share(since)
            samples += [Sample(f"{kind}.{key}", value, share) for key, value in values.items()]
    return samples


async def _beats(made: Sequence[Child], server: Child, idle_s: float) -> dict[str, float]:
    await asyncio.gather(*(one.ask("forget") for one in made))
    before, begun = await server.ask(), time.perf_counter()
    await asyncio.sleep(idle_s)
    after, seconds = await server.ask(), time.perf_counter() - begun
    facts = [await one.ask() for one in made]
    return {
        "beats.answered": _sum(facts, "answered") / max(1, _sum(facts, "beats")),
        "beats.cpu": 1000 * (after["cpu_s"] - before["cpu_s"]) / seconds,
        "beats.worst": 1000 * max(one["worst_beat_s"] for one in facts),
    }


async def prepare(dsn: str, runners: int) -> tuple[str, str]:
    """A schema with devices, all of the same key. Returns: the pool's credential and the key."""
    await up(Target(dsn))
    database = Database(Target(dsn))
    await database.start()
    try:
        credential = await Devices(database).new_credential()
    finally:
        await database.stop()
    key = Ed25519PrivateKey.generate()
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            "INSERT INTO rota.runner_devices (device_id, org_id, name, public_key, created_at) "
            "SELECT 'device-' || n, $1, 'of the bench', $2, now() FROM generate_series(0, $3::int) AS n",
            ORG, key.public_key().public_bytes_raw(), runners,
        )  # fmt: skip
        await connection.execute("ANALYZE rota.runner_devices")
    finally:
        await connection.close()
    return credential, base64.b64encode(key.private_bytes_raw()).decode()


@asynccontextmanager
async def crowds(port: int, runners: int, secrets: tuple[str, str] | None, beat_s: float) -> AsyncIterator[list[Child]]:
    """The runners in their processes; they do not come before they are asked to. Without secrets they are bare."""
    credential, key = secrets or ("", base64.b64encode(os.urandom(32)).decode())
    async with AsyncExitStack() as stack:
        made = []
        for number in range(CROWDS):
            first, end = runners * number // CROWDS, runners * (number + 1) // CROWDS
            told = {
                "port": port, "first": first, "runners": end - first, "key": key, "credential": credential,
                "beat_s": beat_s,
            }  # fmt: skip
            part = {"crowd": told, "seed": number, "within_s": runners / COME_PER_S}
            made.append(await stack.enter_async_context(child("crowd", part)))
        yield made


async def _all_come(made: Sequence[Child], servers: list[Child], runners: int) -> None:
    for one in made:
        await one.ask("come")
    within_s = WAIT_S + runners / COME_PER_S
    await until("connecting", lambda found: _sum(found, "connected") == runners, servers, within_s=within_s)
    await until("greeting", lambda found: _sum(found, "connected") == runners, list(made), within_s=within_s)


async def create(port: int, jobs: int) -> None:
    """Creates jobs, for the pool and for desktops by turns."""
    client, gate = GatewayClient(f"http://127.0.0.1:{port}", token=TOKEN), asyncio.Semaphore(16)

    async def one(number: int) -> None:
        body = {
            "target": "CloudPool" if number % 2 else "OrgRunner", "orgId": ORG, "jobType": "video.compile",
            "executionId": str(uuid4()), "timeoutSec": 3600,
        }  # fmt: skip
        async with gate:
            await client.create(body)

    try:
        await asyncio.gather(*map(one, range(jobs)))
    finally:
        await client.close()


async def lost_in_database(dsn: str, jobs: int) -> int:
    """How many of the jobs are not held any more under their first lease."""
    connection = await asyncpg.connect(dsn)
    try:
        held: int = await connection.fetchval(
            "SELECT count(*) FROM rota.open_jobs WHERE state = 'leased' AND lease_epoch = 1 AND lease_until > now()"
        )
    finally:
        await connection.close()
    return jobs - held


def _sum(found: Sequence[dict[str, Any]], name: str) -> int:
    return sum(one[name] for one in found)
