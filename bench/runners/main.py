"""`python -m bench runners [WORK…]`: rounds of what is asked for, then one table and one JSON file."""

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench import machine, report
from bench.machine import Bystanders
from bench.queue.peers import NotInstalled
from bench.report import Bar, Line, Sample
from bench.runners import gate, peers, storm, works
from bench.runners.children import NotMeasured
from bench.server import Server, private_server
from rota.io.open_files import limit, raise_limit

WORKS: Final = ("op", "assign", "gate", "crowd")
DESCRIPTORS_EACH: Final = 2
LINES: Final = (
    Line(
        "op", "one op, engine to runner and back, p50 : bare HTTP and websocket echo", "op.rota", "op.echo", "ms", 2,
        Bar("op / bare HTTP and websocket echo", 4.0, below=True),
    ),
    Line("op", "the same : NATS, request and reply", "op.rota", "op.nats", "ms", 2),
    Line(
        "assign", "from creating a job to its assign, p50 : NOTIFY and a claim", "assign.rota", "assign.raw", "ms", 2,
        Bar("assign / NOTIFY and a claim", 5.0, below=True),
    ),
    Line(
        "gate", "CPU to judge a command line : to start ffmpeg", "gate.rota", "gate.ffmpeg", "ms", 3,
        Bar("judging a command / starting ffmpeg", 0.1, below=True),
    ),
    Line(
        "idle", "memory of a connected idle runner : of a bare websocket", "memory.rota", "memory.bare", "KiB", 1,
        Bar("memory of an idle runner / of a bare websocket", 3.0, below=True),
    ),
    Line(
        "idle", "heartbeats that were answered", "beats.answered", unit="of each", digits=3,
        bar=Bar("heartbeats answered", 0.99, of_ratio=False),
    ),
    Line("idle", "the slowest answer to a heartbeat", "beats.worst", unit="ms"),
    Line("idle", "CPU of the gateway", "beats.cpu", unit="ms/s", digits=1),
    Line(
        "cut", "leases lost when all lines are cut", "cut.lost", unit="leases",
        bar=Bar("leases lost when all lines are cut (below)", 1.0, of_ratio=False, below=True),
    ),
    Line("cut", "until all are connected again", "cut.seconds", unit="s", digits=1),
    Line("cut", "times that a runner was told to come later", "cut.refused", unit="each", digits=2),
    Line("cut", "the longest that the gateway's loop was late", "cut.lag", unit="ms"),
    Line(
        "kill", "leases lost when the gateway is killed", "kill.lost", unit="leases",
        bar=Bar("leases lost when the gateway is killed (below)", 1.0, of_ratio=False, below=True),
    ),
    Line("kill", "until all are connected to the next one", "kill.seconds", unit="s", digits=1),
    Line("kill", "times that a runner was told to come later", "kill.refused", unit="each", digits=2),
    Line("kill", "the longest that the gateway's loop was late", "kill.lag", unit="ms"),
)  # fmt: skip

Measurement = Callable[[], Awaitable[list[Sample]]]


def parse(args: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; leaves the program if it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench runners", description=__doc__)
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"{' '.join(WORKS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="one round of small sizes: to see that it works")
    parser.add_argument("--rounds", type=int, help="of all but the crowd, which comes once; default: 3")
    parser.add_argument("--runners", type=int, metavar="N", help="in the crowd; default: 5,000")
    parser.add_argument("--jobs", type=int, metavar="N", help="that the crowd holds in the storms; default: 1,000")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where bars, medians and samples go")
    parser.add_argument("--peers", action="store_true", help="NATS too; it is installed once")
    given = parser.parse_args(args)
    for work in given.works:
        if work not in WORKS:
            parser.error(f"there is no work {work!r}; there are {', '.join(WORKS)}")
    given.works = given.works or list(WORKS)
    given.rounds = given.rounds or (1 if given.quick else 3)
    given.runners = given.runners or (50 if given.quick else 5000)
    given.jobs = min(given.runners, given.jobs or given.runners // 5)
    given.times = 30 if given.quick else 500
    given.idle_s = 3.0 if given.quick else storm.BEAT_S
    return given


class Databases:
    """A database of its own for each measurement."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._made = 0

    async def fresh(self) -> str:
        """Its address."""
        self._made += 1
        await self._server.run(f"CREATE DATABASE bench_{self._made}")
        return self._server.dsn(f"bench_{self._made}")


def plan(bystanders: Bystanders, databases: Databases, given: argparse.Namespace, *, first: bool) -> list[Measurement]:
    """What one round measures, in its order; the crowd comes in the first alone."""
    times: int = given.times

    async def watched(work: Awaitable[list[Sample]]) -> list[Sample]:
        since = bystanders.reading()
        found = await work
        share = bystanders.share(since)
        return [Sample(sample.key, sample.value, share) for sample in found]

    async def judge() -> list[Sample]:
        return gate.measure(bystanders, times)

    async def on_a_database(work: Callable[[str, int], Awaitable[list[Sample]]]) -> list[Sample]:
        return await watched(work(await databases.fresh(), times))

    async def crowd() -> list[Sample]:
        dsn = await databases.fresh()
        return await storm.gateway(
            bystanders, dsn, runners=given.runners, jobs=given.jobs, idle_s=given.idle_s
        )  # fmt: skip

    steps: dict[str, list[Measurement]] = {
        "op": [lambda: watched(works.echoes(times)), lambda: on_a_database(works.ops)],
        "assign": [lambda: on_a_database(works.notifies), lambda: on_a_database(works.assigns)],
        "gate": [judge],
        "crowd": [lambda: storm.bare(bystanders, runners=given.runners), crowd] if first else [],
    }
    if given.peers:
        steps["op"].append(lambda: peers.measure(bystanders, times))
    return [step for name in WORKS if name in given.works for step in steps[name]]


async def measure_all(server: Server, given: argparse.Namespace) -> tuple[list[Sample], list[str]]:
    """All rounds. Returns: the samples, and what could not be measured."""
    bystanders = Bystanders(limit=0.1, patience_s=0.0 if given.quick else 10.0, patience_left_s=30.0)
    databases = Databases(server)
    samples: list[Sample] = []
    failures: list[str] = []
    for number in range(given.rounds):
        for measure in plan(bystanders, databases, given, first=number == 0):
            await bystanders.wait()
            try:
                found = await measure()
            except NotMeasured as error:
                failures.append(str(error))
                print(f"round {number + 1}/{given.rounds}  not measured: {error}", file=sys.stderr)
                continue
            samples += found
            values = "  ".join(f"{sample.key} {sample.value:,.3g}" for sample in found)
            others = max(sample.others for sample in found)
            print(f"round {number + 1}/{given.rounds}  {values}  (others {others:.0%})", file=sys.stderr)
    return samples, failures


def main(args: Sequence[str]) -> int:
    """Measures and reports. Returns: 0; 1 if something could not be measured. A bar not reached is no failure."""
    given = parse(args)
    raise_limit()
    room = limit()
    if room is not None and "crowd" in given.works:
        given.runners = min(given.runners, room // DESCRIPTORS_EACH)
        given.jobs = min(given.jobs, given.runners)
    try:
        if given.peers:
            peers.install()
    except NotInstalled as error:
        print(error, file=sys.stderr)
        return 1
    with private_server(None) as server:
        facts = machine.facts(server.folder)
        samples, failures = asyncio.run(measure_all(server, given))
    if given.json is not None:
        found = {
            "bars": report.bars(LINES, samples),
            "medians": report.medians(samples),
            "runners": given.runners,
            "jobs": given.jobs,
            "machine": facts,
            "failures": failures,
            "samples": [asdict(sample) for sample in samples],
        }
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    known = {sample.key for sample in samples}
    print(report.table([line for line in LINES if line.base is None or line.base in known], samples))
    print()
    if "crowd" in given.works:
        print(f"{given.runners:,} runners in the crowd, {given.jobs:,} of them with a job in the storms.")
    print(report.disturbance(samples, limit=0.1))
    return 1 if failures else 0
