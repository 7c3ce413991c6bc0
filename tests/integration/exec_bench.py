"""A place to run commands as an exec server does, with a worker's pipes beside it, for tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rota.slots.config import read_exec_config
from rota.slots.io.commands import Commands
from rota.slots.io.pipes import Pipe, Pipes
from rota.slots.messages import Receipt, Work
from rota.slots.progress import Moved

PATIENCE_S = 30.0
SERVICES = """
[services.sh]
command = ["/bin/sh", "-c", "{code}"]
args = { code = "argument" }
grace_s = 0.3
env = { PATH = "/usr/bin:/bin" }

[services.cat]
command = ["/bin/cat"]

[services.python]
command = ["python3", "-c", "{code}"]
args = { code = "argument" }
grace_s = 0.3
"""


class Bench:
    """Commands with their receipts as futures, and pipes."""

    def __init__(self, config: str, **options: Any) -> None:
        self.receipts: dict[str, asyncio.Future[Receipt]] = {}
        self.moves: list[tuple[str, Moved]] = []
        services = read_exec_config(config).services
        self.commands = Commands(services, ended=self._ended, moved=lambda *move: self.moves.append(move), **options)
        self.pipes = Pipes()
        self._count = 0

    def start(self, service: str, args: Any = (), **work: Any) -> "asyncio.Future[Receipt]":
        """Starts a command; its receipt comes by the future."""
        self._count += 1
        self.last_id = f"job-{self._count}"
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.receipts[self.last_id] = future
        self.commands.start(self.last_id, service, Work(args=args if isinstance(args, dict) else list(args), **work))
        return future

    async def run(self, service: str, args: Any = (), **work: Any) -> Receipt:
        """Starts a command and waits for its receipt."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.start(service, args, **work)

    def _ended(self, job_id: str, receipt: Receipt) -> None:
        self.receipts[job_id].set_result(receipt)


@asynccontextmanager
async def bench(scratch: Path, config: str = SERVICES, **options: Any) -> AsyncIterator[Bench]:
    """A bench that leaves nothing behind."""
    made = Bench(config, scratch=scratch, **options)
    await made.pipes.start()
    try:
        yield made
    finally:
        await made.pipes.stop()
        await made.commands.stop()


async def read_all(pipe: Pipe) -> bytes:
    """All bytes of a sink."""
    async with asyncio.timeout(PATIENCE_S):
        return b"".join([chunk async for chunk in pipe])


async def pieces(*chunks: bytes) -> AsyncIterator[bytes]:
    """A source of these."""
    for chunk in chunks:
        yield chunk
