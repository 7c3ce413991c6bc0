"""The processes of a measurement, as the one that measures sees them: started, asked, ended."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from bench.report import NotMeasured

REPOSITORY: Final = Path(__file__).parents[2]
START_S: Final = 60.0
LOOK_S: Final = 0.2


class Child:
    """One process of `host.py`."""

    def __init__(self, role: str, process: asyncio.subprocess.Process) -> None:
        self.role = role
        self.process = process
        self.says: dict[str, Any] = {}

    async def ask(self, word: str = "read") -> dict[str, Any]:
        """Sends a word and gives the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if word:
            self.process.stdin.write(word.encode() + b"\n")
        line = await asyncio.wait_for(self.process.stdout.readline(), START_S)
        if not line:
            raise NotMeasured(f"the process of the {self.role} ended")
        found: dict[str, Any] = json.loads(line)
        return found

    async def kill(self) -> None:
        """Ends it at once."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def child(role: str, told: dict[str, Any]) -> AsyncIterator[Child]:
    """Starts one; it has ended afterwards."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.runners.host", role, json.dumps(told),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY,
    )  # fmt: skip
    made = Child(role, process)
    try:
        made.says = await made.ask("")
        yield made
    finally:
        await made.kill()


async def until(
    what: str, good: Callable[[list[dict[str, Any]]], bool], children: list[Child], *, within_s: float
) -> None:
    """Asks all of them again and again until their answers are good.

    Raises: NotMeasured if they are not in time.
    """
    deadline = asyncio.get_running_loop().time() + within_s
    while not good(found := [await one.ask() for one in children]):
        if asyncio.get_running_loop().time() > deadline:
            raise NotMeasured(f"{what} took longer than {within_s:g} s: {found}")
        await asyncio.sleep(LOOK_S)
