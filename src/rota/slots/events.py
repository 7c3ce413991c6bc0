"""What happens to an exec server's broker, and what it says to do. Pure data.

Events come from sockets, commands and clocks; `Broker.handle` takes one and gives commands, which the shell carries out
in their order.
"""

from msgspec import Struct

from rota.slots import messages
from rota.slots.messages import Receipt, ServerMessage, Work
from rota.slots.rules import Rules


class Connected(Struct, frozen=True):
    """A client came. Its number is never used again; it may ask for a weight. One that only stands for callers of the
    old routes does not count as a client: it takes no share of what is claimed."""

    client: int
    weight: int = 1
    counts: bool = True


class Said(Struct, frozen=True):
    """A client said something that could be read."""

    client: int
    message: messages.ClientMessage


class Garbled(Struct, frozen=True):
    """A client sent a frame that is no good."""

    client: int
    error: messages.Error


class Dropped(Struct, frozen=True):
    """A client's connection is gone."""

    client: int


class Ended(Struct, frozen=True):
    """A command is over and none of its processes lives."""

    job_id: str
    receipt: Receipt


class Moved(Struct, frozen=True):
    """A command moved."""

    progress: messages.Progress


class Tick(Struct, frozen=True):
    """The time of `next_at` has come."""


class Drain(Struct, frozen=True):
    """Deal no more slots; what runs may end."""


class Redeclared(Struct, frozen=True):
    """The exec server is told something else. What runs goes on, also where it has no slot any more."""

    rules: Rules


Event = Connected | Said | Garbled | Dropped | Ended | Moved | Tick | Drain | Redeclared


class Send(Struct, frozen=True):
    """To this client."""

    client: int
    message: ServerMessage


class Deal(Struct, frozen=True):
    """OFFER to this client; and, for the figures, how long it waited."""

    client: int
    message: messages.Offer
    service: str
    waited_s: float


class Begin(Struct, frozen=True):
    """Start this command; its end is told by `Ended`, also if it cannot start."""

    job_id: str
    service: str
    work: Work


class Kill(Struct, frozen=True):
    """End this command and all its processes: its client wants so, or is gone. `Ended` follows."""

    job_id: str


class Close(Struct, frozen=True):
    """Close this connection. `Dropped` follows."""

    client: int
    code: int
    reason: str


Command = Send | Deal | Begin | Kill | Close
