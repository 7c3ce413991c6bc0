"""Starts the runner that is written in another language: `minimal_runner.mjs`, with Node's own websockets."""

import asyncio
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.postgres_servers import unavailable

SCRIPT = Path(__file__).with_name("minimal_runner.mjs")
NODE_MIN = 20
"""The first with websockets, behind a flag that later ones take too."""


def node() -> str:
    """The program, if it has websockets."""
    found = shutil.which("node")
    version = found and subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    if not found or not version or int(re.findall(r"\d+", version)[0]) < NODE_MIN:
        unavailable("node", f"node {NODE_MIN} or later is missing (found {version or 'none'})")
    return str(found)


@asynccontextmanager
async def minimal_runner(base: str, code: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs it for the gateway at this `http://…`; it ends by itself when its one session was closed."""
    process = await asyncio.create_subprocess_exec(
        node(), "--no-warnings", "--experimental-websocket", SCRIPT, base, code,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
