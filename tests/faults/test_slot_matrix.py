"""The failure matrix of the slot broker, row by row, with real exec servers, workers and clients that are killed or
stopped. The table in docs/OPERATING.md says which test is which row's.
"""

import json
import re
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.processes import ROOT
from tests.faults.slot_sites import PROGRAM, Server, Site, all_done, enqueue, slot_site
from tests.integration.programs import ROTA, clean_environment, until
from tests.postgres_servers import Psql


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with slot_site(tmp_path / "site") as made:
        yield made


@contextmanager
def kills(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """It ends with the block."""
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def test_a_worker_is_killed_with_parked_wants_and_claimed_jobs(site: Site, migrated_dsn: str, psql: Psql) -> None:
    server = site.exec_server()
    doomed, survivor = (site.worker(migrated_dsn, server) for _ in range(2))
    until(lambda: server.look()["clients"] == 2, "both are connected")
    enqueue(psql, migrated_dsn, 6)
    server.reaches(1, 5)
    doomed.signal(signal.SIGKILL)
    doomed.status()
    until(lambda: server.look()["clients"] == 1, "its connection is gone")
    until(lambda: sum(server.counts()) <= 3, "and so are its wants")
    site.go.touch()
    until(all_done(psql, migrated_dsn, 6), "the survivor does all of it")
    server.reaches(0, 0)
    survivor.signal(signal.SIGTERM)
    assert survivor.status() == 0


def test_an_exec_server_is_killed_and_comes_back(site: Site, migrated_dsn: str, psql: Psql) -> None:
    one, two = site.exec_server(), site.exec_server()
    site.worker(migrated_dsn, one, two)
    enqueue(psql, migrated_dsn, 4)
    one.reaches(1, 2)
    two.reaches(1, 2)
    one.program.signal(signal.SIGKILL)
    one.program.status()
    # What ran there is queued again; with less slots there is less to claim.
    two.reaches(1, 2)
    back = site.exec_server(port=one.port)
    back.reaches(1, 2)
    assert psql(migrated_dsn, "SELECT max(tries) FROM rota.jobs") == "2"
    site.go.touch()
    until(all_done(psql, migrated_dsn, 4), "all are done")
    for server in (back, two):
        server.reaches(0, 0)


def test_an_offer_that_is_not_answered_goes_to_the_next_and_the_late_job_is_not_run_twice_s37(site: Site) -> None:
    server = site.exec_server()
    first = site.client("hold", server=server)
    server.reaches(1, 0)
    stopped = site.client("cat", str(site.folder / "holding.py"), server=server)
    server.reaches(1, 1)
    following = site.client("cat", str(site.folder / "holding.py"), server=server)
    server.reaches(1, 2)
    stopped.signal(signal.SIGSTOP)
    site.go.touch()
    assert (first.status(), first.out.strip(".")) == (0, "")
    assert (following.status(), following.out) == (0, PROGRAM), "the offer timed out to it"
    server.reaches(0, 0)
    stopped.signal(signal.SIGCONT)
    assert (stopped.status(), stopped.out, stopped.err) == (0, PROGRAM, ""), "it asked again"
    server.reaches(0, 0)


def test_an_exec_server_is_killed_while_both_pipes_are_open_s46(site: Site) -> None:
    server = site.exec_server()
    client = subprocess.Popen(
        [*ROTA, "exec", "cat"], cwd=site.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=clean_environment({**site.paths, "ROTA_EXEC_ADDRESSES": server.address}),
    )  # fmt: skip
    with kills(client):
        assert client.stdin is not None and client.stdout is not None
        client.stdin.write(b"x" * 10_000)
        client.stdin.flush()
        assert client.stdout.read(5_000) == b"x" * 5_000
        server.program.signal(signal.SIGKILL)
        client.wait(60)
        assert client.returncode == 1
        assert client.stderr is not None
        assert b"broke while cat ran" in client.stderr.read()


def test_an_exec_server_drains_and_hands_back_what_does_not_end(site: Site, migrated_dsn: str, psql: Psql) -> None:
    one = site.exec_server()
    site.worker(migrated_dsn, one)
    enqueue(psql, migrated_dsn, 1)
    one.reaches(1, 0)
    one.program.signal(signal.SIGTERM)
    until(lambda: one.look().get("draining"), "it drains")
    one.program.signal(signal.SIGTERM)
    assert one.program.status() == 0
    queued = "SELECT count(*) FROM rota.jobs WHERE state = 'queued' AND tries = 0 AND last_error LIKE '%handed back%'"
    until(lambda: psql(migrated_dsn, queued) == "1", "no try counts")
    site.go.touch()
    site.exec_server(port=one.port)
    until(all_done(psql, migrated_dsn, 1), "it runs elsewhere")


def test_people_see_the_fleet_and_why_a_job_waits(site: Site, migrated_dsn: str, psql: Psql) -> None:
    server = site.exec_server()
    site.client("hold", server=server)
    server.reaches(1, 0)
    site.client("hold", "--priority", "7", server=server)
    server.reaches(1, 1)
    command = [*ROTA, "slots", "--exec-addresses", f"{server.address},127.0.0.1:9"]
    environ = clean_environment(site.paths)
    shown = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "1 of 1" in shown
    assert "running" in shown and "waiting" in shown
    told = json.loads(
        subprocess.run([*command, "--json"], env=environ, capture_output=True, check=True, timeout=60).stdout
    )
    assert [view["state"] for view in told[0]["jobs"]] == ["running", "waiting"]
    assert told[0]["jobs"][1]["ahead"] == 0
    assert told[1]["error"]
    site.worker(migrated_dsn, server)
    enqueue(psql, migrated_dsn, 1)
    server.reaches(1, 2)
    (job_id,) = psql(migrated_dsn, "SELECT id FROM rota.jobs").split()
    why = [*ROTA, "jobs", "why", job_id, "--dsn", migrated_dsn]
    told_why = clean_environment({**site.paths, "ROTA_EXEC_ADDRESSES": server.address})
    shown = subprocess.run(why, env=told_why, capture_output=True, text=True, check=True, timeout=60).stdout
    # Its worker tells of it within seconds; until then the exec server is asked.
    words = " ".join(shown.split())
    assert "waits for a slot" in words
    assert re.search(r"\b1 (call gets|get) one before it", words), shown


def test_two_offers_for_one_call_race_the_first_wins_and_the_other_slot_is_free_at_once(site: Site) -> None:
    one, two = (site.exec_server(offer_timeout_s=300) for _ in range(2))
    for server in (one, two):
        site.client("hold", server=server)
        server.reaches(1, 0)
    waiting = site.client("cat", str(site.folder / "holding.py"), server=(one, two))
    for server in (one, two):
        server.reaches(1, 1)
    # It stands still while both offers come, so both are there when it goes on.
    waiting.signal(signal.SIGSTOP)
    site.go.touch()
    for server in (one, two):
        until(lambda server=server: server.look()["waitgroups"]["all"].get("offered") == 1, "its slot is offered")
    waiting.signal(signal.SIGCONT)
    assert (waiting.status(), waiting.out) == (0, PROGRAM)
    for server in (one, two):
        until(lambda server=server: not server.in_use(), "no slot is in use")
    assert sum(server.look()["services"]["cat"].get("runs", 0) for server in (one, two)) == 1


def test_a_job_that_finds_no_slot_in_time_goes_back_for_a_minute(site: Site, migrated_dsn: str, psql: Psql) -> None:
    server = site.exec_server()
    site.client("hold", server=server)
    server.reaches(1, 0)
    site.worker(migrated_dsn, server, ROTA_EXEC_WAIT_S="0.5")
    enqueue(psql, migrated_dsn, 1)
    back = (
        "SELECT count(*) FROM rota.jobs WHERE state = 'queued' AND tries = 0"
        " AND last_error LIKE '%No slot came in time%' AND run_after > now() + interval '30 seconds'"
    )
    until(lambda: psql(migrated_dsn, back) == "1", "it is back, and no try counts")
    server.reaches(1, 0)


def test_an_exec_server_that_stands_still_is_left_and_kills_its_orphans_when_it_goes_on(site: Site) -> None:
    quick = {"FAULTS_PING_S": "2"}
    one, two = (site.exec_server(**quick) for _ in range(2))
    runs = site.client("hold", server=one, **quick)
    holder = site.client("hold", server=two)
    for server in (one, two):
        server.reaches(1, 0)
    waits = site.client("cat", str(site.folder / "holding.py"), server=(one, two), **quick)
    for server in (one, two):
        server.reaches(1, 1)
    one.program.signal(signal.SIGSTOP)
    assert runs.status() == 1
    assert "broke while hold ran" in runs.err
    assert waits.popen.poll() is None, "it goes on waiting at the other"
    holder.signal(signal.SIGKILL)
    assert (waits.status(), waits.out) == (0, PROGRAM)
    one.program.signal(signal.SIGCONT)
    for server in (one, two):
        server.reaches(0, 0)


def test_a_client_that_stands_still_loses_its_command_and_its_want(site: Site) -> None:
    server = site.exec_server(FAULTS_PING_S="2")
    stopped = site.client("hold", server=server)
    server.reaches(1, 0)
    stopped.signal(signal.SIGSTOP)
    server.reaches(0, 0)
    until(lambda: server.look()["clients"] == 0, "it is gone for the exec server")
    stopped.signal(signal.SIGCONT)
    assert stopped.status() == 1
    assert "broke while hold ran" in stopped.err


def test_a_new_client_polls_an_exec_server_of_the_time_before_the_broker(site: Site) -> None:
    server = site.exec_server(FAULTS_OLD="1")
    client = site.client("cat", str(site.folder / "holding.py"), server=server)
    assert (client.status(), client.out) == (0, PROGRAM)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{server.address}/broker", timeout=60)
    refused.value.close()
    assert refused.value.code == 404, "it has none, indeed"


def test_an_old_client_takes_no_slot_from_a_call_that_is_parked(site: Site) -> None:
    server = site.exec_server()
    holder = site.client("hold", server=server)
    server.reaches(1, 0)
    parked = site.client("cat", str(site.folder / "holding.py"), server=server)
    server.reaches(1, 1)
    assert token(server) is None, "503"
    holder.signal(signal.SIGKILL)
    assert (parked.status(), parked.out) == (0, PROGRAM)
    server.reaches(0, 0)
    told = token(server)
    assert told is not None
    query = urllib.parse.urlencode({"token": told, "job": json.dumps({"args": []})})
    asked = urllib.request.Request(f"{server.address}/job?{query}", data=b"as ever", method="PUT")
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.read() == b"as ever"
    server.reaches(0, 0)


def token(server: Server) -> str | None:
    """A slot as old clients ask for one; None: busy."""
    try:
        with urllib.request.urlopen(f"{server.address}/token/cat", timeout=60) as answer:
            return str(json.load(answer)["token"])
    except urllib.error.HTTPError as error:
        assert error.code == 503
        return None


def test_the_table_of_the_matrix_names_tests_that_exist() -> None:
    table = (ROOT / "docs" / "OPERATING.md").read_text(encoding="utf-8")
    table = table.partition("## The failure matrix of slots")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", table))
    files = set(re.findall(r"`(tests/\S+)`", table))
    found = {name for file in files for name in re.findall(r"def (test_\w+)", (ROOT / file).read_text("utf-8"))}
    assert len(named) >= 13
    assert named <= found
