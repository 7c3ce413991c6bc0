"""One history of jobs that lead to others: passes, batches, families, limits on all servers, pauses of tenants.

The servers, the line and the faults are those of `history`; the program is another.
"""

from random import Random
from typing import Final
from uuid import UUID

from msgspec import structs

import rota
from rota.ids import BatchId
from rota.queue.job import ClaimedJob, NewJob
from rota.queue.kind import Kind
from rota.queue.limits import Limits
from rota.queue.pause import PauseScope
from rota.queue.periodic import Declared
from rota.queue.retry import Fixed
from tests.simulation.checks import Checks
from tests.simulation.flow_checks import FlowChecks
from tests.simulation.history import FAULTS_S, Faults, Told, play
from tests.simulation.scripts import STALL_S, Program, Script
from tests.simulation.world import World

FLEET_LIMIT: Final = 3
TICK_S: Final = 12.0
TENANTS: Final = (None, "acme", "umbrella")
BATCHES, FAMILIES, ALONE = 2, 3, 8

KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind("bounded", limit=3, lease_s=8, heartbeat_s=2, retry=Fixed(1), limits=Limits(fleet=FLEET_LIMIT)),
        Kind("part", limit=4, lease_s=10, heartbeat_s=2, retry=Fixed(1)),
        Kind("parent", limit=3, lease_s=10, heartbeat_s=2, retry=Fixed(1), max_tries=4),
        Kind("after", limit=2, lease_s=10, heartbeat_s=2, retry=Fixed(1), max_tries=20),
        Kind("tick", limit=1, lease_s=6, heartbeat_s=2, retry=Fixed(1), runs_pass=True),
    )
}


def script_of(job: ClaimedJob) -> Script:
    """What the handler of this claim does; parents add children, and those may be parents."""
    random = Random(f"{job.id} {job.lease.epoch}")
    if random.random() < 0.05:
        return Script("coroutine", (STALL_S,), moves=False, returned=None, raises=False)
    pauses_s = tuple(random.uniform(0, 2.0) for _ in range(random.choice((1, 2, 6))))
    children: tuple[NewJob, ...] = ()
    if job.kind == "parent":
        kinds = random.choice((("part",), ("part", "part"), ("parent", "part"), ()))
        children = tuple(NewJob(kind, parent_id=job.id, tenant=job.tenant) for kind in kinds)
    returned = random.choice((None, None, None, rota.Snooze(2.0), rota.Retry(after_s=1.0), rota.Fail("no use")))
    return Script(
        "coroutine", pauses_s, moves=True, returned=returned, raises=random.random() < 0.1, follow_ups=children
    )


PROGRAM: Final = Program(KINDS, script_of, passes={"tick": Declared(f"every {TICK_S:g} s")})


def run(seed: int) -> Told:
    """Plays one history.

    Raises: Broken, if an invariant did not hold.
    """
    random = Random(seed)
    world = World(random)
    checks = Checks(world, PROGRAM)
    flow = FlowChecks(world, PROGRAM)

    def cancel_family() -> None:
        parents = [row.id for row in world.rows().values() if row.kind == "parent"]
        if parents:
            parent_id = random.choice(parents)
            world.statement("cancel", [parent_id], children=True)
            flow.family_cancelled(parent_id)

    def pause_tenant() -> None:
        tenant, for_s = random.choice(TENANTS[1:]), random.uniform(2, 30)
        world.statement("pause", PauseScope.TENANT, tenant, paused_by="the history", for_s=for_s)

    def run_pass() -> None:
        world.statement("run_pass", "tick")

    more = {"cancel family": cancel_family, "pause tenant": pause_tenant, "run pass": run_pass}
    faults = Faults(world, checks, [], PROGRAM, more)

    def job(kind: str) -> NewJob:
        return NewJob(kind, tenant=random.choice(TENANTS), priority=random.choice((0, 0, 10)))

    def add_batch() -> None:
        batch_id = BatchId(UUID(int=random.getrandbits(128)))
        jobs = [structs.replace(job(random.choice(("part", "parent"))), batch_id=batch_id) for _ in range(4)]
        flow.batches.add(batch_id)
        world.statement("enqueue_many", jobs)
        world.statement("begin_batch", batch_id, jobs=len(jobs), then=NewJob("after"))

    for _ in range(BATCHES):
        world.after(random.uniform(0, FAULTS_S * 0.6), add_batch)
    for kind, count in (("parent", FAMILIES), ("bounded", ALONE)):
        for _ in range(count):
            world.after(random.uniform(0, FAULTS_S * 0.4), lambda kind=kind: world.statement("enqueue", job(kind)))
    told = play(seed, faults, jobs=BATCHES * 4 + FAMILIES + ALONE)
    flow.ended()
    return told
