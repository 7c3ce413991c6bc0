"""What an exec server counts, for Prometheus: slots, wants by priority, how long grants take, runs, bytes.

What stands in the broker is read when it is asked for; what happens is counted when it happens.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rota.slots.broker import Broker
from rota.slots.messages import Receipt

GRANT_BUCKETS_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300, 1800, 7200)
RUN_BUCKETS_S: Final = (0.01, 0.05, 0.2, 1, 5, 20, 60, 300, 1800, 7200)
PRIORITIES_MAX: Final = 20
"""How many priorities with wants are told apart; the rest count as the lowest of these. Clients choose priorities, and
each would be a series of its own."""


class Spread:
    """A histogram that costs next to nothing to count in."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """One more."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: list[str]) -> None:
        """Tells it to Prometheus, whose buckets hold all that is less as well."""
        names = [*map(str, self._bounds), "+Inf"]
        family.add_metric(labels, list(zip(names, accumulate(self._counts), strict=True)), self._sum)


class Figures(Collector):
    """The counters of one exec server."""

    def __init__(self, broker: Broker) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Standing(broker))
        self._registry.register(self)
        self._grants: dict[str, Spread] = {}
        self._runs: dict[tuple[str, str], Spread] = {}
        self._bytes: Counter[tuple[str, str]] = Counter()

    def dealt(self, service: str, waited_s: float) -> None:
        """A slot was offered."""
        spread = self._grants.get(service)
        if spread is None:
            spread = self._grants[service] = Spread(GRANT_BUCKETS_S)
        spread.observe(waited_s)

    def ended(self, service: str, receipt: Receipt) -> None:
        """A command ended."""
        key = service, str(receipt.ended_by)
        spread = self._runs.get(key)
        if spread is None:
            spread = self._runs[key] = Spread(RUN_BUCKETS_S)
        spread.observe(receipt.duration_s)
        if receipt.bytes_in:
            self._bytes[service, "stdin"] += receipt.bytes_in
        if receipt.bytes_out:
            self._bytes[service, "stdout"] += receipt.bytes_out

    def describe(self) -> list[Metric]:
        """Nothing beforehand: which services run is only known when it is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """What was counted."""
        grants = HistogramMetricFamily("rota_slots_grant_seconds", "From WANT to OFFER.", labels=["service"])
        for service, spread in self._grants.items():
            spread.add_to(grants, [service])
        runs = HistogramMetricFamily("rota_slots_run_seconds", "How long commands ran.", labels=["service", "ended_by"])
        for key, spread in self._runs.items():
            spread.add_to(runs, list(key))
        moved = CounterMetricFamily(
            "rota_slots_bytes", "Bytes of commands' stdin and stdout.", labels=["service", "stream"]
        )
        for key, count in self._bytes.items():
            moved.add_metric(list(key), count)
        yield from (grants, runs, moved)

    def text(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self._registry)


class _Standing(Collector):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def describe(self) -> list[Metric]:
        return []  # what is there is only known when it is asked for

    def collect(self) -> Iterator[Metric]:
        broker = self._broker
        slots = GaugeMetricFamily("rota_slots", "Slots of a waitgroup.", labels=["waitgroup"])
        in_use = GaugeMetricFamily(
            "rota_slots_in_use", "Slots that are offered or run a command.", labels=["waitgroup"]
        )
        wants = GaugeMetricFamily("rota_slots_wants", "Wants that wait.", labels=["waitgroup", "priority"])
        for name, group in broker.groups.items():
            slots.add_metric([name], group.ledger.processes)
            in_use.add_metric([name], group.ledger.in_use)
            counts: Counter[int] = Counter()
            lowest = 0
            for number, line in enumerate(group.book.lines):
                lowest = line.priority if number < PRIORITIES_MAX else lowest
                counts[lowest] += sum(turn.count for turn in line.turns.values())
            for priority, waiting in counts.items():
                wants.add_metric([name, str(priority)], waiting)
        clients = GaugeMetricFamily("rota_slots_clients", "Connected clients.", value=broker.hello().clients)
        draining = GaugeMetricFamily("rota_slots_draining", "1 while it drains.", value=int(broker.draining))
        yield from (slots, in_use, wants, clients, draining)
