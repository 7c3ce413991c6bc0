"""What an exec server is told: its services, its waitgroups, and who is dealt a slot before whom. Pure data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from rota.slots import messages

OFFER_TIMEOUT_S: Final = 5.0
"""How long an offer waits for its answer: many round trips of a slow link, and short beside most commands."""
WANTS_MAX: Final = 50_000
"""Calls of one connection at once, so that no client can fill the memory."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What an exec server is told.

    Attributes:
        instance_id: of this start of this exec server.
        services: each service's waitgroup.
        waitgroups: each waitgroup's processes, 1 or more.
        offer_timeout_s: how long an offer waits for its answer.
        wants_max: calls of one connection at once.
        fair_by: who takes turns: connections, or tenants (a want without a tenant counts to its connection).
        weights: of tenants, 1 to 1,000, where tenants take turns.
        weight_max: the most that a connection may ask for, where connections take turns; 1: all are alike.
        floor: one grant in this many goes to the priority that has waited longest; None: priority is strict.
        fast_reserve: whether slots are kept for quick services.
        frame_bytes_max: what this exec server takes in one frame.
    """

    instance_id: str
    services: Mapping[str, str]
    waitgroups: Mapping[str, int]
    offer_timeout_s: float = OFFER_TIMEOUT_S
    wants_max: int = WANTS_MAX
    fair_by: Literal["connection", "tenant"] = "connection"
    weights: Mapping[str, int] = field(default_factory=dict)
    weight_max: int = 1
    floor: int | None = None
    fast_reserve: bool = True
    frame_bytes_max: int = messages.FRAME_BYTES_MAX
