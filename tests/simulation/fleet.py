"""Fleets in virtual time: clients and exec servers with their real rules, and a network that is as bad as it gets.

The cores are the program's own: `Broker` on one side, `Demand` and `Pool` on the other. What is simulated is what lies
between: balancers, links that are slow, cut or half open, exec servers that crash, drain and come back, commands and
how long they take. One seed gives one history.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from rota.slots import demand as demands
from rota.slots import pool as pools
from rota.slots.broker import Broker
from rota.slots.demand import Demand
from rota.slots.events import Begin, Close, Connected, Deal, Drain, Dropped, Ended, Kill, Redeclared, Said, Send, Tick
from rota.slots.load import Load
from rota.slots.messages import Done, Error, Hello, Job, Offer, Query, Receipt, Want, Work
from rota.slots.pool import Pool
from rota.slots.rules import Rules

NOTICED_S: Final = 20.0
"""How long a half-open link may stay unnoticed: a ping's interval and its timeout."""
FAULTS_UNTIL_S: Final = 300.0
LIMIT_S: Final = 4000.0
"""By then all calls must have ended; the last fault is over by `FAULTS_UNTIL_S`."""
IDLE_S: Final = 600.0
SERVICES: Final = ("cut", "mix")


@dataclass(slots=True)
class Time:
    """The clock and the events to come; those of one moment happen in the order in which they were planned."""

    now: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _planned: int = 0

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        """Plans an event."""
        self._planned += 1
        heapq.heappush(self._events, (self.now + max(0.0, delay_s), self._planned, event))

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Lets time pass until then, or until it is done."""
        while self._events and self._events[0][0] <= until and not done():
            self.now, _, event = heapq.heappop(self._events)
            event()
        if not done():
            self.now = until


class Link:
    """One connection: frames arrive in order, after a while, or never."""

    def __init__(self, fleet: "Fleet", client: "Client", server: "Server") -> None:
        self.fleet, self.client, self.server = fleet, client, server
        self.delay_s = fleet.random.choice([0.001, 0.001, 0.02, 0.8])
        self.up = True  # frames go through
        self.to_client: deque[Any] = deque()
        self.to_server: deque[Any] = deque()
        self.number_there = 0  # the server's number of it, once it is connected
        self.address = 0
        self.pool_number = 0
        self.number_here = 0
        self.closed_here = self.closed_there = False

    def send(self, message: Any, *, to_client: bool) -> None:
        if not self.up:
            return
        self.fleet.frames += 1
        if isinstance(message, Offer | Job | Done) and self.fleet.strikes():
            # The moments that matter: between a slot and its offer, an offer and its job, an end and its receipt.
            half_open = self.fleet.random.random() < 0.5
            self.cut(noticed_after_s=lambda: self.fleet.random.uniform(0, NOTICED_S if half_open else 0.1))
            return
        queue = self.to_client if to_client else self.to_server
        queue.append(message)
        self.fleet.time.after(self.delay_s, lambda: self._arrive(to_client=to_client))

    def _arrive(self, *, to_client: bool) -> None:
        queue = self.to_client if to_client else self.to_server
        if not queue:
            return
        message = queue.popleft()
        if to_client and not self.closed_here:
            self.client.hear(self, message)
        elif not to_client and not self.closed_there:
            self.server.happens(Said(self.number_there, message))

    def close(self) -> None:
        """The client ends it in good order: what it said before still arrives."""
        self.closed_here = True
        self.fleet.time.after(self.delay_s, self.end_there)

    def close_there(self) -> None:
        """The server ends it in good order: what it said before still arrives."""
        self.closed_there = True
        self.fleet.time.after(self.delay_s, self.end_here)

    def cut(self, *, noticed_after_s: Callable[[], float]) -> None:
        """Nothing goes through any more. Each side notices by itself."""
        self.up = False
        self.to_client.clear()
        self.to_server.clear()
        self.fleet.time.after(noticed_after_s(), self.end_here)
        self.fleet.time.after(noticed_after_s(), self.end_there)

    def end_here(self) -> None:
        if not self.closed_here:
            self.closed_here = True
            self.client.lost(self)

    def end_there(self) -> None:
        if not self.closed_there:
            self.closed_there = True
            self.up = False
            self.server.lost(self)


class Server:
    """An exec server: one start of it."""

    def __init__(self, fleet: "Fleet", name: str, rules: Rules) -> None:
        self.fleet, self.name = fleet, name
        self.broker = Broker(rules, Load(learns=fleet.learns))
        self.links: dict[int, Link] = {}
        self.alive: dict[str, int] = {}  # the commands with live processes, and which start of theirs
        self.killed: set[str] = set()
        self.up = True
        self.in_use = 0  # after the last event
        self.declared = rules  # as it was started
        self._numbers = 0
        self._tick_at: float | None = None

    def accept(self, link: Link) -> None:
        self._numbers += 1
        link.number_there = self._numbers
        self.links[self._numbers] = link
        self.happens(Connected(self._numbers, weight=self.fleet.random.choice([1, 1, 3])))

    def lost(self, link: Link) -> None:
        if self.up and self.links.pop(link.number_there, None) is not None:
            self.happens(Dropped(link.number_there))

    def happens(self, event: Any) -> None:
        if not self.up:
            return
        checks = self.fleet.checks
        expected = checks.before(self, event)
        commands = self.broker.handle(event, self.fleet.time.now)
        for command in commands:
            match command:
                case Send(client, message) | Deal(client, message):
                    self._deliver(client, message)
                case Begin(job_id, service):
                    self._begin(job_id, service)
                case Kill(job_id):
                    self.killed.add(job_id)
                    self._dies(job_id, self.fleet.random.uniform(0, 2), "cancelled")
                case Close(client):
                    self.links[client].cut(noticed_after_s=lambda: 0.01)
        checks.after(self, event, commands, expected)
        at = self.broker.next_at()
        if at is not None and (self._tick_at is None or at < self._tick_at):
            self._tick_at = at
            self.fleet.time.after(at - self.fleet.time.now, self._tick)

    def _tick(self) -> None:
        self._tick_at = None
        self.happens(Tick())

    def _deliver(self, client: int, message: Any) -> None:
        link = self.links.get(client)
        if link is not None:
            link.send(message, to_client=True)

    def _begin(self, job_id: str, service: str) -> None:
        self.fleet.checks.begins(self, job_id)
        self.fleet.starts += 1
        self.alive[job_id] = self.fleet.starts
        roll = self.fleet.random.random()
        if roll < 0.03:
            self._dies(job_id, 0.0, "refused")
        else:
            mean_s = 2.0 if service == "cut" else 0.3
            self._dies(job_id, self.fleet.random.expovariate(1 / mean_s), "exit")

    def _dies(self, job_id: str, delay_s: float, ended_by: str) -> None:
        start = self.alive.get(job_id)

        def dead() -> None:
            if start is not None and self.alive.get(job_id) == start:
                del self.alive[job_id]
                receipt = Receipt(
                    ended_by=ended_by, exit=0 if ended_by == "exit" else None, retryable=ended_by != "exit"
                )
                self.happens(Ended(job_id, receipt))

        self.fleet.time.after(delay_s, dead)

    def crash(self) -> None:
        """It is gone, and its commands with it. Clients notice at once, or only by their pings."""
        self.up = False
        self.alive.clear()
        half_open = self.fleet.random.random() < 0.3
        for link in list(self.links.values()):
            link.cut(noticed_after_s=lambda: self.fleet.random.uniform(0, NOTICED_S if half_open else 0.05))
        self.links.clear()
        self.fleet.gone(self)

    def redeclare(self) -> None:
        """It is told of other slots, and perhaps of fewer services; after a while of the first again."""
        random = self.fleet.random
        services = self.declared.services
        if random.random() < 0.3:
            services = {name: services[name] for name in sorted(services)[:1]}
        slots = random.choice([1, 2, 5])
        self.happens(Redeclared(replace(self.declared, services=services, waitgroups={"cpu": slots})))
        self.fleet.time.after(random.uniform(0.5, 30), lambda: self.happens(Redeclared(self.declared)))

    def drain(self) -> None:
        """It ends in good order: a while for what runs, then the rest is handed back."""
        self.happens(Drain())
        self.fleet.time.after(self.fleet.random.uniform(1, 10), self._stop)

    def _stop(self) -> None:
        if not self.up:
            return
        for job_id in list(self.alive):
            del self.alive[job_id]
            self.happens(Ended(job_id, Receipt(ended_by="stopped", retryable=True)))
        self.up = False
        for link in list(self.links.values()):
            link.close_there()
        self.links.clear()
        self.fleet.gone(self)


@dataclass(slots=True)
class Call:
    """What somebody at a client wants done, however many tries it takes."""

    service: str
    priority: int
    tries: int = 0


class Client:
    """A worker process: its demand, a pool for each address, and calls that come at random."""

    def __init__(self, fleet: "Fleet", name: str, addresses: int) -> None:
        self.fleet, self.name = fleet, name
        self.demand = Demand()
        self.pools = [Pool(fleet.random) for _ in range(addresses)]
        self.links: dict[int, Link] = {}  # those that were greeted, by their number here
        self.dialled: dict[tuple[int, int], Link] = {}
        self.calls: dict[str, Call] = {}
        self.done = 0
        self._numbers = 0
        self._tick_at: float | None = None
        for address in range(addresses):
            self._tell_pool(address, pools.Started())

    def wants(self, call: Call) -> None:
        call.tries += 1
        self._numbers += 1
        job_id = f"{self.name}.{self._numbers}"
        self.calls[job_id] = call
        self._tell(demands.Wanted(Want(job_id, call.service, call.priority)))
        self._tick_by(self.fleet.time.now + pools.TICK_S)

    def withdraws(self) -> None:
        """Somebody gives up: a call is over without having run, or its command is stopped."""
        if self.calls:
            job_id = self.fleet.random.choice(sorted(self.calls))
            del self.calls[job_id]
            self.done += 1
            self._tell(demands.Withdrawn(job_id))

    def hear(self, link: Link, message: Any) -> None:
        match message:
            case Hello():
                self._greeted(link, message)
            case Offer(job_id):
                self._tell(demands.Offered(link.number_here, job_id))
            case Done(job_id, receipt):
                self._tell(demands.Ended(link.number_here, job_id, receipt))
            case Error(code, words, job_id) if job_id is not None:
                self._tell(demands.Refused(link.number_here, job_id, code, words))

    def lost(self, link: Link) -> None:
        self._forget(link)
        self._tell_pool(link.address, pools.Dropped(link.pool_number))

    def _greeted(self, link: Link, hello: Hello) -> None:
        self._tell_pool(link.address, pools.Greeted(link.pool_number, hello.instance_id, hello.draining))
        if link.closed_here:
            return
        self.links[link.number_here] = link
        self.fleet.told[id(link)] = hello.clients
        self._tell(
            demands.Announced(link.number_here, link.address, frozenset(hello.services), draining=hello.draining)
        )

    def _forget(self, link: Link) -> None:
        self.dialled.pop((link.address, link.pool_number), None)
        if self.links.pop(link.number_here, None) is not None:
            self._tell(demands.Dropped(link.number_here))

    def _tell_pool(self, address: int, event: Any) -> None:
        pool = self.pools[address]
        for command in pool.handle(event, self.fleet.time.now):
            match command:
                case pools.Dial(connection):
                    self._dial(address, connection)
                case pools.Close(connection):
                    link = self.dialled[address, connection]
                    self._forget(link)
                    link.close()
        if pool.due_at is not None:
            self._tick_by(pool.due_at)

    def _dial(self, address: int, pool_number: int) -> None:
        self.fleet.dials += 1
        server = self.fleet.balance(address)
        if server is None:
            self.fleet.time.after(0.05, lambda: self._tell_pool(address, pools.Dropped(pool_number)))
            return
        link = Link(self.fleet, self, server)
        self._numbers += 1
        link.address, link.pool_number, link.number_here = address, pool_number, self._numbers
        self.dialled[address, pool_number] = link
        self.fleet.links.append(link)

        def arrives() -> None:
            if server.up and not link.closed_there:
                server.accept(link)
            else:
                link.end_here()

        self.fleet.time.after(link.delay_s, arrives)

    def _tell(self, event: Any) -> None:
        for command in self.demand.handle(event, self.fleet.time.now):
            match command:
                case demands.Send(connection, message):
                    if connection in self.links:
                        self.links[connection].send(message, to_client=False)
                case demands.Place(connection, job_id):
                    self.links[connection].send(Job(job_id, Work()), to_client=False)
                case demands.Settle(job_id, receipt):
                    call = self.calls.pop(job_id, None)
                    if call is not None and receipt.retryable:
                        self.fleet.time.after(1.0, lambda call=call: self.wants(call))
                        self.fleet.retries += 1
                    else:
                        self.done += call is not None
                case demands.Lose(job_id) | demands.Refuse(job_id):
                    call = self.calls.pop(job_id)
                    self.fleet.retries += 1
                    self.fleet.time.after(1.0, lambda call=call: self.wants(call))

    def _tick_by(self, at: float) -> None:
        if self._tick_at is None or at < self._tick_at:
            self._tick_at = at
            self.fleet.time.after(at - self.fleet.time.now, self._tick)

    def _tick(self) -> None:
        if self._tick_at is None or self._tick_at > self.fleet.time.now:
            return
        self._tick_at = None
        self._tell(demands.Ticked())
        for address in range(len(self.pools)):
            self._tell_pool(address, pools.Ticked(self.demand.waiting_since(address)))
        if self.demand.waiting():
            self._tick_by(self.fleet.time.now + pools.TICK_S)


class Fleet:
    """One history."""

    def __init__(self, seed: int, checks: Any) -> None:
        self.random = random = Random(seed)
        self.time = Time()
        self.checks = checks
        self.frames = self.dials = self.starts = self.retries = self.faults = 0
        self.learns = random.random() < 0.3
        self.links: list[Link] = []
        self.told: dict[int, int] = {}  # clients, by the newest HELLO of each link
        self._starts_of = 0
        self.strike_share = random.choice([0.0, 0.01, 0.05])
        self.floor = random.choice([None, None, 3])
        self.weight_max = random.choice([1, 1, 3])
        # Behind each address stand one or more exec servers; not all offer everything.
        self.addresses: list[list[Server]] = []
        for _ in range(random.choice([1, 1, 2])):
            count = random.choice([1, 2, 3])
            self.addresses.append(
                [self._server(SERVICES if n == 0 else random.choice([SERVICES, SERVICES[:1]])) for n in range(count)]
            )
        self._turns = [0] * len(self.addresses)
        self.clients = [Client(self, f"c{number}", len(self.addresses)) for number in range(random.randint(1, 5))]
        self.calls = 0
        for client in self.clients:
            for _ in range(random.randint(5, 40)):
                self.calls += 1
                call = Call(random.choice(SERVICES), random.choice([0, 0, 0, 5, 9]))
                self.time.after(
                    random.choice([0.0, random.uniform(0, FAULTS_UNTIL_S)]), lambda c=client, w=call: c.wants(w)
                )
        for _ in range(random.randint(0, 14)):
            self.time.after(random.uniform(0, FAULTS_UNTIL_S), self._fault)

    def strikes(self) -> bool:
        """Whether the link breaks with this frame."""
        struck = self.time.now < FAULTS_UNTIL_S and self.random.random() < self.strike_share
        self.faults += struck
        return struck

    def servers(self) -> list[Server]:
        return [server for servers in self.addresses for server in servers]

    def balance(self, address: int) -> Server | None:
        """Whom the balancer of this address sends the next connection to: the next in turn that is up."""
        up = [server for server in self.addresses[address] if server.up and not server.broker.draining]
        self._turns[address] += 1
        return up[self._turns[address] % len(up)] if up else None

    def gone(self, server: Server) -> None:
        """It comes back after a while, as another instance."""

        def back() -> None:
            for servers in self.addresses:
                if server in servers:
                    servers[servers.index(server)] = self._server(tuple(server.declared.services))

        self.time.after(self.random.uniform(0.5, 30), back)

    def _server(self, services: tuple[str, ...]) -> Server:
        self._starts_of += 1
        name = f"box{self._starts_of}"
        processes = self.random.choice([1, 2, 3, 8])
        rules = Rules(
            name, dict.fromkeys(services, "cpu"), {"cpu": processes}, floor=self.floor, weight_max=self.weight_max,
            offer_timeout_s=self.random.choice([5.0, 10.0]),
        )  # fmt: skip
        return Server(self, name, rules)

    def _fault(self) -> None:
        self.faults += 1
        up = [link for link in self.links if link.up and not link.closed_here and not link.closed_there]
        servers = [server for server in self.servers() if server.up]
        match self.random.choice(["cut", "half open", "crash", "drain", "redeclare", "withdraw", "slow", "ask"]):
            case "cut" if up:
                self.random.choice(up).cut(noticed_after_s=lambda: self.random.uniform(0, 0.1))
            case "half open" if up:
                self.random.choice(up).cut(noticed_after_s=lambda: self.random.uniform(0, NOTICED_S))
            case "crash" if servers:
                self.random.choice(servers).crash()
            case "drain" if servers:
                self.random.choice(servers).drain()
            case "redeclare" if servers:
                self.random.choice(servers).redeclare()
            case "withdraw":
                self.random.choice(self.clients).withdraws()
            case "slow" if up:
                self.random.choice(up).delay_s = self.random.uniform(0.5, 2)
            case "ask" if up:
                link = self.random.choice(up)
                for job_id in sorted(link.client.calls)[:5]:
                    link.send(Query(job_id), to_client=False)
