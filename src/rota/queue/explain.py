"""Why a job is where it is: every gate that holds it, in words, with what would open it. Pure rules over facts.

The facts are read by one statement, `why.sql`, so they are of one moment. A gate that holds is named even where
another one holds as well: opening one alone would not start the job. Durations are words that people say; what a
program reads is the gate's `code` and the facts themselves.
"""

import difflib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from rota.commands import CallInLine, KindShare, Place
from rota.queue.checks import PRIORITY_MAX
from rota.queue.job import JobRow, State
from rota.queue.standing import NO_FACTS, ServerFacts
from rota.settings import limit_variable

AHEAD_MAX: Final = 100_000
"""Jobs ahead in line that are counted; beyond it there are just more."""
PACE_MAX: Final = 20_000
"""Ended jobs of the last hour that are looked at for the pace."""
SPREAD: Final = 0.25
"""An estimate by the last hour's pace is shown as this much less to this much more."""
SHORT_ID: Final = 18
"""Characters of an id: the time to the microsecond, so they seldom name two jobs."""
ERROR_MAX: Final = 300
"""Characters of an error that an explanation quotes; `rota jobs show` has all of it."""


@dataclass(frozen=True, slots=True)
class Taker:
    """A live worker process that takes the job's kind, and the jobs of the kind that it runs.

    Attributes:
        limit: jobs of the kind that it runs at once.
        oldest_id, oldest_s, progress_s, lease_left_s: of the one that runs longest: its id, for how long it runs, when
            it last moved, and when its lease ends if it does not move.
        facts: what it said last of what holds its jobs back.
        held: the jobs of all kinds that it runs, by kind, where others take what this kind needs.
        cpu_jobs: those of them that have its CPU slots, the longest first, at most 5.
    """

    holder: str
    limit: int
    running: int = 0
    draining: bool = False
    oldest_id: str | None = None
    oldest_s: float | None = None
    progress_s: float | None = None
    lease_left_s: float | None = None
    facts: ServerFacts = NO_FACTS
    held: Mapping[str, int] = field(default_factory=dict)
    cpu_jobs: Sequence["RunningJob"] = ()

    @property
    def free(self) -> int:
        """Slots that are free, if it takes work at all."""
        return 0 if self.draining else max(0, self.limit - self.running)

    @property
    def cpus_taken(self) -> int:
        """Its CPU slots in use."""
        return sum(count for kind, count in self.held.items() if kind in self.facts.cpu_kinds)

    def cpus_for(self, kind: str, priority: int) -> int:
        """Its CPU slots that a job may take."""
        urgent = self.facts.cpu_kinds.get(kind)
        return self.facts.cpus - (0 if urgent is not None and priority >= urgent else self.facts.cpus_kept)

    def share_of(self, kind: str) -> KindShare | None:
        """Its share of the slots of exec servers that the kind needs; None if it needs none here."""
        return None if self.facts.exec is None else self.facts.exec.kinds.get(kind)

    def shared(self, share: KindShare) -> int:
        """The jobs here that have taken of such a share."""
        assert self.facts.exec is not None, "a share is of exec servers"
        pool, kinds = set(share.pool), self.facts.exec.kinds
        return sum(count for kind, count in self.held.items() if kind in kinds and pool & set(kinds[kind].services))


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job that has what another one waits for; its kind where that is another."""

    job_id: str
    holder: str
    runs_s: float
    progress_s: float
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class PauseFacts:
    """What somebody paused: a kind, a tenant or all."""

    scope: str
    name: str
    note: str | None
    paused_by: str
    paused_ago_s: float
    opens_in_s: float | None


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """The limits of the job's kind over all servers, and how far they are used.

    Attributes:
        limit, running: of the kind in all.
        tenant_limit, tenant_running: of the job's tenant in the kind. tenant_jobs: those that run longest.
        rate_count, rate_s, started, rate_opens_in_s: so many starts in so many seconds, those of the last window, and
            when the next may start.
        tenants_waiting: of a kind that is taken by turns, how many other tenants have due jobs; None if it is not.
    """

    limit: int | None = None
    running: int = 0
    tenant_limit: int | None = None
    tenant_running: int = 0
    tenant_jobs: Sequence[RunningJob] = ()
    rate_count: int | None = None
    rate_s: float = 0.0
    started: int = 0
    rate_opens_in_s: float | None = None
    tenants_waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a job and its surroundings at one moment.

    Attributes:
        job: the job; its `now` is the moment.
        takers: live worker processes that take its kind.
        roles: the roles of all live worker processes.
        kinds: the kinds that any of these takes.
        holder_seen_s: when the holder of its lease was last seen, in seconds ago; None if nobody knows it.
        ahead, ahead_higher: due jobs of its kind before it in line, and those of them with a higher priority.
        ahead_top: the highest priority of these.
        ended, ended_s: jobs of its kind that ended in the last hour, and since when the first of them ran.
        place: of a queued job that needs a slot of an exec server: where it stands in the line for that.
        calls: of a running one: its calls of exec servers.
    """

    job: JobRow
    takers: Sequence[Taker] = ()
    roles: Sequence[str] = ()
    kinds: Sequence[str] = ()
    pauses: Sequence[PauseFacts] = ()
    fleet: FleetFacts = field(default_factory=FleetFacts)
    holder_seen_s: float | None = None
    ahead: int = 0
    ahead_higher: int = 0
    ahead_top: int | None = None
    ended: int = 0
    ended_s: float = 0.0
    place: Place | None = None
    calls: Sequence[CallInLine] = ()


@dataclass(frozen=True, slots=True)
class Gate:
    """One thing that holds a job, or how it ended. `details` are lines below it; `opens` says what would open it."""

    code: str
    words: str
    details: Sequence[str] = ()
    opens: str | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job is where it is.

    Attributes:
        headline: what it is, in a line.
        gates: all that holds it, or one that says how it ended or runs.
        line: its place in line and about when it starts; None if it is in none.
        starts_in_s: that estimate, from and to.
    """

    headline: str
    gates: Sequence[Gate]
    line: str | None = None
    starts_in_s: tuple[float, float] | None = None


def explain(facts: Facts) -> Explanation:
    """Explains a job."""
    job = facts.job
    if job.state is State.QUEUED:
        gates = list(_holds(facts))
        waits = not gates or all(gate.code in IN_LINE for gate in gates)
        line, starts_in_s = _line(facts) if job.run_after <= job.now else (None, None)
        gates = gates or [_free(facts)]
        return Explanation(headline(job), gates, line, starts_in_s if waits else None)
    gate = _running(facts) if job.state is State.LEASED else _ended(job)
    return Explanation(headline(job), [gate])


IN_LINE: Final = frozenset({"server_limit", "fleet_limit", "tenant_limit", "rate", "turn", "cpus", "exec_share"})
"""Gates that open by themselves as others end; through any other, no estimate sees."""


def headline(job: JobRow) -> str:
    """What a job is, in a line."""
    since = {
        State.QUEUED: f"queued {duration(_ago(job, job.created_at))}",
        State.LEASED: f"runs {duration(_ago(job, job.started_at))}",
    }.get(job.state, f"{job.state} {duration(_ago(job, job.finished_at))} ago")
    parts = [since, f"priority {job.priority}"]
    if job.tenant is not None:
        parts.append(f"tenant {job.tenant}")
    if job.tries:
        parts.append(f"tries {job.tries}" + ("" if job.max_tries is None else f" of {job.max_tries}"))
    return ", ".join(parts)


# What holds a queued job


def _holds(facts: Facts) -> Iterator[Gate]:
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
    due = f"{job.run_after:%Y-%m-%d %H:%M:%S} UTC, in {duration(-_ago(job, job.run_after))}"
    sooner = f"rota jobs retry {job.id}"
    if job.tries and job.last_error:
        left = "" if job.max_tries is None else f"; {_tries_left(job)}"
        return Gate(
            "retry", f"It is tried again at {due}{left}.", (f"The last try: {_quoted(job.last_error)}",), sooner
        )
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


def place_words(place: Place) -> str:
    """A place in the line for slots of exec servers."""
    when = "; when its turn comes is not known yet"
    if place.eta_low_s is not None and place.eta_high_s is not None:
        when = f"; its turn comes in {span(place.eta_low_s, place.eta_high_s)}"
    if not place.ahead:
        return f"it is the next{when}"
    noun = "call gets" if place.ahead == 1 else "calls get"
    unclaimed = f" ({place.unclaimed:,} of them by jobs that no worker has claimed yet)" if place.unclaimed else ""
    return f"{place.ahead:,} {noun} one before it{unclaimed}{when}"


def _call_words(call: CallInLine) -> str:
    if call.runs:
        return f"Its command {call.service} runs; it was asked for {duration(call.for_s)} ago."
    line = "" if call.place is None else f": {place_words(call.place)}"
    return f"It waits for a slot for {call.service} since {duration(call.for_s)}{line}."


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


def _free(facts: Facts) -> Gate:
    if facts.ahead:
        return Gate("line", "Nothing holds it but its place in line.", opens=_move(facts) or None)
    return Gate("free", "Nothing holds it: a worker with a free slot takes it within a second.")


def _line(facts: Facts) -> tuple[str | None, tuple[float, float] | None]:
    words, starts_in_s = _own_line(facts)
    place = facts.place
    if place is not None:
        words += f" In the line for slots of exec servers: {place_words(place)}."
        if starts_in_s is None and place.eta_low_s is not None and place.eta_high_s is not None:
            starts_in_s = place.eta_low_s, place.eta_high_s
    return words, starts_in_s


def _own_line(facts: Facts) -> tuple[str, tuple[float, float] | None]:
    if not facts.ahead:
        return "It is the next in line.", None
    more = " or more" if facts.ahead >= AHEAD_MAX else ""
    higher = f" ({facts.ahead_higher:,} of higher priority)" if facts.ahead_higher else ""
    noun = "job" if facts.ahead == 1 else "jobs"
    words = f"Ahead of it: {facts.ahead:,}{more} {noun}{higher}."
    if not facts.ended or facts.ended_s <= 0:
        return f"{words} No job of its kind ended in the last hour, so nobody can say when it starts.", None
    middle_s = facts.ahead * facts.ended_s / facts.ended
    low_s, high_s = middle_s * (1 - SPREAD), middle_s * (1 + SPREAD)
    return f"{words} At the last hour's pace it starts in {span(low_s, high_s)}.", (low_s, high_s)


# Running and ended


def _running(facts: Facts) -> Gate:
    job = facts.job
    lease_left_s = 0.0 if job.lease_until is None else -_ago(job, job.lease_until)
    progress_s = _ago(job, job.heartbeat_at)
    details = [f"Last progress {duration(progress_s)} ago."]
    if job.cancel_asked_at is not None:
        details.append(f"Somebody asked to cancel it {duration(_ago(job, job.cancel_asked_at))} ago.")
    if lease_left_s < 0:
        return Gate(
            "overdue", f"Its lease, held by {job.leased_by}, ran out {duration(-lease_left_s)} ago, and no worker "
            "has put it back.", details, "Start a worker: any one sweeps, whatever kinds it takes.",
        )  # fmt: skip
    details.append(
        f"The lease holds until {job.lease_until:%H:%M:%S} UTC. Without progress the job is stopped within "
        f"{duration(lease_left_s)}, and {_after_that(job)}."
    )
    details += [_call_words(call) for call in facts.calls]
    if facts.holder_seen_s is None:
        details.append("That process is not among the servers that are known: it may be gone.")
    elif facts.holder_seen_s > 60:
        details.append(f"That process was last seen {duration(facts.holder_seen_s)} ago: it may be gone.")
    return Gate("running", f"It runs on {job.leased_by}.", details, f"To stop it: rota jobs cancel {job.id}")


def _after_that(job: JobRow) -> str:
    if job.max_tries is not None and job.tries >= job.max_tries:
        return "it fails, because this is its last try"
    return "it gets another try" if job.max_tries is None else f"it gets another try; {_tries_left(job)}"


def _tries_left(job: JobRow) -> str:
    left = max(0, (job.max_tries or 0) - job.tries)
    return "1 try is left" if left == 1 else f"{left} tries are left"


def _ended(job: JobRow) -> Gate:
    ran = ""
    if job.started_at is not None and job.finished_at is not None and job.leased_by is not None:
        ran = f" It ran {duration((job.finished_at - job.started_at).total_seconds())} on {job.leased_by}."
    reason = () if job.last_error is None else (f"Reason: {_quoted(job.last_error)}",)
    again = f"rota jobs retry {job.id}"
    match job.state:
        case State.DONE:
            words = (
                f"It is done.{ran}" if job.last_error is None or ran else "It is done: its queued twin does the work."
            )
            return Gate("done", words, opens="Enqueue a new job to do it again.")
        case State.FAILED:
            last = "its last try" if job.max_tries is not None and job.tries >= job.max_tries else f"try {job.tries}"
            return Gate("failed", f"It failed on {last} and does not run again by itself.{ran}", reason, again)
        case State.CANCELLED:
            return Gate("cancelled", f"Somebody wanted it to end.{ran}", reason, again)
        case _:
            return Gate(job.state.value, f"It ended as {job.state}.{ran}", reason, again)


# Words


def duration(seconds: float) -> str:
    """3 s, 4 min, 2 h, 5 d."""
    size = abs(seconds)
    if size < 120:
        return f"{size:.0f} s"
    if size < 7200:
        return f"{size / 60:.0f} min"
    if size < 172_800:
        return f"{size / 3600:.0f} h"
    return f"{size / 86_400:.0f} d"


def span(low_s: float, high_s: float) -> str:
    """3 to 5 min; one figure where both are the same."""
    low, high = duration(low_s), duration(high_s)
    number, _, unit = low.partition(" ")
    if low == high:
        return f"about {low}"
    return f"{number} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"


def _quoted(error: str) -> str:
    line = " ".join(error.split())
    return line if len(line) <= ERROR_MAX else line[: ERROR_MAX - 1] + "…"


def _ago(job: JobRow, when: datetime | None) -> float:
    return 0.0 if when is None else (job.now - when).total_seconds()


def plain(explanation: Explanation) -> Mapping[str, object]:
    """The same as JSON values."""
    return {
        "headline": explanation.headline,
        "gates": [
            {"code": gate.code, "words": gate.words, "details": list(gate.details), "opens": gate.opens}
            for gate in explanation.gates
        ],
        "line": explanation.line,
        "starts_in_s": explanation.starts_in_s,
    }
