"""Why a runner job is where it is, and what the doctor thinks: each gate by its facts."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rota.ids import JobId
from rota.queue.health import Level
from rota.queue.job import JobRow, State
from rota.queue.why_facts import PauseFacts
from rota.runners.api import RunnerBody
from rota.runners.explain import Explanation, GatewaySeen, RunnerFacts, explain_runner
from rota.runners.health import RunnerHealth, examine_runners
from rota.runners.records import DESKTOP, POOL, RunnerJob, Waiting

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
ID = JobId(UUID("0197c7a0-0000-7000-8000-0000000000a1"))
FITS = RunnerBody(
    runner_id="pool:vm-1", kind="CloudPool", org_id=None, agent_version="1.0", job_types=("video.compile",), slots=2,
    free_slots=1, running=1, draining=False, available=True, fontset_version="2025.1", max_output_bytes=10**12,
)  # fmt: skip
DESK = RunnerBody(
    runner_id="desk-1", kind="Desktop", org_id="acme", agent_version="1.0", job_types=("video.compile",), slots=1,
    free_slots=1, running=0, draining=False, available=True, fontset_version="2025.1", max_output_bytes=10**12,
)  # fmt: skip


def changed(runner: RunnerBody, **values: Any) -> RunnerBody:
    return msgspec.structs.replace(runner, **values)


def seen(*runners: RunnerBody) -> RunnerFacts:
    return RunnerFacts(gateways=[GatewaySeen("gateway-1", "http://g1", runners)], asked=True)


def said(facts: RunnerFacts, *, state: str = "queued", target: str = POOL, **more: Any) -> Explanation:
    leased = state == "leased"
    row = JobRow(
        id=ID, kind="video.compile", tenant="acme", priority=0, state=State(state), place=target, tries=1, max_tries=2,
        run_after=NOW, created_at=NOW - timedelta(seconds=60), started_at=NOW - timedelta(seconds=30), finished_at=NOW,
        heartbeat_at=NOW, lease_until=more.pop("lease_until", NOW + timedelta(seconds=31)) if leased else None,
        lease_epoch=3, leased_by="runner:pool:vm-1", dedupe_key=None, dedupe_scope=None, last_error="it broke",
        progress=None, cancel_asked_at=more.pop("cancel_asked_at", None), now=NOW,
    )  # fmt: skip
    values = {
        "id": ID, "target": target, "org_id": "acme", "job_type": "video.compile", "spec": {}, "state": state,
        "priority": 0, "epoch": 3, "lease_until": row.lease_until, "tries": 1, "max_tries": 2, "error": None,
        "result": None, "progress": None, "created_at": NOW, "started_at": NOW, "finished_at": None,
        "cancel_asked_at": None, "idempotency_key": "k", "execution_id": "e", "runtime_digest": None,
        "fontset_version": "2025.1", "output_bytes_max": 10**9, "timeout_s": 60, "idle_s": 60, "one_shot": False,
        "runner_id": "pool:vm-1", "gateway_instance": "gateway-1", "session_id": ID, "accepted_at": NOW,
        "deadline_at": None, "cancel_reason": None, "failure_class": None, "failure_code": None,
        "failure_retryable": None, "claimed_class": None,
    } | more  # fmt: skip
    return explain_runner(row, RunnerJob(**values), facts)  # type: ignore[arg-type]


def codes(facts: RunnerFacts, **more: Any) -> list[str]:
    return [gate.code for gate in said(facts, **more).gates]


@pytest.mark.parametrize(
    ("runners", "code", "words"),
    [
        ((), "no_runner", "No worker of the pool is connected."),
        ((DESK,), "no_runner", "No worker of the pool is connected."),
        ((changed(FITS, fontset_version="2024.9"),), "no_fit", "pool:vm-1 has no font set 2025.1 or later"),
        ((changed(FITS, job_types=("video.analyze.extract",)),), "no_fit", "has no job type video.compile"),
        ((changed(FITS, max_output_bytes=5),), "no_fit", "has no outputs of 1,000,000,000 bytes"),
        ((changed(FITS, draining=True, available=False),), "draining", "drains"),
        ((changed(FITS, free_slots=0, running=2), changed(FITS, draining=True)), "slots_full", "2 of 2 slots"),
        ((FITS,), "free", "a runner that fits is free"),
    ],
)  # fmt: skip
def test_what_runners_there_are_decides(runners: tuple[RunnerBody, ...], code: str, words: str) -> None:
    (gate,) = said(seen(*runners)).gates
    assert gate.code == code and words in " ".join((gate.words, *gate.details))


def test_a_job_of_an_organisation_waits_for_its_own_devices() -> None:
    assert codes(seen(FITS), target=DESKTOP) == ["no_runner"]
    assert codes(seen(changed(DESK, org_id="other")), target=DESKTOP) == ["no_runner"]
    assert codes(seen(DESK), target=DESKTOP) == ["free"]
    assert "organisation acme" in said(seen(FITS), target=DESKTOP).gates[0].words


def test_what_the_database_knows_is_named_beside_it() -> None:
    held = replace(
        seen(), disabled_s=120.0, disabled_reason="unpaid", held=4, cap=4, ahead=7,
        pauses=[PauseFacts("tenant", "acme", None, "ada", 60.0, None)],
    )  # fmt: skip
    told = said(held)
    assert [gate.code for gate in told.gates] == ["paused", "organisation_disabled", "org_cap", "no_runner"]
    assert "unpaid" in told.gates[1].words and told.gates[1].opens == "rota runner enable acme"
    assert "4 of its 4 slots" in told.gates[2].words and told.line is not None and told.line.startswith("7 jobs")
    assert codes(replace(seen(DESK), held=4, cap=4), target=DESKTOP) == ["free"]  # the cap is the pool's
    assert codes(replace(seen(FITS), declined={"pool:vm-1": 12.0})) == ["declined"]
    assert codes(replace(seen(FITS), declined={"pool:vm-2": 12.0})) == ["free"]


def test_what_nobody_knows_is_not_guessed() -> None:
    assert codes(RunnerFacts()) == ["no_gateway"]
    quiet = RunnerFacts(gateways=[GatewaySeen("gateway-1", "http://g1")])
    assert codes(quiet) == ["unknown", "not_asked"]
    broken = RunnerFacts(gateways=[GatewaySeen("g", "http://g1", error="refused"), *seen().gateways], asked=True)
    assert codes(broken) == ["unknown", "gateway_silent"]
    assert said(broken).gates[1].details == ["http://g1: refused"]


def test_a_leased_job_says_who_has_it_and_until_when() -> None:
    (gate,) = said(seen(FITS), state="leased").gates
    assert gate.code == "running" and gate.words == "It runs on pool:vm-1."
    assert any("12:00:31 UTC, 31 s" in line for line in gate.details) and "gateway gateway-1" in gate.details[0]
    (gate,) = said(seen(FITS), state="leased", accepted_at=None, cancel_asked_at=NOW).gates
    assert gate.code == "assigned" and any("cancel" in line for line in gate.details)
    (gate,) = said(seen(), state="leased").gates
    assert any("not connected" in line for line in gate.details)
    late = NOW - timedelta(seconds=5)
    (gate,) = said(seen(), state="leased", lease_until=late).gates
    assert gate.code == "overdue" and "10 s" in (gate.opens or "")
    (gate,) = said(RunnerFacts(), state="leased", lease_until=late).gates
    assert "rota gateway" in (gate.opens or "")


def test_an_ended_job_says_whose_fault_it_was() -> None:
    how = {"failure_class": "runner", "failure_code": "verification_failed", "claimed_class": "platform"}
    (gate,) = said(seen(), state="failed", **how).gates
    assert gate.details[-1] == "Class runner, code verification_failed; the runner claimed platform."
    (gate,) = said(seen(), state="done").gates
    assert gate.code == "done"


GROUP = Waiting(POOL, "acme", "video.compile", None, "2025.1", 10**9, 12)


def test_the_doctor_says_nothing_where_runners_are_not_used() -> None:
    assert examine_runners(RunnerHealth()) == []


def test_the_doctor_names_what_waits_for_nobody() -> None:
    well = RunnerHealth(gateways=seen(FITS).gateways, asked=True, waiting=12, groups=[GROUP])
    assert {check.level for check in examine_runners(well)} == {Level.OK}
    checks = examine_runners(replace(well, gateways=seen(DESK).gateways))
    (bad,) = [check for check in checks if check.level is Level.WARNING]
    assert "12 video.compile jobs wait for the pool" in bad.words
    # Who did not answer may have the runner.
    silent = [*seen().gateways, GatewaySeen("gateway-2", "http://g2", error="refused")]
    (bad,) = [check for check in examine_runners(replace(well, gateways=silent)) if check.level is Level.WARNING]
    assert bad.about == "gateways" and "refused" in bad.words
    unasked = replace(well, asked=False, gateways=[GatewaySeen("g", "http://g1")])
    assert [check.level for check in examine_runners(unasked) if check.about == "runners"] == [Level.NOTE]


def test_the_doctor_names_gateways_that_are_missing_leases_and_organisations() -> None:
    (missing, *_) = examine_runners(RunnerHealth(waiting=3))
    assert (missing.about, missing.level) == ("gateways", Level.PROBLEM)
    (idle, *_) = examine_runners(RunnerHealth(devices=1))
    assert (idle.level, idle.words) == (Level.NOTE, "no gateway runs")
    (busy, *_) = examine_runners(RunnerHealth(waiting=3, held=1))
    assert busy.words == "no gateway runs, and of the runner jobs 3 wait and 1 are held"
    found = RunnerHealth(
        gateways=seen(FITS).gateways,
        asked=True,
        overdue=2,
        disabled={"acme": 3},
        held_by={"acme": 4, "other": 1},
        cap=4,
    )
    words = [check.words for check in examine_runners(found) if check.level is not Level.OK]
    assert words == [
        "2 leases ran out more than a minute ago", "acme is disabled, and 3 of its jobs wait",
        "acme uses all its 4 slots of the pool, and more waits",
    ]  # fmt: skip
