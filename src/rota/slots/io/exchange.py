"""Runs a broker in an event loop: hands it what happens, and carries out what it says, in order.

Whoever speaks for a client joins here: a websocket, or a route of the old protocol. One event is handled at a time,
also where a command that begins ends at once, so nothing can come between a reserved slot and its offer (S31).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from math import inf
from typing import Protocol

from rota.io.log import get_logger
from rota.slots import messages
from rota.slots.broker import Broker
from rota.slots.events import (
    Begin,
    Close,
    Command,
    Connected,
    Deal,
    Drain,
    Dropped,
    Ended,
    Event,
    Garbled,
    Kill,
    Moved,
    Redeclared,
    Said,
    Send,
    Tick,
)
from rota.slots.io.figures import Figures
from rota.slots.messages import ClientMessage, Receipt, ServerMessage, Work
from rota.slots.progress import Moved as Movement
from rota.slots.rules import Rules

log = get_logger("rota.execserver")


class Runner(Protocol):
    """What runs commands; see `Commands`."""

    def start(self, job_id: str, service: str, job: Work) -> None:
        """Begins a command, whose end is told once; a refused one ends too."""

    def cancel(self, job_id: str) -> None:
        """Ends a command; its end is still told."""

    async def stop(self, grace_s: float = 0.0) -> None:
        """Lets what runs go on for so long, then ends it."""


class Link(Protocol):
    """Whoever hears for one client. Neither may raise or wait."""

    def deliver(self, message: ServerMessage) -> None:
        """Takes a message for the client."""

    def close(self, code: int, reason: str) -> None:
        """Ends the connection; `leave` follows."""


class Exchange:
    """The broker, its clock, its clients and its commands.

    Args:
        broker: the rules.
        runner: makes what runs commands; it is given what to call at the end and on the way of each.
        figures: where what happens is counted.
    """

    def __init__(
        self,
        broker: Broker,
        runner: Callable[[Callable[[str, Receipt], None], Callable[[str, Movement], None]], Runner],
        figures: Figures,
    ) -> None:
        self.broker = broker
        self.runner = runner(self._ended, self._moved)
        self._figures = figures
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._links: dict[int, Link] = {}
        self._services: dict[str, str] = {}  # of the commands that run
        self._events: deque[Event] = deque()
        self._handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf  # kept here: uvloop's handle of a time that has come already does not tell it

    def join(self, link: Link, *, weight: int = 1, counts: bool = True) -> int:
        """A client came. Returns: its number, for all that it says."""
        number = next(self._numbers)
        self._links[number] = link
        self._happened(Connected(number, weight, counts))
        return number

    def say(self, client: int, message: ClientMessage) -> None:
        """A client said something."""
        self._happened(Said(client, message))

    def garble(self, client: int, error: messages.Error) -> None:
        """A client sent a frame that is no good."""
        self._happened(Garbled(client, error))

    def leave(self, client: int) -> None:
        """A client is gone; safe to repeat."""
        if self._links.pop(client, None) is not None:
            self._happened(Dropped(client))

    def drain(self) -> None:
        """No more slots are dealt; safe to repeat."""
        self._happened(Drain())

    def redeclare(self, rules: Rules) -> None:
        """Other services, waitgroups and ways to deal slots from now on; what runs goes on."""
        self._happened(Redeclared(rules))

    def stop(self) -> None:
        """Nothing is timed any more, and all connections are closed; safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for link in list(self._links.values()):
            link.close(1001, "the exec server ends")

    def _ended(self, job_id: str, receipt: Receipt) -> None:
        service = self._services.pop(job_id, None)
        if service is not None:
            self._figures.ended(service, receipt)
        self._happened(Ended(job_id, receipt))

    def _moved(self, job_id: str, moved: Movement) -> None:
        self._happened(Moved(messages.Progress(job_id, moved.bytes_in, moved.bytes_out, moved.line)))

    def _happened(self, event: Event) -> None:
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                for command in self.broker.handle(self._events.popleft(), self._loop.time()):
                    self._do(command)
        finally:
            self._handling = False
        if self.broker.due_by < self._timer_at:
            self._set_timer()

    def _do(self, command: Command) -> None:
        match command:
            case Send(client, message):
                self._deliver(client, message)
            case Deal(client, message, service, waited_s):
                self._figures.dealt(service, waited_s)
                self._deliver(client, message)
            case Begin(job_id, service, work):
                self._services[job_id] = service
                self.runner.start(job_id, service, work)
            case Kill(job_id):
                self.runner.cancel(job_id)
            case Close(client, code, reason):
                log.warning("a client is shut out", client=client, reason=reason)
                link = self._links.get(client)
                if link is not None:
                    link.close(code, reason)

    def _deliver(self, client: int, message: ServerMessage) -> None:
        link = self._links.get(client)
        if link is not None:
            link.deliver(message)

    def _set_timer(self) -> None:
        at = self.broker.due_by
        if at < self._timer_at:  # one that is early finds nothing to do, and is set again
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = self._loop.call_at(at, self._tick), at

    def _tick(self) -> None:
        self._timer, self._timer_at = None, inf
        self._happened(Tick())
        self.broker.next_at()
        self._set_timer()
