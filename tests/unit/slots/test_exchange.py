"""The broker in an event loop, without sockets: cuts at any moment leave no slot in use (S31)."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from rota.slots.broker import Broker
from rota.slots.io.exchange import Exchange
from rota.slots.io.figures import Figures
from rota.slots.load import Load
from rota.slots.messages import Done, Error, Job, Offer, Queued, Receipt, ServerMessage, Want, Work
from rota.slots.rules import Rules

PROCESSES = 3
CUTS = 1000


class Crew:
    """Commands that die some turns of the event loop after they are cancelled or done, as processes do."""

    def __init__(self, ended: Callable[[str, Receipt], None], _moved: object) -> None:
        self.ended = ended
        self.alive: set[str] = set()
        self.most = 0

    def start(self, job_id: str, service: str, job: Work) -> None:
        if job.args == ["refused"]:
            self.alive.add(job_id)
            self.die(job_id, "refused")  # before `start` returns
            return
        self.alive.add(job_id)
        self.most = max(self.most, len(self.alive))
        asyncio.get_running_loop().call_soon(self.later, job_id, "exit", 3)

    def cancel(self, job_id: str) -> None:
        asyncio.get_running_loop().call_soon(self.later, job_id, "cancelled", 1)

    def later(self, job_id: str, ended_by: str, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self.later, job_id, ended_by, turns - 1)
        else:
            self.die(job_id, ended_by)

    def die(self, job_id: str, ended_by: str) -> None:
        if job_id in self.alive:
            self.alive.remove(job_id)
            self.ended(job_id, Receipt(ended_by=ended_by))

    async def stop(self, grace_s: float = 0.0) -> None:
        pass


class Line:
    """A client that is cut off at a moment of its own: as its offer is made, after it, after its job, or never."""

    def __init__(self, exchange: Exchange, chance: random.Random, job_id: str) -> None:
        self.exchange, self.chance, self.job_id = exchange, chance, job_id
        self.cut_at = chance.choice(["want", "queued", "offer", "offer", "job", "later", "never"])
        self.over = asyncio.Event()
        self.number = exchange.join(self)
        exchange.say(self.number, Want(job_id, "cut", chance.randrange(3)))
        if self.cut_at == "want":
            self.cut()

    def cut(self) -> None:
        self.exchange.leave(self.number)
        self.over.set()

    def deliver(self, message: ServerMessage) -> None:
        match message:
            case Queued() if self.cut_at == "queued":
                self.cut()
            case Offer() if self.cut_at == "offer":
                self.cut()  # the slot is reserved, and nothing was written yet
            case Offer():
                asyncio.get_running_loop().call_soon(self.answer)
            case Done():
                self.cut()

    def answer(self) -> None:
        work = Work(args=["refused"] if self.chance.random() < 0.2 else [])
        self.exchange.say(self.number, Job(self.job_id, work))
        if self.cut_at == "job":
            self.cut()
        elif self.cut_at == "later":
            asyncio.get_running_loop().call_soon(self.cut)

    def close(self, code: int, reason: str) -> None:
        self.cut()


def exchange_of(**rules: Any) -> tuple[Broker, Exchange, Crew]:
    broker = Broker(Rules("box:1", {"cut": "cpu"}, {"cpu": PROCESSES}, **rules), Load(learns=False))
    exchange = Exchange(broker, Crew, Figures(broker))
    crew = exchange.runner
    assert isinstance(crew, Crew)
    return broker, exchange, crew


async def test_a_thousand_cuts_at_any_moment_leave_no_slot_in_use() -> None:
    """S31."""
    chance = random.Random(31)
    broker, exchange, crew = exchange_of()
    lines: list[Line] = []
    for number in range(CUTS):
        lines.append(Line(exchange, chance, f"j{number}"))
        offered = sum(call.state == "offered" for call in broker.busy(broker.groups["cpu"]))
        assert broker.in_use == len(crew.alive) + offered, "slots in use are live processes and open offers"
        if chance.random() < 0.3:
            await asyncio.sleep(0)
    async with asyncio.timeout(30):
        for line in lines:
            await line.over.wait()
        while crew.alive:
            await asyncio.sleep(0)
    assert (broker.in_use, broker.waiting, broker.clients) == (0, 0, {})
    assert crew.most == PROCESSES
    exchange.stop()


async def test_offers_are_over_by_the_clock_of_the_loop_one_after_the_other() -> None:
    broker, exchange, _ = exchange_of(offer_timeout_s=0.01)
    over: asyncio.Queue[str] = asyncio.Queue()

    class Silent:
        def deliver(self, message: ServerMessage) -> None:
            if isinstance(message, Error):
                over.put_nowait(message.code)

        def close(self, code: int, reason: str) -> None:
            pass

    number = exchange.join(Silent())
    for _ in range(3):
        exchange.say(number, Want("a", "cut"))
        assert broker.in_use == 1
        assert exchange._timer_at <= asyncio.get_running_loop().time() + 0.01, "not when the next HELLO is due"
        assert await asyncio.wait_for(over.get(), 30) == "offer_expired"
        assert broker.in_use == 0
    exchange.stop()


def test_a_time_that_has_come_already_is_no_trouble_on_uvloop() -> None:
    """Its handle for such a time is of another class, which has no `when`."""
    uvloop = pytest.importorskip("uvloop")

    async def offers() -> None:
        broker, exchange, _ = exchange_of(offer_timeout_s=0.0)
        number = exchange.join(Line(exchange, random.Random(1), "other"))
        for job in range(3):
            exchange.say(number, Want(f"j{job}", "cut"))
        assert broker.in_use == 3
        while broker.in_use:
            await asyncio.sleep(0)
        exchange.stop()

    uvloop.run(offers())


async def test_what_ends_as_it_begins_can_go_on_for_long() -> None:
    """A client in this process answers at once, and each job is refused at once: no call is deeper for it."""
    broker, exchange, _ = exchange_of()

    class Prompt:
        done = 0
        number = 0

        def deliver(self, message: ServerMessage) -> None:
            if isinstance(message, Offer):
                exchange.say(self.number, Job(message.job_id, Work(args=["refused"])))
            self.done += isinstance(message, Done)

        def close(self, code: int, reason: str) -> None:
            pass

    prompt = Prompt()
    prompt.number = exchange.join(prompt)
    broker.groups["cpu"].ledger.processes = 0  # nothing is dealt before all stand in line
    for number in range(3000):
        exchange.say(prompt.number, Want(f"j{number}", "cut"))
    broker.groups["cpu"].ledger.processes = PROCESSES
    exchange.say(prompt.number, Want("last", "cut"))
    assert (prompt.done, broker.in_use, broker.waiting) == (3001, 0, 0)
    exchange.stop()
