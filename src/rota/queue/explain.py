"""Why a job is where it is: every gate that holds it, or how it runs or ended, in words. Pure rules over facts.

The facts are read by one statement, `why.sql`, so they are of one moment. Durations are words that people say; what a
program reads is the gate's `code` and the facts themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rota.commands import CallInLine, Place
from rota.durations import duration, span
from rota.queue.gates import IN_LINE, Gate, holds, nothing_holds, quoted, tries_left
from rota.queue.job import JobRow, State
from rota.queue.why_facts import AHEAD_MAX, Facts, ago

SPREAD: Final = 0.25
"""An estimate by the last hour's pace is shown as this much less to this much more."""


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
        gates = list(holds(facts))
        waits = not gates or all(gate.code in IN_LINE for gate in gates)
        line, starts_in_s = _line(facts) if job.run_after <= job.now else (None, None)
        gates = gates or [nothing_holds(facts)]
        return Explanation(headline(job), gates, line, starts_in_s if waits else None)
    gate = _running(facts) if job.state is State.LEASED else _ended(job)
    return Explanation(headline(job), [gate])


def headline(job: JobRow) -> str:
    """What a job is, in a line."""
    since = {
        State.QUEUED: f"queued {duration(ago(job, job.created_at))}",
        State.LEASED: f"runs {duration(ago(job, job.started_at))}",
    }.get(job.state, f"{job.state} {duration(ago(job, job.finished_at))} ago")
    parts = [since, f"priority {job.priority}"]
    if job.tenant is not None:
        parts.append(f"tenant {job.tenant}")
    if job.tries:
        parts.append(f"tries {job.tries}" + ("" if job.max_tries is None else f" of {job.max_tries}"))
    return ", ".join(parts)


# Its place in line


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


# Running and ended


def _running(facts: Facts) -> Gate:
    job = facts.job
    lease_left_s = 0.0 if job.lease_until is None else -ago(job, job.lease_until)
    progress_s = ago(job, job.heartbeat_at)
    details = [f"Last progress {duration(progress_s)} ago."]
    if job.cancel_asked_at is not None:
        details.append(f"Somebody asked to cancel it {duration(ago(job, job.cancel_asked_at))} ago.")
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
    return "it gets another try" if job.max_tries is None else f"it gets another try; {tries_left(job)}"


def _ended(job: JobRow) -> Gate:
    ran = ""
    if job.started_at is not None and job.finished_at is not None and job.leased_by is not None:
        ran = f" It ran {duration((job.finished_at - job.started_at).total_seconds())} on {job.leased_by}."
    reason = () if job.last_error is None else (f"Reason: {quoted(job.last_error)}",)
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


def _call_words(call: CallInLine) -> str:
    if call.runs:
        return f"Its command {call.service} runs; it was asked for {duration(call.for_s)} ago."
    line = "" if call.place is None else f": {place_words(call.place)}"
    return f"It waits for a slot for {call.service} since {duration(call.for_s)}{line}."


# For programs


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
