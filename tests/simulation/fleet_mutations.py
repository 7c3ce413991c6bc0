"""Rules of the slot broker broken on purpose: each must be caught by some history of a fleet."""

from collections.abc import Callable
from typing import Any, Final

from rota.slots.broker import Broker
from rota.slots.demand import Demand
from rota.slots.ledger import Ledger
from rota.slots.pool import Pool
from rota.slots.wantbook import WantBook
from tests.simulation.mutations import Mutation, Patch, around, method


def _before(owner: type, name: str, does: Callable[..., Any]) -> Patch:
    """Does something more, before the method."""

    def change(original: Any, self: Any, *args: Any, **options: Any) -> Any:
        does(self, *args)
        return original(self, *args, **options)

    return around(owner, name, change)


def _without(kind: str) -> Callable[..., Any]:
    """What the method says to do, less one kind of command."""

    def change(original: Any, self: Any, *args: Any, **options: Any) -> Any:
        return [command for command in original(self, *args, **options) if type(command).__name__ != kind]

    return change


def _without_message(*kinds: str) -> Callable[..., Any]:
    def change(original: Any, self: Any, *args: Any, **options: Any) -> Any:
        commands = original(self, *args, **options)
        return [command for command in commands if type(getattr(command, "message", None)).__name__ not in kinds]

    return change


def _newest_first(original: Any, book: WantBook, line: Any, service: str, turn: Any) -> Any:
    turn.queues[service].rotate(1)
    return original(book, line, service, turn)


def _lowest_first(original: Any, book: WantBook, *args: Any) -> Any:
    book._order.reverse()
    try:
        return original(book, *args)
    finally:
        book._order.sort(key=lambda line: line.priority)


def _keeps_offers(original: Any, broker: Broker, event: Any, now: float) -> None:
    client = broker.clients.get(event.client)
    if client is not None:
        for job_id, call in list(client.calls.items()):
            if call.state == "offered":
                del client.calls[job_id]
    original(broker, event, now)


def _no_grant_after(name: str) -> Patch:
    def change(original: Any, broker: Broker, *args: Any) -> Any:
        draining, broker.draining = broker.draining, True
        try:
            return original(broker, *args)
        finally:
            broker.draining = draining

    return around(Broker, name, change)


def _offers_twice(original: Any, broker: Broker, group: Any, now: float) -> None:
    original(broker, group, now)
    broker._out += [command for command in broker._out if type(command).__name__ == "Deal"]


def _counts_one_more(ledger: Ledger) -> int:
    return ledger.processes + 1 - ledger.in_use


def _never_parks_again(demand: Demand, event: Any) -> list[Any]:
    demand._connections[event.connection] = event
    return []


def _without_loss(original: Any, demand: Demand, connection: int) -> list[Any]:
    original(demand, connection)
    return []


def _calm(original: Any, pool: Pool, _waiting_since: float | None, now: float) -> Any:
    return original(pool, None, now)


def _never_dials_again(pool: Pool, _now: float) -> None:
    pool._dial_at = None


def _hello_again(broker: Broker, _event: Any, now: float) -> None:
    broker._hello_at = now + 9


def _hello_never(broker: Broker, *_args: Any) -> None:
    """The number of clients is not told again."""


def _kept(_ledger: Ledger, _service: str) -> None:
    """The slot is not given back."""


def _free(free: Any) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(Ledger, "free", property(free))


def _forgets_who_waits(broker: Broker, *_args: Any) -> None:
    for group in broker.groups.values():
        for want in list(group.book):
            group.book.remove(want)


def _counts_as_before(original: Any, broker: Broker, *args: Any) -> Any:
    before = {name: group.ledger.processes for name, group in broker.groups.items()}
    original(broker, *args)
    for name, processes in before.items():
        if name in broker.groups and broker.groups[name].ledger.processes < processes:
            broker.groups[name].ledger.in_use = min(
                broker.groups[name].ledger.in_use, broker.groups[name].ledger.processes
            )


MUTATIONS: Final = (
    Mutation("S31", "the offers of a dropped connection stay reserved", around(Broker, "_dropped", _keeps_offers)),
    Mutation("S31", "no slot is given back", method(Ledger, "give_back", _kept)),
    Mutation("S32", "a drop wakes nobody", _no_grant_after("_dropped")),
    Mutation("S36", "an end wakes nobody", _no_grant_after("_ended")),
    Mutation("S36", "what is declined wakes nobody", _no_grant_after("_give_up")),
    Mutation("S36", "each slot is offered twice", around(Broker, "_grant", _offers_twice)),
    Mutation("S37", "offers never time out", method(Broker, "next_at", lambda broker: broker._hello_at)),
    Mutation("S39", "commands of a dropped connection live on", around(Broker, "handle", _without("Kill"))),
    Mutation("I7", "one slot more than there is", _free(_counts_one_more)),
    Mutation("I7", "the newest want of a client first", around(WantBook, "_deal", _newest_first)),
    Mutation("I7", "the lowest priority first", around(WantBook, "take", _lowest_first)),
    Mutation("SIGHUP", "who waits is forgotten", _before(Broker, "_redeclared", _forgets_who_waits)),
    Mutation("SIGHUP", "slots that are gone are free", around(Broker, "_redeclared", _counts_as_before)),
    Mutation("I8", "HELLO over and over", _before(Broker, "_tick", _hello_again)),
    Mutation("seed", "HELLO is not sent again", method(Broker, "_hello_later", _hello_never)),
    Mutation(
        "seed", "surplus offers are not answered", around(Demand, "handle", _without_message("Decline", "Unwant"))
    ),
    Mutation("seed", "wants are not parked again", method(Demand, "_announced", _never_parks_again)),
    Mutation("seed", "what a lost connection ran is not told", around(Demand, "_dropped", _without_loss)),
    Mutation("S35", "a second connection to one instance stays", around(Pool, "handle", _without("Close"))),
    Mutation("S35", "a pool never grows", around(Pool, "_ticked", _calm)),
    Mutation("S35", "a dropped connection is not dialled again", method(Pool, "_wait", _never_dials_again)),
)
"""DECLINE and UNWANT each make up for the other: a surplus offer is over with the one that comes first."""
