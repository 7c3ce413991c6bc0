"""Dask's LocalCluster: as many workers of one thread as there are slots."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

# This file has the name of the package: the folder goes behind the packages.
sys.path.append(sys.path.pop(0))

from distributed import Client, LocalCluster, wait
from measuring import measure, told


def true(_number: int) -> int:
    """One command."""
    return subprocess.run(["/bin/true"], check=True).returncode


class Dask:
    """The cluster and its clients."""

    def __init__(self, cluster: Any) -> None:
        self._clients = [Client(cluster), Client(cluster)]

    def submit(self, client: int, count: int, *, urgent: bool = False) -> Callable[[], Any]:
        """As the protocol says."""
        futures = self._clients[client].map(true, range(count), pure=False, priority=100 if urgent else 0)
        return lambda: wait(futures)


if __name__ == "__main__":
    with LocalCluster(n_workers=told()["slots"], threads_per_worker=1, dashboard_address=None) as made:
        measure(Dask(made), told())
