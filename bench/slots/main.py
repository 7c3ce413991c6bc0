"""`python -m bench slots [WORK…]`: rounds of what is asked for, then one table and one JSON file."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from bench import machine, rounds
from bench.machine import Bystanders
from bench.queue.peers import NotInstalled
from bench.report import Bar, Line
from bench.rounds import OTHERS_MAX, Measurement, Rounds
from bench.slots import book, grants, peers, turns, works

WORKS: Final = ("book", "grants", "commands", "turns", "idle", "pipes")
LINES: Final = (
    Line(
        "book", "park and grant, 1,000 wants : heapq", "book.small", "heapq.small",
        bar=Bar("book / heapq, 1,000", 0.333),
    ),
    Line(
        "book", "park and grant, 100,000 wants : heapq", "book.large", "heapq.large",
        bar=Bar("book / heapq, 100,000", 0.333),
    ),
    Line(
        "book", "cost with 100,000 over 1,000 : 1,000 over 10", "book.large_us", "book.small_us", unit="µs", digits=2,
        bar=Bar("cost of a pair at 100,000 / at 1,000 (below)", 1.5, below=True),
    ),
    Line(
        "grants", "WANT OFFER JOB DONE : echo round trips", "grants.cycles", "grants.echo",
        bar=Bar("cycles / echo round trips", 0.3),
    ),
    Line(
        "grants", "p50 beside 10,000 parked : with none", "grants.p50_parked", "grants.p50", unit="ms", digits=2,
        bar=Bar("p50 with 10,000 parked / with none (below)", 1.5, below=True),
    ),
    Line("grants", "cycles beside 10,000 parked : alone", "grants.cycles_parked", "grants.cycles_line"),
    Line(
        "commands", "/bin/true in 2 slots, WANT to DONE : bare spawn loop", "cycles.rota", "commands.bare1",
        bar=Bar("commands / bare spawn loop", 0.6),
    ),
    Line("commands", "the same : bare loop, 2 at once", "cycles.rota", "commands.bare2"),
    Line("commands", "the same without the wire : bare spawn loop", "commands.rota", "commands.bare1"),
    Line(
        "commands", "/bin/true in 2 slots : HyperQueue's LocalCluster", "cycles.rota", "rate.hyperqueue",
        bar=Bar("commands / HyperQueue", 2.0),
    ),
    Line(
        "commands", "/bin/true in 2 slots : Dask's LocalCluster", "cycles.rota", "rate.dask",
        bar=Bar("commands / Dask", 3.0),
    ),
    Line(
        "turns", "grants that B's one waits for beside A's many", "fair.rota", unit="grants",
        bar=Bar("grants before B's one (below)", 3.0, of_ratio=False, below=True),
    ),
    Line("turns", "the same : HyperQueue", "fair.rota", "fair.hyperqueue", unit="grants"),
    Line("turns", "the same : Dask", "fair.rota", "fair.dask", unit="grants"),
    Line(
        "turns", "grants that an urgent one waits for", "urgent.rota", unit="grants",
        bar=Bar("grants before an urgent one (below)", 3.0, of_ratio=False, below=True),
    ),
    Line("turns", "the same : HyperQueue", "urgent.rota", "urgent.hyperqueue", unit="grants"),
    Line("turns", "the same : Dask", "urgent.rota", "urgent.dask", unit="grants"),
    Line(
        "idle", "frames without work, in both directions of a client", "frames.rota", unit="frames",
        bar=Bar("frames while idle (below)", 1.0, of_ratio=False, below=True),
    ),
    Line("idle", "CPU without work", "idle.rota", unit="ms/s", digits=1),
    Line("idle", "the same : HyperQueue", "idle.rota", "idle.hyperqueue", unit="ms/s", digits=1),
    Line("idle", "the same : Dask", "idle.rota", "idle.dask", unit="ms/s", digits=1),
    Line(
        "pipes", "stdin → cat → stdout : curl through nginx", "pipes.rota", "pipes.curl", unit="MiB/s",
        bar=Bar("pipes / curl through nginx", 0.5),
    ),
)  # fmt: skip


def parse(args: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; leaves the program if it is wrong."""
    parser = rounds.parser_of(
        "slots", __doc__, WORKS, rounds="default: 5", peers="HyperQueue and Dask too; they are installed once"
    )
    parser.add_argument("--commands", type=int, metavar="N", help="default: 2,000")
    parser.add_argument("--mib", type=int, metavar="N", help="default: 1,024")
    given = rounds.read(parser, args, WORKS, 5)
    given.commands = given.commands or (50 if given.quick else 2000)
    given.mib = given.mib or (32 if given.quick else 1024)
    return given


def plan(bystanders: Bystanders, given: argparse.Namespace, folder: Path) -> dict[str, list[Measurement]]:
    """What one round measures."""
    size = given.mib * 2**20
    pairs, repeats = (2000, 1) if given.quick else (50_000, book.REPEATS)
    steps: dict[str, list[Measurement]] = {
        "book": [lambda: book.measure(bystanders, pairs, repeats=repeats)],
        "grants": [lambda: grants.measure(bystanders, 0.3 if given.quick else 3.0)],
        "commands": [
            lambda: works.cycles(bystanders, given.commands, folder),
            lambda: works.commands(bystanders, given.commands, folder / "scratch"),
            lambda: works.spawns(bystanders, given.commands, 1),
            lambda: works.spawns(bystanders, given.commands, 2),
        ],
        "turns": [lambda: turns.measure(bystanders, 100 if given.quick else 10_000, folder)],
        "idle": [lambda: turns.idle(bystanders, 0.5 if given.quick else 20.0, folder)],
        "pipes": [
            lambda: works.pipes(bystanders, size, folder / "scratch"),
            lambda: works.curl(bystanders, size, folder),
        ],
    }
    chosen = {name: steps[name] for name in WORKS if name in given.works}
    if given.peers:
        # A peer is measured in all that it has in one go: its cluster takes seconds to start.
        chosen["peers"] = [
            partial(
                peers.measure, bystanders, peer, count=given.commands, line=200 if given.quick else 10_000,
                idle_s=0.5 if given.quick else 20.0,
            )
            for peer in peers.PEERS
        ]  # fmt: skip
    return chosen


async def measure_all(given: argparse.Namespace, folder: Path) -> Rounds:
    """All rounds."""
    bystanders = Bystanders(limit=OTHERS_MAX, patience_s=0.0 if given.quick else 20.0)
    taken = Rounds(given.rounds, bystanders)
    for number in range(1, given.rounds + 1):
        for steps in plan(bystanders, given, folder).values():
            # Who goes first has no lasting advantage.
            for measure in steps if number % 2 else reversed(steps):
                await taken.take(number, measure)
    return taken


def main(args: Sequence[str]) -> int:
    """Measures and reports. Returns: 0, or 1 if something could not be measured; a bar not reached is no failure."""
    given = parse(args)
    if given.peers:
        try:
            peers.install()
        except NotInstalled as error:
            print(error, file=sys.stderr)
            return 1
    lines = [line for line in LINES if given.peers or not (line.base or "").endswith(peers.PEERS)]
    with tempfile.TemporaryDirectory() as folder:
        taken = uvloop.run(measure_all(given, Path(folder)))
        facts = machine.facts(Path(folder))
    if given.json is not None:
        sizes = {"commands": given.commands, "mib": given.mib, "rounds": given.rounds}
        taken.write(given.json, lines, sizes=sizes, machine=facts)
    taken.tell(lines)
    return 1 if taken.failures else 0
