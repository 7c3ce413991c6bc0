"""Full cycles of WANT, OFFER, JOB and DONE through one exec server, beside bare round trips of an echo.

Both run in the same process on the same stack, over as many connections, with as many of them under way at once, and
with frames of the same size. A cycle is two round trips. The client does as little as it can with a frame.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from websockets.asyncio.client import ClientConnection, connect

from bench.machine import Bystanders
from bench.report import Sample

CONNECTIONS: Final = 4
UNDER_WAY: Final = 32
"""Cycles, or round trips, of each connection at once."""
SLOTS: Final = CONNECTIONS * UNDER_WAY
"""Each want is dealt a slot at once, so a cycle is the four frames that it has to be."""
SLOTS_FEW: Final = SLOTS // 4
"""Where others are parked there is always a want of the measured clients in line too: with the higher priority, so that
what is measured is the book's depth and not the other client's share."""
PARKED: Final = 10_000
ECHOED: Final = '{"type":"WANT","job_id":"0123456789abcdef0123456789abcdef","service":"cut","priority":10}'
OFFER: Final = '{"type":"OFFER","job_id":"'
DONE: Final = '{"type":"DONE","job_id":"'
QUEUED: Final = '{"type":"QUEUED"'
Work = Callable[[ClientConnection, str, list[float]], Awaitable[None]]


@asynccontextmanager
async def host(slots: int) -> AsyncIterator[int]:
    """The server in a process of its own; gives its port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.slots.grant_host",
        str(slots),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.stdin.close()
        await process.wait()


async def measure(bystanders: Bystanders, seconds: float) -> list[Sample]:
    """Round trips a second, cycles a second, and the p50 of a cycle with nobody and with many parked beside."""
    since = bystanders.reading()
    async with host(SLOTS) as port:
        echoes = await _all(port, "echo", _echo, seconds)
        cycles = await _all(port, "broker", _cycle, seconds)
    async with host(SLOTS_FEW) as port:
        alone = await _all(port, "broker", _cycle, seconds)
        async with _parked(port):
            beside = await _all(port, "broker", _cycle, seconds)
    found = {
        "echo": len(echoes) / seconds,
        "cycles": len(cycles) / seconds,
        "cycles_line": len(alone) / seconds,
        "p50": statistics.median(alone) * 1000,
        "p50_parked": statistics.median(beside) * 1000,
        "cycles_parked": len(beside) / seconds,
    }
    others = bystanders.share(since)
    return [Sample(f"grants.{key}", value, others) for key, value in found.items()]


async def _all(port: int, path: str, work: Work, seconds: float) -> list[float]:
    """How long each took of those that were over in time."""
    took: list[float] = []

    async def one(name: str) -> None:
        async with client(port, path) as websocket:
            try:
                async with asyncio.timeout(seconds):
                    await work(websocket, name, took)
            except TimeoutError:
                websocket.transport.abort()

    async with asyncio.TaskGroup() as group:
        for number in range(CONNECTIONS):
            group.create_task(one(f"c{number}"))
    return took


def client(port: int, path: str) -> connect:
    """A connection that does nothing by itself."""
    return connect(f"ws://127.0.0.1:{port}/{path}", proxy=None, compression=None, ping_interval=None, max_queue=None)


async def _echo(websocket: ClientConnection, _name: str, took: list[float]) -> None:
    sent = [time.perf_counter() for _ in range(UNDER_WAY)]
    for _ in sent:
        await websocket.send(ECHOED)
    while True:
        for number in range(UNDER_WAY):
            await websocket.recv()
            now = time.perf_counter()
            took.append(now - sent[number])
            sent[number] = now
            await websocket.send(ECHOED)


async def _cycle(websocket: ClientConnection, name: str, took: list[float]) -> None:
    sent: dict[str, float] = {}
    number = 0

    async def want() -> None:
        nonlocal number
        number += 1
        job_id = f"{name}-{number:030d}"
        sent[job_id] = time.perf_counter()
        await websocket.send(f'{{"type":"WANT","job_id":"{job_id}","service":"cut","priority":10}}')

    for _ in range(UNDER_WAY):
        await want()
    while True:
        frame = await websocket.recv()
        assert isinstance(frame, str)
        if frame.startswith(OFFER):
            await websocket.send(f'{{"type":"JOB","job_id":"{frame[len(OFFER) : -2]}","job":{{"args":["-y"]}}}}')
        elif frame.startswith(DONE):
            rest = frame[len(DONE) :]
            took.append(time.perf_counter() - sent.pop(rest[: rest.index('"')]))
            await want()


@asynccontextmanager
async def _parked(port: int) -> AsyncIterator[None]:
    """A client with many wants of lower priority, which does its part as soon as it is dealt a slot."""
    async with client(port, "broker") as websocket:
        # Whoever keeps all slots for a moment lets the rest stand in line.
        standing = asyncio.Event()
        serving = asyncio.create_task(_serve(websocket, standing))
        for number in range(PARKED + SLOTS_FEW):
            await websocket.send(f'{{"type":"WANT","job_id":"p{number}","service":"cut"}}')
        await standing.wait()
        try:
            yield
        finally:
            serving.cancel()
            await asyncio.wait({serving})
            websocket.transport.abort()


async def _serve(websocket: ClientConnection, standing: asyncio.Event) -> None:
    queued, held = 0, []
    while True:
        frame = await websocket.recv()
        assert isinstance(frame, str)
        if frame.startswith(OFFER):
            held.append(frame[len(OFFER) : -2])
        elif frame.startswith(DONE):
            rest = frame[len(DONE) :]
            await websocket.send(f'{{"type":"WANT","job_id":"{rest[: rest.index(chr(34))]}","service":"cut"}}')
        elif frame.startswith(QUEUED):
            queued += 1
            if queued == PARKED:
                standing.set()
        if standing.is_set():
            for job_id in held:
                await websocket.send(f'{{"type":"JOB","job_id":"{job_id}","job":{{}}}}')
            held.clear()
