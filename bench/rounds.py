"""What the measurements of slots and of runners have in common: their options, their rounds and their JSON file.

A measurement that cannot be made is told and passed over; the others are still worth something.
"""

import argparse
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bench import report
from bench.machine import Bystanders
from bench.report import Line, NotMeasured, Sample

OTHERS_MAX: Final = 0.1
"""The share of the CPU that others may use before a measurement counts as disturbed."""

Measurement = Callable[[], Awaitable[list[Sample]]]


def parser_of(name: str, text: str | None, works: Sequence[str], *, rounds: str, peers: str) -> argparse.ArgumentParser:
    """The options that both have.

    Args:
        name: of the measurement.
        text: what its help begins with.
        works: what may be asked for.
        rounds: help for `--rounds`.
        peers: help for `--peers`.
    """
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=text)
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"{' '.join(works)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="one round of small sizes: to see that it works")
    parser.add_argument("--rounds", type=int, help=rounds)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where bars, medians and samples go")
    parser.add_argument("--peers", action="store_true", help=peers)
    return parser


def read(parser: argparse.ArgumentParser, args: Sequence[str], works: Sequence[str], rounds: int) -> argparse.Namespace:
    """Reads the command line; leaves the program if it is wrong.

    Args:
        parser: of `parser_of`, and what was added to it.
        args: the command line.
        works: what may be asked for; all, if nothing is.
        rounds: how many, unless it is to be quick or says another number.
    """
    given = parser.parse_args(args)
    for work in given.works:
        if work not in works:
            parser.error(f"there is no work {work!r}; there are {', '.join(works)}")
    given.works = given.works or list(works)
    given.rounds = given.rounds or (1 if given.quick else rounds)
    return given


@dataclass(slots=True)
class Rounds:
    """What was measured so far.

    Attributes:
        count: how many rounds there will be.
        bystanders: who else uses the machine.
        samples: in the order in which they were taken.
        failures: what could not be measured.
    """

    count: int
    bystanders: Bystanders
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def take(self, number: int, measure: Measurement) -> None:
        """Measures one thing in round `number`, from 1, once the machine is quiet, and tells what came of it."""
        await self.bystanders.wait()
        head = f"round {number}/{self.count}"
        try:
            found = await measure()
        except NotMeasured as error:
            self.failures.append(f"{head}: {error}")
            print(f"{head}  not measured: {error}", file=sys.stderr)
            return
        self.samples += found
        values = "  ".join(f"{sample.key} {sample.value:,.4g}" for sample in found)
        others = max(sample.others for sample in found)
        print(f"{head}  {values}  (others {others:.0%})", file=sys.stderr)

    def write(self, path: Path, lines: Sequence[Line], **more: Any) -> None:
        """Writes the JSON file: bars, medians, samples, and what else is told."""
        found = {
            "bars": report.bars(lines, self.samples),
            "medians": report.medians(self.samples),
            "failures": self.failures,
            **more,
            "samples": [asdict(sample) for sample in self.samples],
        }
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    def tell(self, lines: Sequence[Line]) -> None:
        """Prints the table, how far others disturbed, and what is missing."""
        print(report.table(lines, self.samples))
        if self.samples:
            print(report.disturbance(self.samples, limit=OTHERS_MAX))
        for failure in self.failures:
            print(failure)
