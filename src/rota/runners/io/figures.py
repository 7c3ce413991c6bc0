"""What a gateway tells Prometheus: the three series of the scaling signal, under the protocol's names.

How much waits is read from the database by the reaper, so that a scrape costs no statement; who is connected is this
replica's, and summed over replicas by whoever reads the series.

Spec: runners, "Scaling signal".
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rota.runners.matching import RunnerKind
from rota.runners.records import DESKTOP, POOL, Depth
from rota.runners.registry import Registry


class Figures(Collector):
    """The series of one replica.

    Args:
        registry: its connections.
    """

    def __init__(self, registry: Registry) -> None:
        self._runners = registry
        self._depths: tuple[Depth, ...] = ()
        self._metrics = CollectorRegistry()
        self._metrics.register(self)

    def waits(self, depths: Iterable[Depth]) -> None:
        """What the reaper saw."""
        # A series that was there falls to 0, and does not just end.
        known = {(one.target, one.job_type): 0 for one in self._depths}
        known |= {(one.target, one.job_type): one.jobs for one in depths if one.state == "queued"}
        self._depths = tuple(Depth(target, kind, "queued", jobs) for (target, kind), jobs in sorted(known.items()))

    def text(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self._metrics)

    def describe(self) -> list[Metric]:
        """Nothing: what is there is only known when it is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The series as they are now."""
        depth = GaugeMetricFamily(
            "reelbolt_runner_queue_depth", "Runner jobs that are queued.", labels=["target", "job_type"]
        )
        for one in self._depths:
            depth.add_metric([one.target, one.job_type], one.jobs)
        figures = self._runners.figures()
        free = GaugeMetricFamily(
            "reelbolt_runner_free_slots", "Free slots of runners on this gateway.", labels=["target"]
        )
        free.add_metric([POOL], figures.free_slots_cloud_pool)
        free.add_metric([DESKTOP], figures.free_slots_org_runner)
        connected = GaugeMetricFamily(
            "reelbolt_runner_connected", "Runners connected to this gateway.", labels=["kind"]
        )
        connected.add_metric([RunnerKind.CLOUD_POOL], figures.connected_cloud_pool)
        connected.add_metric([RunnerKind.DESKTOP], figures.connected_org_runner)
        yield from (depth, free, connected)
