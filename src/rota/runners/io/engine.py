"""The engine: opens sessions on runners for handlers, one at a time for each execution, and ends what it opened.

A session is a runner job. Its idempotency key is made of the execution, the session's name, the run and a purpose, so
that asking twice creates one. Whoever leaves the block in good order closes the session; whoever leaves it by an error
cancels the job, at once and without waiting: a handler that was stopped may take no further step, so what is left to do
is done in a task of the engine's own. Should the process die, the gateways see that the execution is over.

Spec: runners, "Engine to gateway", "Gateway internal API (engine-facing)".
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from rota.errors import GatewayRefused, JobNotFound, NoRunner, RotaError, SessionError, SessionLost
from rota.io.clock import lease_clock
from rota.io.log import get_logger
from rota.runners.engine_answers import JobView
from rota.runners.io.engine_session import Means, RunnerSession
from rota.runners.io.gate import Gates
from rota.runners.io.gateway_client import GatewayClient
from rota.runners.records import OUTPUT_BYTES, OUTPUT_BYTES_OTHER, TARGETS, idempotency_key
from rota.sessions import Session, SessionAsk

ASSIGN_WAIT_S: Final = 5
"""One long poll for a runner; between two of them the waiting job is said to move."""
NO_RUNNER_WAIT_S: Final = 60.0
"""A job that found no runner starts again a minute later, as one that found no slot."""
END_S: Final = 30.0
"""How long an ended session's job may take to reach its end: the protocol's grace of 10 s, and a reaper's round."""
STOP_S: Final = 5.0
"""How long `stop` waits for the cancels that it sent."""
NUMBERED_MAX: Final = 10_000
"""Of how many runs of executions the engine knows how many sessions they had; the oldest are forgotten."""

log = get_logger("rota.engine")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine can be told.

    wait_s: how long to wait for a runner.
    """

    wait_s: float = 120.0


class Engine:
    """Implements `rota.sessions.Sessions`. All of it runs in one event loop; `stop` may be called twice.

    Args:
        means: the gateway, the objects, and what judges outputs.
        options: see `EngineOptions`.
    """

    def __init__(self, means: Means, options: EngineOptions | None = None) -> None:
        self._means = means
        self._options = options or EngineOptions()
        self._gates = Gates()
        self._ending: set[asyncio.Task[None]] = set()
        self._numbers: OrderedDict[tuple[str, str], int] = OrderedDict()

    @property
    def client(self) -> GatewayClient:
        """The gateway's client, for what sessions do not cover."""
        return self._means.client

    @asynccontextmanager
    async def session(self, ask: SessionAsk) -> AsyncIterator[Session]:
        """Opens a session; see `rota.sessions.Sessions.session`."""
        _check(ask)
        execution = ask.execution_id
        await self._gates.take(execution)
        job_id: str | None = None
        try:
            job = await self._create(ask)
            job_id = job.job_id
            session = await self._assigned(ask, job)
            yield session
        except BaseException:
            # Nothing is awaited here: a stopped handler takes no further step.
            self._end(execution, job_id, cancel=True)
            raise
        self._gates.closing(execution)
        await self._leave(execution, session)

    async def stop(self) -> None:
        """Waits a while for what is being cancelled, and closes the connections."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=STOP_S)
        for task in list(self._ending):
            task.cancel()
        if self._ending:
            await asyncio.wait(self._ending)
        await self._means.client.close()
        await self._means.outputs.close()
        await self._means.objects.close()

    # Opening

    async def _create(self, ask: SessionAsk) -> JobView:
        name = ask.name or f"session-{self._number(ask)}"
        output_bytes_max = _output_bytes_max(ask)
        body: dict[str, Any] = {
            "idempotencyKey": idempotency_key(ask.execution_id, name, ask.iteration, "session"),
            "executionId": ask.execution_id,
            "stepId": name,
            "iteration": ask.iteration,
            "purpose": "session",
            "target": ask.target,
            "orgId": ask.tenant,
            "jobType": ask.job_type,
            "spec": {"executionId": ask.execution_id, "stepId": name, **ask.spec},
            "requires": {} if ask.fontset is None else {"fontsetVersion": ask.fontset},
            "limits": {"maxOutputBytes": output_bytes_max, "idleTimeoutSec": ask.idle_s},
            "timeoutSec": ask.timeout_s,
            "priority": ask.priority,
        }
        try:
            return await self._means.client.create(body)
        except asyncio.CancelledError:
            # It may be there, and no one has its id: asking again finds it.
            self._spawn(self._cancel_unknown(body))
            raise

    def _number(self, ask: SessionAsk) -> int:
        """Which session of its run this is: a run that is repeated asks for the same ones in the same order."""
        run = (ask.execution_id, ask.iteration)
        number = self._numbers.pop(run, 0) + 1
        self._numbers[run] = number
        if len(self._numbers) > NUMBERED_MAX:
            self._numbers.popitem(last=False)
        return number

    async def _assigned(self, ask: SessionAsk, job: JobView) -> RunnerSession:
        """Waits until a runner has taken the job."""
        wait_s = self._options.wait_s if ask.wait_s is None else ask.wait_s
        until = lease_clock() + wait_s
        while job.open_session is None:
            if job.ended:
                raise SessionLost(
                    f"The session's job {job.job_id} ended as {job.state} before it began. Open a new session.",
                    reason=job.state,
                )
            left_s = until - lease_clock()
            if left_s <= 0:
                raise NoRunner(
                    f"No runner took this {ask.job_type} for {ask.target} within {wait_s:g} s. `rota doctor` "
                    "says which are connected; raise wait_s if they are only busy.",
                    after_s=NO_RUNNER_WAIT_S,
                )
            window_s = min(ASSIGN_WAIT_S, math.ceil(left_s))
            job = await self._means.client.job(job.job_id, wait_s=window_s, until="running")
            ask.moved()
        return RunnerSession(
            self._means, ask, session_id=job.open_session, job_id=job.job_id, output_bytes_max=_output_bytes_max(ask)
        )

    # Ending

    async def _leave(self, execution: str, session: RunnerSession) -> None:
        """Closes a session in good order. The block's own work was done, so a failure here is only noted."""
        try:
            await session.close()
        except RotaError as error:
            log.warning("session was not closed in order", session_id=session.id, error=str(error))
            self._end(execution, session.job_id, cancel=True)
        except BaseException:
            self._end(execution, session.job_id, cancel=True)
            raise
        else:
            self._end(execution, session.job_id, cancel=False)

    def _end(self, execution: str, job_id: str | None, *, cancel: bool) -> None:
        """Frees the execution's gate once the job has ended."""
        if job_id is None:
            self._gates.free(execution)
            return
        self._gates.closing(execution)
        self._spawn(self._see_to_its_end(execution, job_id, cancel=cancel))

    async def _see_to_its_end(self, execution: str, job_id: str, *, cancel: bool) -> None:
        try:
            if cancel:
                await self._means.client.cancel(job_id)
            if await self._ended(job_id):
                return
            if not cancel:
                # Its runner has closed the session and did not say that the job is over.
                await self._means.client.cancel(job_id)
                if await self._ended(job_id):
                    return
            log.warning("job of a session has not ended in time", job_id=job_id)
        except JobNotFound:
            pass
        except SessionError as error:
            log.warning("job of a session may be open still", job_id=job_id, error=str(error))
        finally:
            self._gates.free(execution)

    async def _ended(self, job_id: str) -> bool:
        until = lease_clock() + END_S
        while (left_s := until - lease_clock()) > 0:
            if (await self._means.client.job(job_id, wait_s=max(1, int(left_s)))).ended:
                return True
        return False

    async def _cancel_unknown(self, body: dict[str, Any]) -> None:
        try:
            job = await self._means.client.create(body)
            await self._means.client.cancel(job.job_id)
        except RotaError as error:
            log.warning("job of a session may be there unasked", error=str(error))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _check(ask: SessionAsk) -> None:
    if ask.target not in TARGETS:
        raise GatewayRefused(f"{ask.target!r} is no target. Give {' or '.join(TARGETS)}.", code="bad_target")
    if not ask.tenant:
        raise GatewayRefused("A session belongs to an organisation. Give tenant=….", code="bad_org")


def _output_bytes_max(ask: SessionAsk) -> int:
    return ask.output_bytes_max or OUTPUT_BYTES.get(ask.job_type, OUTPUT_BYTES_OTHER)
