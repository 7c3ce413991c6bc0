"""What holds a queued job, each gate in words, with what would open it. Pure rules over facts.

A gate that holds is named even where another one holds as well: opening one alone would not start the job.
"""

import difflib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rota.durations import duration
from rota.ids import SHORT_ID
from rota.queue.checks import PRIORITY_MAX
from rota.queue.job import JobRow
from rota.queue.why_facts import Facts, PauseFacts, Taker, ago
from rota.settings import limit_variable

ERROR_MAX: Final = 300
"""Characters of an error that an explanation quotes; `rota jobs show` has all of it."""
IN_LINE: Final = frozenset({"server_limit", "fleet_limit", "tenant_limit", "rate", "turn", "cpus", "exec_share"})
"""Gates that open by themselves as others end; through any other, no estimate sees."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One thing that holds a job, or how it ended. `details` are lines below it; `opens` says what would open it."""

    code: str
    words: str
    details: Sequence[str] = ()
    opens: str | None = None


def holds(facts: Facts) -> Iterator[Gate]:
    """All gates that hold a queued job."""
    job = facts.job
    if job.run_after > job.now:
        yield _not_due(job)
    if job.place != "worker":
        yield Gate("place", f"It waits for a runner: its place is {job.place}, and workers take none of these.")
        return
    yield from (paused(pause) for pause in facts.pauses)
    if not facts.takers:
        yield _no_taker(facts)
        return
    if all(taker.draining for taker in facts.takers):
        yield Gate(
            "draining", f"Each server that takes kind {job.kind} is stopping.",
            opens="Start another, or wait until they have started again.",
        )  # fmt: skip
    elif not any(taker.free for taker in facts.takers):
        yield _servers_full(facts)
    else:
        yield from _shared_gates(facts, [taker for taker in facts.takers if taker.free])
    yield from _fleet_gates(facts)


def _not_due(job: JobRow) -> Gate:
    due = f"{job.run_after:%Y-%m-%d %H:%M:%S} UTC, in {duration(-ago(job, job.run_after))}"
    sooner = f"rota jobs retry {job.id}"
    if job.tries and job.last_error:
        left = "" if job.max_tries is None else f"; {tries_left(job)}"
        return Gate("retry", f"It is tried again at {due}{left}.", (f"The last try: {quoted(job.last_error)}",), sooner)
    return Gate("not_due", f"It waits for its time: it is due at {due}.", (), sooner)


def paused(pause: PauseFacts) -> Gate:
    """The gate of what somebody paused."""
    what = {"all": "Everything was", "tenant": f"Tenant {pause.name} was"}.get(pause.scope, f"Kind {pause.name} was")
    note = "" if pause.note is None else f": {pause.note}"
    until = "" if pause.opens_in_s is None else f", for another {duration(pause.opens_in_s)}"
    name = shlex.quote(pause.name)
    option = {"all": "--all", "tenant": f"--tenant {name}"}.get(pause.scope, name)
    return Gate(
        "paused", f"{what} paused by {pause.paused_by} {duration(pause.paused_ago_s)} ago{until}{note}.",
        opens=f"rota resume {option}",
    )  # fmt: skip


def _no_taker(facts: Facts) -> Gate:
    kind = facts.job.kind
    if not facts.roles:
        return Gate("no_server", "No worker runs.", opens="rota worker module:app")
    near = difflib.get_close_matches(kind, facts.kinds, n=1)
    meant = f" Is it a slip for {near[0]}?" if near else ""
    roles = ", ".join(sorted(set(facts.roles)))
    return Gate(
        "no_taker", f"No live server takes kind {kind}.{meant}",
        (f"{len(facts.roles)} live: with role {roles}",),
        "Start a server whose program has a handler of this kind and whose role takes it "
        f"({limit_variable(kind)}=0 keeps it off).",
    )  # fmt: skip


def _servers_full(facts: Facts) -> Gate:
    kind = facts.job.kind
    return Gate(
        "server_limit", f"Kind {kind} is at its limit on every server that takes it:",
        [_server_line(taker) for taker in facts.takers],
        f"raise {limit_variable(kind)}, or add a server that takes the kind{_move(facts, ', or ')}",
    )  # fmt: skip


def _move(facts: Facts, before: str = "") -> str:
    """The command that puts a job before all others of its kind; empty where it is first."""
    if facts.ahead_top is None or facts.ahead_top >= PRIORITY_MAX:
        return ""
    return f"{before}rota jobs move {facts.job.id} --priority {facts.ahead_top + 1}"


def _server_line(taker: Taker) -> str:
    if taker.draining:
        return f"{taker.holder}   is stopping"
    words = f"{taker.holder}   {taker.running} of {taker.limit}"
    if taker.oldest_s is not None and taker.progress_s is not None:
        oldest = "oldest" if taker.oldest_id is None else f"oldest {taker.oldest_id[:SHORT_ID]}"
        words += f"   {oldest} runs {duration(taker.oldest_s)}, last progress {duration(taker.progress_s)} ago"
        if taker.lease_left_s is not None and taker.lease_left_s < taker.progress_s:
            # More than half of its lease went by without progress.
            words += f"   ← stalls in {duration(max(0.0, taker.lease_left_s))}"
    return words


def _shared_gates(facts: Facts, takers: Sequence[Taker]) -> Iterator[Gate]:
    """What several kinds share at servers that have a slot of the kind itself."""
    job = facts.job
    if all(job.kind in taker.facts.cpu_kinds for taker in takers) and not any(
        taker.cpus_taken < taker.cpus_for(job.kind, job.priority) for taker in takers
    ):
        yield _cpus_taken(job, takers)
    shares = [(taker, share) for taker in takers if (share := taker.share_of(job.kind)) is not None]
    if len(shares) < len(takers):
        return
    if not any(taker.facts.exec is not None and taker.facts.exec.connected for taker in takers):
        yield Gate(
            "no_exec_server",
            f"Kind {job.kind} needs exec servers, and no worker that takes it is connected to one.",
            [f"{taker.holder}   connected to none" for taker in takers],
            "Start one at an address of the workers' exec_addresses; their logs say why one cannot be reached.",
        )  # fmt: skip
    elif not any(share.share for _, share in shares):
        services = ", ".join(sorted({service for _, share in shares for service in share.services}))
        yield Gate(
            "no_service",
            f"No exec server that a worker is connected to offers what kind {job.kind} needs: {services}.",
            opens="Declare it in the exec.toml of one, or start one that has it; rota slots shows what there is.",
        )  # fmt: skip
    elif not any(taker.shared(share) < share.share for taker, share in shares):
        yield Gate(
            "exec_share",
            f"Every worker that takes kind {job.kind} has claimed its share of the slots of exec servers:",
            [f"{taker.holder}   {taker.shared(share)} of {share.share}" for taker, share in shares],
            f"more slots, or another exec server; rota slots shows who has them{_move(facts, '; or ')}",
        )  # fmt: skip


def _cpus_taken(job: JobRow, takers: Sequence[Taker]) -> Gate:
    details = []
    for taker in takers:
        kept = taker.facts.cpus - taker.cpus_for(job.kind, job.priority)
        kept_words = f", {kept} kept for urgent jobs" if kept else ""
        details.append(f"{taker.holder}   {taker.cpus_taken} of {taker.facts.cpus} taken{kept_words}")
        details += [
            f"  {one.job_id[:SHORT_ID]} of kind {one.kind} runs {duration(one.runs_s)}, "
            f"last progress {duration(one.progress_s)} ago"
            for one in taker.cpu_jobs
        ]
    return Gate(
        "cpus", f"Kind {job.kind} has limit=\"cpu\", and every server that takes it has no CPU slot for it:", details,
        "a slot that is free; or more servers, or machines with more CPUs",
    )  # fmt: skip


def _fleet_gates(facts: Facts) -> Iterator[Gate]:
    fleet, job = facts.fleet, facts.job
    if fleet.limit is not None and fleet.running >= fleet.limit:
        yield Gate(
            "fleet_limit",
            f"Kind {job.kind} is at its limit over all servers: {fleet.running} of {fleet.limit} run.",
            [_server_line(taker) for taker in facts.takers if taker.running],
            f"raise {limit_variable(job.kind, table='fleet_limits')}, or fleet_limit of kind {job.kind} in the program",
        )  # fmt: skip
    if fleet.tenant_limit is not None and job.tenant is not None and fleet.tenant_running >= fleet.tenant_limit:
        yield Gate(
            "tenant_limit",
            f"Tenant {job.tenant} is at its limit in kind {job.kind}: "
            f"{fleet.tenant_running} of {fleet.tenant_limit} run.",
            [
                f"{one.job_id[:SHORT_ID]} runs {duration(one.runs_s)} on {one.holder}, "
                f"last progress {duration(one.progress_s)} ago"
                for one in fleet.tenant_jobs
            ],
            f"raise tenant_limit of kind {job.kind} in the program",
        )  # fmt: skip
    if fleet.rate_count is not None and fleet.started >= fleet.rate_count:
        opens = "" if fleet.rate_opens_in_s is None else f"; the next may start in {duration(fleet.rate_opens_in_s)}"
        yield Gate(
            "rate",
            f"Kind {job.kind} starts at most {fleet.rate_count} jobs in {duration(fleet.rate_s)}, and "
            f"{fleet.started} started in the last{opens}.",
            opens=f"raise the rate of kind {job.kind} in the program",
        )  # fmt: skip
    if fleet.tenants_waiting and facts.ahead:
        yield Gate(
            "turn",
            f"Tenants take turns in kind {job.kind}: {fleet.tenants_waiting} others have due jobs, and each gets one "
            "before this tenant's second.",
        )  # fmt: skip


def nothing_holds(facts: Facts) -> Gate:
    """What stands in the place of gates where none holds a queued job."""
    if facts.ahead:
        return Gate("line", "Nothing holds it but its place in line.", opens=_move(facts) or None)
    return Gate("free", "Nothing holds it: a worker with a free slot takes it within a second.")


def tries_left(job: JobRow) -> str:
    """How many tries a job with a limit of them has."""
    left = max(0, (job.max_tries or 0) - job.tries)
    return "1 try is left" if left == 1 else f"{left} tries are left"


def quoted(error: str) -> str:
    """An error as one line, cut to ERROR_MAX."""
    line = " ".join(error.split())
    return line if len(line) <= ERROR_MAX else line[: ERROR_MAX - 1] + "…"
