"""All commands of one exec server: starts them, watches them, and says of each when it has ended, exactly once.

What limits how many run is the want-book, not this. A job that cannot be begun ends with a receipt too, so that its
slot is freed in one way only.
"""

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from rota.errors import ArgumentsError, SettingsError
from rota.io.log import get_logger
from rota.io.scratch import Scratch
from rota.slots.io.keepers import Keeper, KeeperDied, Keepers
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

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

log = get_logger("rota.execserver")


class _Job(Struct, frozen=True):
    """A command with what is lent to it; `subject` stands for it in the record of what runs."""

    id: str
    subject: str
    folder: str
    running: Running


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
        self._running: dict[str, Running] = {}
        self._waiting: set[asyncio.Task[None]] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._told: dict[str, tuple[float, Moved]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._stopping = False

    def open(self) -> None:
        """Reads what the exec server before this one left behind, and removes it. Without it, the first start does.

        Raises: SettingsError if the state folder or the scratch folder cannot be used. A full disk may be emptied yet.
        """
        self._record.open()
        try:
            self._scratch.open()
        except OSError as error:
            if error.errno not in FULL:
                self._record.close()
                raise SettingsError(f"The scratch folder {error.filename} cannot be used: {error.strerror}.") from None

    def redeclare(self, services: Mapping[str, Service], *, pipe_hosts: tuple[str, ...] = ()) -> None:
        """What may run from now on; what runs goes on under the limits that it began with."""
        self._services = services
        self._streams.hosts = pipe_hosts

    def start(self, job_id: str, service: str, job: Work) -> None:
        """Begins a command; `ended` will be called for it, perhaps at once, also if it is refused. Never raises."""
        assert job_id not in self._running, "a job id runs once at a time"
        try:
            self._start(job_id, service, job)
        except Exception as error:
            log.exception("a command failed in the exec server itself", job_id=job_id, service=service)
            receipt = Receipt(ended_by=EndedBy.BROKEN, error=f"The exec server failed: {error!r}", retryable=True)
            self._ended(job_id, receipt)

    def cancel(self, job_id: str, *, why: str = "It was cancelled by its client, or its client went away") -> None:
        """Ends a command; `ended` follows. One that is not there is let be."""
        if job_id in self._running:
            self._running[job_id].end(EndedBy.CANCELLED, why)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Lets what runs go on for at most `grace_s`, ends the rest and leaves nothing behind; safe to repeat."""
        self._stopping = True
        if grace_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._quiet.wait()
        for running in list(self._running.values()):
            running.end(EndedBy.STOPPED, "The exec server is stopping; another may run it")
        await self._quiet.wait()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
            self._watching = None
        await self._keepers.close()
        await self._scratch.close()
        self._record.close()

    def _start(self, job_id: str, name: str, job: Work) -> None:
        service = self._services.get(name)
        if service is None:
            here = ", ".join(self._services)
            self._ended(job_id, refused(f"There is no service '{name[:80]}' here: there are {here}."))
            return
        self._record.open()
        subject = subject_of(name, job) if self._record.kept else ""
        poison = self._record.refuses(subject)
        if poison is not None:
            self._ended(job_id, refused(poison))
            return
        try:
            folder = self._scratch.take()
        except OSError as error:
            what = "Free some disk" if error.errno in FULL else "Look at server.scratch"
            words = f"No scratch folder can be made: {error.strerror} ({error.filename}). {what}."
            self._ended(job_id, refused(words, retryable=True))
            return
        try:
            plan = service.plan(job.args, scratch=folder, env=job.env, timeout_s=job.timeout_s)
            self._check(plan, job)
        except ArgumentsError as error:
            self._scratch.give_back(folder)
            self._ended(job_id, refused(str(error)))
            return
        except BaseException:
            self._scratch.give_back(folder)
            raise
        self._live(_Job(job_id, subject, folder, Running(job, plan, folder, self._streams)))

    def _live(self, job: "_Job") -> None:
        self._running[job.id] = job.running
        self._quiet.clear()
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        if self._stopping:
            self._over(job, refused("The exec server is stopping; another may run it.", retryable=True))
            return
        keeper = self._keepers.take_idle()
        if keeper is not None:
            self._run(job, keeper)
        else:
            waiting = asyncio.get_running_loop().create_task(self._run_later(job))
            self._waiting.add(waiting)
            waiting.add_done_callback(self._waiting.discard)

    async def _run_later(self, job: "_Job") -> None:
        try:
            keeper = await self._keepers.take()
        except KeeperDied as error:
            self._over(job, Receipt(ended_by=EndedBy.BROKEN, error=str(error), retryable=True))
            return
        except OSError as error:
            self._over(job, _no_descriptors(error))
            return
        self._run(job, keeper)

    def _run(self, job: "_Job", keeper: Keeper) -> None:
        self._record.began(job.subject)

        def over(receipt: Receipt) -> None:
            self._record.ended(job.subject)
            self._keepers.give_back(keeper)
            self._over(job, receipt)

        try:
            job.running.begin(keeper, over)
        except OSError as error:
            over(_no_descriptors(error))

    def _over(self, job: "_Job", receipt: Receipt) -> None:
        self._scratch.give_back(job.folder)
        del self._running[job.id]
        self._told.pop(job.id, None)
        if not self._running:
            self._quiet.set()
        self._ended(job.id, receipt)

    def _check(self, plan: Plan, job: Work) -> None:
        self._streams.check("stdin", job.stdin)
        self._streams.check("stdout", job.stdout)
        for path, folder in plan.paths:
            # A link inside the folder may lead out of it.
            if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
                raise ArgumentsError(f"The path leads out of {folder}, so it is refused.")

    async def _watch(self) -> None:
        while self._running:
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


def _no_descriptors(error: OSError) -> Receipt:
    return refused(f"The command cannot be begun: {error.strerror}. Raise that limit.", retryable=True)
