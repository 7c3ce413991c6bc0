"""The options of `python -m bench queue`, what a round measures, and which try counts."""

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bench.queue import main, peers
from bench.queue.main import FULL, LINES, PEER_LINES, QUICK, Measurement, parse, plan, steadily
from bench.queue.peers import PEERS
from bench.report import Sample


def test_sizes_come_from_the_mode_and_then_from_options() -> None:
    assert parse([]).sizes == FULL
    assert parse([]).rounds == 5
    quick = parse(["--quick", "--jobs", "7", "--rounds", "2", "--patience", "0"])
    assert (quick.sizes.jobs, quick.sizes.singles) == (7, QUICK.singles)
    assert (quick.rounds, quick.tries, quick.bystanders.patience_s) == (2, 1, 0)


def test_only_known_workloads_can_be_asked_for() -> None:
    assert parse(["--only", "W1", "W5"]).only == ("W1", "W5")
    with pytest.raises(SystemExit):
        parse(["--only", "W0"])


def test_the_drain_with_history_brings_the_drain_without() -> None:
    works: Any = SimpleNamespace(drain=print)
    assert list(plan(works, ("W6",))) == ["W6"]
    assert [name for name, _ in plan(works, ("W6",))["W6"]] == ["rota", "finished", "future", "history", "snapshot"]
    assert [name for name, _ in plan(works, ("W3", "W6"))["W6"]] == ["finished", "future", "history", "snapshot"]


def test_peers_are_measured_beside_rota_when_asked_for() -> None:
    works: Any = SimpleNamespace(drain=print)
    assert parse([]).peers == ()
    assert parse(["--peers"]).peers == PEERS
    assert parse(["--peers", "pgqueuer"]).peers == ("pgqueuer",)
    steps = plan(works, ("W1", "W3", "W7"), ("pgqueuer", "graphile_worker_alone"))
    assert [name for name, _ in steps["W3"]] == ["rota", "raw", "pgqueuer"]
    assert [name for name, _ in steps["W7"]] == ["rota", "raw", "graphile_worker_alone"]


def test_rota_stands_against_the_best_peer_of_each_work() -> None:
    found = {
        sample.key: sample.value
        for sample in main.with_best(
            [
                Sample("drain.pgqueuer", 10), Sample("drain.pg_boss", 30), Sample("drain.rota", 60),
                Sample("wake_p50.oban", 2.5), Sample("wake_p50.awa", 4),
            ]
        )
    }  # fmt: skip
    assert (found["drain.best"], found["drain.best_python"], found["wake_p50.best"]) == (30, 10, 2.5)
    assert "one.best" not in found


def test_each_adapter_can_be_asked_what_is_left_without_its_package() -> None:
    for name in PEERS:
        adapter = importlib.import_module(f"bench.queue.adapters.{name}")
        assert adapter.PENDING.strip().startswith("SELECT EXISTS")
        assert hasattr(adapter, "worker") or (peers.HERE / "node" / f"{adapter.NODE}.mjs").exists()


def test_each_bar_of_the_issue_is_there() -> None:
    assert [(line.bar.bound, line.bar.below) for line in PEER_LINES if line.bar is not None] == [
        (1, False), (2, False), (1.2, False), (3, False), (1.1, False), (1, True), (2, True), (1.5, False),
    ]  # fmt: skip
    assert [(line.bar.bound, line.bar.below) for line in LINES if line.bar is not None] == [
        (0.5, False), (0.4, False), (5, True), (0.95, False), (0.9, False),
    ]  # fmt: skip


def _measurement(others: list[float]) -> tuple[Measurement, Iterator[float]]:
    left = iter(others)

    async def measure() -> list[Sample]:
        share = next(left)
        return [Sample("key", share * 100, others=share)]

    return measure, left


async def test_a_disturbed_measurement_is_repeated_and_the_least_disturbed_counts() -> None:
    options = parse(["--tries", "3"])
    measure, left = _measurement([0.5, 0.3, 0.4, 0.0])
    assert await steadily(measure, options) == [Sample("key", 30, others=0.3, tries=2)]
    assert list(left) == [0.0]


async def test_a_quiet_measurement_is_not_repeated() -> None:
    measure, left = _measurement([0.02, 0.0])
    assert await steadily(measure, parse(["--tries", "3"])) == [Sample("key", 2, others=0.02, tries=1)]
    assert list(left) == [0.0]


async def test_without_patience_left_nothing_is_repeated() -> None:
    options = parse(["--tries", "3"])
    options.bystanders.patience_left_s = 0
    measure, left = _measurement([0.5, 0.3])
    assert await steadily(measure, options) == [Sample("key", 50, others=0.5, tries=1)]
    assert list(left) == [0.3]


def test_the_json_has_bars_medians_and_facts() -> None:
    samples = [Sample("drain.rota", 50), Sample("drain.raw", 100)]
    found = main.results(samples, [], parse(["--quick"]), {"cores": 2})
    assert found["bars"] == [{"name": "drain / raw loop", "value": 0.5, "bar": 0.4, "ok": True}]
    assert found["medians"] == {"drain.rota": 50, "drain.raw": 100}
    assert (found["machine"], found["sizes"]["rounds"], len(found["samples"])) == ({"cores": 2}, 1, 2)
