"""S39: the link between a client and an exec server is cut, in network namespaces of its own.

Pings come more often here than they do for people, and the cuts of all kinds go on at the same time. Without pings, TCP
would find out after a quarter of an hour, or never.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rota.slots.io import links, server
from tests.faults.namespaces import Link, link
from tests.integration.programs import Program, run, running, until

ROOT = Path(__file__).parents[2]
TOKEN = "of-the-link"
EXEC_TOML = """
[server]
listen = "10.77.0.2:8750"
[waitgroups.all]
processes = 1
[services.hold]
command = ["sh", "-c", "while [ ! -e '{go}' ]; do printf .; sleep 0.2; done"]
waitgroup = "all"
[services.cat]
command = ["cat"]
waitgroup = "all"
"""
PING_S = 3.0
NOTICED_S = 90.0
"""Far less than TCP by itself takes, far more than two pings: this machine may be busy."""
LOOK = """
import json, sys, urllib.request
asked = urllib.request.Request("http://10.77.0.2:8750/overview", headers={"Authorization": "Bearer " + sys.argv[1]})
print(json.dumps(json.load(urllib.request.urlopen(asked, timeout=30))))
"""


@dataclass
class Site:
    """An exec server on one side of a link and two calls on the other: one runs, one waits."""

    link: Link
    folder: Path
    stack: ExitStack
    programs: dict[str, Program] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        (self.folder / "exec.toml").write_text(EXEC_TOML.format(go=self.folder / "go"))
        (self.folder / "text").write_text("came through")

    def start(self, name: str, *words: str) -> Program:
        side = "server" if name == "server" else "client"
        argv = self.link.argv(side, [sys.executable, "-P", "-m", "tests.faults.rota_program", *words])  # type: ignore[arg-type]
        environ = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "FAULTS_PING_S": str(PING_S), "ROTA_EXEC_TOKEN": TOKEN,
            "ROTA_EXEC_ADDRESSES": f"{self.link.address('server')}:8750",
        }  # fmt: skip
        program = self.stack.enter_context(running(argv, folder=self.folder, environ=environ, name=name))
        self.programs[name] = program
        return program

    def begin(self) -> None:
        """Until one call runs and one waits."""
        self.start("server", "execserver").says("exec server at")
        self.start("running", "exec", "hold")
        self.reaches(running=1, waiting=0)
        self.start("waiting", "exec", "--wait", "600", "cat", str(self.folder / "text"))
        self.reaches(running=1, waiting=1)

    def look(self) -> dict[str, Any]:
        """What the exec server says of itself, asked on its own side of the link."""
        done = run(self.link.argv("server", [sys.executable, "-I", "-c", LOOK, TOKEN]), folder=self.folder)
        assert done.status == 0, done.err
        found: dict[str, Any] = json.loads(done.out)
        return found

    def reaches(self, *, running: int, waiting: int) -> None:
        def holds() -> bool:
            view = self.look()["waitgroups"]["all"]
            return (view.get("running", 0), view.get("waiting", 0)) == (running, waiting)

        until(holds, f"{running} run and {waiting} wait", timeout_s=NOTICED_S)

    def client_noticed(self) -> None:
        """The call that ran has failed, and says why."""
        assert self.programs["running"].status(timeout_s=NOTICED_S) == 1
        assert "broke while hold ran" in self.programs["running"].err

    def server_noticed(self) -> None:
        """Both clients are gone for it, their want and their command with them, and the slot is free."""
        self.reaches(running=0, waiting=0)
        until(lambda: self.look()["clients"] == 0, "it knows of no client", timeout_s=NOTICED_S)

    def goes_on(self) -> None:
        """The call that waited is parked again, and has its turn."""
        assert (self.programs["waiting"].status(timeout_s=NOTICED_S), self.programs["waiting"].out) == (
            0,
            "came through",
        )
        self.reaches(running=0, waiting=0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[[], Site]]:
    with ExitStack() as stack:
        count = 0

        def make() -> Site:
            nonlocal count
            count += 1
            made = Site(stack.enter_context(link()), tmp_path / f"site{count}", stack)
            made.begin()
            return made

        yield make


def test_a_broken_link_is_noticed_by_both_sides_and_what_waited_goes_on_s39(site: Callable[[], Site]) -> None:
    """Dropped in both directions, half open in either, and reset."""
    both, to_server, to_client, reset = (site() for _ in range(4))
    both.link.drop("client", "server")
    to_server.link.drop("server")
    to_client.link.drop("client")
    reset.link.reset("client", "server")
    for each in (both, to_server, to_client, reset):
        each.client_noticed()
        each.server_noticed()
        assert each.programs["waiting"].popen.poll() is None, "it goes on waiting"
        each.link.heal()
    for each in (both, to_server, to_client, reset):
        each.goes_on()


def test_the_bound_of_the_notice_is_20_seconds_on_both_sides() -> None:
    assert links.PING_EVERY_S + links.PING_TIMEOUT_S <= 20
    assert 2 * server.Listen().ping_s <= 20
