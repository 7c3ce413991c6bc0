"""Real exec servers, workers and clients of one test, in a folder of their own."""

import json
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.faults.processes import ROOT
from tests.integration.programs import ROTA, Program, nothing_runs, running, until
from tests.postgres_servers import Psql

FAULTS_ROTA = (sys.executable, "-P", "-m", "tests.faults.rota_program")
PROGRAM = """
import rota

app = rota.App()


@app.job(exec=["hold"], lease_s=4, heartbeat_s=1, max_tries=20, retry=rota.Fixed(0.1))
async def hold(ctx: rota.Context) -> str:
    return (await ctx.run("hold")).output.decode()
"""

EXEC_TOML = """
[server]
offer_timeout_s = {offer_timeout_s}
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
        """Starts a command of `rota`; variables that begin with FAULTS_ change what it is, as `rota_program` says."""
        self._number += 1
        rota = ROTA if not any(each.startswith("FAULTS_") for each in environ) else FAULTS_ROTA
        paths = os.pathsep.join(filter(None, [str(ROOT), self.paths["PYTHONPATH"]]))
        return self._stack.enter_context(
            running(
                [*rota, *words], folder=self.folder, name=f"{name}{self._number}",
                environ={**self.paths, **({"PYTHONPATH": paths} if rota is FAULTS_ROTA else {}), **environ},
            )
        )  # fmt: skip

    def exec_server(self, *, slots: int = 1, port: int = 0, offer_timeout_s: float = 1, **environ: str) -> "Server":
        """Starts an exec server, and waits until it listens."""
        self._number += 1
        config, told = self.folder / f"exec{self._number}.toml", self.folder / f"address{self._number}"
        config.write_text(EXEC_TOML.format(slots=slots, go=self.go, offer_timeout_s=offer_timeout_s))
        program = self.start(
            "execserver", "--config", str(config), "--port", str(port), "--address-file", str(told), name="execserver",
            **environ,
        )  # fmt: skip
        until(lambda: told.exists() and told.read_text().endswith("\n"), "the exec server listens")
        return Server(program, told.read_text().strip())

    def worker(self, dsn: str, *servers: "Server", **environ: str) -> Program:
        """Starts a worker, and waits until it works."""
        program = self.start(
            "worker", "--alone", "holding:app", name="worker", ROTA_DSN=dsn, ROTA_POLL_S="0.1",
            ROTA_EXEC_ADDRESSES=",".join(server.address for server in servers), **environ,
        )  # fmt: skip
        program.says("worker started")
        return program

    def client(self, *words: str, server: "Server | tuple[Server, ...]", **environ: str) -> Program:
        """Starts `rota exec`."""
        servers = server if isinstance(server, tuple) else (server,)
        addresses = ",".join(each.address for each in servers)
        return self.start("exec", *words, name="client", ROTA_EXEC_ADDRESSES=addresses, **environ)


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

    def in_use(self) -> int:
        """Slots that are offered or taken."""
        view = self.look()["waitgroups"]["all"]
        return int(view.get("running", 0)) + int(view.get("offered", 0))

    def reaches(self, run: int, wait: int) -> None:
        """Waits until so many run and so many wait."""
        until(lambda: self.counts() == (run, wait), f"{run} run and {wait} wait; it is {self.counts()}")


@contextmanager
def slot_site(folder: Path) -> Iterator[Site]:
    """A site that ends with the block, with all that it started."""
    folder.mkdir()
    with ExitStack() as stack:
        yield Site(folder, stack)
    nothing_runs(folder)


def enqueue(psql: Psql, dsn: str, count: int) -> None:
    psql(dsn, f"SELECT rota.enqueue('hold', '{{}}') FROM generate_series(1, {count})")


def all_done(psql: Psql, dsn: str, count: int) -> Callable[[], bool]:
    return lambda: psql(dsn, "SELECT count(*) FROM rota.jobs WHERE state = 'done'") == str(count)
