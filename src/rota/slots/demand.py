"""What this process wants of exec servers: each want parked wherever it can be served, one slot taken. Pure.

A want is parked on every connection whose exec server announced its service. The first offer is taken, an offer too
many is declined at once, and the want is withdrawn elsewhere. A connection that drops takes nothing along but what ran
on it: the other wants go on waiting, and are parked again when it is back.

An address that is polled in the older way looks like a connection that may offer any service.

Spec: slot broker, "The slot broker", "Heterogeneous fleets" and "Failure matrix".
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, assert_never

from msgspec import Struct

from rota.slots.messages import (
    Cancel,
    ClientMessage,
    Decline,
    ErrorCode,
    Query,
    Receipt,
    Unwant,
    Want,
)  # fmt: skip

NOT_RUN: Final = frozenset({ErrorCode.NO_OFFER, ErrorCode.OFFER_EXPIRED})
"""Refusals of a JOB after which the want may simply be parked again: the slot went to somebody else."""
ASIDE: Final = frozenset({ErrorCode.RUNNING, ErrorCode.UNKNOWN_JOB, ErrorCode.DUPLICATE_WANT})
"""Refusals that are no answer to a JOB."""
PASSING: Final = NOT_RUN | {ErrorCode.UNKNOWN_JOB, ErrorCode.DUPLICATE_WANT}
"""Refusals that crossed with something else and say nothing new of a want that waits."""


class Wanted(Struct, frozen=True):
    """Somebody here needs a slot.

    Attributes:
        want: what to park.
        give_up_at: when to stop waiting; None: never.
    """

    want: Want
    give_up_at: float | None = None


class Withdrawn(Struct, frozen=True):
    """Who wanted the slot does not any more, whether it waits or runs."""

    job_id: str


class Stopped(Struct, frozen=True):
    """Who wanted the slot wants the command to stop, and to know how it ended."""

    job_id: str


class Announced(Struct, frozen=True):
    """An exec server said on a connection what it offers, first or again.

    Attributes:
        connection: its number, unique in this process.
        address: which of the addresses it belongs to.
        services: what it offers; None: it does not tell, and may offer anything.
        draining: it takes no new work.
        only: the one service that this address is for; None: all.
    """

    connection: int
    address: int
    services: frozenset[str] | None
    draining: bool = False
    only: str | None = None

    def offers(self, service: str) -> bool:
        """Whether a want for this service may be parked here."""
        if self.draining or (self.only is not None and service != self.only):
            return False
        return self.services is None or service in self.services


class Dropped(Struct, frozen=True):
    """A connection is gone."""

    connection: int


class Offered(Struct, frozen=True):
    """A slot is reserved for a want."""

    connection: int
    job_id: str


class Ended(Struct, frozen=True):
    """A command is over."""

    connection: int
    job_id: str
    receipt: Receipt


class Refused(Struct, frozen=True):
    """The exec server refused what was said about a job."""

    connection: int
    job_id: str
    code: str
    message: str


class Unsendable(Struct, frozen=True):
    """An offer was taken, but the job could not be sent; it never can be."""

    job_id: str
    message: str


class Asked(Struct, frozen=True):
    """Somebody wants to know where this want stands in line."""

    job_id: str


class Ticked(Struct, frozen=True):
    """Time went by."""


class Send(Struct, frozen=True):
    """Say this on a connection."""

    connection: int
    message: ClientMessage


class Place(Struct, frozen=True):
    """Take the offer: send the job on this connection."""

    connection: int
    job_id: str


class Return(Struct, frozen=True):
    """The job that was sent did not start; it waits again, and what was made for sending it is to be thrown away."""

    job_id: str


class Settle(Struct, frozen=True):
    """The command is over."""

    job_id: str
    receipt: Receipt


class Lose(Struct, frozen=True):
    """The connection on which the command ran is gone: it is killed there, and nobody will say how it ended."""

    job_id: str


class Refuse(Struct, frozen=True):
    """The command will not run."""

    job_id: str
    code: str
    message: str


class GiveUp(Struct, frozen=True):
    """No slot came in time. `offered`: whether anything that is connected offers the service."""

    job_id: str
    offered: bool


Event = Wanted | Withdrawn | Stopped | Announced | Dropped | Offered | Ended | Refused | Unsendable | Asked | Ticked
Command = Send | Place | Return | Settle | Lose | Refuse | GiveUp


@dataclass(slots=True)
class _Entry:
    """One want. `placed` is the connection that has the job; until then it waits."""

    want: Want
    since: float
    give_up_at: float | None
    parked: set[int] = field(default_factory=set)
    turned_away: set[int] = field(default_factory=set)
    """Connections whose exec server did not take it, until they announce something new."""
    placed: int | None = None


@dataclass(slots=True)
class Demand:
    """All wants of this process."""

    _entries: dict[str, _Entry] = field(default_factory=dict)
    _connections: dict[int, Announced] = field(default_factory=dict)
    _full: set[int] = field(default_factory=set)
    """Connections whose exec server holds as many wants as it takes; asked again at the next tick."""

    def handle(self, event: Event, now: float) -> list[Command]:  # noqa: PLR0912 - one arm for each event
        """Takes one event, and says what to do.

        Args:
            event: what happened.
            now: seconds of a clock that never steps.

        Returns: commands, in order. After Settle, Lose, Refuse and GiveUp the want is forgotten.
        """
        match event:
            case Wanted(want, give_up_at):
                assert want.job_id not in self._entries, "the id of an exec call is used once"
                entry = self._entries[want.job_id] = _Entry(want, now, give_up_at)
                return self._park(entry)
            case Withdrawn(job_id):
                return self._withdrawn(job_id)
            case Stopped(job_id):
                if (placed := self.placed_on(job_id)) is not None:
                    return [Send(placed, Cancel(job_id))]
                return self._withdrawn(job_id)
            case Announced():
                return self._announced(event)
            case Dropped(connection):
                return self._dropped(connection)
            case Offered(connection, job_id):
                return self._offered(connection, job_id)
            case Ended(connection, job_id, receipt):
                if self._placed_on(connection, job_id) is None:
                    return []
                del self._entries[job_id]
                return [Settle(job_id, receipt)]
            case Refused():
                return self._refused(event)
            case Unsendable(job_id, message):
                entry = self._entries.pop(job_id)
                assert entry.placed is not None, "a job is sent on the connection whose offer was taken"
                return [
                    Send(entry.placed, Decline(job_id)),
                    Refuse(job_id, ErrorCode.FRAME_TOO_LARGE, message),
                ]
            case Asked(job_id):
                parked = self._entries[job_id].parked if job_id in self._entries else ()
                return [Send(connection, Query(job_id)) for connection in sorted(parked)]
            case Ticked():
                return self._ticked(now)
            case _:
                assert_never(event)

    def __len__(self) -> int:
        """How many wants there are, those that have a slot among them."""
        return len(self._entries)

    def waiting_since(self, address: int) -> float | None:
        """Since when the oldest want has waited that another connection to this address might serve.

        It is one that is parked there already or, where nothing that is connected offers its service, any.
        """
        return min(
            (entry.since for entry in self._entries.values() if self._presses(entry, address)),
            default=None,
        )

    def offers(self, service: str) -> bool:
        """Whether a want for this service would be parked anywhere now."""
        return any(connection.offers(service) for connection in self._connections.values())

    def waiting(self) -> list[str]:
        """The wants that have no slot yet, oldest first."""
        return [job_id for job_id, entry in self._entries.items() if entry.placed is None]

    def parked(self) -> dict[tuple[str, int], int]:
        """How many wants have no slot yet, by service and priority."""
        return Counter(
            (entry.want.service, entry.want.priority) for entry in self._entries.values() if entry.placed is None
        )

    @property
    def due_at(self) -> float | None:
        """When the next want is given up; None: none is."""
        return min(
            (e.give_up_at for e in self._entries.values() if e.placed is None and e.give_up_at is not None),
            default=None,
        )

    def placed_on(self, job_id: str) -> int | None:
        """The connection that has this job; None: it waits, or is not known."""
        entry = self._entries.get(job_id)
        return None if entry is None else entry.placed

    def _presses(self, entry: _Entry, address: int) -> bool:
        if entry.placed is not None:
            return False
        if not entry.parked:
            return True
        return any(self._connections[connection].address == address for connection in entry.parked)

    def _park(self, entry: _Entry) -> list[Command]:
        return [
            command
            for number in sorted(self._connections)
            for command in self._park_on(self._connections[number], entry)
        ]

    def _park_on(self, connection: Announced, entry: _Entry) -> list[Command]:
        number = connection.connection
        if entry.placed is not None or number in entry.parked or number in entry.turned_away:
            return []
        if number in self._full or not connection.offers(entry.want.service):
            return []
        entry.parked.add(number)
        return [Send(number, entry.want)]

    def _unpark(self, entry: _Entry, connections: Iterable[int]) -> list[Command]:
        commands: list[Command] = [Send(number, Unwant(entry.want.job_id)) for number in sorted(connections)]
        entry.parked.difference_update(connections)
        return commands

    def _withdrawn(self, job_id: str) -> list[Command]:
        entry = self._entries.pop(job_id, None)
        if entry is None:
            return []
        if entry.placed is not None:
            return [Send(entry.placed, Cancel(job_id))]
        return self._unpark(entry, set(entry.parked))

    def _announced(self, event: Announced) -> list[Command]:
        self._connections[event.connection] = event
        commands: list[Command] = []
        for entry in self._in_order():
            entry.turned_away.discard(event.connection)
            if event.connection in entry.parked and not event.offers(entry.want.service):
                commands += self._unpark(entry, {event.connection})
            commands += self._park_on(event, entry)
        return commands

    def _dropped(self, connection: int) -> list[Command]:
        self._connections.pop(connection, None)
        self._full.discard(connection)
        lost: list[Command] = []
        for job_id, entry in list(self._entries.items()):
            entry.parked.discard(connection)
            entry.turned_away.discard(connection)
            if entry.placed == connection:
                del self._entries[job_id]
                lost.append(Lose(job_id))
        return lost

    def _offered(self, connection: int, job_id: str) -> list[Command]:
        entry = self._entries.get(job_id)
        if entry is None or entry.placed is not None:
            # Another exec server was faster, or nobody wants it any more.
            return [Send(connection, Decline(job_id))]
        entry.parked.discard(connection)
        entry.placed = connection
        return [Place(connection, job_id), *self._unpark(entry, set(entry.parked))]

    def _refused(self, event: Refused) -> list[Command]:
        entry = self._entries.get(event.job_id)
        if entry is None:
            return []
        if entry.placed == event.connection:
            if event.code in NOT_RUN:
                entry.placed = None
                return [Return(event.job_id), *self._park(entry)]
            if event.code in ASIDE:
                # Something else that was said or asked of it came too late; it goes on.
                return []
            del self._entries[event.job_id]
            return [Refuse(event.job_id, event.code, event.message)]
        if event.code == ErrorCode.BAD_FRAME and event.connection in entry.parked:
            # It cannot be said to this exec server, and waiting makes it no better.
            entry.parked.discard(event.connection)
            del self._entries[event.job_id]
            return [*self._unpark(entry, set(entry.parked)), Refuse(event.job_id, event.code, event.message)]
        if event.connection not in entry.parked or event.code in PASSING:
            return []
        # It is not parked there, and goes on waiting elsewhere; if there is nowhere, its time runs out.
        entry.parked.discard(event.connection)
        if event.code == ErrorCode.TOO_MANY_WANTS:
            self._full.add(event.connection)
        else:
            entry.turned_away.add(event.connection)
        return []

    def _ticked(self, now: float) -> list[Command]:
        commands: list[Command] = []
        for job_id, entry in list(self._entries.items()):
            if entry.placed is None and entry.give_up_at is not None and now >= entry.give_up_at:
                offered = self.offers(entry.want.service)
                commands += self._unpark(entry, set(entry.parked))
                commands.append(GiveUp(job_id, offered))
                del self._entries[job_id]
        if self._full:
            self._full.clear()
            commands += [command for entry in self._in_order() for command in self._park(entry)]
        return commands

    def _in_order(self) -> list[_Entry]:
        """The wants as they are parked again: higher priority first, then the older."""
        return sorted(self._entries.values(), key=lambda entry: (-entry.want.priority, entry.since))

    def _placed_on(self, connection: int, job_id: str) -> _Entry | None:
        entry = self._entries.get(job_id)
        return entry if entry is not None and entry.placed == connection else None

    def check(self) -> None:
        """Asserts what always holds; for tests and the simulation."""
        for entry in self._entries.values():
            assert entry.placed is None or not entry.parked, "what has a slot is parked nowhere"
            assert entry.parked <= set(self._connections), "a want is parked on connections that are there"
            for number in entry.parked:
                assert self._connections[number].offers(entry.want.service), "parked only where it is offered"
