"""What an exec server tells people who ask: where a call stands, and all at a glance. Pure; it changes nothing."""

from collections.abc import Iterator
from itertools import islice, repeat
from typing import Protocol

from rota.slots import messages, place
from rota.slots.calls import Call, Group
from rota.slots.load import Load
from rota.slots.rules import Rules

Eta = tuple[float, float] | tuple[None, None]


class Dealer(Protocol):
    """What is looked at: the broker, which imports this."""

    rules: Rules
    load: Load
    draining: bool
    groups: dict[str, Group]

    @property
    def waiting(self) -> int:
        """How many wants stand in the books."""

    @property
    def in_use(self) -> int:
        """How many slots are with somebody."""

    def busy(self, group: Group) -> list[Call]:
        """The calls that have a slot of this waitgroup."""

    def hello(self) -> messages.Hello:
        """What the exec server is, now."""


def position(broker: Dealer, call: Call, now: float) -> messages.Position:
    """Where a call stands in its waitgroup, and about when its turn comes."""
    group = call.group
    slots = group.ledger.processes
    if call.state != "waiting":
        return messages.Position(call.job_id, 0, group.ledger.in_use, slots, 0.0, 0.0)
    before = place.ahead(group.book, call)
    times = _times(group, broker.busy(group), broker.load, now)
    low_s, high_s = (None, None) if times is None else place.eta(before, slots, *times)
    return messages.Position(call.job_id, before, group.ledger.in_use, slots, low_s, high_s)


def overview(broker: Dealer, now: float) -> messages.Overview:
    """All at a glance, the first wants in the order in which they are dealt slots."""
    rows: list[messages.JobView] = []
    groups = {}
    for name, group in broker.groups.items():
        busy = broker.busy(group)
        offered = sum(call.state == "offered" for call in busy)
        groups[name] = messages.WaitgroupView(
            group.ledger.processes, group.ledger.in_use - offered, offered, len(group.book), group.reserve.size
        )
        rows += [_row(call, now) for call in busy]
        times = _times(group, busy, broker.load, now) if group.book else None
        turns: Iterator[Eta] = repeat((None, None)) if times is None else place.etas(group.ledger.processes, *times)
        waiting = islice(place.replay(group.book), messages.OVERVIEW_ROWS_MAX)
        rows += [
            _row(call, now, before, eta)
            for (before, call), eta in zip(enumerate(waiting), turns, strict=False)
            if isinstance(call, Call)
        ]
    services = {}
    for service, waitgroup in broker.rules.services.items():
        known = broker.load.of(service)
        services[service] = messages.ServiceView(
            waitgroup, known.runs if known else 0, known.mean_s if known else None, broker.load.quick(service)
        )
    shown = rows[: messages.OVERVIEW_ROWS_MAX]
    return messages.Overview(
        broker.rules.instance_id, broker.hello().clients, groups, services, shown, broker.draining,
        broker.waiting + broker.in_use > len(shown),
    )  # fmt: skip


def _times(
    group: Group, busy: list[Call], load: Load, now: float
) -> tuple[list[tuple[float, float, float]], float, float] | None:
    """What a guess needs: the slots in use, and how long a want takes on average; None if a service is unknown."""
    running = []
    for call in busy:
        known = load.range_s(call.service)
        if known is None:
            return None
        running.append((now - call.since, *known))
    low_s = high_s = 0.0
    counts = group.book.waiting()
    for service, count in counts.items():
        known = load.range_s(service)
        if known is None:
            return None
        low_s += count * known[0]
        high_s += count * known[1]
    waiting = sum(counts.values()) or 1
    return running, low_s / waiting, high_s / waiting


def _row(call: Call, now: float, before: int | None = None, eta: Eta = (None, None)) -> messages.JobView:
    return messages.JobView(
        call.job_id, f"c{call.client.number}", call.service, call.state, call.priority, call.tenant, before,
        max(0.0, now - call.since), *eta,
    )  # fmt: skip
