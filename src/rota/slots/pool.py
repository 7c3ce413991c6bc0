"""The connections to one address: when to dial, when to grow, which to close. Pure.

Behind one address there may be one exec server or a balancer with many, and only the address is ever dialled. The pool
starts with one connection. It grows by one when a want has found no slot for a whole tick, at most every GROW_EVERY_S
and up to CONNECTIONS_MAX. A connection that lands on an instance which is here already is closed, and the address is
covered: no more growth until the mark is cleared, soon at first and then ever more seldom, so that instances which the
balancer did not show yet, or which are added later, are found.

The shell reports what happened and does what `handle` returns.

Spec: slot broker, "Replicas behind one address" and "Knowing when to stop".
"""

from dataclasses import dataclass, field
from random import Random
from typing import Final, assert_never

TICK_S: Final = 1.0
"""A want that finds no slot for so long is backpressure. The seed's retry tick."""
GROW_EVERY_S: Final = 2.0
"""The seed: at most one new connection every couple of seconds, however many jobs wait."""
CONNECTIONS_MAX: Final = 16
"""Connections to one address. Sixteen exec servers behind one balancer are a large fleet; each costs one socket."""
REPROBE_FIRST_S: Final = 5.0
"""How long an address stays covered after the first connection that circled back; twice as long after each further
one. A balancer that deals at random, or to many clients in turn, circles back long before it has shown all it has."""
REPROBE_S: Final = 60.0
"""How long an address stays covered at the most, and how often one without a broker is asked again."""
REDIAL_FIRST_S: Final = 0.5
REDIAL_MAX_S: Final = 30.0
"""Bounds of the wait before a dropped connection is dialled again; each wait is drawn from 0 to its bound."""


@dataclass(frozen=True, slots=True)
class Started:
    """The address is to be used."""


@dataclass(frozen=True, slots=True)
class Greeted:
    """A connection's HELLO came, the first or a later one."""

    connection: int
    instance_id: str
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
    """A connection ended, or could not be made."""

    connection: int


@dataclass(frozen=True, slots=True)
class FoundNoBroker:
    """The address answered, but it has no broker: an older exec server."""

    connection: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time went by. `waiting_since`: since when the oldest want that this address could serve has had no slot."""

    waiting_since: float | None = None


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a connection to the address under this number."""

    connection: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection that is not needed; no Dropped follows."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class Poll:
    """Start or stop to use the address in the older way."""

    on: bool


Event = Started | Greeted | Dropped | FoundNoBroker | Ticked
Command = Dial | Close | Poll


@dataclass(slots=True)
class Pool:
    """The policy of one address.

    Attributes:
        random: for the jitter of waits.
        connections_max: how far it may grow.
        instances: the instance behind each connection that has been greeted.
        covered_until: growth has found all instances; until this time it does not try again.
        polled: the address has no broker.
    """

    random: Random
    connections_max: int = CONNECTIONS_MAX
    instances: dict[int, str] = field(default_factory=dict)
    covered_until: float | None = None
    polled: bool = False
    _draining: set[int] = field(default_factory=set)
    _dialling: int | None = None
    _numbers: int = 0
    _wanted: int = 0
    """How many connections there should be, draining ones not counted."""
    _failures: int = 0
    _dial_at: float | None = None
    _grown_at: float | None = None
    _doubles: int = 0
    """Connections that landed on a known instance since the last that found a new one."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Takes one event, and says what to do.

        Args:
            event: what happened.
            now: seconds of a clock that never steps.

        Returns: commands, in order.
        """
        match event:
            case Started():
                self._wanted, self._dial_at = max(1, self._wanted), now
                return self._dial_if_due(now)
            case Greeted(connection, instance_id, draining):
                return self._greeted(connection, instance_id, draining, now)
            case Dropped(connection):
                return self._dropped(connection, now)
            case FoundNoBroker(connection):
                return self._no_broker(connection, now)
            case Ticked(waiting_since):
                return self._ticked(waiting_since, now)
            case _:
                assert_never(event)

    @property
    def due_at(self) -> float | None:
        """When to send the next Ticked at the latest although nothing waits; None: not by itself."""
        return self._dial_at if self._dialling is None and self._short() else None

    @property
    def live(self) -> int:
        """Connections that could serve a want."""
        return len(self.instances) - len(self._draining)

    def _greeted(self, connection: int, instance_id: str, draining: bool, now: float) -> list[Command]:
        first = connection == self._dialling
        if first:
            self._dialling = None
        if not first and connection not in self.instances:
            return []
        if any(known == instance_id for other, known in self.instances.items() if other != connection):
            self.instances.pop(connection, None)
            self._draining.discard(connection)
            # It circled back to an instance that is known: there are no others for now.
            self._cover(now)
            if self.live == 0:
                # The one that is known drains; a balancer soon has another.
                self._wait(now)
            return [Close(connection, "duplicate")]
        self.instances[connection] = instance_id
        if draining:
            if connection not in self._draining:
                self._draining.add(connection)
                self._wait(now)
        else:
            self._draining.discard(connection)
            if first:
                self._failures, self._doubles, self._dial_at = 0, 0, now
        return [*self._stop_polling(), *self._dial_if_due(now)]

    def _dropped(self, connection: int, now: float) -> list[Command]:
        if connection == self._dialling:
            self._dialling = None
        elif connection not in self.instances:
            return []
        self.instances.pop(connection, None)
        self._draining.discard(connection)
        self._wait(now)
        return []

    def _no_broker(self, connection: int, now: float) -> list[Command]:
        if connection != self._dialling:
            return self._dropped(connection, now)
        self._dialling = None
        if self.instances:
            # A fleet that is being renewed: what has a broker serves, and the rest is found again later.
            self._cover(now)
            self._wait(now)
            return []
        self._dial_at = now + REPROBE_S
        if self.polled:
            return []
        self.polled = True
        return [Poll(on=True)]

    def _ticked(self, waiting_since: float | None, now: float) -> list[Command]:
        if self.covered_until is not None and now >= self.covered_until:
            self.covered_until = None
        pressed = waiting_since is not None and now - waiting_since >= TICK_S
        rested = self._grown_at is None or now - self._grown_at >= GROW_EVERY_S
        if (
            pressed
            and rested
            and self.covered_until is None
            and self._dialling is None
            and not self._short()
            and len(self.instances) < self.connections_max
        ):
            self._wanted, self._grown_at, self._dial_at = self.live + 1, now, now
        return self._dial_if_due(now)

    def _short(self) -> bool:
        return self.live < self._wanted and len(self.instances) < self.connections_max

    def _dial_if_due(self, now: float) -> list[Command]:
        if self._dialling is not None or self._dial_at is None or now < self._dial_at or not self._short():
            return []
        self._numbers += 1
        self._dialling = self._numbers
        return [Dial(self._numbers)]

    def _cover(self, now: float) -> None:
        """No more growth for a while: all that could be found is here."""
        self.covered_until = now + min(REPROBE_S, REPROBE_FIRST_S * 2.0 ** min(self._doubles, 30))
        self._doubles += 1
        self._wanted = max(1, self.live)

    def _wait(self, now: float) -> None:
        """The next dial comes after a wait with full jitter, so that many clients do not come back together."""
        bound = min(REDIAL_MAX_S, REDIAL_FIRST_S * 2.0 ** min(self._failures, 30))
        self._failures += 1
        self._dial_at = now + bound * self.random.random()

    def _stop_polling(self) -> list[Command]:
        if not self.polled:
            return []
        self.polled = False
        return [Poll(on=False)]
