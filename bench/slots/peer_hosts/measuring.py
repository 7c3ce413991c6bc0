"""What is measured of a peer, whichever it is. Runs in the peers' environment: nothing of Rota can be imported."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import psutil


class Peer(Protocol):
    """One peer: a local cluster and two clients of it."""

    def submit(self, client: int, count: int, *, urgent: bool = False) -> Callable[[], Any]:
        """Hands in so many `/bin/true` for a client. Returns: what waits for all of them."""
        ...


def measure(peer: Peer, told: dict[str, Any]) -> None:
    """Writes the figures of a peer as one line of JSON.

    `rate`: commands a second. `fair` and `urgent`: how many commands of the other client a single one waits for, by its
    time; the second with a higher priority. `idle`: milliseconds of CPU in a second without anything to do.
    """
    peer.submit(0, 50)()
    begun = time.perf_counter()
    peer.submit(0, told["count"])()
    rate = told["count"] / (time.perf_counter() - begun)
    waits = []
    for urgent in (False, True):
        others = peer.submit(0, told["line"])
        time.sleep(0.2)  # some of them run
        begun = time.perf_counter()
        peer.submit(1, 1, urgent=urgent)()
        waits.append(rate * (time.perf_counter() - begun))
        others()
    before = _cpu_s()
    time.sleep(told["idle_s"])
    idle = (_cpu_s() - before) / told["idle_s"] * 1000
    print(json.dumps({"rate": rate, "fair": waits[0], "urgent": waits[1], "idle": idle}), flush=True)


def told() -> dict[str, Any]:
    """The sizes, from the command line."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def _cpu_s() -> float:
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in [own, *own.children(recursive=True)])
