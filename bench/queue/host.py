"""Runs one role of one adapter in a process of its own, on uvloop: python -m bench.queue.host ADAPTER ROLE DSN [ARGS]

What the role gives, if anything, is one line of JSON on standard output.

    setup
    one COUNT WARMUP        adds jobs one by one
    bulk WAY COUNT WARMUP   adds jobs at once
    worker FOLDER WAITS     says in FOLDER that it is ready, waits there for the gate, works until SIGTERM
    wake COUNT EVERY_S WARMUP   adds one job now and then
"""

import asyncio
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from bench.queue.meter import Meter

GATE_LOOK_S = 0.001
WARM_S = 0.5
"""Rest between the warming up and the jobs that count: the worker is idle again by then."""


async def one(adapter: Any, dsn: str, count: int, warmup: int) -> dict[str, float]:
    """Seconds for `count` jobs, one by one."""
    client = await adapter.open(dsn)
    for number in range(warmup):
        await adapter.enqueue_one(client, number, 0.0)
    start = time.perf_counter()
    for number in range(count):
        await adapter.enqueue_one(client, number, 0.0)
    seconds = time.perf_counter() - start
    await adapter.close(client)
    return {"seconds": seconds}


async def bulk(adapter: Any, dsn: str, way: str, count: int, warmup: int) -> dict[str, float]:
    """Seconds for `count` jobs at once."""
    client = await adapter.open(dsn)
    if warmup:
        await (await adapter.bulks[way](client, warmup))()
    add = await adapter.bulks[way](client, count)
    start = time.perf_counter()
    await add()
    seconds = time.perf_counter() - start
    await adapter.close(client)
    return {"seconds": seconds}


async def worker(adapter: Any, dsn: str, folder: Path, waits: int) -> None:
    """Works from when the gate opens."""
    meter = Meter(folder / f"meter.{os.getpid()}", waits=waits)
    _wait_at_gate(folder)
    await adapter.worker(dsn, meter)


def _wait_at_gate(folder: Path) -> None:
    # Nothing else goes on in this process yet.
    (folder / f"ready.{os.getpid()}").touch()
    while not (folder / "gate").exists():
        time.sleep(GATE_LOOK_S)


async def wake(adapter: Any, dsn: str, count: int, every_s: float, warmup: int) -> None:
    """Adds jobs with the time at which they were sent; the numbers of the first few are below 0."""
    client = await adapter.open(dsn)
    for number in range(-warmup, 0):
        await adapter.enqueue_one(client, number, time.monotonic())
        await asyncio.sleep(every_s)
    due = time.monotonic() + WARM_S
    for number in range(count):
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await adapter.enqueue_one(client, number, time.monotonic())
        due += every_s
    await adapter.close(client)


async def main() -> None:
    """Reads the arguments and runs the role."""
    name, role, dsn, *args = sys.argv[1:]
    adapter = importlib.import_module(f"bench.queue.adapters.{name}")
    found: Any = None
    match role, args:
        case "setup", []:
            await adapter.setup(dsn)
        case "one", [count, warmup]:
            found = await one(adapter, dsn, int(count), int(warmup))
        case "bulk", [way, count, warmup]:
            found = await bulk(adapter, dsn, way, int(count), int(warmup))
        case "worker", [folder, waits]:
            await worker(adapter, dsn, Path(folder), int(waits))
        case "wake", [count, every_s, warmup]:
            await wake(adapter, dsn, int(count), float(every_s), int(warmup))
        case _:
            raise SystemExit(f"no such role: {role} {args}")
    if found is not None:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
