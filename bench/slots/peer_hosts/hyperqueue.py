"""HyperQueue's LocalCluster: a server and a worker with as many cores as there are slots."""

import sys
import tempfile
from collections.abc import Callable
from typing import Any

# This file has the name of the package: the folder goes behind the packages.
sys.path.append(sys.path.pop(0))

from hyperqueue import Job
from hyperqueue.cluster import LocalCluster, WorkerConfig
from measuring import measure, told


class HyperQueue:
    """The cluster and its clients."""

    def __init__(self, cluster: Any) -> None:
        self._clients = [cluster.client(), cluster.client()]

    def submit(self, client: int, count: int, *, urgent: bool = False) -> Callable[[], Any]:
        """As the protocol says."""
        job = Job()
        for _ in range(count):
            job.program(["/bin/true"], stdout=None, stderr=None, priority=100 if urgent else 0)
        submitted = self._clients[client].submit(job)
        return lambda: self._clients[client].wait_for_jobs([submitted])


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(folder, WorkerConfig(cores=told()["slots"])) as cluster,
    ):
        measure(HyperQueue(cluster), told())
