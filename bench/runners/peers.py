"""NATS, to measure beside an op: a message bus that carries a request to whoever listens, and the reply back.

It is installed once, in an environment of its own under the user's cache.
"""

from pathlib import Path
from typing import Final

from bench import environments
from bench.machine import Bystanders
from bench.queue.peers import cache
from bench.report import Sample

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
    program = HERE / "peer_hosts" / "request_reply.py"
    found = await environments.answer(_place(), program, str(times), what="NATS", within_s=ANSWER_S)
    return [Sample("op.nats", found["op"], bystanders.share(since))]


def _place() -> Path:
    return cache() / "runners"
