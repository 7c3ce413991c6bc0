"""Memory and open files of an exec server and of its client stay flat over 100,000 jobs.

They are honest jobs of an exec server's own network, exchange and broker, each from WANT to DONE over a websocket, but
their commands are over as they begin: a process for each would take a run of the tests several minutes. Processes,
scratch folders and pipes are real in a hundredth as many, and there also the client is looked at.
ROTA_DEV_FLAT_JOBS asks for another number.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect

from rota.commands import Call
from rota.io.commands import run_whole
from rota.slots.address import Address
from rota.slots.io.client import ClientOptions, SlotClient
from rota.slots.messages import Done, Job, Offer, Want, Work, encode, from_server
from tests.faults.processes import ROOT
from tests.faults.slot_sites import slot_site
from tests.integration.programs import until

JOBS = int(os.environ.get("ROTA_DEV_FLAT_JOBS", "100000"))
REAL_JOBS = JOBS // 100
CLIENTS, AT_ONCE = 4, 32
GROWTH_BYTES_MAX = 4_000_000
"""A job that leaves its call behind leaves half a kilobyte, 50 MB in all; allocators round up too."""


@dataclass(frozen=True, slots=True)
class Size:
    """What a process holds."""

    memory_bytes: int
    files: int

    @classmethod
    def of(cls, pid: int) -> "Size":
        process = psutil.Process(pid)
        return cls(process.memory_info().rss, process.num_fds())

    def check(self, after: "Size") -> None:
        assert after.memory_bytes - self.memory_bytes < GROWTH_BYTES_MAX, (self, after)
        assert after.files <= self.files, (self, after)


@contextmanager
def instant_server() -> Iterator[tuple[int, int]]:
    """An exec server whose commands are over as they begin. Gives its process and its port."""
    argv = [sys.executable, "-m", "bench.slots.grant_host", str(CLIENTS * AT_ONCE // 2)]
    host = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert host.stdin is not None and host.stdout is not None
    try:
        yield host.pid, int(host.stdout.readline())
    finally:
        host.stdin.close()
        try:
            host.wait(30)
        finally:
            host.kill()
            host.wait()
            host.stdout.close()


async def cycles(socket: ClientConnection, count: int, name: str) -> None:
    """So many jobs from WANT to DONE, some of them at once."""
    wanted = ended = 0
    while ended < count:
        while wanted < count and wanted - ended < AT_ONCE:
            await socket.send(encode(Want(f"{name}-{wanted}", "cut")), text=True)
            wanted += 1
        match from_server(await socket.recv()):
            case Offer(job_id):
                await socket.send(encode(Job(job_id, Work())), text=True)
            case Done():
                ended += 1
            case _:
                pass


async def test_an_exec_server_is_flat_over_many_jobs() -> None:
    with instant_server() as (pid, port):
        async with asyncio.timeout(600), asyncio.TaskGroup() as group:

            async def one(number: int) -> None:
                async with connect(f"ws://127.0.0.1:{port}/broker", proxy=None, compression=None) as socket:
                    await cycles(socket, JOBS // CLIENTS // 10, f"warm{number}")
                    warm.append(number)
                    if len(warm) == CLIENTS:
                        before.append(Size.of(pid))
                    await cycles(socket, JOBS // CLIENTS, f"c{number}")
                    before[0].check(Size.of(pid))

            warm: list[int] = []
            before: list[Size] = []
            for number in range(CLIENTS):
                group.create_task(one(number))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


async def test_commands_and_pipes_leave_nothing_behind(tmp_path: Path, stack: ExitStack) -> None:
    server = stack.enter_context(slot_site(tmp_path / "site")).exec_server(slots=2)
    client = SlotClient(ClientOptions((Address("127.0.0.1", server.port),)))
    client.start()
    own = os.getpid()

    async def run(count: int) -> None:
        for _ in range(count):
            assert (await run_whole(client, Call("cat", stdin=b"x" * 5000))).output == b"x" * 5000

    def below() -> int:
        return len(psutil.Process(server.program.pid).children(recursive=True))

    try:
        async with asyncio.timeout(600):
            # Garbage is collected seldom in an exec server: it is as large as it gets after some 1,500 commands.
            await asyncio.gather(run(3 * REAL_JOBS // 4), run(3 * REAL_JOBS // 4))
            before, children = (Size.of(server.program.pid), Size.of(own)), below()
            await asyncio.gather(run(REAL_JOBS // 2), run(REAL_JOBS // 2))
            await asyncio.to_thread(server.reaches, 0, 0)
            for size, pid in zip(before, (server.program.pid, own), strict=True):
                size.check(Size.of(pid))
    finally:
        await client.stop()
    until(lambda: below() <= children, "no command is left")
    assert not client._runs and not client._pipes
