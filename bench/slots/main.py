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
from bench.slots import book, grants

WORKS: Final = ("book", "grants")

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


async def measure_all(options: argparse.Namespace) -> list[Sample]:
    """All rounds."""
    bystanders = Bystanders(options.quiet, options.patience)
    samples: list[Sample] = []
    for number in range(options.rounds):
        for work in options.works:
            await bystanders.wait()
            since = bystanders.reading()
            if work == "book":
                found = book.measure(2000 if options.quick else 50_000)
            else:
                found = await grants.measure(0.3 if options.quick else 3.0)
            share = bystanders.share(since)
            samples += [replace(sample, others=share) for sample in found]
            values = "  ".join(f"{sample.key} {sample.value:,.4g}" for sample in found)
            print(f"round {number + 1}/{options.rounds}  {values}", file=sys.stderr, flush=True)
    return samples


def main(args: Sequence[str]) -> int:
    """Measures and reports. Returns: 0; a bar that is not reached is no failure."""
    options = parse(args)
    with tempfile.TemporaryDirectory() as folder:
        facts = machine.facts(Path(folder))
    samples = uvloop.run(measure_all(options))
    if options.json is not None:
        found = {
            "bars": report.bars(LINES, samples),
            "medians": report.medians(samples),
            "machine": facts,
            "samples": [asdict(sample) for sample in samples],
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(report.table(LINES, samples))
    print(report.disturbance(samples, limit=options.quiet))
    return 0
