"""The demand against exec servers that cross every message: each want is served at most once at a time, no slot leaks,
and none is lost."""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rota.slots import demand as demands
from rota.slots.demand import Demand
from rota.slots.messages import Cancel, Decline, ErrorCode, Query, Receipt, Unwant, Want

SLOTS = 2


@dataclass
class Server:
    """An exec server in a few lines; what it says and hears lies on the way until a rule delivers it."""

    book: dict[str, None] = field(default_factory=dict)
    offered: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    inbox: deque[object] = field(default_factory=deque)
    outbox: deque[object] = field(default_factory=deque)
    hello_said: bool = False

    def deal(self) -> None:
        while self.book and len(self.offered) + len(self.running) < SLOTS:
            job_id = next(iter(self.book))
            del self.book[job_id]
            self.offered.add(job_id)
            self.outbox.append(("offer", job_id))

    def hear(self) -> None:
        match self.inbox.popleft():
            case Want(job_id):
                assert job_id not in self.book, f"{job_id} is parked twice"
                assert job_id not in self.offered | self.running, f"{job_id} is wanted while it has a slot"
                self.book[job_id] = None
            case Unwant(job_id):
                self.book.pop(job_id, None)
            case Decline(job_id):
                self.offered.discard(job_id)
            case Cancel(job_id):
                self.running.discard(job_id)
                self.book.pop(job_id, None)
            case ("job", str(job_id)):
                if job_id in self.offered:
                    self.offered.remove(job_id)
                    self.running.add(job_id)
                else:
                    self.outbox.append(("refuse", job_id, ErrorCode.NO_OFFER))
            case Query():
                pass
            case other:
                raise AssertionError(other)
        self.deal()


class Fleet(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.demand = Demand()
        self.now = 0.0
        self.servers: dict[int, Server] = {}
        self.numbers = 0
        self.jobs = 0
        self.open: set[str] = set()
        self.ends: dict[str, str] = {}

    def tell(self, event: demands.Event) -> None:
        for command in self.demand.handle(event, self.now):
            match command:
                case demands.Send(connection, message):
                    if connection in self.servers:
                        self.servers[connection].inbox.append(message)
                case demands.Place(connection, job_id):
                    self.servers[connection].inbox.append(("job", job_id))
                case demands.Return():
                    pass
                case demands.Settle(job_id) | demands.Lose(job_id) | demands.Refuse(job_id) | demands.GiveUp(job_id):
                    assert job_id in self.open, "each want ends once"
                    self.open.remove(job_id)
                    self.ends[job_id] = type(command).__name__

    @rule()
    def connects(self) -> None:
        if len(self.servers) < 4:
            self.numbers += 1
            self.servers[self.numbers] = Server()

    def pick(self, number: int) -> int | None:
        return sorted(self.servers)[number % len(self.servers)] if self.servers else None

    @rule(number=st.integers(0, 3))
    def greets(self, number: int) -> None:
        if (at := self.pick(number)) is not None:
            self.servers[at].hello_said = True
            self.tell(demands.Announced(at, 0, frozenset({"ocr"})))

    @rule(number=st.integers(0, 3))
    def drops(self, number: int) -> None:
        if (at := self.pick(number)) is not None:
            del self.servers[at]
            self.tell(demands.Dropped(at))

    @rule(patience=st.one_of(st.none(), st.floats(0.0, 5.0)))
    def wants(self, patience: float | None) -> None:
        self.jobs += 1
        job_id = f"j{self.jobs}"
        self.open.add(job_id)
        self.tell(demands.Wanted(Want(job_id, "ocr"), None if patience is None else self.now + patience))

    @rule(number=st.integers(0, 50))
    def withdraws(self, number: int) -> None:
        if self.open:
            job_id = sorted(self.open)[number % len(self.open)]
            self.open.remove(job_id)
            self.tell(demands.Withdrawn(job_id))

    @rule(number=st.integers(0, 3))
    def server_hears(self, number: int) -> None:
        if (at := self.pick(number)) is not None and self.servers[at].inbox:
            self.servers[at].hear()

    @rule(number=st.integers(0, 3))
    def offer_expires(self, number: int) -> None:
        if (at := self.pick(number)) is not None and self.servers[at].offered:
            server = self.servers[at]
            job_id = sorted(server.offered)[0]
            server.offered.remove(job_id)
            server.outbox.append(("refuse", job_id, ErrorCode.OFFER_EXPIRED))
            server.deal()

    @rule(number=st.integers(0, 3))
    def command_ends(self, number: int) -> None:
        if (at := self.pick(number)) is not None and self.servers[at].running:
            server = self.servers[at]
            job_id = sorted(server.running)[0]
            server.running.remove(job_id)
            server.outbox.append(("done", job_id))
            server.deal()

    @rule(number=st.integers(0, 3))
    def client_hears(self, number: int) -> None:
        if (at := self.pick(number)) is not None and self.servers[at].outbox:
            self.deliver(at)

    def deliver(self, at: int) -> None:
        match self.servers[at].outbox.popleft():
            case ("offer", str(job_id)):
                self.tell(demands.Offered(at, job_id))
            case ("done", str(job_id)):
                self.tell(demands.Ended(at, job_id, Receipt(ended_by="exit", exit=0)))
            case ("refuse", str(job_id), ErrorCode() as code):
                self.tell(demands.Refused(at, job_id, code, ""))

    @rule(seconds=st.floats(0.0, 2.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tell(demands.Ticked())

    @invariant()
    def holds(self) -> None:
        self.demand.check()
        places = [job_id for server in self.servers.values() for job_id in server.running & self.open]
        assert len(places) == len(set(places)), "a want runs in one place"

    def teardown(self) -> None:
        """Everything is delivered and every command ends: nothing waits where there are slots, and no slot is taken."""
        if not self.servers:
            self.connects()
        for number in range(4):
            self.greets(number)
        for _ in range(10_000):
            busy = [at for at, server in self.servers.items() if server.inbox or server.outbox or server.running]
            if not busy:
                break
            for at in busy:
                server = self.servers[at]
                while server.inbox:
                    server.hear()
                while server.outbox:
                    self.deliver(at)
                if server.running:
                    self.command_ends(sorted(self.servers).index(at))
        assert not self.open, f"lost: {self.open}"
        for server in self.servers.values():
            assert not server.offered and not server.running, "a slot leaked"


Fleet.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None, derandomize=True)
TestFleet = Fleet.TestCase
