"""What an exec server counts, for Prometheus: slots, wants by priority, how long grants take, runs, bytes.

What stands in the broker is read when it is asked for; what happens is counted when it happens.
"""

from collections import Counter as Counts
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rota.slots.broker import Broker
from rota.slots.messages import Receipt

GRANT_BUCKETS_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300, 1800, 7200)
RUN_BUCKETS_S: Final = (0.01, 0.05, 0.2, 1, 5, 20, 60, 300, 1800, 7200)
PRIORITIES_MAX: Final = 20
"""How many priorities with wants are told apart; the rest count as the lowest of these. Clients choose priorities, and
each would be a series of its own."""


class Figures:
    """The counters of one exec server."""

    def __init__(self, broker: Broker) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Standing(broker))
        self._grants = Histogram(
            "rota_slots_grant_seconds", "From WANT to OFFER.", ["service"],
            buckets=GRANT_BUCKETS_S, registry=self._registry,
        )  # fmt: skip
        self._runs = Histogram(
            "rota_slots_run_seconds", "How long commands ran.", ["service", "ended_by"],
            buckets=RUN_BUCKETS_S, registry=self._registry,
        )  # fmt: skip
        self._bytes = Counter(
            "rota_slots_bytes", "Bytes of commands' stdin and stdout.", ["service", "stream"], registry=self._registry
        )
        # Looking a series up by its labels takes longer than counting in it.
        self._grants_of = {service: self._grants.labels(service) for service in broker.rules.services}

    def dealt(self, service: str, waited_s: float) -> None:
        """A slot was offered."""
        self._grants_of[service].observe(waited_s)

    def ended(self, service: str, receipt: Receipt) -> None:
        """A command ended."""
        self._runs.labels(service, receipt.ended_by).observe(receipt.duration_s)
        if receipt.bytes_in:
            self._bytes.labels(service, "stdin").inc(receipt.bytes_in)
        if receipt.bytes_out:
            self._bytes.labels(service, "stdout").inc(receipt.bytes_out)

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
            counts: Counts[int] = Counts()
            lowest = 0
            for number, line in enumerate(group.book.lines):
                lowest = line.priority if number < PRIORITIES_MAX else lowest
                counts[lowest] += sum(turn.count for turn in line.turns.values())
            for priority, waiting in counts.items():
                wants.add_metric([name, str(priority)], waiting)
        clients = GaugeMetricFamily("rota_slots_clients", "Connected clients.", value=broker.hello().clients)
        draining = GaugeMetricFamily("rota_slots_draining", "1 while it drains.", value=int(broker.draining))
        yield from (slots, in_use, wants, clients, draining)
