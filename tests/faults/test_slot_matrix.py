"""The failure matrix of the slot broker, row by row, with real exec servers, workers and clients that are killed or
stopped. The rows of badly timed messages are in `tests/integration/test_slot_client.py` and `test_legacy.py`.
"""

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.programs import ROTA, Program, clean_environment, nothing_runs, running, until
from tests.postgres_servers import Psql

PROGRAM = """
import rota

app = rota.App()


@app.job(exec=["hold"], lease_s=4, heartbeat_s=1, max_tries=20, retry=rota.Fixed(0.1))
async def hold(ctx: rota.Context) -> str:
    return (await ctx.run("hold")).output.decode()
"""

EXEC_TOML = """
[server]
offer_timeout_s = 1
[waitgroups.all]
processes = {slots}
[services.hold]
command = ["sh", "-c", "while [ ! -e '{go}' ]; do printf .; sleep 0.2; done"]
waitgroup = "all"
[services.cat]
command = ["cat"]
waitgroup = "all"
"""


class Site:
    """A folder with the program, the exec servers' settings, and the file that lets all commands end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.go = folder / "go"
        self._stack = stack
        self._number = 0
        (folder / "holding.py").write_text(PROGRAM)
        self.paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}

    def start(self, *words: str, name: str, **environ: str) -> Program:
        self._number += 1
        return self._stack.enter_context(
            running(
                [*ROTA, *words], folder=self.folder, environ={**self.paths, **environ}, name=f"{name}{self._number}"
            )
        )

    def exec_server(self, *, slots: int = 1, port: int = 0) -> "Server":
        self._number += 1
        config, told = self.folder / f"exec{self._number}.toml", self.folder / f"address{self._number}"
        config.write_text(EXEC_TOML.format(slots=slots, go=self.go))
        program = self.start(
            "execserver", "--config", str(config), "--port", str(port), "--address-file", str(told), name="execserver"
        )  # fmt: skip
        until(lambda: told.exists() and told.read_text().endswith("\n"), "the exec server listens")
        return Server(program, told.read_text().strip())

    def worker(self, dsn: str, *servers: "Server") -> Program:
        program = self.start(
            "worker", "--alone", "holding:app", name="worker", ROTA_DSN=dsn, ROTA_POLL_S="0.1",
            ROTA_EXEC_ADDRESSES=",".join(server.address for server in servers),
        )  # fmt: skip
        program.says("worker started")
        return program

    def client(self, *words: str, server: "Server") -> Program:
        return self.start("exec", *words, name="client", ROTA_EXEC_ADDRESSES=server.address)


class Server:
    """An exec server that runs."""

    def __init__(self, program: Program, address: str) -> None:
        self.program, self.address = program, address

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def look(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.address}/overview", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def counts(self) -> tuple[int, int]:
        """Commands that run, and calls that wait."""
        view = self.look()["waitgroups"]["all"]
        return view.get("running", 0), view.get("waiting", 0)

    def reaches(self, run: int, wait: int) -> None:
        until(lambda: self.counts() == (run, wait), f"{run} run and {wait} wait; it is {self.counts()}")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    with ExitStack() as stack:
        yield Site(folder, stack)
    nothing_runs(folder)


def enqueue(psql: Psql, dsn: str, count: int) -> None:
    psql(dsn, f"SELECT rota.enqueue('hold', '{{}}') FROM generate_series(1, {count})")


def all_done(psql: Psql, dsn: str, count: int) -> Callable[[], bool]:
    return lambda: psql(dsn, "SELECT count(*) FROM rota.jobs WHERE state = 'done'") == str(count)


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
    assert "Its call of hold waits for a slot" in shown
    assert "1 get one before it, and 1 run" in " ".join(shown.split())
