"""Which job may go to which runner, and which goes first. Pure.

The claim's statement decides; this is the same rule for the simulation, for tests that hold the two side by side, for
the gateway's second look at what it claimed, and for the agent's own look at what it was assigned. A capability is a
claim of the runner's: a false one gains it nothing but work that it fails.

Spec: runners, "Capabilities", "Routing and targets".
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from rota.runners.codes import FailureClass, JobType, RejectReason
from rota.runners.handshake import is_older
from rota.runners.messages import Capabilities, Requires


class Target(StrEnum):
    """Where a job may run."""

    CLOUD_POOL = "CloudPool"
    ORG_RUNNER = "OrgRunner"


class RunnerKind(StrEnum):
    """What a runner is."""

    CLOUD_POOL = "CloudPool"
    DESKTOP = "Desktop"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a job asks of its runner.

    Attributes:
        target: `CloudPool` or `OrgRunner`.
        org_id: whose job it is.
        job_type: open list.
        requires: digest and version pins.
        output_bytes_max: the job's cap for one output.
    """

    target: str
    org_id: str
    job_type: str
    requires: Requires
    output_bytes_max: int


@dataclass(frozen=True, slots=True)
class Queued:
    """A queued job, as the rule of order sees it.

    Attributes:
        job_id: breaks ties.
        needs: what it asks.
        priority: the higher first.
        created_at: the older first.
    """

    job_id: str
    needs: Needs
    priority: int
    created_at: float


def target_of(kind: str) -> Target:
    """The only target that a runner of this kind may serve."""
    return Target.CLOUD_POOL if kind == RunnerKind.CLOUD_POOL else Target.ORG_RUNNER


def belongs(needs: Needs, *, kind: str, org_id: str | None) -> bool:
    """Whether target and organisation let this job go to this runner: a desktop gets only jobs of its own organisation
    for OrgRunner, a pool worker only jobs for CloudPool, of anybody. There is no way from one to the other."""
    if kind == RunnerKind.CLOUD_POOL:
        return needs.target == Target.CLOUD_POOL
    return kind == RunnerKind.DESKTOP and needs.target == Target.ORG_RUNNER and needs.org_id == org_id


def lacks(needs: Needs, capabilities: Capabilities) -> str | None:
    """What a runner does not have for this job, in words; None if it has all."""
    if needs.job_type not in offered(capabilities):
        return f"job type {needs.job_type[:60]}"
    requires = needs.requires
    digest = requires.runtime_image_digest
    if digest is not None and capabilities.runtime_image_digest != digest:
        return f"runtime image {digest}"
    if requires.fontset_version is not None and is_older(capabilities.fontset_version, requires.fontset_version):
        return f"font set {requires.fontset_version} or later"
    if capabilities.max_output_bytes < needs.output_bytes_max:
        return f"outputs of {needs.output_bytes_max:,} bytes"
    return None


def offered(capabilities: Capabilities) -> tuple[str, ...]:
    """The job types that a runner may be given: without a container no workspace, whatever it says."""
    if capabilities.container == "none":
        return tuple(kind for kind in capabilities.job_types if kind != JobType.REMOTION)
    return capabilities.job_types


def choose(
    queued: Iterable[Queued],
    *,
    kind: str,
    org_id: str | None,
    capabilities: Capabilities,
    slots: int,
    pool_running: Mapping[str, int],
    pool_cap: int | None,
    without: Collection[str] = (),
) -> list[Queued]:
    """The jobs to claim for one runner: the highest priority first; within it, on the pool, whose organisation has the
    fewest jobs running; then the oldest. An organisation at its cap of pool slots gets no more.

    Args:
        queued: what waits.
        kind: the runner's.
        org_id: the runner's organisation, None for the pool.
        capabilities: the runner's.
        slots: how many at most.
        pool_running: how many jobs of each organisation are leased to the pool.
        pool_cap: how many an organisation may have there at once; None: no limit.
        without: ids of jobs that this runner declined lately.

    Returns: at most `slots` of them, in the order in which they are dealt.
    """
    fits = [
        job
        for job in queued
        if job.job_id not in without
        and belongs(job.needs, kind=kind, org_id=org_id)
        and lacks(job.needs, capabilities) is None
    ]
    running = Counter(pool_running)
    shared = kind == RunnerKind.CLOUD_POOL
    chosen: list[Queued] = []
    while len(chosen) < slots:
        within = [job for job in fits if not shared or pool_cap is None or running[job.needs.org_id] < pool_cap]
        if not within:
            break
        first = min(
            within,
            key=lambda job: (-job.priority, running[job.needs.org_id] if shared else 0, job.created_at, job.job_id),
        )
        fits.remove(first)
        chosen.append(first)
        running[first.needs.org_id] += 1
    return chosen


def refuses(reason: str) -> bool:
    """Whether a reject of this reason is about the job, so that the runner had better not be offered it again; others
    are about the moment."""
    return reason in (RejectReason.CAPABILITY_MISMATCH, RejectReason.NO_CONTAINER_RUNTIME)


def failure_class(claimed: str) -> FailureClass:
    """The class that counts for a failure that a runner told. Only what the platform saw itself is the platform's."""
    return FailureClass.INPUT if claimed == FailureClass.INPUT else FailureClass.RUNNER
