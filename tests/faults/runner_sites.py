"""Real gateways behind real balancers, runners that dial in, and an engine, each a process, with shortened leases.

Programs may run in network namespaces: a site is told how a command line gets there.
"""

import asyncio
import base64
import itertools
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp

from rota.demo.balancers import free_port
from rota.io.postgres import Database
from rota.runners.io.devices import Devices
from rota.runners.io.identity import Identity, new_key, write_identity
from tests.faults.engine_program import SOCKET
from tests.faults.processes import ROOT
from tests.faults.runner_programs import TOKEN, Agent, Gateway, Place, here
from tests.faults.slot_sites import FAULTS_ROTA
from tests.faults.together import eventually
from tests.integration.programs import Program, running

LEASE_S = 18.0


class CallFailed(Exception):
    """What a call of the engine came to. `name` is the error's class, `reason` the gateway's word."""

    def __init__(self, name: str, text: str, reason: str | None) -> None:
        super().__init__(f"{name}: {text}")
        self.name, self.reason = name, reason


@dataclass
class Op:
    """An op that was asked for: a `stage` of an object that has its id as its name."""

    site: "RunnerSite"
    key: str
    answer: "asyncio.Task[Any]"

    async def began(self) -> None:
        """Waits until a runner is at it."""
        await self.site.store("came", self.key)

    async def go(self) -> None:
        """Lets the store give the object."""
        await self.site.store("go", self.key)

    async def done(self) -> Any:
        """Its result, which has to be a good one."""
        found = await self.answer
        assert found["ok"], found
        return found["result"]

    async def fails(self) -> CallFailed:
        """The error that it comes to."""
        try:
            found = await self.answer
        except CallFailed as error:
            return error
        raise AssertionError(f"it was answered: {found}")


@dataclass
class Session:
    """A session of the engine, which reaches the gateways at `url`."""

    site: "RunnerSite"
    job_id: str
    session_id: str
    url: str
    store_host: str = "127.0.0.1"

    async def op(self, *, hold: bool = False, url: str | None = None, timeout_s: int = 100) -> Op:
        """Asks for an op; `hold`: the store keeps it waiting until it may go."""
        key = f"op-{next(self.site.numbers)}"
        if hold:
            await self.site.store("hold", key)
        args = {"url": f"http://{self.store_host}:{self.site.store_port}/objects/{key}", "path": key, "maxBytes": 100}
        asked = self.site.call(
            "op", self.session_id, op_id=key, op="stage", args=args, timeout_s=timeout_s, url=url or self.url
        )
        op = Op(self.site, key, asyncio.create_task(asked))
        self.site.ops.append(op)
        return op

    async def works(self, *, url: str | None = None) -> None:
        """An op is carried out in it."""
        await (await self.op(url=url)).done()

    async def job(self) -> dict[str, Any]:
        """Its row: state, tries, lease_epoch, leased_by …"""
        return await self.site.job(self.job_id)

    async def close(self) -> None:
        """Closes it in good order, and waits for the job's end."""
        found = await self.site.call("op", self.session_id, op_id="close", op="close", args={}, timeout_s=60)
        assert found["ok"], found
        await self.reaches("done")

    async def at(self) -> str:
        """The instance of a gateway that its row names."""
        (row,) = await self.site.sql(
            "SELECT gateway_instance FROM rota.runner_sessions WHERE session_id = $1::text::uuid", self.session_id
        )
        return str(row["gateway_instance"])

    async def renewed(self) -> None:
        """Waits for the next heartbeat that renews its lease."""
        before = (await self.job())["lease_until"]

        async def later() -> bool:
            return bool((await self.job())["lease_until"] > before)

        await eventually(later, f"the lease of {self.job_id} is renewed")

    async def reaches(self, state: str) -> dict[str, Any]:
        """Waits until its job is in this state, and gives its row."""

        async def there() -> Any:
            row = await self.job()
            return row if row["state"] == state else None

        return dict(await eventually(there, f"{self.job_id} is {state}"))


@dataclass
class RunnerSite:
    """What runs, and how to get more of it.

    Attributes:
        dsn: the database, reached by a file, so from each namespace.
        folder: where everything lies.
        url: where engine and runners dial, most often a balancer.
        store_port: where the engine's store is.
    """

    dsn: str
    folder: Path
    stack: ExitStack
    database: Database
    url: str = ""
    store_port: int = 0
    ops: list[Op] = field(default_factory=list)
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _control: aiohttp.ClientSession | None = None

    def start(
        self, words: Sequence[str], *, name: str, place: Place = here, environ: dict[str, str] | None = None
    ) -> Program:
        """Starts a command of `rota`, with the shortened lease."""
        return self.run([*FAULTS_ROTA, *words], name=name, place=place, environ=environ)

    def run(self, argv: Sequence[str], *, name: str, place: Place, environ: dict[str, str] | None = None) -> Program:
        """Starts a program that ends with the site."""
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        told = {"PYTHONPATH": paths, "FAULTS_LEASE_S": str(LEASE_S), **(environ or {})}
        name = f"{name}-{next(self.numbers)}"
        return self.stack.enter_context(running(place(argv), folder=self.folder, environ=told, name=name))

    def gateway(self, *, place: Place = here, names: str = "127.0.0.1") -> Gateway:
        """A replica, not started yet. `names`: those that runners dial."""
        return Gateway(self, free_port(), place, names)

    async def engine(self, *, host: str = "127.0.0.1", place: Place = here) -> None:
        """Starts the engine and its store."""
        argv = [sys.executable, "-P", "-m", "tests.faults.engine_program", str(self.folder), host, TOKEN]
        program = self.run(argv, name="engine", place=place)
        said = await asyncio.to_thread(program.says, "objects at")
        self.store_port = int(said.partition("objects at ")[2].split()[0])
        self._control = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self.folder / SOCKET), limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def desktop(self, org: str, name: str, *, url: str | None = None, place: Place = here) -> Agent:
        """Pairs a device, and starts it."""
        devices, (private, public) = Devices(self.database), new_key()
        device = await devices.pair(await devices.new_code(org, name), _raw(public), name=name)
        folder = self.folder / name
        write_identity(folder, Identity(url or self.url, device.device_id, org, name, private))
        return await self._begin(Agent(self, device.device_id, org, folder, url or self.url, {}, (), place))

    async def pool_runner(self, name: str, *, url: str | None = None, place: Place = here) -> Agent:
        """Starts a worker of the pool."""
        secret = {"ROTA_RUNNER_CREDENTIAL": str(await Devices(self.database).new_credential(overlap_s=600.0))}
        folder = self.folder / name
        return await self._begin(Agent(self, f"pool:{name}", "", folder, url or self.url, secret, ("--pool",), place))

    async def _begin(self, agent: Agent) -> Agent:
        agent.environ |= {
            "ROTA_RUNNER_GATEWAY": agent.url.replace("http", "ws"), "ROTA_RUNNER_NAME": agent.folder.name,
            "ROTA_RUNNER_STATE": str(agent.folder), "ROTA_RUNNER_FLOOR_MIB": "1", "ROTA_RUNNER_TLS": "development",
        }  # fmt: skip
        await agent.start()
        return agent

    async def session(
        self, org: str, *, target: str = "OrgRunner", url: str | None = None, store_host: str = "127.0.0.1", **body: Any
    ) -> Session:
        """A session of the engine, once a runner has it. `store_host`: where that reaches the store."""
        execution = str(uuid4())
        asked = {
            "target": target, "orgId": org or "acme", "jobType": "video.compile", "executionId": execution,
            "stepId": "s", "iteration": 0, "purpose": "p", "spec": {"mode": "Reencode"},
        }  # fmt: skip
        job = await self.call("create", asked | body, url=url)
        return await self.taken(job["jobId"], url=url, store_host=store_host)

    async def taken(
        self, job_id: str, *, attempt: int = 1, url: str | None = None, store_host: str = "127.0.0.1"
    ) -> Session:
        """The session of a job, once a runner has it in this try."""

        async def there() -> Any:
            row = await self.job(job_id)
            found = await self.call("job", job_id, url=url)
            return found.get("sessionId") if found["state"] == "Running" and row["tries"] >= attempt else None

        return Session(self, job_id, await eventually(there, f"a runner has {job_id}"), url or self.url, store_host)

    async def call(self, method: str, *args: Any, url: str | None = None, **options: Any) -> Any:
        """One call of the engine.

        Raises: CallFailed.
        """
        body = {"method": method, "args": args, "options": options, "url": url or self.url}
        said = await self._ask("call", body)
        if "error" in said:
            raise CallFailed(said["error"], said["text"], said["reason"])
        return said["value"]

    async def store(self, what: str, key: str) -> "Counter[str]":
        """Tells the store something; returns: how often each object was asked for."""
        return Counter(await self._ask(f"store/{what}/{key}", {}))

    async def job(self, job_id: str) -> dict[str, Any]:
        """A job's row, open or ended."""
        (row,) = await self.sql("SELECT * FROM rota.jobs WHERE id = $1::text::uuid", job_id) or await self.sql(
            "SELECT * FROM rota.ended_jobs WHERE id = $1::text::uuid", job_id
        )
        return row

    async def sql(self, text: str, *values: Any) -> list[dict[str, Any]]:
        """Rows of the database."""
        return [dict(row) for row in await self.database.fetch(text, *values)]

    async def close(self) -> None:
        """Ends what is the test's own."""
        for op in self.ops:
            op.answer.cancel()
        await asyncio.gather(*(op.answer for op in self.ops), return_exceptions=True)
        if self._control is not None:
            await self._control.close()

    async def _ask(self, path: str, body: Any) -> Any:
        assert self._control is not None, "the engine runs"
        async with self._control.post(f"http://engine/{path}", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()


def _raw(public: str) -> bytes:
    return base64.urlsafe_b64decode(public + "==")
