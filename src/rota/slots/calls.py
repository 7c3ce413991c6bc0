"""An exec call, its connection and its waitgroup, as a broker keeps them. Pure data, changed in place by the broker."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

from rota.slots import messages
from rota.slots.ledger import Ledger
from rota.slots.load import Reserve
from rota.slots.wantbook import Parked, WantBook

State = Literal["waiting", "offered", "running", "over"]


class Call(Parked):
    """One exec call as it stands here."""

    __slots__ = ("client", "group", "job_id", "parked_at", "since", "state", "tenant")

    def __init__(self, client: "Client", want: messages.Want, group: "Group", party: Hashable, now: float) -> None:
        super().__init__(party, want.service, want.priority)
        self.client = client
        self.job_id = want.job_id
        self.tenant = want.tenant
        self.group = group
        self.state: State = "waiting"
        self.parked_at = now
        self.since = now  # in this state


@dataclass(eq=False, slots=True)
class Client:
    """One connection."""

    number: int
    counts: bool = True
    calls: dict[str, Call] = field(default_factory=dict)
    bad_frames: int = 0
    weight: int = 1  # that it asks for
    told: tuple[int, bool, int] = (0, False, 0)  # clients, draining and edition, as its newest HELLO says
    gone: bool = False


@dataclass(eq=False, slots=True)
class Group:
    """One waitgroup: who waits, and what is in use. One that is declared no more has no slots, and goes with the last
    of its commands."""

    name: str
    book: WantBook
    ledger: Ledger
    reserve: Reserve
