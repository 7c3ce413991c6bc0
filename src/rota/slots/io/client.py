"""The exec servers as one process sees them: their connections, its wants, and the calls that wait or run.

The rules are the cores': `Demand` says where wants are parked and which offer is taken, `Pool` what is dialled for each
address, `admission` how much may be claimed. This shell moves messages between them and the sockets.

While nothing waits, nothing is sent but pings (I8).

Spec: slot broker, "The slot broker", "Job data and streams", "Replicas behind one address".
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final, assert_never
from uuid import uuid4

from msgspec import structs

from rota.commands import CALLS_TOLD, Call, CallInLine, KindShare, Place, Standing
from rota.errors import ExecLost, ExecRefused, NoSlot, ProtocolError
from rota.io.clock import lease_clock
from rota.io.log import get_logger
from rota.slots import admission
from rota.slots import demand as demands
from rota.slots import pool as pools
from rota.slots.address import Address
from rota.slots.admission import Instance
from rota.slots.asks import asks_of
from rota.slots.demand import Demand
from rota.slots.io.exec_run import ExecRun, check_stdin, chunks_of
from rota.slots.io.legacy_client import LegacyLink
from rota.slots.io.links import Link, NoBroker, SocketLink
from rota.slots.io.pipes import PipeError, Pipes
from rota.slots.load import Load
from rota.slots.messages import (
    Decline,
    Done,
    EndedBy,
    Error,
    Hello,
    Job,
    Offer,
    Overview,
    Position,
    Progress,
    Queued,
    Receipt,
    ServerMessage,
    encode,
)  # fmt: skip
from rota.slots.pool import Pool
from rota.tallies import ExecTally

POSITION_WAIT_S: Final = 2.0
"""How long exec servers may take to tell a place in line."""
NO_SLOT_WAIT_S: Final = 60.0
"""The seed: a job that found no slot starts again a minute later at the earliest."""
CROWDED_WAIT_S: Final = 5.0
"""How long a job waits that found a slot, but too many streams open in its own process."""
LOG_EVERY: Final = 10
"""Of dials that fail in a row, one in so many is logged."""

log = get_logger("rota.exec")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What a client can be told; see `rota.settings.Settings` for each."""

    addresses: tuple[Address, ...]
    token: str | None = None
    tls: ssl.SSLContext | None = None
    wait_s: float = 120.0
    pipe_host: str | None = None
    pipe_port: int = 0
    connections_max: int = pools.CONNECTIONS_MAX


@dataclass(slots=True)
class _Site:
    """One address: its policy and its connections."""

    number: int
    address: Address
    pool: Pool
    links: dict[int, SocketLink] = field(default_factory=dict)
    legacy: LegacyLink | None = None
    error: str | None = None
    """Why it could not be reached when that was last tried."""
    failures: int = 0
    broken: int = 0
    """Connections that broke after their greeting and have not been made again."""


class SlotClient:
    """Implements `rota.commands.ExecServers`.

    `start` and `stop` may be called twice and in any order; all is done in the loop that `start` is called in.

    Args:
        options: where the exec servers are, and how to speak to them.
        random: for the jitter of waits.
    """

    def __init__(self, options: ClientOptions, *, random: Random | None = None) -> None:
        self._options = options
        self._random = random or Random()  # noqa: S311 - jitter
        self._demand = Demand()
        self._load = Load()
        self._sites = [
            _Site(number, address, Pool(self._random, connections_max=options.connections_max))
            for number, address in enumerate(options.addresses)
        ]
        self._links: dict[int, Link] = {}
        self._hellos: dict[int, Hello] = {}
        self._runs: dict[str, ExecRun] = {}
        self._places: dict[str, _Poll] = {}
        self._pipes: dict[str, Pipes] = {}
        self._watchers: list[Callable[[], None]] = []
        self._tally = ExecTally()
        self._wake = asyncio.Event()
        self._tick_at: float | None = None
        self._ended_links: list[LegacyLink] = []
        self._opening: set[asyncio.Task[None]] = set()
        """Pipes for exec servers of the older protocol, which are being opened."""
        self._numbers = 0
        self._ticking: asyncio.Task[None] | None = None

    # Life

    def start(self) -> None:
        """Connects to every address, and goes on doing so; safe to repeat."""
        if self._ticking is not None:
            return
        self._ticking = asyncio.get_running_loop().create_task(self._tick())
        for site in self._sites:
            self._tell_pool(site, pools.Started())

    async def stop(self) -> None:
        """Ends all calls and closes all connections."""
        ticking, self._ticking = self._ticking, None
        if ticking is None:
            return
        ticking.cancel()
        for run in list(self._runs.values()):
            self._tell(demands.Withdrawn(run.job_id))
            run.fail(ExecLost(f"{run.call.service} was given up: this program stops."))
        # What was said last goes out before the sockets close.
        await asyncio.sleep(0)
        links: list[SocketLink | LegacyLink] = [link for site in self._sites for link in site.links.values()]
        links += [site.legacy for site in self._sites if site.legacy is not None] + self._ended_links
        for link in links:
            link.close()
        await asyncio.gather(*(link.closed() for link in links))
        for opening in self._opening:
            opening.cancel()
        if self._opening:
            await asyncio.wait(set(self._opening))
        for pipes in self._pipes.values():
            await pipes.stop()
        self._pipes.clear()
        self._links.clear()
        self._hellos.clear()
        for site in self._sites:
            site.links.clear()
            site.legacy = None
            site.pool = Pool(self._random, connections_max=self._options.connections_max)
        self._demand = Demand()
        # It may be started again in another event loop.
        self._wake, self._tick_at = asyncio.Event(), None

    # Calls

    @asynccontextmanager
    async def exec(self, call: Call) -> AsyncIterator[ExecRun]:
        """Asks for a slot for the call; see `rota.commands.Commands`.

        Raises: ExecRefused for a call that no exec server could take.
        """
        check_stdin(call.stdin)
        want, work = asks_of(call, self._new_id(call.name))
        self.start()
        run = ExecRun(call, want.job_id, work, stop=self._stop_run, locate=self._locate)
        wait_s = self._options.wait_s if call.wait_s is None else call.wait_s
        self._runs[run.job_id] = run
        try:
            now = lease_clock()
            self._tell(demands.Wanted(want, now + wait_s))
            self._tick_by(now + min(wait_s, pools.TICK_S))
            yield run
            await run.finish()
        finally:
            if not run.has_ended:
                self._tell(demands.Withdrawn(run.job_id))
            del self._runs[run.job_id]
            await run.close()

    def _new_id(self, name: str | None) -> str:
        if name is None:
            return uuid4().hex
        # One job makes several calls; the id says whose it is, and nobody else can guess it.
        return f"{name}.{uuid4().hex[:16]}"

    def _stop_run(self, job_id: str) -> None:
        self._tell(demands.Stopped(job_id))
        run = self._runs[job_id]
        if self._demand.placed_on(job_id) is None and not run.has_ended:
            run.settle(Receipt(ended_by=EndedBy.CANCELLED, error="It was cancelled before it had a slot."))

    def _locate(self, job_id: str) -> "asyncio.Future[Place | None]":
        poll = self._places.get(job_id)
        if poll is None:
            poll = self._places[job_id] = _Poll(asyncio.get_running_loop().create_future())
            poll.missing = self._tell(demands.Asked(job_id))
            poll.future.add_done_callback(lambda _: self._places.pop(job_id, None))
            if poll.missing == 0:
                poll.future.set_result(None)
            else:
                asyncio.get_running_loop().call_later(POSITION_WAIT_S, poll.close)
        return poll.future

    # What a worker asks

    def instances(self) -> list[Instance]:
        """The exec servers that are connected, each once."""
        found = {
            hello.instance_id: Instance(
                hello.instance_id, hello.services, hello.waitgroups, hello.clients, hello.draining
            )
            for hello in self._hellos.values()
        }
        return [found[name] for name in sorted(found)]

    def room(self, kind: str, *, services: Mapping[str, Sequence[str]], running: Mapping[str, int]) -> int:
        """How many more jobs of an exec-bound kind may be claimed now; see `rota.slots.admission`.

        Who asks wants to be connected, so it connects.
        """
        self.start()
        polled = sum(site.pool.polled for site in self._sites)
        return admission.room(kind, services=services, running=running, instances=self.instances(), legacy=polled)

    def watch(self, changed: Callable[[], None]) -> None:
        """Calls `changed` when `room` may answer otherwise."""
        self._watchers.append(changed)

    def standing(self, services: Mapping[str, Sequence[str]]) -> Standing:
        """How things stand, for people; see `rota.commands.ExecServers`."""
        instances = self.instances()
        polled = sum(site.pool.polled for site in self._sites)
        kinds = {
            kind: KindShare(
                tuple(needed), admission.pool_of(needed, instances),
                min((admission.share(service, instances, legacy=polled) for service in needed), default=0),
                admission.slots_of(needed, instances),
            )
            for kind, needed in services.items()
        }  # fmt: skip
        ours = [run for run in self._runs.values() if run.call.name is not None and not run.has_ended][:CALLS_TOLD]
        parked = sorted(self._demand.parked().items())
        wanted = sorted({service for share in kinds.values() for service in share.pool})
        times = {service: known for service in wanted if (known := self._load.range_s(service)) is not None}
        return Standing(
            len(instances) + polled, kinds, tuple(self._in_line(run) for run in ours),
            tuple((service, priority, count) for (service, priority), count in parked), times,
        )  # fmt: skip

    def _in_line(self, run: ExecRun) -> CallInLine:
        runs = self._demand.placed_on(run.job_id) is not None
        if not runs and run.job_id not in self._places:
            # What is heard of it is told the next time.
            self._locate(run.job_id).add_done_callback(lambda told: _note_place(run, told))
        call = run.call
        return CallInLine(
            call.name or "", call.service, call.priority, lease_clock() - run.wanted_at,
            None if runs else run.place_told, runs,
        )  # fmt: skip

    def tally(self) -> ExecTally:
        """What was counted so far, and how things stand."""
        told, waiting = ExecTally(), len(self._demand.waiting())
        told.add(self._tally)
        told.connections = {
            site.address.shown: sum(link.number in self._hellos for link in site.links.values()) for site in self._sites
        }
        told.parked, told.running = waiting, len(self._demand) - waiting
        return told

    # The cores

    def _tell(self, event: demands.Event) -> int:
        """Hands an event to the demand and does what it says. Returns: how many commands there were."""
        commands = self._demand.handle(event, lease_clock())
        for command in commands:
            match command:
                case demands.Send(connection, message):
                    if isinstance(event, demands.Offered) and isinstance(message, Decline):
                        self._count_offer("surplus")
                    if (link := self._links.get(connection)) is not None:
                        link.send(encode(message))
                case demands.Place(connection, job_id):
                    self._count_offer("taken")
                    self._tally.grant.observe((lease_clock() - self._runs[job_id].wanted_at,))
                    self._place(self._links[connection], self._runs[job_id])
                case demands.Return(job_id):
                    self._runs[job_id].take_back()
                case demands.Settle(job_id, receipt):
                    run = self._runs[job_id]
                    self._load.observe(run.call.service, receipt.ended_by, receipt.duration_s)
                    run.settle(receipt)
                case demands.Lose(job_id):
                    run = self._runs[job_id]
                    run.fail(ExecLost(f"The connection to the exec server broke while {run.call.service} ran."))
                case demands.Refuse(job_id, _, words):
                    run = self._runs[job_id]
                    run.fail(ExecRefused(f"{run.call.service} was not run: {words}"))
                case demands.GiveUp(job_id, offered):
                    self._tally.no_slot += 1
                    self._runs[job_id].fail(self._no_slot(self._runs[job_id].call, offered=offered))
                case _:
                    assert_never(command)
        return len(commands)

    def _count_offer(self, answer: str) -> None:
        self._tally.offers[answer] = self._tally.offers.get(answer, 0) + 1

    def _no_slot(self, call: Call, *, offered: bool) -> NoSlot:
        wait_s = self._options.wait_s if call.wait_s is None else call.wait_s
        taken = f"every slot for {call.service} was taken for {wait_s:g} s"
        why = taken if offered else self.hindrance(call.service) or taken
        return NoSlot(f"No slot came in time: {why}.", after_s=NO_SLOT_WAIT_S)

    def hindrance(self, service: str) -> str | None:
        """Why nothing that is connected now could run a service, in words; None: something offers it."""
        if self._demand.offers(service):
            return None
        if self._hellos:
            known = sorted({name for hello in self._hellos.values() for name in hello.services})
            return f"no exec server that is connected offers {service} (they offer {', '.join(known) or 'nothing'})"
        shown = "; ".join(
            site.address.shown + ("" if site.error is None else f": {site.error}") for site in self._sites
        )
        return f"no exec server is connected ({shown})"

    def _place(self, link: Link, run: ExecRun) -> None:
        call, pipes = run.call, self._pipes[self._bind_host(link)]
        try:
            source = None if call.stdin is None else pipes.source(chunks_of(call.stdin, moved=call.moved))
            sink = pipes.sink() if call.output else None
        except PipeError as error:
            run.fail(NoSlot(str(error), after_s=CROWDED_WAIT_S))
            self._tell(demands.Unsendable(run.job_id, str(error)))
            return
        run.place(source, sink)
        seen_at = self._options.pipe_host or link.local_host
        stdin, stdout = (None if pipe is None else pipe.url(seen_at) for pipe in (source, sink))
        work = structs.replace(run.work, stdin=stdin, stdout=stdout)
        try:
            frame = encode(Job(run.job_id, work), frame_bytes_max=link.frame_bytes_max)
        except ProtocolError as error:
            self._tell(demands.Unsendable(run.job_id, str(error)))
            return
        link.send(frame)
        call.moved()

    def _bind_host(self, link: Link) -> str:
        """Where the pipes listen: on the one address that the exec server sees, or everywhere behind a NAT."""
        return "0.0.0.0" if self._options.pipe_host else link.local_host  # noqa: S104 - asked for by pipe_host

    def _tell_pool(self, site: _Site, event: pools.Event) -> None:
        for command in site.pool.handle(event, lease_clock()):
            match command:
                case pools.Dial():
                    self._dial(site, command.connection)
                case pools.Close(connection, _):
                    self._forget(site, connection).close()
                case pools.Poll(on):
                    self._poll(site, on=on)
                case _:
                    assert_never(command)
        if site.pool.due_at is not None:
            self._tick_by(site.pool.due_at)

    # Connections

    def _dial(self, site: _Site, pool_number: int) -> None:
        self._numbers += 1
        number = self._numbers

        async def heard(link: SocketLink, message: ServerMessage) -> None:
            await self._on_message(site, pool_number, link, message)

        def ended(link: SocketLink, how: str | NoBroker) -> None:
            self._on_ended(site, pool_number, link, how)

        site.links[pool_number] = SocketLink(
            number, site.address, token=self._options.token, tls=self._options.tls, heard=heard, ended=ended
        )

    def _forget(self, site: _Site, pool_number: int) -> SocketLink:
        link = site.links.pop(pool_number)
        self._links.pop(link.number, None)
        if self._hellos.pop(link.number, None) is not None:
            self._tell(demands.Dropped(link.number))
            self._changed()
        return link

    def _on_ended(self, site: _Site, pool_number: int, link: SocketLink, how: str | NoBroker) -> None:
        was = self._hellos.get(link.number)
        self._forget(site, pool_number)
        if isinstance(how, NoBroker):
            self._tell_pool(site, pools.FoundNoBroker(pool_number))
            return
        if was is not None:
            log.warning(
                "exec server gone", address=site.address.shown, instance=was.instance_id, error=how
            )  # fmt: skip
        elif site.failures % LOG_EVERY == 0:
            log.warning("exec server cannot be reached; trying again", address=site.address.shown, error=how)
        site.failures += 1
        site.error = how
        site.broken += was is not None
        self._tell_pool(site, pools.Dropped(pool_number))

    async def _on_message(self, site: _Site, pool_number: int, link: SocketLink, message: ServerMessage) -> None:
        if isinstance(message, Hello):
            await self._on_hello(site, pool_number, link, message)
        else:
            self._hear(link.number, message)

    def _hear(self, connection: int, message: ServerMessage) -> None:
        match message:
            case Offer(job_id):
                self._tell(demands.Offered(connection, job_id))
            case Done(job_id, receipt):
                self._tell(demands.Ended(connection, job_id, receipt))
            case Progress(job_id):
                if (run := self._runs.get(job_id)) is not None:
                    run.call.moved()
            case Position(job_id):
                if (poll := self._places.get(job_id)) is not None:
                    poll.take(Place(message.ahead, message.running, message.eta_low_s, message.eta_high_s))
            case Error(code, words, job_id):
                if job_id is None:
                    log.warning("exec server refused a frame", code=code, error=words)
                else:
                    self._tell(demands.Refused(connection, job_id, code, words))
            case Hello() | Queued() | Overview():
                pass
            case _:
                assert_never(message)

    async def _on_hello(self, site: _Site, pool_number: int, link: SocketLink, hello: Hello) -> None:
        if link.number not in self._hellos:
            await self._open_pipes(self._bind_host(link))
        if site.links.get(pool_number) is not link:
            return
        self._tell_pool(site, pools.Greeted(pool_number, hello.instance_id, hello.draining))
        if site.links.get(pool_number) is not link:
            return
        first = link.number not in self._hellos
        self._hellos[link.number], self._links[link.number] = hello, link
        if first:
            site.failures, site.error = 0, None
            if site.broken:
                site.broken -= 1
                shown = site.address.shown
                self._tally.reconnects[shown] = self._tally.reconnects.get(shown, 0) + 1
            log.info("exec server connected", address=site.address.shown, instance=hello.instance_id)
        self._tell(
            demands.Announced(
                link.number, site.number, frozenset(hello.services), draining=hello.draining, only=site.address.service
            )
        )
        self._changed()

    async def _open_pipes(self, host: str) -> None:
        if host not in self._pipes:
            pipes = Pipes(host, self._options.pipe_port)
            await pipes.start()
            if host in self._pipes:
                await pipes.stop()
            else:
                self._pipes[host] = pipes

    def _poll(self, site: _Site, *, on: bool) -> None:
        """Uses an address in the older way, or stops to."""
        log.warning("exec server has no broker", address=site.address.shown, polled=on)
        legacy, site.legacy = site.legacy, None
        if legacy is not None:
            self._links.pop(legacy.number, None)
            self._tell(demands.Dropped(legacy.number))
            legacy.close()
            self._ended_links = [*(link for link in self._ended_links if not link.over), legacy]
        if on:
            self._numbers += 1
            number = self._numbers
            site.legacy = LegacyLink(
                number,
                site.address,
                token=self._options.token,
                tls=self._options.tls,
                heard=lambda said: self._hear(number, said),
            )
            opening = asyncio.get_running_loop().create_task(self._announce_legacy(site, site.legacy))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
        self._changed()

    async def _announce_legacy(self, site: _Site, link: LegacyLink) -> None:
        await self._open_pipes(self._bind_host(link))
        if site.legacy is link:
            self._links[link.number] = link
            self._tell(demands.Announced(link.number, site.number, None, only=site.address.service))

    def _changed(self) -> None:
        for changed in self._watchers:
            changed()

    # Time

    async def _tick(self) -> None:
        """Ticks while something waits or is due; otherwise sleeps until something happens."""
        while True:
            left_s = None if self._tick_at is None else self._tick_at - lease_clock()
            if left_s is None or left_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._wake.wait()
                self._wake.clear()
                continue
            self._tick_at = None
            try:
                self._tick_now()
            except Exception:
                log.exception("a tick of the exec calls failed; the next one follows")
                self._tick_by(lease_clock() + pools.TICK_S)

    def _tick_now(self) -> None:
        for job_id in self._demand.waiting():
            # The wait is limited, so it counts as going on: a lease does not run out in line.
            self._runs[job_id].call.moved()
        self._tell(demands.Ticked())
        for site in self._sites:
            self._tell_pool(site, pools.Ticked(self._demand.waiting_since(site.number)))
        if self._demand.waiting():
            next_at = lease_clock() + pools.TICK_S
            self._tick_by(next_at if self._demand.due_at is None else min(self._demand.due_at, next_at))

    def _tick_by(self, at: float) -> None:
        if self._tick_at is None or at < self._tick_at:
            self._tick_at = at
            self._wake.set()


def _note_place(run: ExecRun, told: "asyncio.Future[Place | None]") -> None:
    if not told.cancelled():
        run.place_told = told.result()


@dataclass(slots=True)
class _Poll:
    """One question for a place in line, to several exec servers."""

    future: "asyncio.Future[Place | None]"
    missing: int = 0
    best: Place | None = None

    def take(self, place: Place) -> None:
        """One answer; the least counts."""
        if self.best is None or place.ahead < self.best.ahead:
            self.best = place
        self.missing -= 1
        if self.missing <= 0:
            self.close()

    def close(self) -> None:
        """No more answers."""
        if not self.future.done():
            self.future.set_result(self.best)
