"""The workloads. Each is one measurement of one adapter, on a fresh copy of a template, and gives samples.

W1 one by one, W2 at once, W3 drain by one process, W4 by two, W5 idle wake-up, W6 drain beside a long history.
Rates are jobs a second, waits are milliseconds.
"""

import asyncio
import json
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import asyncpg
import psutil

from bench.machine import Bystanders
from bench.queue import meter
from bench.queue.peers import PEERS, command
from bench.report import NotMeasured, Sample, quantile
from bench.server import Server

REPOSITORY: Final = Path(__file__).parents[2]
WARMUP: Final = 100
WAKE_EVERY_S: Final = 0.02
WAKE_WARMUP: Final = 20
IDLE_S: Final = 0.5
"""Until a worker that found nothing has said that it sleeps."""
LOOK_S: Final = 0.002
START_S_MAX: Final = 30.0
DRAIN_S_MAX: Final = 120.0
STOP_S_MAX: Final = 10.0
FILL_S_MAX: Final = 600.0
TOGETHER: Final = ("rota", "raw")
"""These two share a database: raw COPY goes into Rota's table too."""
TEMPLATE: Final = "empty"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of each is done."""

    jobs: int
    singles: int
    wakeups: int
    finished: int
    future: int
    behind: int
    """Jobs that go before those that are timed, under a snapshot that is held: what they leave is not removed."""


class Works:
    """The workloads on one server."""

    def __init__(self, server: Server, bystanders: Bystanders, sizes: Sizes) -> None:
        self._server = server
        self._bystanders = bystanders
        self._sizes = sizes

    async def one_by_one(self, adapter: str) -> list[Sample]:
        """W1."""
        database = await self._fresh(adapter)
        await self._bystanders.wait()
        since = self._bystanders.reading()
        found = await self._role(adapter, "one", database, self._sizes.singles, WARMUP)
        rate = self._sizes.singles / found["seconds"]
        return [Sample(f"one.{adapter}", rate, self._bystanders.share(since))]

    async def at_once(self, adapter: str, way: str) -> list[Sample]:
        """W2."""
        database = await self._fresh(adapter)
        await self._bystanders.wait()
        since = self._bystanders.reading()
        found = await self._role(adapter, "bulk", database, way, self._sizes.jobs, WARMUP)
        rate = self._sizes.jobs / found["seconds"]
        return [Sample(f"bulk.{adapter}.{way}", rate, self._bystanders.share(since))]

    async def drain(
        self, adapter: str, key: str, *, workers: int = 1, history: tuple[str, ...] = (), under_snapshot: bool = False
    ) -> list[Sample]:
        """W3, W4, W6, W7: jobs a second from the first start until no job is open, and what each took of CPU and log.

        Under a snapshot that is held the time begins when many jobs have gone before, and they stand in its way.
        """
        module = import_module(f"bench.queue.adapters.{adapter}")
        database = await self._fresh(adapter, history)
        ahead = self._sizes.behind if under_snapshot else 0
        jobs, before = self._sizes.jobs + ahead, await self._done(module, database)
        await self._role(adapter, "bulk", database, "own" if adapter.startswith("raw") else "described", jobs, 0)
        await self._server.run("VACUUM ANALYZE", "CHECKPOINT", database=database)
        async with (
            self._snapshot(database, held=under_snapshot),
            self._workers(adapter, database, count=workers) as (folder, processes),
        ):
            await self._bystanders.wait()
            written, commits = await self._written(), await self._commits(database)
            since = self._bystanders.reading()
            (folder / "gate").touch()
            first, gone = await self._until_started(folder, ahead + 1, processes)
            if ahead:
                first = time.monotonic()
            else:
                gone = 0
            used = _used_s(processes)
            await self._until_started(folder, jobs, processes)
            ended, asked = await self._until_finished(module.PENDING, database)
            others = self._bystanders.share(since)
            used = _used_s(processes) - used
            written = await self._written() - written
        await self._until_left(database)
        commits = await self._commits(database) - commits - asked
        done = await self._done(module, database) - before
        if done != jobs and hasattr(module, "DONE"):
            raise NotMeasured(f"{done:,} of {jobs:,} jobs are done, and none is open")
        return [
            Sample(f"{key}.{adapter}", (jobs - gone) / (ended - first), others),
            Sample(f"{key}_cpu.{adapter}", 1e6 * used / (jobs - gone), others),
            Sample(f"{key}_wal.{adapter}", written / jobs, others),
            Sample(f"{key}_commits.{adapter}", commits / jobs, others),
        ]

    @asynccontextmanager
    async def _snapshot(self, database: str, *, held: bool) -> AsyncIterator[None]:
        """A transaction that still sees what was there at its begin, so that nothing since then can be removed."""
        if not held:
            yield
            return
        connection = await asyncpg.connect(self._server.dsn(database))
        try:
            async with connection.transaction(isolation="repeatable_read"):
                await connection.fetchval("SELECT 1")
                yield
        finally:
            await connection.close()

    async def _done(self, module: Any, database: str) -> int:
        return int(await self._server.ask(module.DONE, database=database)) if hasattr(module, "DONE") else 0

    async def wake(self, adapter: str) -> list[Sample]:
        """W5: from the call that adds a job until its handler starts, in another process that was idle."""
        database = await self._fresh(adapter)
        count = self._sizes.wakeups
        async with self._workers(adapter, database, count=1, waits=count) as (folder, processes):
            (folder / "gate").touch()
            await asyncio.sleep(IDLE_S)
            await self._bystanders.wait()
            since = self._bystanders.reading()
            await self._role(adapter, "wake", database, count, WAKE_EVERY_S, WAKE_WARMUP)
            await self._until_started(folder, count + WAKE_WARMUP, processes)
            others = self._bystanders.share(since)
            waits = _waits(folder)
        if len(waits) != count:
            raise NotMeasured(f"{len(waits)} of {count} jobs say how long they waited")
        return [
            Sample(f"wake_p50.{adapter}", 1000 * quantile(waits, 0.5), others),
            Sample(f"wake_p99.{adapter}", 1000 * quantile(waits, 0.99), others),
        ]

    # Databases

    async def _fresh(self, adapter: str, history: tuple[str, ...] = ()) -> str:
        return await self._server.fresh(await self._template(adapter, history))

    async def _template(self, adapter: str, history: tuple[str, ...]) -> str:
        name = TEMPLATE if adapter not in PEERS else f"{TEMPLATE}_{adapter}"
        if not history:

            async def set_up(dsn: str) -> None:
                for each in (adapter,) if adapter in PEERS else TOGETHER:
                    await self._run(each, "setup", dsn)

            return await self._server.template(name, base="template1", fill=set_up)
        base = await self._template(adapter, history[:-1])

        async def fill(dsn: str) -> None:
            statements = import_module(f"bench.queue.adapters.{adapter}").HISTORY
            connection = await asyncpg.connect(dsn)
            try:
                rows = getattr(self._sizes, history[-1])
                await connection.execute(statements[history[-1]], rows, timeout=FILL_S_MAX)
            finally:
                await connection.close()

        return await self._server.template("_".join((name, *history)), base=base, fill=fill)

    async def _written(self) -> int:
        return int(await self._server.ask("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    async def _commits(self, database: str) -> int:
        return int(await self._server.ask("SELECT xact_commit FROM pg_stat_database WHERE datname = $1", database))

    async def _until_left(self, database: str) -> None:
        """A session counts its commits when it ends, at the latest."""
        give_up_at = time.monotonic() + STOP_S_MAX
        question = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'"
        while time.monotonic() < give_up_at:
            if not await self._server.ask(question, database):
                return
            await asyncio.sleep(0.05)

    # Processes

    async def _role(self, adapter: str, role: str, database: str, *args: object) -> dict[str, float]:
        said = await self._run(adapter, role, self._server.dsn(database), *args)
        return json.loads(said) if said.strip() else {}

    async def _run(self, adapter: str, role: str, dsn: str, *args: object) -> str:
        pipe = asyncio.subprocess.PIPE
        process = await _host(adapter, role, dsn, *args, stdout=pipe, stderr=pipe)
        said, complaint = await process.communicate()
        if process.returncode:
            raise NotMeasured(f"{adapter} {role} failed: {complaint.decode()[-1500:]}")
        return said.decode()

    @asynccontextmanager
    async def _workers(
        self, adapter: str, database: str, *, count: int, waits: int = 0
    ) -> AsyncIterator[tuple[Path, list[Process]]]:
        """Worker processes that are ready and wait for the gate; stopped at the end."""
        with tempfile.TemporaryDirectory(prefix="run-", dir=self._server.folder) as place:
            folder, processes = Path(place), []
            try:
                for _ in range(count):
                    with (folder / "log").open("ab") as log:
                        processes.append(
                            await _host(
                                adapter, "worker", self._server.dsn(database), folder, waits, stdout=log, stderr=log
                            )
                        )
                give_up_at = time.monotonic() + START_S_MAX
                while _ready(folder) < count:
                    _check(folder, processes, give_up_at=give_up_at)
                    await asyncio.sleep(LOOK_S)
                yield folder, processes
            finally:
                await asyncio.gather(*map(_stop, processes))

    async def _until_started(self, folder: Path, jobs: int, processes: list[Process]) -> tuple[float, int]:
        """Waits until so many jobs have started. Returns: when the first did, and how many have."""
        give_up_at = time.monotonic() + DRAIN_S_MAX
        while True:
            count, first = _started(folder)
            if count >= jobs:
                return first, count
            _check(folder, processes, give_up_at=give_up_at)
            await asyncio.sleep(LOOK_S)

    async def _until_finished(self, pending: str, database: str) -> tuple[float, int]:
        """Waits until no due job is open. Returns: when that was known, and how often it was asked."""
        give_up_at = time.monotonic() + DRAIN_S_MAX
        settings = {"enable_seqscan": "off", "enable_bitmapscan": "off"}
        connection = await asyncpg.connect(self._server.dsn(database), server_settings=settings)
        try:
            asked = 1
            while await connection.fetchval(pending):
                if time.monotonic() > give_up_at:
                    raise NotMeasured("started jobs are not finished")
                await asyncio.sleep(LOOK_S)
                asked += 1
            return time.monotonic(), asked
        finally:
            await connection.close()


async def _host(adapter: str, role: str, dsn: str, *args: object, stdout: Any, stderr: Any) -> Process:
    return await asyncio.create_subprocess_exec(
        *command(adapter), role, dsn, *map(str, args),
        cwd=REPOSITORY, stdin=asyncio.subprocess.DEVNULL, stdout=stdout, stderr=stderr,
    )  # fmt: skip


async def _stop(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S_MAX)
        except TimeoutError:
            process.kill()
            await process.wait()


def _ready(folder: Path) -> int:
    return len(list(folder.glob("ready.*")))


def _started(folder: Path) -> tuple[int, float]:
    return meter.started(folder.glob("meter.*"))


def _waits(folder: Path) -> list[float]:
    return [wait for path in folder.glob("meter.*") for wait in meter.waits(path)]


def _used_s(processes: list[Process]) -> float:
    """CPU seconds that worker processes have used."""
    return sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in processes)


def _check(folder: Path, processes: list[Process], *, give_up_at: float) -> None:
    said = (folder / "log").read_text(errors="replace")[-1500:]
    if any(process.returncode is not None for process in processes):
        raise NotMeasured(f"a worker ended by itself: {said}")
    if time.monotonic() > give_up_at:
        raise NotMeasured(f"the workers take too long: {said}")
