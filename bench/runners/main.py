"""`./dev bench runners [--quick] [--rounds N] [--json FILE]`: an op and an assignment, each against its bare like."""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench import report
from bench.report import Bar, Line, Sample
from bench.runners import works
from bench.server import Server, private_server

LINES = (
    Line(
        "op", "one op, engine to runner and back, p50", "op.rota", "op.echo", "ms", 2,
        Bar("op / bare HTTP and websocket echo", 4.0, below=True),
    ),
    Line(
        "assign", "from creating a job to its assign, p50", "assign.rota", "assign.raw", "ms", 2,
        Bar("assign / NOTIFY and a claim", 5.0, below=True),
    ),
)  # fmt: skip


async def measure_all(server: Server, *, rounds: int, times: int) -> list[Sample]:
    """All rounds, each in databases of its own."""
    samples: list[Sample] = []

    async def fresh(number: int, name: str) -> str:
        database = f"bench_{name}_{number}"
        await server.run(f"CREATE DATABASE {database}")
        return server.dsn(database)

    for number in range(rounds):
        found = [
            *await works.echoes(times),
            *await works.ops(await fresh(number, "ops"), times),
            *await works.notifies(await fresh(number, "raw"), times),
            *await works.assigns(await fresh(number, "assigns"), times),
        ]
        samples += found
        values = "  ".join(f"{sample.key} {sample.value:,.3g}" for sample in found)
        print(f"round {number + 1}/{rounds}  {values}", file=sys.stderr)
    return samples


def main(args: Sequence[str]) -> int:
    """Measures and reports. Returns: 0; a bar not reached is no failure."""
    parser = argparse.ArgumentParser(prog="bench runners", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of few: to see that it works")
    parser.add_argument("--rounds", type=int, help="default: 3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where bars, medians and samples go")
    given = parser.parse_args(args)
    with private_server(None) as server:
        rounds, times = given.rounds or (1 if given.quick else 3), 30 if given.quick else 1000
        samples = asyncio.run(measure_all(server, rounds=rounds, times=times))
    if given.json is not None:
        found = {
            "bars": report.bars(LINES, samples),
            "medians": report.medians(samples),
            "samples": [asdict(sample) for sample in samples],
        }
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(report.table(LINES, samples))
    return 0
