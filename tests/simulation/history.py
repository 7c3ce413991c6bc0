"""One history: servers over one database, faults while it lasts, then calm until every job has ended."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from rota.ids import Holder
from rota.queue.job import NewJob, State, forever_key, open_key, queued_key
from tests.simulation.checks import Checks
from tests.simulation.scripts import KINDS, PLAIN, Program
from tests.simulation.server import Server
from tests.simulation.world import CALM, World

FAULTS_S = 90.0
CALM_S = 3600.0
JOBS = 30
SERVERS = 3


@dataclass(frozen=True, slots=True)
class Told:
    """What a history was: for the person who replays it."""

    seed: int
    jobs: int
    starts: int
    faults: int
    virtual_s: float


@dataclass(slots=True)
class Faults:
    """What goes wrong, and who starts again.

    Attributes:
        servers: the processes that are to be there.
        program: what they run.
        more: other faults than those of every history, by name.
        count: faults so far.
        starts: processes so far.
    """

    world: World
    checks: Checks
    servers: list[Server]
    program: Program = PLAIN
    more: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    count: int = 0
    starts: int = 0

    def start(self) -> Server:
        """One more process."""
        self.starts += 1
        number = self.starts
        holder = Holder(f"server:{number}:{self.world.random.getrandbits(16):04x}")
        # A machine's clock for leases starts with the machine: only differences count, and it is over 0.
        offset_s = self.world.random.uniform(1.0, 2e6)
        return Server(self.world, checks=self.checks, holder=holder, offset_s=offset_s, program=self.program)

    def strike(self) -> None:
        """One fault, and the plan for the next."""
        if self.world.now_s >= FAULTS_S:
            return
        random = self.world.random
        number = random.randrange(len(self.servers))
        server = self.servers[number]
        self.count += 1
        match random.choice(("crash", "pause", "pause", "stop", "away", "cancel", "retry", *self.more)):
            case "crash":
                server.crash()
            case "pause":
                server.pause(random.uniform(0.1, 40))
            case "stop":
                server.stop()
            case "away":
                self.world.away_until_s = self.world.now_s + random.uniform(0.5, 45)
            case "cancel":
                ids = list(self.checks.open_jobs())
                if ids and self.world.now_s >= self.world.away_until_s:
                    self.world.statement("cancel", [random.choice(ids)])
            case "retry":
                failed = [i for i, row in self.world.rows().items() if row.state in (State.FAILED, State.CANCELLED)]
                if failed and self.world.now_s >= self.world.away_until_s:
                    self.world.statement("retry", random.choice(failed))
            case other if self.world.now_s >= self.world.away_until_s:
                self.more[other]()
        self.world.after(random.expovariate(1 / 5), self.strike)

    def watch(self) -> None:
        """A supervisor: what has ended starts again, as another holder."""
        for number, server in enumerate(self.servers):
            if not server.alive:
                self.servers[number] = self.start()
        self.world.after(1.0, self.watch)


def run(seed: int) -> Told:
    """Plays one history.

    Raises: Broken, if an invariant did not hold.
    """
    random = Random(seed)
    world = World(random)
    checks = Checks(world)
    faults = Faults(world, checks, [])

    def add() -> None:
        if world.now_s < world.away_until_s:
            world.after(1.0, add)
            return
        key = f"key-{random.randrange(4)}"
        dedupe = random.choice(
            (None, None, None, open_key(key), queued_key(key), forever_key(f"once-{random.random()}"))
        )
        world.statement(
            "enqueue",
            NewJob(
                random.choice(list(KINDS)), priority=random.choice((0, 0, 10)), dedupe=dedupe,
                delay_s=random.choice((0, 0, 0, random.uniform(0, 20))), max_tries=random.choice((None, 1, 2)),
            ),
        )  # fmt: skip

    for _ in range(JOBS):
        world.after(random.uniform(0, FAULTS_S * 0.8), add)
    return play(seed, faults, jobs=JOBS)


def play(seed: int, faults: Faults, *, jobs: int) -> Told:
    """Lets a history happen whose jobs are planned.

    Raises: Broken, if an invariant did not hold.
    """
    world, checks = faults.world, faults.checks
    faults.servers = [faults.start() for _ in range(SERVERS)]
    world.after(world.random.expovariate(1 / 5), faults.strike)
    faults.watch()
    world.run(FAULTS_S)
    world.line, world.away_until_s = CALM, 0.0
    world.run(FAULTS_S + CALM_S, done=lambda: world.now_s > FAULTS_S + 30 and not any(checks.open_jobs()))
    checks.ended()
    return Told(seed, jobs, checks.starts, faults.count, world.now_s)
