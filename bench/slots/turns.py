"""Whose turn it is, and silence: one call of B beside many of A, and an exec server and its client without work.

The slots run `/bin/true` below a real `rota execserver`.
"""

import asyncio
import resource
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
from websockets.asyncio.client import ClientConnection, connect

from bench.machine import Bystanders
from bench.report import NotMeasured, Sample
from bench.slots.works import TRUE
from rota.slots.messages import Done, Job, Offer, Query, Queued, Want, Work, encode, from_server


@asynccontextmanager
async def exec_server(folder: Path, *, slots: int) -> AsyncIterator[tuple[int, str]]:
    """A `rota execserver`. Gives its process and its address."""
    config, tells = folder / "turns.toml", folder / "turns-address"
    config.write_text(f"[waitgroups.default]\nprocesses = {slots}\n{TRUE}")
    tells.unlink(missing_ok=True)
    line = [sys.executable, "-m", "rota.cli.main", "execserver", "--config", str(config), "--port", "0"]
    process = await asyncio.create_subprocess_exec(
        *line, "--address-file", str(tells), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        while not (tells.exists() and tells.read_text().endswith("\n")):
            if process.returncode is not None:
                raise NotMeasured("the exec server did not start")
            await asyncio.sleep(0.05)
        yield process.pid, tells.read_text().strip().partition("://")[2]
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def measure(bystanders: Bystanders, line: int, folder: Path) -> list[Sample]:
    """How many grants of A one want of B waits for: with the same priority, and with a higher one."""
    since, found = bystanders.reading(), {}
    async with exec_server(folder, slots=1) as (_, address):
        for name, priority in (("fair", 0), ("urgent", 100)):
            found[name] = await _waits(address, line, priority)
    others = bystanders.share(since)
    return [Sample(f"{name}.rota", value, others) for name, value in found.items()]


async def _waits(address: str, line: int, priority: int) -> float:
    url = f"ws://{address}/broker"
    async with connect(url, proxy=None, max_size=None) as a, connect(url, proxy=None) as b:
        standing, granted = asyncio.Event(), 0

        async def serve() -> None:
            nonlocal granted
            queued = 0
            while True:
                match from_server(await a.recv()):
                    case Offer(job_id):
                        granted += 1
                        await a.send(encode(Job(job_id, Work())), text=True)
                    case Queued():
                        queued += 1
                    case _:
                        pass
                if queued + granted >= line:
                    standing.set()

        serving = asyncio.create_task(serve())
        try:
            for number in range(line):
                await a.send(encode(Want(f"a{number}", "true")), text=True)
            await standing.wait()
            return await _one(b, priority, lambda: granted)
        finally:
            serving.cancel()
            await asyncio.wait({serving})


async def _one(b: ClientConnection, priority: int, granted: Callable[[], int]) -> float:
    before = granted()
    await b.send(encode(Want("b", "true", priority)), text=True)
    while not isinstance(message := from_server(await b.recv()), Offer):
        if isinstance(message, Done):
            raise NotMeasured("a command ended that was never dealt a slot")
    waited = granted() - before
    await b.send(encode(Job("b", Work())), text=True)
    while not isinstance(from_server(await b.recv()), Done):
        pass
    return float(waited)


async def idle(bystanders: Bystanders, seconds: float, folder: Path) -> list[Sample]:
    """Without work: milliseconds of CPU in a second, of the exec server, all below it and its client; and frames."""
    async with (
        exec_server(folder, slots=2) as (pid, address),
        connect(f"ws://{address}/broker", proxy=None) as client,
    ):
        # Its answer is the last thing that it has to say.
        await client.send(encode(Query()), text=True)
        for _ in range(2):
            await client.recv()
        since, before, frames = bystanders.reading(), _cpu_s(pid), 0
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await client.recv()
                    frames += 1
        except TimeoutError:
            pass
        spent_ms = (_cpu_s(pid) - before) / seconds * 1000
        others = bystanders.share(since)
    return [Sample("idle.rota", spent_ms, others), Sample("frames.rota", float(frames), others)]


def _cpu_s(pid: int) -> float:
    server = psutil.Process(pid)
    own = resource.getrusage(resource.RUSAGE_SELF)
    times = [process.cpu_times() for process in [server, *server.children(recursive=True)]]
    return own.ru_utime + own.ru_stime + sum(each.user + each.system for each in times)
