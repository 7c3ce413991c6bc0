"""Limits of a kind beyond one server, and whose turn it is among its tenants. Pure.

What is counted and taken, the function `claim_turns` of the database decides within one transaction; here are the
settings, what they may be, and what a worker remembers of them: the tenant whose turn was the last.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rota.queue.checks import is_number

FLEET_LIMIT_MAX: Final = 100_000
"""As many as one process may run of a kind."""
SLICES: Final = 60
"""A window has so many slices, and a start is counted with its slice: for a sixtieth of the window at most it counts
longer than it has to, and never shorter."""
ASK_AGAIN_S_MIN: Final = 0.1
"""A window may be so short that a slice of it is less than a claim takes."""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` jobs of a kind start within any `per_s` seconds, on all servers together.

    Attributes:
        count: 1 to 1,000,000.
        per_s: 1 to 86,400 seconds.
    """

    count: int
    per_s: float = 1.0

    @property
    def slice_s(self) -> float:
        """When to ask again after a claim that brought less than there was room for: some of the window is over."""
        return max(ASK_AGAIN_S_MIN, self.per_s / SLICES)


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for a kind on all servers together.

    Attributes:
        fleet: jobs of the kind that run at once.
        tenant: jobs of each tenant in the kind that run at once. Jobs without a tenant are not limited by it.
        fair: the kind's jobs are taken by turns: one of each tenant that has any.
        rate: jobs that start in a window.
    """

    fleet: int | None = None
    tenant: int | None = None
    fair: bool = False
    rate: Rate | None = None

    def said(self) -> dict[str, int | float | bool]:
        """The same as JSON values, without what is not set: what a server says of a kind, for people."""
        said: dict[str, int | float | bool | None] = {
            "fleet": self.fleet, "tenant": self.tenant, "fair": self.fair or None,
            "rate_count": None if self.rate is None else self.rate.count,
            "rate_s": None if self.rate is None else self.rate.per_s,
        }  # fmt: skip
        return {name: value for name, value in said.items() if value is not None}

    @property
    def by_turns(self) -> bool:
        """Whether tenants take turns. With a limit for each they have to: a line that is walked from its start may be
        full of jobs whose tenants are at their limit."""
        return self.fair or self.tenant is not None

    def __bool__(self) -> bool:
        return self.fair or (self.fleet, self.tenant, self.rate) != (None, None, None)

    @property
    def ends_make_room(self) -> bool:
        """Whether a job that ends may let another one start, here or elsewhere."""
        return self.fleet is not None or self.tenant is not None

    def faults(self) -> Iterable[tuple[bool, str]]:
        """What must hold, and what is said where it does not."""
        most = f"1 to {FLEET_LIMIT_MAX:,}, or leave it out"
        yield (
            self.fleet is None or is_number(self.fleet, 1, FLEET_LIMIT_MAX, whole=True),
            f"has fleet_limit={self.fleet!r}; give {most}",
        )
        yield (
            self.tenant is None or is_number(self.tenant, 1, FLEET_LIMIT_MAX, whole=True),
            f"has tenant_limit={self.tenant!r}; give {most}",
        )
        yield isinstance(self.fair, bool), f"has fair={self.fair!r}; give True or False"
        rate = self.rate
        if rate is None:
            return
        yield isinstance(rate, Rate), f"has rate={rate!r}; give rota.Rate(count, per_s=seconds)"
        if isinstance(rate, Rate):
            yield (
                is_number(rate.count, 1, 1_000_000, whole=True),
                f"has a rate of {rate.count!r} starts; give 1 to 1,000,000",
            )
            yield (
                is_number(rate.per_s, 1, 86_400),
                f"has a rate per {rate.per_s!r} seconds; give 1 to 86,400",
            )


NO_LIMITS: Final = Limits()


def last_turn(tenants: Iterable[str | None], *, after: str | None) -> str | None:
    """The tenant whose turn was the last in a claim by turns.

    Args:
        tenants: of the claimed jobs, in any order, with repetitions.
        after: the last turn before this claim.

    Returns: what the next claim begins behind; None stands for the jobs without a tenant.
    """
    counts = Counter(tenant or None for tenant in tenants)
    if not counts:
        return after
    most = max(counts.values())

    def place(tenant: str | None) -> tuple[int, str]:
        # The tour: tenants behind the last turn, jobs without a tenant, tenants up to the last turn.
        if tenant is None:
            return (1, "")
        return (2 if tenant <= (after or "") else 0, tenant)

    return max((tenant for tenant, count in counts.items() if count == most), key=place)
