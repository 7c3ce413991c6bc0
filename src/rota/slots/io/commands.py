"""All commands of one exec server: starts them, watches them, and says of each when it has ended, exactly once.

What limits how many run is the want-book, not this. A job that cannot be begun ends with a receipt too, so that its
slot is freed in one way only.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rota.errors import ArgumentsError
from rota.io.log import get_logger
from rota.io.scratch import Scratch
from rota.slots.io.keepers import KeeperDied, Keepers
from rota.slots.io.running import Running
from rota.slots.io.state import RunningRecord
from rota.slots.io.streams import Streams
from rota.slots.io.watch import LOOK_S, NOTHING, look_at, shared_once_bytes
from rota.slots.messages import EndedBy, Receipt, Work
from rota.slots.poison import subject_of
from rota.slots.progress import Moved
from rota.slots.receipts import refused
from rota.slots.service import Plan, Service

MOVED_S: Final = 1.0
"""Between two reports of how far a command is."""

log = get_logger("rota.execserver")


class Commands:
    """Runs the declared services.

    Args:
        services: what may run, by name.
        ended: called with each command's receipt when all of its processes are gone.
        moved: called at most once a second for each command that goes on.
        scratch: under this folder each command gets its own; None: in the system's temp folder.
        state: where the record of running commands is kept; None: there is none, and so no poison guard.
        pipe_hosts: the only hosts of streams; empty: whatever a client names.
    """

    def __init__(
        self,
        services: Mapping[str, Service],
        *,
        ended: Callable[[str, Receipt], None],
        moved: Callable[[str, Moved], None] | None = None,
        scratch: Path | None = None,
        state: Path | None = None,
        pipe_hosts: tuple[str, ...] = (),
    ) -> None:
        self._services = services
        self._ended = ended
        self._moved = moved
        self._scratch = Scratch(scratch)
        self._record = RunningRecord(state)
        self._streams = Streams(pipe_hosts)
        self._keepers = Keepers()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running: dict[str, Running] = {}
        self._cancelled: set[str] = set()
        self._told: dict[str, tuple[float, Moved]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._stopping = False

    def open(self) -> None:
        """Reads what the exec server before this one left behind. Without it, the first start does that.

        Raises: SettingsError if the state folder cannot be used.
        """
        self._record.open()

    def redeclare(self, services: Mapping[str, Service], *, pipe_hosts: tuple[str, ...] = ()) -> None:
        """What may run from now on; what runs goes on under the limits that it began with."""
        self._services = services
        self._streams.hosts = pipe_hosts

    def start(self, job_id: str, service: str, job: Work) -> None:
        """Begins a command; `ended` will be called for it, also if it is refused. Never raises."""
        assert job_id not in self._tasks, "a job id runs once at a time"
        self._tasks[job_id] = asyncio.get_running_loop().create_task(self._run(job_id, service, job))
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    def cancel(self, job_id: str, *, why: str = "It was cancelled by its client, or its client went away") -> None:
        """Ends a command; `ended` follows. One that is not there is let be."""
        if job_id in self._running:
            self._running[job_id].end(EndedBy.CANCELLED, why)
        elif job_id in self._tasks:
            self._cancelled.add(job_id)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Lets what runs go on for at most `grace_s`, ends the rest and leaves nothing behind; safe to repeat."""
        self._stopping = True
        if self._tasks and grace_s > 0:
            await asyncio.wait(set(self._tasks.values()), timeout=grace_s)
        for running in self._running.values():
            running.end(EndedBy.STOPPED, "The exec server is stopping; another may run it")
        while self._tasks:
            await asyncio.wait(set(self._tasks.values()))
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
            self._watching = None
        await self._streams.close()
        await self._keepers.close()
        await self._scratch.close()
        self._record.close()

    async def _run(self, job_id: str, service: str, job: Work) -> None:
        try:
            receipt = await self._receipt(job_id, service, job)
        except Exception as error:
            log.exception("a command failed in the exec server itself", job_id=job_id, service=service)
            receipt = Receipt(ended_by=EndedBy.BROKEN, error=f"The exec server failed: {error!r}", retryable=True)
        self._running.pop(job_id, None)
        self._told.pop(job_id, None)
        self._cancelled.discard(job_id)
        del self._tasks[job_id]
        self._ended(job_id, receipt)

    async def _receipt(self, job_id: str, name: str, job: Work) -> Receipt:
        service = self._services.get(name)
        if service is None:
            return refused(f"There is no service '{name[:80]}' here: there are {', '.join(self._services)}.")
        self._record.open()
        subject = subject_of(name, job)
        poison = self._record.refuses(subject)
        if poison is not None:
            return refused(poison)
        try:
            folder = self._scratch.take()
        except OSError as error:
            return refused(f"No scratch folder can be made: {error.strerror}. Free some disk.", retryable=True)
        try:
            plan = service.plan(job.args, scratch=folder, env=job.env, timeout_s=job.timeout_s)
            self._check(plan, job)
            running = self._running[job_id] = Running(job, plan, folder, self._streams)
            if job_id in self._cancelled:
                self.cancel(job_id)
            return await self._keep(running, subject)
        except ArgumentsError as error:
            return refused(str(error))
        except KeeperDied as error:
            return Receipt(ended_by=EndedBy.BROKEN, error=str(error), retryable=True)
        except OSError as error:
            return refused(f"The command cannot be begun: {error.strerror}. Raise that limit.", retryable=True)
        finally:
            self._scratch.give_back(folder)

    async def _keep(self, running: Running, subject: str) -> Receipt:
        if self._stopping:
            return refused("The exec server is stopping; another may run it.", retryable=True)
        keeper = await self._keepers.take()
        self._record.began(subject)
        try:
            return await running.run(keeper)
        finally:
            self._record.ended(subject)
            self._keepers.give_back(keeper)

    def _check(self, plan: Plan, job: Work) -> None:
        self._streams.check("stdin", job.stdin)
        self._streams.check("stdout", job.stdout)
        for path, folder in plan.paths:
            # A link inside the folder may lead out of it.
            if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
                raise ArgumentsError(f"The path leads out of {folder}, so it is refused.")

    async def _watch(self) -> None:
        while self._tasks:
            await asyncio.sleep(LOOK_S)
            old = {
                job_id: (running, running.keeper.pid if running.keeper is not None else 0)
                for job_id, running in self._running.items()
                if time.monotonic() - running.begun_at >= LOOK_S
            }
            if not old:
                continue
            looks = await asyncio.to_thread(look_at, {pid for _, pid in old.values()} - {0})
            for job_id, (running, pid) in old.items():
                # Without a process its stream is still under way: bytes alone say whether that moves.
                look = looks.get(pid, NOTHING)
                if running.saw(look, time.monotonic()):
                    running.holds(await asyncio.to_thread(shared_once_bytes, look.pids))
                self._tell(job_id, running, time.monotonic())
        self._watching = None

    def _tell(self, job_id: str, running: Running, now: float) -> None:
        if self._moved is None or job_id not in self._running:
            return
        told_at, told = self._told.get(job_id, (0.0, Moved(0, 0)))
        moved = running.moved()
        if moved != told and now - told_at >= MOVED_S:
            self._told[job_id] = now, moved
            self._moved(job_id, moved)
