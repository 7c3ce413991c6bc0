"""Why a job is where it is: each gate, in words, with what would open it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from rota.commands import CallInLine, KindShare, Place, Standing
from rota.ids import JobId
from rota.queue.explain import Explanation, explain, plain
from rota.queue.gates import Gate
from rota.queue.job import JobRow, State
from rota.queue.standing import ServerFacts
from rota.queue.why_facts import AHEAD_MAX, Facts, FleetFacts, PauseFacts, RunningJob, Taker

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
ID = JobId(UUID("0197c0de-0000-7000-8000-000000000001"))


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def job(**options: Any) -> JobRow:
    """A due job that was queued 4 minutes ago, unless it is said otherwise."""
    usual: dict[str, Any] = {
        "id": ID, "kind": "thumbnail", "tenant": None, "priority": 20, "state": State.QUEUED, "place": "worker",
        "tries": 0, "max_tries": None, "run_after": at(-240), "created_at": at(-240), "started_at": None,
        "finished_at": None, "heartbeat_at": None, "lease_until": None, "lease_epoch": 0, "leased_by": None,
        "dedupe_key": None, "dedupe_scope": None, "last_error": None, "progress": None, "cancel_asked_at": None,
        "now": NOW,
    }  # fmt: skip
    return JobRow(**{**usual, **options})


def running(**options: Any) -> JobRow:
    usual: dict[str, Any] = {
        "state": State.LEASED, "tries": 1, "max_tries": 3, "leased_by": "web-1:7:aa", "lease_epoch": 1,
        "started_at": at(-90), "heartbeat_at": at(-2), "lease_until": at(298),
    }  # fmt: skip
    return job(**{**usual, **options})


FREE = Taker("web-1:7:aa", limit=4, running=1, oldest_s=10, progress_s=1, lease_left_s=299)
FULL = replace(FREE, running=4)


def explained(row: JobRow | None = None, **facts: Any) -> Explanation:
    usual: dict[str, Any] = {"takers": [FREE], "roles": ["all"], "kinds": ["thumbnail"]}
    return explain(Facts(row or job(), **{**usual, **facts}))


def gate(row: JobRow | None = None, **facts: Any) -> Gate:
    """The one gate that there is."""
    (found,) = explained(row, **facts).gates
    return found


# Queued


def test_a_full_kind_is_explained_as_in_the_sketch() -> None:
    takers = [
        Taker("web-1", limit=4, running=4, oldest_id=str(ID), oldest_s=180, progress_s=2, lease_left_s=298),
        Taker("web-2", limit=4, running=4, oldest_s=660, progress_s=540, lease_left_s=60),
    ]
    found = explained(takers=takers, ahead=37, ahead_higher=2, ahead_top=49, ended=555, ended_s=3600)
    assert found.headline == "queued 4 min, priority 20"
    (full,) = found.gates
    assert full.words == "Kind thumbnail is at its limit on every server that takes it:"
    assert full.details == [
        "web-1   4 of 4   oldest 0197c0de-0000-7000 runs 3 min, last progress 2 s ago",
        "web-2   4 of 4   oldest runs 11 min, last progress 9 min ago   ← stalls in 60 s",
    ]
    assert full.opens == (
        "raise ROTA_LIMIT_THUMBNAIL, or add a server that takes the kind, "
        f"or rota jobs move {ID} --priority 50"
    )  # fmt: skip
    assert found.line == (
        "Ahead of it: 37 jobs (2 of higher priority). At the last hour's pace it starts in 3 to 5 min."
    )
    assert found.starts_in_s == pytest.approx((180, 300))


def test_nothing_holds_a_job_that_is_about_to_start() -> None:
    found = explained()
    assert [(one.code, one.opens) for one in found.gates] == [("free", None)]
    assert found.line == "It is the next in line." and found.starts_in_s is None


def test_with_free_slots_the_line_alone_is_what_it_waits_for() -> None:
    found = explained(ahead=1, ahead_top=20)
    assert [(one.code, one.opens) for one in found.gates] == [("line", f"rota jobs move {ID} --priority 21")]
    assert (
        found.line == "Ahead of it: 1 job. No job of its kind ended in the last hour, so nobody can say when it starts."
    )
    assert (explained(ahead=AHEAD_MAX).line or "").startswith("Ahead of it: 100,000 or more jobs.")


def test_a_job_of_the_future_says_when_and_how_to_run_it_now() -> None:
    row = job(run_after=at(300))
    found = gate(row)
    assert found.code == "not_due"
    assert found.words == "It waits for its time: it is due at 2026-12-01 12:05:00 UTC, in 5 min."
    assert found.opens == f"rota jobs retry {ID}"
    assert explained(row).line is None, "it has no place in line yet"


def test_a_retry_says_what_went_wrong_and_how_many_tries_are_left() -> None:
    found = gate(job(run_after=at(25), tries=1, max_tries=3, last_error="ValueError: no\nframe " + "x" * 400))
    assert found.code == "retry"
    assert found.words == "It is tried again at 2026-12-01 12:00:25 UTC, in 25 s; 2 tries are left."
    (reason,) = found.details
    assert reason.startswith("The last try: ValueError: no frame xxx") and reason.endswith("…") and len(reason) < 330


@pytest.mark.parametrize(
    ("pause", "words", "opens"),
    [
        (PauseFacts("kind", "thumbnail", "bad codec", "ann@ops", 600, 1800),
         "Kind thumbnail was paused by ann@ops 10 min ago, for another 30 min: bad codec.",
         "rota resume thumbnail"),
        (PauseFacts("tenant", "acme", None, "ann", 5, None), "Tenant acme was paused by ann 5 s ago.",
         "rota resume --tenant acme"),
        (PauseFacts("all", "", "moving house", "bob", 5, None), "Everything was paused by bob 5 s ago: moving house.",
         "rota resume --all"),
    ],
)  # fmt: skip
def test_a_pause_says_who_and_why_and_until_when(pause: PauseFacts, words: str, opens: str) -> None:
    found = gate(pauses=[pause])
    assert (found.code, found.words, found.opens) == ("paused", words, opens)


def test_every_gate_that_holds_is_named_and_an_estimate_only_where_all_open_by_themselves() -> None:
    pause = PauseFacts("all", "", None, "bob", 5, None)
    found = explained(job(run_after=at(60)), pauses=[pause], takers=[FULL])
    assert [one.code for one in found.gates] == ["not_due", "paused", "server_limit"]
    assert explained(pauses=[pause], takers=[FULL], ahead=9, ended=9, ended_s=9).starts_in_s is None


def test_without_any_worker_that_is_what_is_said() -> None:
    assert gate(takers=[], roles=[], kinds=[]).code == "no_server"


def test_a_kind_that_no_live_server_takes_is_named_with_a_likely_slip() -> None:
    found = gate(job(kind="thumbnial"), takers=[], roles=["api", "builds", "api"])
    assert found.code == "no_taker"
    assert found.words == "No live server takes kind thumbnial. Is it a slip for thumbnail?"
    assert found.details == ("3 live: with role api, builds",)
    assert "ROTA_LIMIT_THUMBNIAL=0 keeps it off" in (found.opens or "")
    assert gate(job(kind="report"), takers=[], roles=["api"]).words == "No live server takes kind report."


def test_servers_that_stop_take_nothing() -> None:
    assert gate(takers=[replace(FREE, draining=True)]).code == "draining"
    mixed = gate(takers=[replace(FREE, draining=True), FULL])
    assert mixed.code == "server_limit" and mixed.details[0] == "web-1:7:aa   is stopping"


def test_another_place_is_no_workers_business() -> None:
    assert gate(job(place="CloudPool")).code == "place"


@pytest.mark.parametrize(
    ("fleet", "code", "words"),
    [
        (FleetFacts(limit=8, running=8), "fleet_limit",
         "Kind thumbnail is at its limit over all servers: 8 of 8 run."),
        (FleetFacts(tenant_limit=2, tenant_running=2), "tenant_limit",
         "Tenant acme is at its limit in kind thumbnail: 2 of 2 run."),
        (FleetFacts(rate_count=5, rate_s=60, started=5, rate_opens_in_s=12), "rate",
         "Kind thumbnail starts at most 5 jobs in 60 s, and 5 started in the last; the next may start in 12 s."),
        (FleetFacts(tenants_waiting=3), "turn",
         "Tenants take turns in kind thumbnail: 3 others have due jobs, and each gets one before this tenant's "
         "second."),
    ],
)  # fmt: skip
def test_limits_beyond_one_server_hold_too(fleet: FleetFacts, code: str, words: str) -> None:
    found = explained(job(tenant="acme"), fleet=fleet, ahead=1, ended=10, ended_s=100)
    assert [(one.code, one.words) for one in found.gates] == [(code, words)]
    assert found.headline == "queued 4 min, priority 20, tenant acme"
    assert found.starts_in_s == pytest.approx((7.5, 12.5))


def test_a_limit_over_all_servers_says_which_setting_it_is() -> None:
    found = gate(fleet=FleetFacts(limit=2, running=2))
    assert found.opens == "raise ROTA_FLEET_LIMIT_THUMBNAIL, or fleet_limit of kind thumbnail in the program"


def test_a_tenants_limit_names_the_jobs_that_use_it() -> None:
    jobs = [RunningJob(str(ID), "web-1:7:aa", 200, 3)]
    found = gate(job(tenant="acme"), fleet=FleetFacts(tenant_limit=1, tenant_running=1, tenant_jobs=jobs))
    assert found.details == ["0197c0de-0000-7000 runs 3 min on web-1:7:aa, last progress 3 s ago"]


def test_limits_that_are_not_reached_hold_nothing() -> None:
    fleet = FleetFacts(
        limit=8, running=7, tenant_limit=2, tenant_running=1, rate_count=5, rate_s=60, started=4, tenants_waiting=0
    )
    assert gate(job(tenant="acme"), fleet=fleet).code == "free"
    assert gate(fleet=FleetFacts(tenant_limit=2, tenant_running=2)).code == "free", "without a tenant none is limited"


# Running


def test_a_running_job_says_on_whom_since_when_and_until_when() -> None:
    found = explained(running(), holder_seen_s=3.0)
    assert found.headline == "runs 90 s, priority 20, tries 1 of 3"
    (on,) = found.gates
    assert on.words == "It runs on web-1:7:aa."
    assert on.details == [
        "Last progress 2 s ago.",
        "The lease holds until 12:04:58 UTC. Without progress the job is stopped within 5 min, "
        "and it gets another try; 2 tries are left.",
    ]
    assert on.opens == f"To stop it: rota jobs cancel {ID}"


def test_a_last_try_says_that_it_is_the_last() -> None:
    assert "and it fails, because this is its last try." in gate(running(tries=3), holder_seen_s=1).details[1]


def test_a_holder_that_is_gone_is_suspected() -> None:
    assert "not among the servers that are known" in gate(running()).details[-1]
    assert gate(running(), holder_seen_s=90.0).details[-1].startswith("That process was last seen 90 s ago")


def test_a_cancel_that_was_asked_for_is_shown() -> None:
    details = gate(running(cancel_asked_at=at(-4)), holder_seen_s=1).details
    assert "Somebody asked to cancel it 4 s ago." in details


def test_a_lease_that_ran_out_and_was_not_swept_means_that_no_worker_runs() -> None:
    found = gate(running(lease_until=at(-30)))
    assert found.code == "overdue" and "ran out 30 s ago" in found.words and "Start a worker" in (found.opens or "")


# Ended


def test_an_end_says_how_and_why_and_how_to_run_it_again() -> None:
    ended = {"started_at": at(-70), "finished_at": at(-60), "leased_by": "web-1:7:aa", "tries": 3, "max_tries": 3}
    failed = gate(job(state=State.FAILED, last_error="ValueError: no", **ended))
    assert failed.words == "It failed on its last try and does not run again by itself. It ran 10 s on web-1:7:aa."
    assert (failed.details, failed.opens) == (("Reason: ValueError: no",), f"rota jobs retry {ID}")
    early = gate(job(state=State.FAILED, **{**ended, "tries": 1}))
    assert early.words.startswith("It failed on try 1 and")
    done = gate(job(state=State.DONE, **ended))
    assert done.words == "It is done. It ran 10 s on web-1:7:aa."
    cancelled = explained(job(state=State.CANCELLED, finished_at=at(-5), last_error="Cancelled by an operator"))
    assert cancelled.headline == "cancelled 5 s ago, priority 20"
    assert cancelled.gates[0].words == "Somebody wanted it to end."


def test_it_is_json_too() -> None:
    said = plain(explained(takers=[FULL], ahead=1, ended=10, ended_s=10))
    assert said["starts_in_s"] == pytest.approx((0.75, 1.25))
    assert isinstance(said["gates"], list) and said["gates"][0]["code"] == "server_limit"


# What several kinds share


SHARE = KindShare(("cut",), ("cut", "mix"), 3)
NEEDS = Standing(1, {"thumbnail": SHARE, "film": KindShare(("mix",), ("cut", "mix"), 3)})


def needing(standing: Standing = NEEDS, holder: str = "web-1:7:aa", **held: int) -> Taker:
    return replace(FREE, holder=holder, limit=10_000, facts=ServerFacts(exec=standing), held=held)


def test_no_worker_is_connected_to_an_exec_server() -> None:
    found = gate(takers=[needing(replace(NEEDS, connected=0))])
    assert found.code == "no_exec_server"
    assert found.words == "Kind thumbnail needs exec servers, and no worker that takes it is connected to one."
    assert found.details == ["web-1:7:aa   connected to none"]
    assert found.opens is not None and "exec_addresses" in found.opens
    # One of them could take it, and nothing holds it there.
    assert gate(takers=[needing(replace(NEEDS, connected=0)), needing(holder="web-2:1:bb")]).code == "free"
    assert gate(takers=[needing(replace(NEEDS, connected=0)), FREE]).code == "free", "that one needs no exec server"


def test_no_exec_server_offers_what_the_kind_needs() -> None:
    found = gate(takers=[needing(replace(NEEDS, kinds={"thumbnail": replace(SHARE, share=0)}))])
    assert (found.code, "offers what kind thumbnail needs: cut." in found.words) == ("no_service", True)


def test_every_worker_has_claimed_its_share() -> None:
    full = [needing(thumbnail=2, film=1, page=7), needing(holder="web-2:1:bb", thumbnail=3)]
    found = gate(takers=full, ahead_top=30)
    assert found.code == "exec_share"
    assert found.details == ["web-1:7:aa   3 of 3", "web-2:1:bb   3 of 3"], "kinds that draw from the same slots share"
    assert found.opens is not None and found.opens.endswith("--priority 31")
    assert gate(takers=[needing(thumbnail=2, page=7), full[1]]).code == "free"
    line = explained(takers=full, ahead=4, ended=10, ended_s=100.0, place=Place(9, 0, None, None, 4)).line
    assert line is not None and line.endswith(
        "In the line for slots of exec servers: 9 calls get one before it (4 of them by jobs that no worker has "
        "claimed yet); when its turn comes is not known yet."
    )
    told = explained(takers=full, place=Place(0, 0, 5.0, 30.0))
    assert told.line is not None and told.line.endswith("it is the next; its turn comes in 5 to 30 s.")
    assert told.starts_in_s == (5.0, 30.0)
    assert explained(takers=full, ahead=4, ended=10, ended_s=100.0, place=Place(9, 0, 1.0, 2.0)).starts_in_s == (30, 50)


def test_the_slots_for_the_cpu_are_taken_and_by_whom() -> None:
    facts = ServerFacts(cpus=4, cpus_kept=1, cpu_kinds={"thumbnail": 50, "hash": None})
    oldest = RunningJob("0197c0de-0000-7000-8000-000000000009", "web-1:7:aa", 90.0, 2.0, "hash")
    taker = replace(FREE, running=1, facts=facts, held={"thumbnail": 1, "hash": 2, "page": 5}, cpu_jobs=[oldest])
    found = gate(takers=[taker])
    assert found.code == "cpus"
    assert found.details == [
        "web-1:7:aa   3 of 4 taken, 1 kept for urgent jobs",
        "  0197c0de-0000-7000 of kind hash runs 90 s, last progress 2 s ago",
    ]
    assert gate(job(priority=50), takers=[taker]).code == "free", "an urgent job may have what is kept"
    all_taken = replace(taker, held={"hash": 4})
    assert gate(job(priority=50), takers=[all_taken]).details[0] == "web-1:7:aa   4 of 4 taken"
    assert gate(takers=[taker, replace(FREE, holder="web-2:1:bb")]).code == "free"


def test_a_running_job_says_what_its_calls_wait_for() -> None:
    calls = [
        CallInLine("j", "cut", 20, 12.0, Place(7, 2, 120.0, 240.0, 3)),
        CallInLine("j", "mix", 20, 3.0, Place(0, 1)),
        CallInLine("j", "ocr", 20, 3.0),
        CallInLine("j", "say", 20, 60.0, runs=True),
    ]
    details = gate(running(), holder_seen_s=3.0, calls=calls).details
    assert details[-4:] == [
        "It waits for a slot for cut since 12 s: 7 calls get one before it (3 of them by jobs that no worker has "
        "claimed yet); its turn comes in 2 to 4 min.",
        "It waits for a slot for mix since 3 s: it is the next; when its turn comes is not known yet.",
        "It waits for a slot for ocr since 3 s.",
        "Its command say runs; it was asked for 60 s ago.",
    ]
