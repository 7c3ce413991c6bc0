"""What happens to an exec server's broker, and what it says to do. Pure data.

Events come from sockets, commands and clocks; `Broker.handle` takes one and gives commands, which the shell carries out
in their order.
"""

from dataclasses import dataclass

from rota.slots import messages
from rota.slots.messages import Receipt, ServerMessage, Work
from rota.slots.rules import Rules


@dataclass(frozen=True, slots=True)
class Connected:
    """A client came. Its number is never used again; it may ask for a weight. One that only stands for callers of the
    old routes does not count as a client: it takes no share of what is claimed."""

    client: int
    weight: int = 1
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Said:
    """A client said something that could be read."""

    client: int
    message: messages.ClientMessage


@dataclass(frozen=True, slots=True)
class Garbled:
    """A client sent a frame that is no good."""

    client: int
    error: messages.Error


@dataclass(frozen=True, slots=True)
class Dropped:
    """A client's connection is gone."""

    client: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A command is over and none of its processes lives."""

    job_id: str
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Moved:
    """A command moved."""

    progress: messages.Progress


@dataclass(frozen=True, slots=True)
class Tick:
    """The time of `next_at` has come."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Deal no more slots; what runs may end."""


@dataclass(frozen=True, slots=True)
class Redeclared:
    """The exec server is told something else. What runs goes on, also where it has no slot any more."""

    rules: Rules


Event = Connected | Said | Garbled | Dropped | Ended | Moved | Tick | Drain | Redeclared


@dataclass(frozen=True, slots=True)
class Send:
    """To this client."""

    client: int
    message: ServerMessage


@dataclass(frozen=True, slots=True)
class Deal:
    """OFFER to this client; and, for the figures, how long it waited."""

    client: int
    message: messages.Offer
    service: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class Begin:
    """Start this command; its end is told by `Ended`, also if it cannot start."""

    job_id: str
    service: str
    work: Work


@dataclass(frozen=True, slots=True)
class Kill:
    """End this command and all its processes: its client wants so, or is gone. `Ended` follows."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close this connection. `Dropped` follows."""

    client: int
    code: int
    reason: str


Command = Send | Deal | Begin | Kill | Close
