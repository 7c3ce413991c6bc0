"""Other ways to run commands in slots, to measure beside Rota: HyperQueue and Dask, each with its own local cluster.

They are installed once, in an environment of their own under the user's cache.
"""

import json
from pathlib import Path
from typing import Final

from bench import environments
from bench.machine import Bystanders
from bench.queue.peers import cache
from bench.report import Sample
from bench.slots.works import SLOTS

HERE: Final = Path(__file__).parent
PEERS: Final = ("hyperqueue", "dask")
ANSWER_S: Final = 600.0


def install() -> None:
    """Makes their environment, or brings it up to date.

    Raises: NotInstalled.
    """
    environments.install(_place(), HERE / "peers.txt", "HyperQueue and Dask")


async def measure(bystanders: Bystanders, peer: str, *, count: int, line: int, idle_s: float) -> list[Sample]:
    """Everything that a peer is measured in, in a process of its own.

    Args:
        bystanders: who else uses the machine.
        peer: one of PEERS.
        count: commands for its rate.
        line: commands of others before the one that is looked at.
        idle_s: how long it has nothing to do.
    """
    since = bystanders.reading()
    told = json.dumps({"count": count, "line": line, "idle_s": idle_s, "slots": SLOTS})
    program = HERE / "peer_hosts" / f"{peer}.py"
    found: dict[str, float] = await environments.answer(_place(), program, told, what=peer, within_s=ANSWER_S)
    others = bystanders.share(since)
    return [Sample(f"{key}.{peer}", value, others) for key, value in found.items()]


def _place() -> Path:
    return cache() / "slots"
