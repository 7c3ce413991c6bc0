"""`python -m bench slots [WORK…]`: rounds of what is asked for, then one table and one JSON file."""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import uvloop

from bench import machine, report
from bench.machine import Bystanders
from bench.report import Bar, Line, Sample
from bench.slots import book, commands, grants

WORKS: Final = ("book", "grants", "commands", "pipes")

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
        "pipes", "stdin → cat → stdout : curl through nginx", "pipes.rota", "pipes.curl", unit="MiB/s",
        bar=Bar("pipes / curl through nginx", 0.5),
    ),
)  # fmt: skip


def parse(args: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; leaves the program if it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench slots", description=__doc__)
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"{' '.join(WORKS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it works")
    parser.add_argument("--rounds", type=int, help="default: 5")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where bars, medians and samples go")
    parser.add_argument("--quiet", type=float, default=0.1, metavar="SHARE", help="CPU that others may use (0.1)")
    parser.add_argument("--patience", type=float, metavar="S", help="wait for that, before each measurement (20)")
    options = parser.parse_args(args)
    for work in options.works:
        if work not in WORKS:
            parser.error(f"there is no work {work!r}; there are {', '.join(WORKS)}")
    options.works = options.works or list(WORKS)
    options.rounds = options.rounds or (1 if options.quick else 5)
    if options.patience is None:
        options.patience = 0.0 if options.quick else 20.0
    return options


async def measure(work: str, options: argparse.Namespace, folder: Path, number: int) -> list[Sample]:
    """One work of one round."""
    match work:
        case "book":
            return book.measure(2000 if options.quick else 50_000)
        case "grants":
            return await grants.measure(0.3 if options.quick else 3.0)
        case "commands":
            return await commands.measure(folder, quick=options.quick, turned=number % 2 == 1)
        case _:
            return await commands.measure_streams(folder, quick=options.quick, turned=number % 2 == 1)


async def measure_all(options: argparse.Namespace, folder: Path) -> tuple[list[Sample], list[str]]:
    """All rounds. Returns: the samples, and what could not be measured."""
    bystanders = Bystanders(options.quiet, options.patience)
    samples: list[Sample] = []
    failures: list[str] = []
    for number in range(options.rounds):
        for work in options.works:
            await bystanders.wait()
            since = bystanders.reading()
            try:
                found = await measure(work, options, folder, number)
            except commands.NotMeasured as error:
                failures.append(f"round {number + 1} {work}: {error}")
                continue
            share = bystanders.share(since)
            samples += [replace(sample, others=share) for sample in found]
            values = "  ".join(f"{sample.key} {sample.value:,.4g}" for sample in found)
            print(f"round {number + 1}/{options.rounds}  {values}", file=sys.stderr, flush=True)
    return samples, failures


def main(args: Sequence[str]) -> int:
    """Measures and reports. Returns: 0, or 1 if something could not be measured; a bar not reached is no failure."""
    options = parse(args)
    with tempfile.TemporaryDirectory() as folder:
        facts = machine.facts(Path(folder))
        samples, failures = uvloop.run(measure_all(options, Path(folder)))
    if options.json is not None:
        found = {
            "bars": report.bars(LINES, samples),
            "medians": report.medians(samples),
            "failures": failures,
            "machine": facts,
            "samples": [asdict(sample) for sample in samples],
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(report.table(LINES, samples))
    if samples:
        print(report.disturbance(samples, limit=options.quiet))
    for failure in failures:
        print(failure)
    return 1 if failures else 0
