"""`python -m bench runners [WORK…]`: rounds of what is asked for, then one table and one JSON file."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from bench import machine, rounds
from bench.machine import Bystanders
from bench.queue.peers import NotInstalled
from bench.report import Bar, Line, Sample
from bench.rounds import OTHERS_MAX, Measurement, Rounds
from bench.runners import gate, peers, storm, works
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


def parse(args: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; leaves the program if it is wrong."""
    parser = rounds.parser_of(
        "runners", __doc__, WORKS, rounds="of all but the crowd, which comes once; default: 3",
        peers="NATS too; it is installed once",
    )  # fmt: skip
    parser.add_argument("--runners", type=int, metavar="N", help="in the crowd; default: 5,000")
    parser.add_argument("--jobs", type=int, metavar="N", help="that the crowd holds in the storms; default: 1,000")
    given = rounds.read(parser, args, WORKS, 3)
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


async def measure_all(server: Server, given: argparse.Namespace) -> Rounds:
    """All rounds."""
    bystanders = Bystanders(limit=OTHERS_MAX, patience_s=0.0 if given.quick else 10.0, patience_left_s=30.0)
    databases = Databases(server)
    taken = Rounds(given.rounds, bystanders)
    for number in range(1, given.rounds + 1):
        for measure in plan(bystanders, databases, given, first=number == 1):
            await taken.take(number, measure)
    return taken


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
        taken = asyncio.run(measure_all(server, given))
    if given.json is not None:
        taken.write(given.json, LINES, runners=given.runners, jobs=given.jobs, machine=facts)
    known = {sample.key for sample in taken.samples}
    taken.tell([line for line in LINES if line.base is None or line.base in known])
    if "crowd" in given.works:
        print(f"{given.runners:,} runners in the crowd, {given.jobs:,} of them with a job in the storms.")
    return 1 if taken.failures else 0
