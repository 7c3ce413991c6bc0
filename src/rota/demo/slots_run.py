"""The demo of slots: three exec servers behind a real balancer, two workers, one exec server killed on the way.

Conversions fill the slots from the beginning; previews come in between and are served first. What is killed takes the
call that it ran with it: that job is tried again, and whatever waited goes on waiting at the others.
"""

import asyncio
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from rich.console import Console

from rota.app import App
from rota.demo.balancers import NAMES, Balancer, find, free_port
from rota.demo.files import remove_leftovers
from rota.demo.samples import make_samples
from rota.demo.slots_look import Fleet, job_of, spread
from rota.demo.slots_program import (
    CONVERSION,
    PREVIEW,
    PREVIEW_PRIORITY,
    Planned,
    exec_toml,
    has_picture,
    make_app,
    plan,
)
from rota.demo.slots_view import LiveView, NoView, PlainView, View
from rota.durations import measured
from rota.errors import MediaError
from rota.ids import JobId
from rota.io import migrate
from rota.io.embedded import EmbeddedPostgres
from rota.io.ffmpeg import find_tools
from rota.io.processes import Command, ProcessTree
from rota.queue.io.store import Store
from rota.queue.job import ENDED, JobFilter, JobRow, State
from rota.settings import Settings

EXEC_SERVERS: Final = 3
WORKERS: Final = 2
CONVERSIONS_MIN: Final = 12
LOOK_S: Final = 0.1
BURSTS: Final = (0.1, 0.4, 0.7)
"""The shares of ended conversions at which somebody asks for previews."""
KILL_FROM: Final = 0.25
KILL_RAN_S: Final = 0.2
"""A command that has run for so long is worth being killed."""
TIMEOUT_S: Final = 1800.0


@dataclass(slots=True)
class Killed:
    """What the kill of an exec server hit."""

    server: str
    job_id: str
    label: str


async def run(files: Sequence[Path], *, folder: Path, console: Console | None, ffmpeg: str | None) -> dict[str, Any]:
    """Does everything.

    Args:
        files: media files; without any, some are made.
        folder: where the database, the logs and the results go.
        console: where it is shown; None: nowhere.
        ffmpeg: the setting.

    Returns: what happened, in plain values; `ok` is whether all went well.

    Raises: MediaError, EmbeddedError, DatabaseError, BalancerError.
    """
    tools = find_tools(ffmpeg)
    place = folder / "slots"
    results = place / "results"
    results.mkdir(parents=True, exist_ok=True)
    sources = [file.absolute() for file in files] or await make_samples(folder / "samples", tools=tools)
    pictures = {source: await has_picture(source, tools) for source in sources}
    background, previews = plan(pictures, results, conversions=CONVERSIONS_MIN)
    (place / "exec.toml").write_text(await exec_toml(tools, scratch=place / "scratch"), encoding="utf-8")
    view: View = NoView() if console is None else (LiveView if console.is_terminal else PlainView)(console)
    with ExitStack() as stack:
        stack.callback(view.close)
        server = stack.enter_context(EmbeddedPostgres(folder / "postgres"))
        ports = {f"exec {number}": free_port() for number in range(1, EXEC_SERVERS + 1)}
        balancer = next((name for name in NAMES if find(name)), None)
        if balancer is None:
            addresses = ",".join(f"127.0.0.1:{port}" for port in ports.values())
            view.say("Neither nginx nor HAProxy is installed: the workers are given the address of each exec server.")
        else:
            servers = [f"127.0.0.1:{port}" for port in ports.values()]
            front = stack.enter_context(Balancer(balancer, place / balancer, servers))
            addresses = f"127.0.0.1:{front.port}"
            view.say(f"{EXEC_SERVERS} exec servers behind {balancer} at {addresses}; the workers know nothing else.")
        app = make_app(Settings(dsn=server.dsn))
        try:
            await migrate.up(app.target)
            store = await app.store()
            left = await store.page(JobFilter(states=(State.QUEUED, State.LEASED)), limit=10_000)
            await store.cancel([row.id for row in left], reason="Left by an earlier demo")
            tree = ProcessTree(_commands(server.dsn, addresses, ports, place), grace_s=10, restart=False)
            began = time.monotonic()
            show = _Show(
                app, store, tree=tree, fleet=Fleet(ports, {}), view=view, planned=[background, previews]
            )  # fmt: skip
            running = asyncio.create_task(tree.run())
            try:
                await show.watch(running)
            finally:
                tree.stop()
                await running
        finally:
            await app.stop()
        # A killed process leaves what it had begun to write.
        remove_leftovers(results)
        shutil.rmtree(place / "scratch", ignore_errors=True)
        told = show.told(time.monotonic() - began)
        return {"balancer": balancer, "results": str(results), **told}


def _commands(dsn: str, addresses: str, ports: "dict[str, int]", place: Path) -> list[Command]:
    host = [sys.executable, "-m", "rota.demo.slots_host"]
    logs = [f"exec-{number}.log" for number in range(1, EXEC_SERVERS + 1)]
    commands = [
        Command(name, [*host, "exec", str(place / "exec.toml"), str(port)], log=place / log)
        for (name, port), log in zip(ports.items(), logs, strict=True)
    ]
    return commands + [
        Command(f"worker {number}", [*host, "worker", dsn, addresses], log=place / f"worker-{number}.log")
        for number in range(1, WORKERS + 1)
    ]


class _Show:
    """The middle of the demo: work comes in, is watched, and is disturbed once."""

    def __init__(
        self, app: App, store: Store, *, tree: ProcessTree, fleet: Fleet, view: View, planned: list[list[Planned]]
    ) -> None:
        self._app, self._store, self._tree, self._fleet, self._view = app, store, tree, fleet, view
        self._background, self._previews = planned
        self._planned: dict[str, Planned] = {}
        self._ids: list[JobId] = []
        fleet.planned = self._planned
        self._bursts = list(BURSTS)
        self._rows: list[JobRow] = []
        self._workers: dict[str, str] = {}
        self._killed: Killed | None = None

    async def watch(self, running: "asyncio.Task[int]") -> None:
        """Until all jobs have ended."""
        await self._enqueue(self._background, priority=0)
        self._view.say(f"Enqueued {len(self._background)} conversions, work in the background.")
        async with asyncio.timeout(TIMEOUT_S), aiohttp.ClientSession() as session:
            while True:
                self._names()
                first, last = min(self._ids), max(self._ids)
                found = await self._store.show(first, last, limit=10 * len(self._ids))
                self._rows = sorted((row for row in found if str(row.id) in self._planned), key=lambda row: row.id)
                await self._fleet.look(session, self._rows, self._workers)
                await self._next_burst()
                self._view.show(self._fleet, self._rows)
                if not self._bursts and len(self._rows) == len(self._planned) and self._all_ended():
                    return
                if self._killed is None and self._share() >= KILL_FROM:
                    self._kill_one()
                if running.done():
                    raise MediaError("The demo's processes ended before its jobs; their logs lie in its folder.")
                await asyncio.sleep(LOOK_S)

    def _names(self) -> None:
        for number in range(1, WORKERS + 1):
            pid = self._tree.pid(f"worker {number}")
            if pid is not None:
                self._workers[str(pid)] = f"worker {number}"

    def _all_ended(self) -> bool:
        return all(row.state in ENDED for row in self._rows)

    def _share(self) -> float:
        return sum(row.kind == CONVERSION and row.state in ENDED for row in self._rows) / len(self._background)

    async def _next_burst(self) -> None:
        if self._bursts and self._share() >= self._bursts[0]:
            self._bursts.pop(0)
            await self._enqueue(self._previews, priority=PREVIEW_PRIORITY)
            self._view.say(f"Somebody asks for {len(self._previews)} previews.")

    async def _enqueue(self, planned: Sequence[Planned], *, priority: int) -> None:
        jobs = [self._app.new(each.kind, asdict(each.work), priority=priority) for each in planned]
        added = await self._app.enqueue_many(jobs)
        self._ids += [new.id for new in added]
        self._planned.update({str(new.id): each for new, each in zip(added, planned, strict=True)})

    def _kill_one(self) -> None:
        """Kills (SIGKILL) an exec server in the middle of a conversion."""
        for name in self._fleet.ports:
            pid = self._tree.pid(name)
            for call in self._fleet.running(name):
                plan = self._fleet.plan_of(call)
                if pid is None or plan is None or plan.kind != CONVERSION or call.for_s < KILL_RAN_S:
                    continue
                os.kill(pid, signal.SIGKILL)
                self._fleet.dead.add(name)
                self._killed = Killed(name, job_of(call), plan.label)
                self._view.say(
                    f"Killed {name} (SIGKILL) while it ran {plan.label}. That job is tried again elsewhere; whatever "
                    "waited there waits on at the others."
                )
                return

    def told(self, elapsed_s: float) -> dict[str, Any]:
        """What happened, in plain values."""
        rows, fleet = self._rows, self._fleet
        waits = {kind: [_took(row) for row in rows if row.kind == kind] for kind in (PREVIEW, CONVERSION)}
        return {
            "ok": all(row.state is State.DONE for row in rows),
            "jobs": len(rows),
            "done": sum(row.state is State.DONE for row in rows),
            "tried_again": sum(row.tries > 1 for row in rows),
            "elapsed_s": round(elapsed_s, 1),
            "median_s": {kind: round(statistics.median(took), 1) for kind, took in waits.items() if took},
            "killed": None if self._killed is None else asdict(self._killed),
            "commands": {name: fleet.ran(name) for name in fleet.ports},
            "grants": {by: spread(fleet.grants, by) for by in ("server", "worker", "kind")},
            "errors": [row.last_error for row in rows if row.state is not State.DONE],
        }


def _took(row: JobRow) -> float:
    return (row.finished_at - row.created_at).total_seconds() if row.finished_at is not None else 0.0


def report(told: dict[str, Any], console: Console) -> None:
    """Says what happened."""

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    say("")
    say(
        f"{told['done']} of {told['jobs']} jobs done in {measured(told['elapsed_s'])}; "
        f"{told['tried_again']} tried again. Nothing is left running."
    )
    if killed := told["killed"]:
        say(f"{killed['server']} was killed while it ran {killed['label']}.")
    say("Commands: " + ", ".join(f"{name} {count}" for name, count in told["commands"].items()) + ".")
    say("Grants: " + ", ".join(f"{name} {count}" for name, count in told["grants"]["worker"].items()) + ".")
    median = told["median_s"]
    if PREVIEW in median and CONVERSION in median:
        say(
            f"From enqueue to done, the median: previews {measured(median[PREVIEW])}, conversions "
            f"{measured(median[CONVERSION])}. Previews have the higher priority, on every worker alike."
        )
    for error in told["errors"]:
        say(f"Not done: {error}")
    say(f"\nResults: {told['results']}")
