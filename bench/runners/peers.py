"""NATS, to measure beside an op: a message bus that carries a request to whoever listens, and the reply back.

It is installed once, in an environment of its own under the user's cache.
"""

import asyncio
import json
from pathlib import Path
from typing import Final

from bench import environments
from bench.machine import Bystanders
from bench.queue.peers import cache
from bench.report import Sample
from bench.runners.children import NotMeasured

HERE: Final = Path(__file__).parent
ANSWER_S: Final = 120.0


def install() -> None:
    """Makes its environment, or brings it up to date.

    Raises: NotInstalled.
    """
    environments.install(_place(), HERE / "peers.txt", "NATS")


async def measure(bystanders: Bystanders, times: int) -> list[Sample]:
    """The median of so many requests and replies."""
    since = bystanders.reading()
    process = await asyncio.create_subprocess_exec(
        _place() / "bin" / "python", HERE / "peer_hosts" / "request_reply.py", str(times),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(), ANSWER_S)
    except TimeoutError:
        raise NotMeasured(f"NATS took longer than {ANSWER_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise NotMeasured(f"NATS: {err.decode(errors='replace').strip()[-300:]}")
    return [Sample("op.nats", json.loads(out)["op"], bystanders.share(since))]


def _place() -> Path:
    return cache() / "runners"
