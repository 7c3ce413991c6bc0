"""`python -m bench queue`: rounds of all workloads, with who is measured in turn, then one table and one JSON file."""

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import asyncpg

from bench import machine, report
from bench.machine import Bystanders
from bench.queue import peers
from bench.queue.peers import PEERS, PYTHON_PEERS
from bench.queue.works import Sizes, Works
from bench.report import Bar, Line, NotMeasured, Sample
from bench.server import SETTINGS, Server, private_server

FULL: Final = Sizes(jobs=20_000, singles=2000, wakeups=300, finished=500_000, future=500_000, behind=80_000)
QUICK: Final = Sizes(jobs=5000, singles=300, wakeups=60, finished=50_000, future=10_000, behind=5000)
WORKS: Final = ("W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8")

LINES: Final = (
    Line("W1", "enqueue one by one : insert", "one.rota", "one.raw"),
    Line(
        "W2", "bulk enqueue : COPY into the same table", "bulk.rota.described", "bulk.raw.rota",
        bar=Bar("bulk enqueue / COPY into the same table", 0.5),
    ),
    Line("W2", "the same, jobs described before", "bulk.rota.prepared", "bulk.raw.rota"),
    Line("W2", "bulk enqueue : COPY into a minimal table", "bulk.rota.described", "bulk.raw.own"),
    Line("W3", "drain, one process : raw loop", "drain.rota", "drain.raw", bar=Bar("drain / raw loop", 0.4)),
    Line("W3", "CPU of the worker", "drain_cpu.rota", "drain_cpu.raw", unit="µs/job", digits=1),
    Line("W3", "log written", "drain_wal.rota", "drain_wal.raw", unit="bytes/job"),
    Line("W3", "commits", "drain_commits.rota", "drain_commits.raw", unit="/job", digits=4),
    Line("W4", "drain, two processes : raw loops", "drain_two.rota", "drain_two.raw"),
    Line(
        "W5", "idle wake-up p50 : NOTIFY", "wake_p50.rota", "wake_p50.notify", unit="ms", digits=2,
        bar=Bar("idle wake-up p50 in ms (below)", 5, of_ratio=False, below=True),
    ),
    Line("W5", "idle wake-up p99 : NOTIFY", "wake_p99.rota", "wake_p99.notify", unit="ms", digits=2),
    Line(
        "W6", "drain beside finished jobs : W3", "drain_finished.rota", "drain.rota",
        bar=Bar("drain beside finished jobs / of an empty table", 0.95),
    ),
    Line(
        "W6", "drain beside future jobs : W3", "drain_future.rota", "drain.rota",
        bar=Bar("drain beside future jobs / of an empty table", 0.9),
    ),
    Line("W6", "drain beside both : W3", "drain_history.rota", "drain.rota"),
    Line("W6", "drain under an old snapshot : W3", "drain_snapshot.rota", "drain.rota"),
    Line("W7", "drain, each end its own commit : raw loop", "drain_alone.rota_alone", "drain_alone.raw_alone"),
    Line("W8", "limits: fleet limit and rate : W3", "drain.rota_fleet", "drain.rota"),
    Line("W8", "limits: fair, 1,000 tenants : W3", "drain.rota_fair", "drain.rota"),
)  # fmt: skip

PEER_LINES: Final = (
    Line("W1", "enqueue one by one : best peer", "one.rota", "one.best", bar=Bar("enqueue one by one / best peer", 1)),
    Line(
        "W2", "bulk enqueue : best peer", "bulk.rota.described", "bulk.best.described",
        bar=Bar("bulk enqueue / best peer", 2),
    ),
    Line("W3", "drain : best peer", "drain.rota", "drain.best", bar=Bar("drain / best peer", 1.2)),
    Line("W3", "drain : best Python peer", "drain.rota", "drain.best_python", bar=Bar("drain / best Python peer", 3)),
    Line("W4", "drain by two : best peer", "drain_two.rota", "drain_two.best", bar=Bar("by two / best peer", 1.1)),
    Line(
        "W5", "idle wake-up p50 : best peer", "wake_p50.rota", "wake_p50.best", unit="ms", digits=2,
        bar=Bar("wake-up p50 / best peer", 1, below=True),
    ),
    Line(
        "W5", "idle wake-up p99 : best peer", "wake_p99.rota", "wake_p99.best", unit="ms", digits=2,
        bar=Bar("wake-up p99 / best peer", 2, below=True),
    ),
    Line(
        "W7", "drain, each end its own commit : best peer", "drain_alone.rota_alone", "drain_alone.best",
        bar=Bar("drain with each end a commit / best peer", 1.5),
    ),
)  # fmt: skip
"""Against whoever does it best, of any language or of Python's, at the setting that suits it best."""

ALONE: Final = ("graphile_worker_alone", "procrastinate", "chancy", "oban")
"""Peers, and settings of theirs, that write each end by itself."""
NODE_ALONE: Final = "graphile_worker_alone"
"""A setting that is there for W7 alone."""

Measurement = Callable[[], Awaitable[list[Sample]]]


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    sizes: Sizes
    rounds: int
    only: tuple[str, ...]
    tries: int
    bystanders: Bystanders
    json: Path | None
    place: Path | None
    peers: tuple[str, ...] = ()


def parse(args: Sequence[str]) -> Options:
    """Reads the command line; leaves the program if it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench queue", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of small sizes: to see that it works")
    parser.add_argument("--rounds", type=int, help="default: 5")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where bars, medians and samples go")
    parser.add_argument("--only", nargs="+", choices=WORKS, default=WORKS, metavar="NAME", help=" ".join(WORKS))
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, metavar="NAME", help=f"also others; all, or some of {' '.join(PEERS)}"
    )
    parser.add_argument("--place", type=Path, metavar="FOLDER", help="where the database lies (default: temp files)")
    parser.add_argument("--quiet", type=float, default=0.1, metavar="SHARE", help="CPU that others may use (0.1)")
    parser.add_argument("--patience", type=float, metavar="S", help="wait for that, before each measurement (20)")
    parser.add_argument("--tries", type=int, help="tries of a measurement that others disturb (3)")
    for name, size in asdict(FULL).items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{size:,}")
    given = parser.parse_args(args)
    sizes = QUICK if given.quick else FULL
    return Options(
        sizes=replace(sizes, **{name: value for name in asdict(sizes) if (value := getattr(given, name)) is not None}),
        rounds=given.rounds or (1 if given.quick else 5),
        only=tuple(given.only),
        tries=given.tries or (1 if given.quick else 3),
        bystanders=Bystanders(
            given.quiet, (1.0 if given.quick else 20.0) if given.patience is None else given.patience
        ),
        json=given.json,
        place=given.place,
        peers=() if given.peers is None else tuple(given.peers or PEERS),
    )


def plan(works: Works, only: Sequence[str], peers: Sequence[str] = ()) -> dict[str, list[tuple[str, Measurement]]]:
    """What one round measures: by workload, whom and how. W6 and W8 need the plain drain of the same round."""

    def history(key: str, *sorts: str) -> tuple[str, Measurement]:
        return key, lambda: works.drain("rota", f"drain_{key}", history=sorts)

    def limited(name: str) -> tuple[str, Measurement]:
        return name, lambda: works.drain(f"rota_{name}", "drain")

    steps: dict[str, list[tuple[str, Measurement]]] = {
        "W1": [("rota", lambda: works.one_by_one("rota")), ("raw", lambda: works.one_by_one("raw"))],
        "W2": [
            ("rota", lambda: works.at_once("rota", "described")),
            ("rota prepared", lambda: works.at_once("rota", "prepared")),
            ("copy", lambda: works.at_once("raw", "rota")),
            ("copy own", lambda: works.at_once("raw", "own")),
        ],
        "W3": [("rota", lambda: works.drain("rota", "drain")), ("raw", lambda: works.drain("raw", "drain"))],
        "W4": [
            ("rota", lambda: works.drain("rota", "drain_two", workers=2)),
            ("raw", lambda: works.drain("raw", "drain_two", workers=2)),
        ],
        "W5": [("rota", lambda: works.wake("rota")), ("notify", lambda: works.wake("notify"))],
        "W6": [
            history("finished", "finished"),
            history("future", "future"),
            history("history", "finished", "future"),
            ("snapshot", lambda: works.drain("rota", "drain_snapshot", under_snapshot=True)),
        ],
        "W7": [
            ("rota", lambda: works.drain("rota_alone", "drain_alone")),
            ("raw", lambda: works.drain("raw_alone", "drain_alone")),
        ],
        "W8": [limited("fleet"), limited("fair")],
    }
    needs = [name for name in ("W6", "W8") if name in only]
    if needs and "W3" not in only:
        steps[needs[0]] = [steps["W3"][0], *steps[needs[0]]]

    def of(peer: str) -> None:
        """What is measured of a peer."""
        if peer != NODE_ALONE:
            steps["W1"].append((peer, lambda: works.one_by_one(peer)))
            steps["W2"].append((peer, lambda: works.at_once(peer, "described")))
            steps["W3"].append((peer, lambda: works.drain(peer, "drain")))
            steps["W4"].append((peer, lambda: works.drain(peer, "drain_two", workers=2)))
            steps["W5"].append((peer, lambda: works.wake(peer)))
        if peer in ALONE:
            steps["W7"].append((peer, lambda: works.drain(peer, "drain_alone")))

    for peer in peers:
        of(peer)
    return {name: steps[name] for name in WORKS if name in only}


async def steadily(measure: Measurement, options: Options) -> list[Sample]:
    """The least disturbed of a few tries; the first that is not disturbed, or that used up all patience, will do."""
    best: list[Sample] = []
    for number in range(1, options.tries + 1):
        samples = [replace(sample, tries=number) for sample in await measure()]
        if not best or samples[0].others < best[0].others:
            best = samples
        if best[0].others < options.bystanders.limit or options.bystanders.patience_left_s <= 0:
            break
    return best


async def measure_all(server: Server, options: Options) -> tuple[list[Sample], list[str]]:
    """All rounds. Returns: the samples, and what could not be measured."""
    works = Works(server, options.bystanders, options.sizes)
    samples: list[Sample] = []
    failures: list[str] = []
    for number in range(options.rounds):
        for work, steps in plan(works, options.only, options.peers).items():
            # Who goes first has no lasting advantage.
            for name, measure in steps if number % 2 == 0 else reversed(steps):
                head = f"round {number + 1}/{options.rounds}  {work} {name:14}"
                try:
                    found = await steadily(measure, options)
                except (NotMeasured, asyncpg.exceptions.PostgresError) as error:
                    failures.append(f"{head}: {error}")
                    say(f"{head} FAILED: {error}")
                    continue
                samples += found
                values = "  ".join(f"{sample.key} {sample.value:,.4g}" for sample in found)
                say(f"{head} {values}  (others {found[0].others:.0%}, try {found[0].tries})")
    return samples, failures


def with_best(samples: list[Sample]) -> list[Sample]:
    """The samples, and beside them the best peer's of each sort."""
    found = list(samples)
    for key in ("one", "drain", "drain_two", "drain_alone", "wake_p50", "wake_p99"):
        lowest = key.startswith("wake")
        found += report.best(samples, [f"{key}.{peer}" for peer in PEERS], name=f"{key}.best", lowest=lowest)
    found += report.best(samples, [f"drain.{peer}" for peer in PYTHON_PEERS], name="drain.best_python")
    found += report.best(samples, [f"bulk.{peer}.described" for peer in PEERS], name="bulk.best.described")
    return found


def peer_table(samples: Sequence[Sample], peers: Sequence[str]) -> str:
    """What each peer reached: a line for each, a column for each work."""
    middle = report.medians(samples)
    keys = {
        "W1 /s": "one.{}", "W2 /s": "bulk.{}.described", "W3 /s": "drain.{}", "W4 /s": "drain_two.{}",
        "W5 p50 ms": "wake_p50.{}", "W5 p99 ms": "wake_p99.{}", "W7 /s": "drain_alone.{}",
    }  # fmt: skip
    rows = [["", *keys]]
    for name in ("rota", "rota_alone", "raw", "raw_alone", "notify", *peers):
        values = [middle.get(key.format(name)) for key in keys.values()]
        if any(value is not None for value in values):
            rows.append([name, *("" if v is None else f"{v:,.2f}" if v < 100 else f"{v:,.0f}" for v in values)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def say(line: str) -> None:
    """A line of progress."""
    print(line, file=sys.stderr, flush=True)


def results(samples: list[Sample], failures: list[str], options: Options, facts: dict[str, Any]) -> dict[str, Any]:
    """What goes into the JSON file."""
    return {
        "bars": report.bars((*LINES, *PEER_LINES), samples),
        "medians": report.medians(samples),
        "disturbance": report.disturbance(samples, limit=options.bystanders.limit) if samples else "",
        "failures": failures,
        "sizes": {**asdict(options.sizes), "rounds": options.rounds},
        "machine": facts,
        "postgres_settings": dict(SETTINGS),
        "samples": [asdict(sample) for sample in samples],
    }


def main(args: Sequence[str]) -> int:
    """Measures and reports. Returns: 0, or 1 if something could not be measured; a bar not reached is no failure."""
    options = parse(args)
    try:
        peers.install(list(options.peers))
    except peers.NotInstalled as error:
        say(str(error))
        return 1
    with private_server(options.place) as server:
        facts = machine.facts(server.folder)
        facts["postgres"] = asyncio.run(server.ask("SHOW server_version"))
        say("  ".join(f"{name} {fact}" for name, fact in facts.items()))
        samples, failures = asyncio.run(measure_all(server, options))
        samples = with_best(samples)
    found = results(samples, failures, options, facts)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(report.table((*LINES, *PEER_LINES), samples))
    if options.peers:
        print(peer_table(samples, options.peers))
    print(found["disturbance"])
    for failure in failures:
        print(failure)
    return 1 if failures else 0
