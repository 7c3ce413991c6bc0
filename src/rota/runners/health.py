"""What `rota doctor` thinks of gateways and runners: who is there, and what waits for whom. Pure rules over facts.

Where nothing of runners is used, nothing is said.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rota.queue.health import Check, Level
from rota.runners.explain import GatewaySeen, capabilities_of
from rota.runners.matching import Needs, belongs, lacks
from rota.runners.messages import Requires
from rota.runners.records import POOL, Waiting


@dataclass(frozen=True, slots=True)
class RunnerHealth:
    """What was found of gateways and runner jobs.

    Attributes:
        gateways: those that run, with their runners if they were asked and answered.
        asked: whether they were asked.
        devices: how many are paired.
        waiting, held, overdue: runner jobs that are queued, leased, and leased for a minute longer than their lease.
        groups: what waits, by what it needs.
        disabled: jobs that wait of each disabled organisation.
        held_by: jobs in the pool of organisations that have more waiting there.
        cap: how many one may have there.
    """

    gateways: Sequence[GatewaySeen] = ()
    asked: bool = False
    devices: int = 0
    waiting: int = 0
    held: int = 0
    overdue: int = 0
    groups: Sequence[Waiting] = ()
    disabled: Mapping[str, int] = field(default_factory=dict)
    held_by: Mapping[str, int] = field(default_factory=dict)
    cap: int | None = None


def examine_runners(found: RunnerHealth) -> list[Check]:
    """Judges gateways and runners.

    Returns: one check or more of each thing; none where runners are not used.
    """
    if not (found.gateways or found.devices or found.waiting or found.held):
        return []
    return [*_gateways(found), *_runners(found), *_jobs(found)]


def _gateways(found: RunnerHealth) -> Iterator[Check]:
    if not found.gateways:
        level = Level.PROBLEM if found.waiting or found.held else Level.NOTE
        waits = [f"{count:,} {what}" for count, what in ((found.waiting, "wait"), (found.held, "are held")) if count]
        words = "no gateway runs" + (f", and of the runner jobs {' and '.join(waits)}" if waits else "")
        yield Check("gateways", level, words, "Start one: rota gateway")
        return
    yield Check("gateways", Level.OK, f"{len(found.gateways)} live")
    for gateway in found.gateways:
        if gateway.error is not None:
            yield Check(
                "gateways", Level.WARNING, f"{gateway.instance} at {gateway.address} did not answer: {gateway.error}",
                "Other gateways reach it there too: see gateway_address, and whether it runs.",
            )  # fmt: skip


def _runners(found: RunnerHealth) -> Iterator[Check]:
    if not found.gateways:
        return
    if not found.asked:
        yield Check(
            "runners", Level.NOTE, "the gateways were not asked who is connected",
            "Set ROTA_GATEWAY_TOKEN here, to what the gateways have.",
        )  # fmt: skip
        return
    runners = [runner for gateway in found.gateways for runner in gateway.runners or ()]
    yield Check("runners", Level.OK, f"{len(runners)} connected, {sum(one.free_slots for one in runners)} slots free")
    if any(gateway.runners is None for gateway in found.gateways):
        return  # one that did not answer may have whoever is missed
    for group in found.groups:
        requires = Requires(runtime_image_digest=group.runtime_digest, fontset_version=group.fontset_version)
        needs = Needs(group.target, group.org_id, group.job_type, requires, group.output_bytes_max)
        if not any(
            belongs(needs, kind=one.kind, org_id=one.org_id) and lacks(needs, capabilities_of(one)) is None
            for one in runners
        ):
            where = "the pool" if group.target == POOL else f"devices of {group.org_id}"
            yield Check(
                "runners", Level.WARNING,
                f"{group.jobs:,} {group.job_type} jobs wait for {where}, and no runner that fits is connected",
                "rota jobs why ID says what each one lacks.",
            )  # fmt: skip


def _jobs(found: RunnerHealth) -> Iterator[Check]:
    if found.overdue:
        yield Check(
            "runner jobs", Level.WARNING, f"{found.overdue:,} leases ran out more than a minute ago",
            "Every gateway ends these every 10 s. If this stays, none runs or none reaches the database: see its log.",
        )  # fmt: skip
    else:
        yield Check("runner jobs", Level.OK, f"{found.waiting:,} wait, {found.held:,} are held")
    for org_id, jobs in sorted(found.disabled.items()):
        yield Check(
            "organisations", Level.NOTE, f"{org_id} is disabled, and {jobs:,} of its jobs wait",
            f"rota runner enable {org_id}, or let its engine cancel them.",
        )  # fmt: skip
    for org_id, jobs in sorted(found.held_by.items()):
        if found.cap is not None and jobs >= found.cap:
            yield Check(
                "organisations", Level.NOTE, f"{org_id} uses all its {found.cap} slots of the pool, and more waits",
                "That is what ROTA_GATEWAY_ORG_SLOTS is for; raise it if the pool is idle.",
            )  # fmt: skip
