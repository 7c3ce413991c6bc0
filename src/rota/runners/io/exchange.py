"""Runs one replica of the gateway in an event loop: hands it what happens, and carries out what it says, in order.

Frames go to the sockets, questions and writes to the database, answers of ops to whoever waits for them. It holds no
rules: what a job's fate is, `rota.runners.gateway` and the statements say. Where the database does not answer, a runner
hears nothing that could be wrong: its own deadline counts, and the lease's.

Spec: runners, "Connection handshake and authentication", "Job lifecycle, leases and fencing".
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from itertools import count
from random import Random
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from rota.errors import DatabaseAway, ProtocolError
from rota.ids import JobId
from rota.io.backoff import Backoff
from rota.io.log import get_logger
from rota.lease import Lease
from rota.runners import gateway_events as events
from rota.runners import handshake
from rota.runners.codes import CloseCode
from rota.runners.frames import Frame, encode
from rota.runners.gateway import Gateway
from rota.runners.io.devices import Devices
from rota.runners.io.hellos import Hellos
from rota.runners.io.lanes import Gathered, Lanes
from rota.runners.io.store import RunnerStore
from rota.runners.matching import RunnerKind, Target, offered
from rota.runners.messages import DeviceAuth, Limits, Requires
from rota.runners.records import Assigned, AuditNote, Back, End, RunnerAsk, version_key

WRITE_S: Final = 60.0
"""How long a write about a lease is tried again: by then the lease has run out, and the reaper has seen to the job."""
AWAY_RETRY_S: Final = 5.0
"""What a runner is told to wait while the database does not answer."""

BATCH_MAX: Final = 500
"""Hellos, heartbeats and the like of one statement: some milliseconds of it."""
GATHER_S: Final = 0.02
"""How long a hello or a heartbeat waits for others, so that hundreds a second take fifty statements of each sort."""
CLAIMS_AT_ONCE: Final = 3
"""Claims for desktops that may be under way at once."""

log = get_logger("rota.gateway")

OpAnswer = events.AnswerOp | events.RefuseOp | events.SeekOp


class Link(Protocol):
    """Whoever hears for one runner. Neither may raise or wait."""

    def deliver(self, text: str) -> None:
        """Takes a frame for the runner."""

    def close(self, code: int, reason: str) -> None:
        """Closes the connection after what was delivered; `leave` follows."""


class Exchange:
    """The gateway, its clock, its runners and its database.

    Args:
        gateway: the rules.
        store, devices: the database.
        org_cap: slots of the pool that one organisation may hold; None: any number.
        clock: seconds that never step; None: the event loop's.
    """

    def __init__(
        self,
        gateway: Gateway,
        store: RunnerStore,
        devices: Devices,
        *,
        org_cap: int | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.gateway = gateway
        self.store = store
        self.devices = devices
        self._org_cap = org_cap
        self._instance = gateway.rules.instance
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time
        self._lanes = Lanes()
        self._numbers = count(1)
        self._asks = count(1)
        self._links: dict[int, Link] = {}
        self._shown: dict[str, bytes] = {}
        self._answers: dict[int, asyncio.Future[OpAnswer]] = {}
        self._hellos = Hellos(devices, store, instance=self._instance)
        # One statement of each sort at a time, so that a crowd leaves most of the connections to the database alone.
        self._greetings = Gathered(self._lanes, self._authenticate, most=BATCH_MAX, gather_s=GATHER_S)
        self._returns = Gathered(self._lanes, self._check_held, most=BATCH_MAX, gather_s=GATHER_S)
        self._renewals = Gathered(self._lanes, self._renew, most=BATCH_MAX, gather_s=GATHER_S)
        self._sightings = Gathered(self._lanes, self._seen, most=BATCH_MAX, gather_s=GATHER_S)
        self._announcements = Gathered(self._lanes, self._announce, most=BATCH_MAX, gather_s=GATHER_S)
        self._events: deque[events.Event] = deque()
        self._handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    # What happens

    def join(self, link: Link, host: str) -> int:
        """A runner's websocket was upgraded. Returns: its number, for all that comes on it."""
        number = next(self._numbers)
        self._links[number] = link
        self.happened(events.Opened(number, host))
        return number

    def say(self, connection: int, frame: Frame) -> None:
        """A runner said something."""
        self.happened(events.Received(connection, frame))

    def garble(
        self, connection: int, code: str, reason: str, *, of: str | None = None, job_id: str | None = None
    ) -> None:
        """A runner sent a frame that is no good, `of` this type."""
        self.happened(events.Garbled(connection, code, reason, of, job_id))

    def heard(self, connection: int) -> None:
        """Bytes came in, though perhaps no whole frame (S47)."""
        self.happened(events.Heard(connection))

    def leave(self, connection: int) -> None:
        """A connection is gone; safe to repeat."""
        if self._links.pop(connection, None) is not None:
            self.happened(events.Lost(connection))

    async def op(
        self, session_id: str, *, op_id: str | None, op: str, args: dict[str, Any], timeout_s: int | None
    ) -> OpAnswer:
        """Runs one op and waits for its answer. Whoever stops waiting does not stop the op."""
        ask = next(self._asks)
        answer: asyncio.Future[OpAnswer] = self._loop.create_future()
        self._answers[ask] = answer
        try:
            self.happened(events.OpAsked(ask, session_id, op_id, op, args, timeout_s))
            return await answer
        finally:
            del self._answers[ask]
            if answer.cancelled():
                self.happened(events.AskGone(ask))

    async def look_for_barred(self) -> None:
        """Ends the connections of who may not be connected any more: revoked devices, those of disabled organisations,
        and workers whose secret was replaced.

        Raises: DatabaseAway.
        """
        pooled, desktops = set[str](), dict[str, str | None]()
        for view in self.gateway.registry.runners():
            who = view.identity
            if who.kind == RunnerKind.DESKTOP:
                desktops[who.runner_id] = who.org_id
            else:
                pooled.add(who.runner_id)
        self._shown = {runner_id: digest for runner_id, digest in self._shown.items() if runner_id in pooled}
        if desktops:
            for device_id in sorted(await self.devices.revoked(desktops)):
                self.happened(events.Revoked(device_id))
            for org in await self.devices.disabled_orgs({org_id for org_id in desktops.values() if org_id is not None}):
                self.happened(events.Forbidden(org.org_id))
        if self._shown:
            ended = await self.devices.ended_credentials(set(self._shown.values()))
            for runner_id in sorted(name for name, digest in self._shown.items() if digest in ended):
                self.happened(events.Revoked(runner_id, "the pool's secret was replaced"))

    async def stop(self) -> None:
        """Says goodbye to all, and writes what is still to be written; safe to repeat."""
        self.happened(events.Stop("this gateway ends"))
        await self._lanes.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def happened(self, event: events.Event) -> None:
        """Handles one event, and those that its commands bring about at once."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                for command in self.gateway.handle(self._events.popleft(), self._clock(), time.time()):
                    self._do(command)
        finally:
            self._handling = False
        self._set_timer()

    def _set_timer(self) -> None:
        at = self.gateway.next_at()
        if at is None or (self._timer is not None and self._timer_at <= at):
            return  # a timer that is early finds nothing to do, and is set again
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_later(max(0.0, at - self._clock()), self._tick), at

    def _tick(self) -> None:
        self._timer = None
        self.happened(events.Tick())

    # What is to be done

    def _do(self, command: events.Command) -> None:
        match command:
            case events.Send(connection, frame):
                self._send(connection, frame)
            case events.Close(connection, code, reason):
                link = self._links.get(connection)
                if link is not None:
                    link.close(code, reason)
            case events.Authenticate() as hello:
                self._greetings.put(hello)
            case events.Announce() as announce:
                self._announcements.put(announce)
            case events.Seen() as seen:
                self._sightings.put(seen)
            case events.CheckHeld() as check:
                self._returns.put(check)
            case events.Claim() as claim:
                self._lanes.put(_claim_lane(claim), lambda: self._claim(claim))
            case events.Renew() as renew:
                self._renewals.put(renew)
            case events.AnswerOp() | events.RefuseOp() | events.SeekOp():
                answer = self._answers.get(command.ask)
                if answer is not None and not answer.done():
                    answer.set_result(command)
            case _:
                self._write(command)

    def _send(self, connection: int, frame: Frame) -> None:
        link = self._links.get(connection)
        if link is None:
            return
        try:
            link.deliver(encode(frame).decode())
        except ProtocolError as error:
            log.error("a message is too large to be sent", connection=connection, job_id=error.job_id, error=str(error))
            if frame.job_id is not None:  # a spec or arguments
                self.happened(events.Unsendable(frame.job_id, str(error)))

    async def _authenticate(self, asked: list[events.Authenticate]) -> None:
        found: Sequence[events.Verified | events.Refused]
        try:
            found = await self._hellos.check(asked, waits=self._links.__contains__)
        except DatabaseAway:
            reason = "this gateway's database does not answer; try again"
            found = [events.Refused(one.connection, CloseCode.GOING_AWAY, reason, AWAY_RETRY_S) for one in asked]
        for one, event in zip(asked, found, strict=True):
            auth = one.hello.auth
            if isinstance(event, events.Verified) and not isinstance(auth, DeviceAuth):
                self._shown[event.identity.runner_id] = handshake.credential_digest(auth.credential)
            if isinstance(event, events.Refused):
                log.info("runner refused", connection=event.connection, code=event.code, reason=event.reason)
            self.happened(event)

    async def _announce(self, known: list[events.Announce]) -> None:
        await self.store.announce([(one.runner_id, one.order) for one in known], instance=self._instance)

    async def _seen(self, seen: list[events.Seen]) -> None:
        desktops: dict[str, Any] = {}
        notes: list[AuditNote] = []
        for one in seen:
            runner_id, can = one.identity.runner_id, one.capabilities
            word = "runner left" if can is None else "runner connected"
            log.info(word, runner_id=runner_id, reason=one.reason)
            if can is not None and one.identity.kind == RunnerKind.DESKTOP:
                desktops[runner_id] = msgspec.to_builtins(can)
            detail = one.reason or (can.agent_version[:200] if can is not None else None)
            notes.append(AuditNote(one.identity.org_id, word, runner_id, detail=detail))
        if desktops:
            await self.devices.seen(desktops)
        await self.devices.note(notes)

    async def _check_held(self, checks: list[events.CheckHeld]) -> None:
        # What a runner held that has gone meanwhile may be at another replica already, and its ops with it.
        checks = [check for check in checks if check.connection in self._links]
        claims = [
            (check.identity.runner_id, lease)
            for check in checks
            for held in check.held
            if (lease := _plain(held)) is not None
        ]
        try:
            kept = await self.store.resume(claims, instance=self._instance)
        except DatabaseAway:
            for link in filter(None, (self._links.get(check.connection) for check in checks)):
                # It keeps its jobs, and comes again within its leases.
                link.close(CloseCode.GOING_AWAY, "this gateway's database does not answer; try again")
            return
        for check in checks:
            own = tuple(_job(one) for one in kept.get(check.identity.runner_id, ()))
            self.happened(events.Kept(check.connection, own))

    async def _claim(self, claim: events.Claim) -> None:
        ask = RunnerAsk(
            claim.identity.runner_id, claim.target, claim.org_id, offered(claim.capabilities),
            claim.capabilities.runtime_image_digest, version_key(claim.capabilities.fontset_version),
            claim.capabilities.max_output_bytes, claim.slots, tuple(UUID(job_id) for job_id in claim.without),
        )  # fmt: skip
        try:
            claimed = await self.store.claim(ask, instance=self._instance, org_cap=self._org_cap)
        except Exception as error:
            if not isinstance(error, DatabaseAway):
                log.exception("a claim failed", runner_id=claim.identity.runner_id)
            claimed = []
        self.happened(events.Claimed(claim.connection, tuple(_job(one) for one in claimed)))

    async def _renew(self, batch: list[events.Renew]) -> None:
        held: dict[Lease, str] = {}
        for ask in batch:
            link = self.gateway.registry.links.get(ask.connection)
            runner_id = "" if link is None or link.identity is None else link.identity.runner_id
            held |= {lease: runner_id for one in ask.leases if (lease := _plain(one)) is not None}
        try:
            renewed = await self.store.renew(held)
        except Exception as error:
            if not isinstance(error, DatabaseAway):
                log.exception("leases were not renewed")
            for ask in batch:
                self.happened(events.Renewed(ask.connection, None))
            return
        for ask in batch:
            ids = {lease: JobId(UUID(lease.job_id)) for lease in ask.leases}
            lost = tuple(lease for lease, job_id in ids.items() if job_id not in renewed)
            unknown = tuple(lease for lease, job_id in ids.items() if renewed.get(job_id, False) is None)
            self.happened(events.Renewed(ask.connection, lost, unknown))

    # Writes about leases

    def _write(self, command: Any) -> None:
        lease = _plain(command.lease)
        if lease is None:
            return
        write: Callable[[], Awaitable[Any]]
        match command:
            case events.StoreAccept():
                write = lambda: self.store.accept(lease)  # noqa: E731
            case events.Release(_, runner_id, reason):
                back = Back(lease, f"Declined: {reason}", rejected_by=runner_id or None)
                write = lambda: self.store.release([back])  # noqa: E731
            case events.NoteProgress(_, progress):
                said = {
                    "opId": progress.op_id, "stage": progress.stage, "percent": progress.percent,
                    "detail": progress.detail,
                }  # fmt: skip
                write = lambda: self.store.progress(lease, said)  # noqa: E731
            case events.Succeed(_, claims):
                text = None if claims is None else msgspec.json.encode(claims).decode()
                write = lambda: self.store.end([End(lease, "done", result=text)])  # noqa: E731
            case events.FailJob():
                end = End(
                    lease, "failed", command.message, failure_class=str(command.failure_class), code=command.code,
                    retryable=command.retryable, claimed_class=command.claimed_class or None,
                )  # fmt: skip
                write = lambda: self.store.end([end])  # noqa: E731
            case events.EndCancelled():
                write = lambda: self.store.end([End(lease, "cancelled", code="cancelled")])  # noqa: E731
            case events.Expire(_, reason):
                write = lambda: self.store.expire(lease, reason=reason)  # noqa: E731
            case _:
                raise AssertionError(f"a command without a hand: {command}")
        self._lanes.put(lease.job_id, lambda: self._written(command.lease, write))

    async def _written(self, lease: events.Lease, write: Callable[[], Awaitable[Any]]) -> None:
        give_up_at = self._loop.time() + WRITE_S
        backoff = Backoff(Random())  # noqa: S311 - jitter, not a secret
        while True:
            try:
                done = await write()
                break
            except DatabaseAway:
                if self._loop.time() >= give_up_at:
                    log.error("a job's step was not written", job_id=lease.job_id, epoch=lease.epoch)
                    return
                await asyncio.sleep(backoff.next_s())
        if not done:
            self.happened(events.LeaseLost(lease))


def _claim_lane(claim: events.Claim) -> Hashable:
    """Claims of the pool wait for each other in the database in any case, and would do so on connections of which
    heartbeats are in need."""
    return ("claim", claim.target if claim.target == Target.CLOUD_POOL else claim.connection % CLAIMS_AT_ONCE)


def _plain(lease: events.Lease) -> Lease | None:
    """The lease as the database knows it; None: no uuid, which nobody holds."""
    try:
        return Lease(JobId(UUID(lease.job_id)), lease.epoch)
    except ValueError:
        return None


def _job(one: Assigned) -> events.Job:
    return events.Job(
        events.Lease(str(one.lease.job_id), one.lease.epoch), str(one.session_id), one.org_id, one.target,
        one.job_type, one.tries, one.timeout_s,
        Limits(max_output_bytes=one.output_bytes_max, idle_timeout_sec=one.idle_s),
        Requires(runtime_image_digest=one.runtime_digest, fontset_version=one.fontset_version),
        dict(one.spec), one.one_shot, max(0.0, one.timeout_s - one.left_s), one.accepted, one.cancel_asked,
    )  # fmt: skip
