"""The demo of runners: a gateway, a runner of the pool and a paired desktop, as programs of their own, on real media.

Two films are cut, one by each. Then two more are, slowly: the desktop is killed in the middle, and the pool's runner is
put to sleep for longer than its lease. Both jobs are taken again elsewhere, and the one that wakes up is fenced.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from rota.app import App
from rota.demo.runner_handlers import KIND, Cut, make_app
from rota.demo.samples import make_samples
from rota.durations import measured
from rota.errors import MediaError
from rota.ids import JobId
from rota.io import migrate
from rota.io.clock import lease_clock
from rota.io.embedded import EmbeddedPostgres
from rota.io.ffmpeg import Tools, find_tools
from rota.io.processes import Command, ProcessTree
from rota.io.terminal import print_table, state
from rota.objects.io.from_settings import folder_of
from rota.objects.store import ObjectStore
from rota.queue.io.worker import Worker
from rota.queue.job import JobRow, State
from rota.runners.io.devices import Devices
from rota.runners.io.gateway_client import GatewayClient
from rota.sessions import Target
from rota.settings import Settings

ORG: Final = "acme"
LOOK_S: Final = 0.2
ONLINE_S: Final = 60.0
"""How long a runner may take to be online."""
SLEEP_S: Final = 50.0
"""Longer than a lease of 45 s, so that the sleeper has lost its session when it wakes."""
TIMEOUT_S: Final = 300.0
ROTA: Final = (sys.executable, "-P", "-m", "rota.cli.main")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the demo's programs are: their folder, the gateway's port, and what they share."""

    folder: Path
    settings: Settings
    key: str
    tools: Tools

    def environ(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The settings of a child."""
        return {"ROTA_LOG_FORMAT": "text", "ROTA_FFMPEG": str(self.tools.ffmpeg), **(more or {})}

    def gateway(self) -> Command:
        """The gateway, which also serves the objects."""
        settings = self.settings
        environ = {
            "ROTA_DSN": settings.require_dsn(), "ROTA_GATEWAY_TOKEN": settings.gateway_token or "",
            "ROTA_GATEWAY_KEY": self.key, "ROTA_OBJECTS": settings.objects or "",
            "ROTA_OBJECTS_URL": settings.objects_url or "",
        }  # fmt: skip
        return self._command("gateway", ["gateway", "--port", self.port], environ)

    def pool_runner(self, name: str, credential: str) -> Command:
        """A runner of the pool."""
        return self._command(
            name, ["runner", "run", "--pool"], self.runner(name) | {"ROTA_RUNNER_CREDENTIAL": credential}
        )

    def desktop(self, name: str) -> Command:
        """A runner that was paired."""
        return self._command(name, ["runner", "run"], self.runner(name))

    def runner(self, name: str) -> dict[str, str]:
        """The settings of a runner; it has no database."""
        return {
            "ROTA_RUNNER_GATEWAY": f"ws://127.0.0.1:{self.port}", "ROTA_RUNNER_NAME": name,
            "ROTA_RUNNER_STATE": str(self.folder / name), "ROTA_RUNNER_FLOOR_MIB": "64",
        }  # fmt: skip

    @property
    def port(self) -> str:
        """The gateway's port."""
        return (self.settings.gateway_url or "").rpartition(":")[2]

    def _command(self, name: str, argv: Sequence[str], environ: Mapping[str, str]) -> Command:
        return Command(name, [*ROTA, *argv], environ=self.environ(environ), log=self.folder / f"{name}.log")


async def run(*, folder: Path, console: Console, ffmpeg: str | None, kill: bool) -> int:
    """Does everything. Returns: the exit status, 0 if every job is done.

    Raises: MediaError, EmbeddedError, DatabaseError.
    """
    tools = find_tools(ffmpeg)
    folder = folder / "runners"
    for left in ("pool-1", "pool-2", "desk-1"):
        shutil.rmtree(folder / left, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (film,) = await make_samples(folder.parent / "samples", count=1, tools=tools)
    with EmbeddedPostgres(folder / "postgres") as server:
        url = f"http://127.0.0.1:{_free_port()}"
        settings = Settings(
            dsn=server.dsn, gateway_url=url, gateway_token=secrets.token_hex(16), gateway_wait_s=TIMEOUT_S,
            objects=f"folder:{folder / 'objects'}", objects_url=f"{url}/objects",
        )  # fmt: skip
        place = Place(folder, settings, secrets.token_hex(32), tools)
        store = folder_of(settings)
        await store.write("uploads/film.mp4", film.read_bytes(), content_type="video/mp4")
        await migrate.up(App(settings=settings).target)
        async with make_app(settings) as app:
            return await _Show(place, app, store, console).run(kill=kill)


class _Show:
    """The demo while it runs."""

    def __init__(self, place: Place, app: App, store: ObjectStore, console: Console) -> None:
        self._place = place
        self._app = app
        self._objects = store
        self._console = console
        self._trees: dict[str, tuple[ProcessTree, asyncio.Task[int]]] = {}
        self._jobs: dict[JobId, str] = {}
        self._results: dict[JobId, dict[str, Any]] = {}

    async def run(self, *, kill: bool) -> int:
        worker = self._app.worker()
        working = asyncio.create_task(worker.run())
        try:
            await self._show(kill=kill)
        finally:
            for tree, _ in self._trees.values():
                tree.stop()
            await self._stop(worker, working)
            await asyncio.gather(*(task for _, task in self._trees.values()))
        return await self._report()

    async def _stop(self, worker: Worker, working: asyncio.Task[None]) -> None:
        worker.stop(now=True)
        await working

    async def _show(self, *, kill: bool) -> None:
        place, say = self._place, self._say
        devices = Devices(await self._app.database())
        self._start(place.gateway())
        await self._listens()
        credential = str(await devices.new_credential())
        code = str(await devices.new_code(ORG, "desk-1"))
        say("A gateway listens, and serves a folder of objects.")
        self._start(place.pool_runner("pool-1", credential))
        await self._pair(code)
        self._start(place.desktop("desk-1"))
        await self._online(2)
        say("pool-1, a runner of the pool, and desk-1, a desktop paired with a one-time code, have dialled in.")
        await self._all_done([await self._cut("CloudPool"), await self._cut("OrgRunner")])
        say("Each has staged, probed and cut a film, and published it; the platform has verified and promoted both.")
        if kill:
            await self._trouble(credential)

    async def _trouble(self, credential: str) -> None:
        place, say = self._place, self._say
        pool, desk = await self._cut("CloudPool", slowly=True), await self._cut("OrgRunner", slowly=True)
        await self._moves([pool, desk])
        sleeper, killed = self._trees["pool-1"][0].pid("pool-1"), self._trees["desk-1"][0].pid("desk-1")
        assert sleeper is not None and killed is not None, "both runners hold a session"
        os.kill(sleeper, signal.SIGSTOP)
        os.kill(killed, signal.SIGKILL)
        began = lease_clock()
        say("In the middle of two more, desk-1 was killed (it starts again), and pool-1 fell asleep. pool-2 comes.")
        try:
            self._start(place.pool_runner("pool-2", credential))
            say("Both sessions are lost when their leases of 45 s are over; then both jobs are tried again elsewhere …")
            await self._all_done([pool, desk])
            await asyncio.sleep(max(0.0, SLEEP_S - (lease_clock() - began)))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(sleeper, signal.SIGCONT)
        await self._online(3)
        say("pool-1 has woken up: it is told that its lease is lost, gives up its session, and is there for new work.")

    # Pieces

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _start(self, command: Command) -> None:
        tree = ProcessTree([command], grace_s=15)
        self._trees[command.name] = (tree, asyncio.create_task(tree.run()))

    async def _pair(self, code: str) -> None:
        with (self._place.folder / "desk-1.log").open("ab") as log:
            pairing = await asyncio.create_subprocess_exec(
                *ROTA, "runner", "pair", code, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **self._place.environ(self._place.runner("desk-1"))},
            )  # fmt: skip
            if await pairing.wait() != 0:
                raise MediaError(f"The desktop could not be paired; {self._place.folder / 'desk-1.log'} says why.")

    async def _cut(self, target: Target, *, slowly: bool = False) -> JobId:
        number = len(self._jobs) + 1
        job = await self._app.enqueue(
            KIND, Cut("uploads/film.mp4", f"films/{number}.mp4", target, slowly=slowly), tenant=ORG
        )
        self._jobs[job.id] = target
        return job.id

    async def _row(self, job_id: JobId) -> JobRow:
        (row,) = await (await self._app.store()).show(job_id)
        return row

    async def _all_done(self, jobs: Sequence[JobId]) -> None:
        for job_id in jobs:
            self._results[job_id] = await self._app.result(job_id, timeout_s=TIMEOUT_S)

    async def _moves(self, jobs: Sequence[JobId]) -> None:
        """Waits until ffmpeg is at work for all of them."""

        async def moves(job_id: JobId) -> bool:
            return '"fraction"' in str((await self._row(job_id)).progress)

        for job_id in jobs:
            await _until(partial(moves, job_id), timeout_s=TIMEOUT_S)

    async def _listens(self) -> None:
        async def listens() -> bool:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", int(self._place.port))
                writer.close()
                return True
            return False

        await _until(listens, timeout_s=ONLINE_S)

    async def _online(self, count: int) -> None:
        """Waits until so many runners are connected."""
        client = GatewayClient(self._place.settings.gateway_url or "", token=self._place.settings.gateway_token)

        async def online() -> bool:
            return len((await client.runners())["runners"]) >= count

        try:
            await _until(online, timeout_s=ONLINE_S)
        finally:
            await client.close()

    async def _report(self) -> int:
        rows = [await self._row(job_id) for job_id in self._jobs]
        lines = []
        for row, target in zip(rows, self._jobs.values(), strict=True):
            result = self._results.get(row.id, {})
            took_s = None
            if row.started_at and row.finished_at:
                took_s = (row.finished_at - row.started_at).total_seconds()
            lines.append(
                (target, state(row.state), str(row.tries), str(result.get("key", "")), str(result.get("bytes", "")),
                 "" if took_s is None else measured(took_s))
            )  # fmt: skip
        print_table(("target", "state", "tries", "output", "bytes", "last try"), lines)
        left = [key async for key in self._objects.keys("runner-")]
        self._say(f"Staged objects that were left: {len(left)}. Logs of all programs: {self._place.folder}")
        return 0 if not left and all(row.state is State.DONE for row in rows) else 1


async def _until(condition: Callable[[], Awaitable[bool]], *, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while True:
            if await condition():
                return
            await asyncio.sleep(LOOK_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
