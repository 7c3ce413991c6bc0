"""What is known of the worker processes: what each says of itself, and which kinds none of them takes. Pure data.

Nothing is recovered by it: whether a job's holder lives does not matter to the sweep. It is for people, for the
passes (whose code is live), and for telling that work waits which nobody takes.

Spec: job queue, "Server roles".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from rota.ids import Holder
from rota.queue.periodic import Declared
from rota.queue.standing import ServerFacts

SEEN_EVERY_S: Final = 15.0
"""How often a worker says that it lives: as often as that it waits for work."""
LIVE_S: Final = 60.0
"""A worker that has said nothing for so long (three times in a row) is not counted on."""
STALE_S: Final = 600.0
"""Its row goes after this time; until then people see when it was last there."""
CLOCK_AHEAD_S: Final = 5.0
"""A stored time that is further ahead of the database's clock was written under another clock: statements that run at
once differ by less, and clocks that are slewed never step."""


@dataclass(frozen=True, slots=True)
class Glance:
    """A look at the database's clock: what it said, and when it was asked and had answered, on the lease clock."""

    asked_at: float
    said: datetime
    answered_at: float


def set_back_between(before: Glance, after: Glance) -> bool:
    """Whether the database's clock was set back between two looks, by more than CLOCK_AHEAD_S."""
    at_least_s = after.asked_at - before.answered_at
    return (after.said - before.said).total_seconds() < at_least_s - CLOCK_AHEAD_S


@dataclass(frozen=True, slots=True)
class Server:
    """What a worker process says of itself at its start.

    Attributes:
        holder: this start of this process.
        version: of Rota.
        role: as it was set, such as `all` or `api, builds`.
        settings_digest: equal for servers with equal settings.
        kinds: the kinds that it takes, each with its limit.
        passes: all passes of its program, also those that its role leaves to others.
        limits: of its kinds, those that hold over all servers: `fleet`, `tenant`, `fair`, `rate_count` and `rate_s`.
    """

    holder: Holder
    host: str
    pid: int
    version: str
    role: str
    settings_digest: str
    kinds: Mapping[str, int]
    passes: Mapping[str, Declared]
    limits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class ServerRow(Server):
    """A worker process as people see it. `live`: it was there in the last LIVE_S seconds. `facts`: what it said last of
    what holds its jobs back."""

    running: Mapping[str, int]
    draining: bool
    started_at: datetime
    seen_at: datetime
    live: bool
    facts: ServerFacts = field(default_factory=ServerFacts, kw_only=True)


@dataclass(frozen=True, slots=True)
class OrphanKind:
    """A kind whose work waits and that no live server takes; `due_at` is when the oldest of it was or will be due."""

    kind: str
    due_at: datetime
    is_pass: bool
