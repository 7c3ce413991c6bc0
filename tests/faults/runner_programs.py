"""Gateways and runners of a test as processes: started, killed, put to sleep, and asked what they have logged."""

import asyncio
import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from rota.runners.io.ringlog import FILE_NAME
from tests.faults.together import eventually
from tests.integration.programs import Program

if TYPE_CHECKING:
    from tests.faults.runner_sites import RunnerSite

TOKEN = "engine-token-of-tests"
KEY = "a key for job tokens of the fault tests"

Place = Callable[[Sequence[str]], list[str]]
"""Makes of a command line one that runs somewhere."""


def here(argv: Sequence[str]) -> list[str]:
    """In the namespace of the tests."""
    return list(argv)


@dataclass
class Gateway:
    """One replica, and where it is started again after it was killed."""

    site: "RunnerSite"
    port: int
    place: Place
    names: str = "127.0.0.1"
    program: Program | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> Program:
        assert self.program is not None, "it was started"
        return self.program

    async def start(self) -> None:
        """Starts it, and waits until it listens."""
        self.program = self._begin({})
        await asyncio.to_thread(self.program.says, "gateway at")

    async def spare(self, gate: Path) -> Program:
        """Another start of it, which waits for this file."""
        program = self._begin({"FAULTS_GATE": str(gate)})
        await asyncio.to_thread(program.says, "waits at the gate")
        return program

    async def is_now(self, program: Program) -> None:
        """A spare one has taken its place."""
        self.program = program
        await asyncio.to_thread(program.says, "gateway at")

    def _begin(self, more: dict[str, str]) -> Program:
        environ = {
            "ROTA_DSN": self.site.dsn, "ROTA_GATEWAY_TOKEN": TOKEN, "ROTA_GATEWAY_KEY": KEY,
            "ROTA_GATEWAY_NAMES": self.names, "ROTA_LOG_FORMAT": "json",
        }  # fmt: skip
        words = ("gateway", "--port", str(self.port))
        return self.site.start(words, name="gateway", place=self.place, environ=environ | more)

    async def instance(self) -> str:
        """The name of this start of it."""
        (started,) = await eventually(lambda: self.events("gateway started"), "it has a name")
        return str(started["instance"])

    def events(self, event: str) -> list[dict[str, Any]]:
        """The events of the log of this start that have this name."""
        return _events(self.running.errors, event)

    async def kill(self) -> None:
        """Ends it with SIGKILL."""
        self.running.signal(signal.SIGKILL)
        await asyncio.to_thread(self.running.status)

    async def stop(self) -> None:
        """SIGTERM, and its end with 0."""
        self.running.signal(signal.SIGTERM)
        assert await asyncio.to_thread(self.running.status) == 0, self.running.err


@dataclass
class Agent:
    """One runner. `runner_id` is its name at the gateways."""

    site: "RunnerSite"
    runner_id: str
    org: str
    folder: Path
    url: str
    environ: dict[str, str]
    options: tuple[str, ...]
    place: Place
    program: Program | None = None

    @property
    def target(self) -> str:
        """What it takes."""
        return "CloudPool" if self.options else "OrgRunner"

    @property
    def running(self) -> Program:
        assert self.program is not None, "it was started"
        return self.program

    async def start(self) -> None:
        """Starts it, and waits until a gateway has welcomed it."""
        before = len(self.told("connected"))
        words = ("runner", "run", *self.options)
        self.program = self.site.start(words, name=self.folder.name, place=self.place, environ=self.environ)
        await self.tells("connected", count=before + 1)

    def told(self, event: str) -> list[dict[str, Any]]:
        """The events of its own log that have this name."""
        return _events(self.folder / "log" / FILE_NAME, event)

    async def tells(self, event: str, *, count: int = 1) -> list[dict[str, Any]]:
        """Waits until its log has this event so often."""
        return list(
            await eventually(
                lambda: len(found := self.told(event)) >= count and found, f"{self.folder.name} tells of {event}"
            )
        )

    def sessions(self) -> list[Path]:
        """The folders of its sessions."""
        return [path for path in (self.folder / "scratch").glob("runner-*/*") if path.is_dir()]

    async def kill(self) -> None:
        """Ends it with SIGKILL."""
        self.running.signal(signal.SIGKILL)
        await asyncio.to_thread(self.running.status)

    async def sleep(self) -> None:
        """Makes it stand still (SIGSTOP), and returns when all of it does."""
        process = psutil.Process(self.running.pid)
        self.running.signal(signal.SIGSTOP)
        await eventually(lambda: process.status() == psutil.STATUS_STOPPED, "it stands still")

    def wake(self) -> None:
        """Ends what `sleep` began."""
        self.running.signal(signal.SIGCONT)


def _events(path: Path, event: str) -> list[dict[str, Any]]:
    """The lines of JSON with this name; the last may be half written."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines = [line for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
    return [told for line in lines if (told := json.loads(line))["event"] == event]
