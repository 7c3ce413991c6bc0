"""`rota jobs show` with tries and log lines, and `rota jobs retry` of many: as a person calls them."""

import pytest

from rota.cli import history
from rota.ids import Holder, JobId
from rota.lease import Lease
from rota.queue.history import LogLine, Stopped, TryEnd
from rota.queue.io.store import Store
from rota.queue.job import Ask, Finish, NewJob, Outcome, Release, State, open_key
from tests.conformance.queues import FIRST_ID, LAST_ID
from tests.integration.programs import ROTA, run
from tests.integration.rota_calls import Rota, at, folder, refused, rota

__all__ = ["folder", "rota"]  # fixtures

HOLDER, OTHER = Holder("web-1:7:aa"), Holder("web-2:9:bb")


async def _claim(store: Store, *, holder: Holder = HOLDER, lease_s: float = 60) -> dict[JobId, Lease]:
    claimed = await store.claim([Ask("mail", 100, lease_s, 3)], holder=holder)
    return {job.id: job.lease for job in claimed}


async def one_with_a_past(store: Store) -> JobId:
    """A job with five runs: given back, snoozed, lost (its holder went on), killed, and one that goes on."""
    job_id = (await store.enqueue(NewJob("mail"))).id
    await store.release([Release((await _claim(store))[job_id])])
    await store.release([Release((await _claim(store))[job_id], wait_s=0, how=TryEnd.SNOOZED, reason="closed\x1b[2J")])
    lost = (await _claim(store, lease_s=0.001))[job_id]
    while not await store.sweep():
        pass
    fourth = (await _claim(store, holder=OTHER))[job_id]
    await store.stopped([Stopped(lost, 0.0)], holder=HOLDER)
    await store.finish([Finish(fourth, Outcome.RETRY, error="It took too long", how=TryEnd.KILLED)])
    fifth = (await _claim(store))[job_id]
    lines = [
        LogLine(fourth, 1, 0.0, "info", "began", '{"file": "a.mp4", "size": 7}'),
        LogLine(fifth, 1, 0.0, "warning", "odd \x1b[31mname", None),
        LogLine(fifth, 2, 0.0, "error", "it failed", '{"traceback": "Traceback …\\nValueError: no frame\\n"}'),
    ]
    await store.log(lines, clock=0.0)
    return job_id


def test_a_job_is_shown_with_its_tries(rota: Rota) -> None:
    job_id = at(rota.dsn, one_with_a_past)
    shown = rota("jobs", "show", str(job_id)).out
    table = shown.partition("epoch  started")[2].splitlines()[1:]
    assert [" ".join(line.split()[5:]) for line in table[:2]] == [
        "given back web-1:7:aa",
        r"snoozed web-1:7:aa closed\x1b[2J",
    ]
    assert "lease lost" in table[2] and " s beside another run. The lease ran out: web-1:7:aa wrote nothing" in table[2]
    assert "killed" in table[3] and table[3].endswith("It took too long")
    assert len(table) == 4 and "\x1b" not in shown and "began" not in shown
    (whole,) = rota.json("jobs", "show", str(job_id))
    assert [(one["epoch"], one["ended"]) for one in whole["tries_kept"]] == [
        (1, "given_back"), (2, "snoozed"), (3, "lost"), (4, "killed")
    ]  # fmt: skip
    assert whole["tries_kept"][2]["overlap_s"] > 0
    assert whole["id"] == str(job_id), "S17: an id is text, which every client of JSON can hold"
    assert "logs" not in whole


def test_a_job_is_shown_with_its_log(rota: Rota) -> None:
    job_id = at(rota.dsn, one_with_a_past)
    shown = rota("jobs", "show", str(job_id), "--logs").out
    lines = shown.splitlines()[-5:]
    assert [line[13:] for line in lines[:3]] == [
        "4 info     began  file=a.mp4  size=7", r"5 warning  odd \x1b[31mname", "5 error    it failed"
    ]  # fmt: skip
    assert lines[3:] == ["    Traceback …", "    ValueError: no frame"]
    (whole,) = rota.json("jobs", "show", str(job_id), "--logs")
    assert [(line["epoch"], line["number"], line["event"]) for line in whole["logs"]] == [
        (4, 1, "began"), (5, 1, "odd \x1b[31mname"), (5, 2, "it failed")
    ]  # fmt: skip
    assert whole["logs"][0]["fields"] == {"file": "a.mp4", "size": 7}


def test_a_job_that_simply_succeeded_has_no_history(rota: Rota) -> None:
    async def simple(store: Store) -> JobId:
        job_id = (await store.enqueue(NewJob("mail"))).id
        await store.finish([Finish((await _claim(store))[job_id], Outcome.DONE)])
        return job_id

    job_id = at(rota.dsn, simple)
    assert "epoch  started" not in rota("jobs", "show", str(job_id)).out
    assert rota("jobs", "show", str(job_id), "--logs").out.endswith("Its handler has logged nothing that is kept.\n")


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (None, None),
        ('{"fraction": 0.4, "text": "page 3"}', "40%, page 3"),
        ('{"fraction": 1.0}', "100%"),
        ('{"text": "page 3", "page": 3}', 'page 3, {"page": 3}'),
        ('{"page": 3}', '{"page": 3}'),
        ("[1]", "[1]"),
        ('{"fraction": "odd", "text": 5}', None),
    ],
)
def test_progress_in_words(stored: str | None, words: str | None) -> None:
    assert history.progress(stored) == words


# Retries of many


async def six_failed(store: Store) -> list[JobId]:
    """Four failed jobs of the kind mail, the last with a key that another job holds by now, and one of another kind."""
    keys = [None, None, open_key("free"), open_key("held")]
    added = [(await store.enqueue(NewJob("mail", dedupe=key))).id for key in keys]
    other = (await store.enqueue(NewJob("other"))).id
    claimed = await store.claim([Ask("mail", 10, 60, 3), Ask("other", 1, 60, 3)], holder=HOLDER)
    await store.finish([Finish(job.lease, Outcome.FAILED, error="no") for job in claimed])
    await store.enqueue(NewJob("mail", dedupe=open_key("held")))
    return [*added, other]


async def states(store: Store) -> list[State]:
    return [row.state for row in reversed(await store.show(FIRST_ID, LAST_ID, limit=100))]


def test_failed_jobs_of_a_kind_run_again(rota: Rota) -> None:
    ids = at(rota.dsn, six_failed)
    call = ("jobs", "retry", "--failed", "--kind", "mail", "--since", "2h")
    unasked = rota(*call)
    assert (unasked.status, "mail: 4 failed" in unasked.out) == (2, True)
    assert "4 failed jobs would run again: add --yes to retry them." in unasked.err
    assert at(rota.dsn, states).count(State.FAILED) == 5
    done = rota(*call, "--yes")
    assert done.status == 1, "one of them stays as it is"
    assert done.out.splitlines()[:2] == ["mail: 4 failed", "3 queued"]
    assert done.out.splitlines()[2].startswith(f"{ids[3]} was left as it is: job ")
    assert at(rota.dsn, states) == [*[State.QUEUED] * 3, State.FAILED, State.FAILED, State.QUEUED]
    assert rota.json("jobs", "retry", "--failed", "--kind", "other", "--yes") == {
        "failed": {"other": 1}, "queued": 1, "held": []
    }  # fmt: skip
    nothing = rota("jobs", "retry", "--failed", "--kind", "other")
    assert (nothing.status, nothing.out) == (0, "No failed jobs like that.\n")


@pytest.mark.parametrize(("answer", "status", "left"), [("y\n", 0, 0), ("n\n", 1, 2)])
def test_a_person_is_asked_first(rota: Rota, answer: str, status: int, left: int) -> None:
    async def two(store: Store) -> None:
        await store.enqueue_many([NewJob("mail")] * 2)
        await store.finish([Finish(lease, Outcome.FAILED) for lease in (await _claim(store)).values()])

    at(rota.dsn, two)
    asked = run([*ROTA, "jobs", "retry", "--failed"], folder=rota.folder, environ={"ROTA_DSN": rota.dsn}, stdin=answer)
    assert (asked.status, "Retry 2 jobs? [y/N]" in asked.out) == (status, True)
    assert at(rota.dsn, states).count(State.FAILED) == left


def test_what_is_retried_is_said_in_one_way(rota: Rota) -> None:
    refused(rota("jobs", "retry"), "Give the ids of jobs, or --failed", status=2)
    refused(rota("jobs", "retry", "0197c0de", "--failed"), "and not both", status=2)
    refused(rota("jobs", "retry", "--kind", "mail"), "add --failed", status=2)
    refused(rota("jobs", "retry", "--failed", "--since", "soon"), "--since: 'soon' is no age", status=2)


def test_json_is_not_asked(rota: Rota) -> None:
    at(rota.dsn, six_failed)
    refused(rota("jobs", "retry", "--failed", "--json"), "5 failed jobs would run again: add --yes", status=2)
