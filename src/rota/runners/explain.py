"""Why a runner job is where it is: every gate that holds it, in words, with what would open it. Pure rules over facts.

The database says what is queued, leased, paused and disabled; who is connected, and with what, only the gateways know,
and they are asked. Where nobody asked them, or one did not answer, the explanation says so and does not guess.

Spec: runners, "Routing and targets", "Capabilities".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rota.durations import duration
from rota.queue.explain import Explanation, explain, headline
from rota.queue.gates import Gate, paused
from rota.queue.job import JobRow, State
from rota.queue.why_facts import Facts, PauseFacts
from rota.runners.api import RunnerBody
from rota.runners.matching import Needs, belongs, lacks
from rota.runners.messages import Capabilities, Requires
from rota.runners.records import POOL, RunnerJob

SHOWN_MAX: Final = 10
"""Runners that an explanation names."""


@dataclass(frozen=True, slots=True)
class GatewaySeen:
    """One gateway that runs, by the database: its runners, if it was asked and answered."""

    instance: str
    address: str
    runners: Sequence[RunnerBody] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RunnerFacts:
    """What surrounds a runner job at one moment.

    Attributes:
        gateways: those that run.
        asked: whether they were asked for their runners.
        pauses: what holds it back.
        disabled_s, disabled_reason: since when its organisation is disabled; None: it is not.
        held, cap: jobs of its organisation in the pool, and how many it may have there, by this program's settings.
        ahead: jobs before it in its line.
        declined: for how many seconds a runner is not offered it again, by runner.
    """

    gateways: Sequence[GatewaySeen] = ()
    asked: bool = False
    pauses: Sequence[PauseFacts] = ()
    disabled_s: float | None = None
    disabled_reason: str | None = None
    held: int = 0
    cap: int | None = None
    ahead: int = 0
    declined: Mapping[str, float] = field(default_factory=dict)

    @property
    def runners(self) -> list[RunnerBody]:
        """All runners that are known to be connected."""
        return [runner for gateway in self.gateways for runner in gateway.runners or ()]

    @property
    def whole(self) -> bool:
        """Whether every gateway has said who is connected."""
        return self.asked and all(gateway.runners is not None for gateway in self.gateways)


def explain_runner(row: JobRow, job: RunnerJob, facts: RunnerFacts) -> Explanation:
    """Explains a runner job.

    Args:
        row: the job as all jobs are.
        job: the job as runners have it.
        facts: its surroundings.
    """
    if row.state is State.QUEUED:
        gates = [*_holds(job, facts)] or [_nothing_holds(facts)]
        ahead = f"{facts.ahead:,} jobs are before it in its line." if facts.ahead else "It is the first in its line."
        return Explanation(headline(row), [*gates, *_unknown(facts)], ahead)
    if row.state is State.LEASED:
        return Explanation(headline(row), [_leased(row, job, facts)])
    told = explain(Facts(row))
    found = [word for word in (job.failure_class and f"Class {job.failure_class}", job.failure_code) if word]
    claimed = f"; the runner claimed {job.claimed_class}" if job.claimed_class else ""
    detail = [f"{', code '.join(found)}{claimed}."] if found else []
    return replace(told, gates=[replace(gate, details=[*gate.details, *detail]) for gate in told.gates])


# What holds a queued job


def _holds(job: RunnerJob, facts: RunnerFacts) -> Iterator[Gate]:
    yield from (paused(pause) for pause in facts.pauses)
    if facts.disabled_s is not None:
        why = f": {facts.disabled_reason}" if facts.disabled_reason else ""
        yield Gate(
            "organisation_disabled", f"Organisation {job.org_id} was disabled {duration(facts.disabled_s)} ago{why}.",
            opens=f"rota runner enable {job.org_id}",
        )  # fmt: skip
    if not facts.gateways:
        yield Gate("no_gateway", "No gateway runs.", opens="rota gateway")
        return
    if job.target == POOL and facts.cap is not None and facts.held >= facts.cap:
        yield Gate(
            "org_cap", f"Organisation {job.org_id} has {facts.held} of its {facts.cap} slots in the pool in use.",
            opens="wait until one of its jobs ends, or raise ROTA_GATEWAY_ORG_SLOTS on the gateways",
        )  # fmt: skip
    if facts.whole:
        yield from _runner_gates(job, facts)


def _runner_gates(job: RunnerJob, facts: RunnerFacts) -> Iterator[Gate]:
    needs = needs_of(job)
    ours = [runner for runner in facts.runners if belongs(needs, kind=runner.kind, org_id=runner.org_id)]
    who = "worker of the pool" if job.target == POOL else f"runner of organisation {job.org_id}"
    start = "rota runner run --pool, on a machine of the pool" if job.target == POOL else "rota runner run, on a device"
    if not ours:
        yield Gate("no_runner", f"No {who} is connected.", opens=start)
        return
    short = {runner.runner_id: lack for runner in ours if (lack := lacks(needs, capabilities_of(runner))) is not None}
    fitting = [runner for runner in ours if runner.runner_id not in short]
    if not fitting:
        yield Gate(
            "no_fit", f"No {who} has what it needs:",
            _few([f"{runner_id} has no {lack}" for runner_id, lack in sorted(short.items())]),
            "bring one of them up to it, or connect another",
        )  # fmt: skip
        return
    working = [runner for runner in fitting if not runner.draining and runner.available]
    if not working:
        yield Gate("draining", f"Each {who} that fits drains, or is too old to be given jobs.", opens=start)
    elif not any(runner.free_slots for runner in working):
        yield Gate(
            "slots_full", f"Each {who} that fits is busy:",
            _few([f"{runner.runner_id}: {runner.running} of {runner.slots} slots" for runner in working]),
            "wait until one of them is free, or connect another",
        )  # fmt: skip
    elif all(runner.runner_id in facts.declined for runner in working if runner.free_slots):
        again = [f"{name} is offered it again in {duration(left_s)}" for name, left_s in sorted(facts.declined.items())]
        yield Gate(
            "declined", "Each runner that is free declined it lately:", _few(again),
            "wait for that, or see the runner's own log for why",
        )  # fmt: skip


def _nothing_holds(facts: RunnerFacts) -> Gate:
    if not facts.whole:
        return Gate("unknown", "Nothing in the database holds it: it waits for a runner that fits and is free.")
    return Gate("free", "Nothing holds it: a runner that fits is free, and a gateway looks once a second.")


def _unknown(facts: RunnerFacts) -> Iterator[Gate]:
    if facts.gateways and not facts.asked:
        yield Gate(
            "not_asked", "Nobody asked the gateways who is connected.",
            opens="set ROTA_GATEWAY_TOKEN here, to what the gateways have",
        )  # fmt: skip
    silent = [f"{gateway.address}: {gateway.error}" for gateway in facts.gateways if gateway.error is not None]
    if silent:
        yield Gate(
            "gateway_silent", "These gateways did not say who is connected:", silent, "see gateway_address there"
        )


# A job that is leased


def _leased(row: JobRow, job: RunnerJob, facts: RunnerFacts) -> Gate:
    left_s = 0.0 if row.lease_until is None else (row.lease_until - row.now).total_seconds()
    details = [f"Epoch {job.epoch}, gateway {job.gateway_instance}, session {job.session_id or 'none of its own'}."]
    if row.cancel_asked_at is not None:
        asked_s = (row.now - row.cancel_asked_at).total_seconds()
        details.append(
            f"Somebody asked to cancel it {duration(asked_s)} ago: it ends when its runner answers, or in 10 s."
        )
    if left_s < 0:
        return Gate(
            "overdue", f"Its lease, held by {job.runner_id}, ran out {duration(-left_s)} ago.", details,
            "wait: each gateway looks every 10 s" if facts.gateways else "rota gateway, since none runs to end it",
        )  # fmt: skip
    details.append(f"The lease holds until {row.lease_until:%H:%M:%S} UTC, {duration(left_s)} from now.")
    if facts.whole and job.runner_id not in {runner.runner_id for runner in facts.runners}:
        details.append(
            "Its runner is not connected to any gateway: if it does not come back by then, the session ends."
        )
    if job.accepted_at is None:
        return Gate("assigned", f"It was assigned to {job.runner_id}, which has 10 s to accept it.", details)
    return Gate("running", f"It runs on {job.runner_id}.", details, f"To stop it: rota jobs cancel {row.id}")


# Words and values


def needs_of(job: RunnerJob) -> Needs:
    """What a job asks of its runner."""
    requires = Requires(runtime_image_digest=job.runtime_digest, fontset_version=job.fontset_version)
    return Needs(job.target, job.org_id, job.job_type, requires, job.output_bytes_max)


def capabilities_of(runner: RunnerBody) -> Capabilities:
    """What a connected runner can do, as its gateway tells it."""
    return Capabilities(
        protocol_version="", agent_version=runner.agent_version, os="", arch="", slots=runner.slots,
        container=runner.container, runtime_image_digest=runner.runtime_image_digest, ffmpeg_version="",
        fontset_version=runner.fontset_version, job_types=runner.job_types, max_output_bytes=runner.max_output_bytes,
    )  # fmt: skip


def _few(lines: Sequence[str]) -> list[str]:
    more = len(lines) - SHOWN_MAX
    return [*lines[:SHOWN_MAX], *([f"and {more} more"] if more > 0 else [])]
