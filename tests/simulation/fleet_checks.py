"""What has to hold in each history of a fleet, looked at after every event, and at the end.

Slots in use are live processes and open offers, no more than there are (S31). Who is dealt a slot is who stood first in
line when it was free: the position that was told comes true (I7). No job begins twice. In the end no want is lost, no
slot is leaked, nobody counts as a client who is gone; and then nothing is said (I8).
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from rota.slots import place
from rota.slots.calls import Call
from rota.slots.events import Deal, Ended, Said, Send, Tick
from rota.slots.messages import Cancel, Decline, Error, Job, Position, Unwant
from tests.simulation import fleet as fleets
from tests.simulation.checks import Broken

SETTLE_S = 150.0
"""After the last call: links that are half open are noticed, dropped ones dialled again, the last HELLO sent."""
MOMENT_S: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Told:
    """What a history was like."""

    jobs: int  # calls that somebody wanted done
    starts: int
    retries: int
    faults: int
    frames: int
    virtual_s: float


class Checks:
    """Watches one history."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()

    def before(self, server: "fleets.Server", event: Any) -> list[Any] | None:
        """The line, where the event changes nothing of it but by dealing slots."""
        broker = server.broker
        if broker.load.learns:
            return None  # the fast reserve lets quick services go earlier
        frees = isinstance(event, Ended | Tick)
        if isinstance(event, Said) and isinstance(event.message, Decline | Unwant | Cancel | Job):
            client = broker.clients.get(event.client)
            call = client.calls.get(event.message.job_id) if client is not None else None
            frees = call is not None and call.state != "waiting"
        return list(place.replay(broker.groups["cpu"].book)) if frees else None

    def after(self, server: "fleets.Server", event: Any, commands: list[Any], expected: list[Any] | None) -> None:
        """Looks at what came of an event."""
        broker = server.broker
        group = broker.groups["cpu"]
        offered = [call for call in broker.busy(group) if call.state == "offered"]
        if group.ledger.in_use != len(offered) + len(server.alive):
            raise Broken(
                f"S31: {server.name} has {group.ledger.in_use} slots in use, {len(offered)} offers and "
                f"{len(server.alive)} live commands after {event}"
            )
        # Where there are fewer slots than before, what has one keeps it, and nobody gets another.
        most = max(group.ledger.processes, server.in_use)
        server.in_use = group.ledger.in_use
        if not 0 <= group.ledger.in_use <= most:
            raise Broken(f"I7: {server.name} uses {group.ledger.in_use} of {group.ledger.processes} slots")
        deals = [(command.client, command.message.job_id) for command in commands if isinstance(command, Deal)]
        if expected is not None:
            line = [(call.client.number, call.job_id) for call in expected]
            if deals != line[: len(deals)]:
                raise Broken(f"I7: {server.name} dealt {deals}, and the line was {line[:8]}")
        if group.ledger.free and len(group.book) and not broker.draining and not broker.load.learns:
            raise Broken(
                f"{server.name} has {group.ledger.free} free slots while {len(group.book)} wait, after {event}"
            )
        self._timely(server, offered)
        for command in commands:
            if isinstance(command, Send):
                self._said(server, command)

    def begins(self, server: "fleets.Server", job_id: str) -> None:
        """A command begins."""
        self.begun[job_id] += 1
        if self.begun[job_id] > 1:
            raise Broken(f"{job_id} begins again, at {server.name}")

    def _timely(self, server: "fleets.Server", offered: list[Call]) -> None:
        broker, now = server.broker, server.fleet.time.now
        for call in offered:
            if now - call.since > broker.rules.offer_timeout_s + MOMENT_S:
                raise Broken(f"S37: the offer of {call.job_id} is {now - call.since:.0f} s old")
        for call in broker.busy(broker.groups["cpu"]):
            if call.client.gone and call.state == "running" and call.job_id not in server.killed:
                raise Broken(f"S39: {call.job_id} runs on for a client that is gone")

    def _said(self, server: "fleets.Server", said: Send) -> None:
        match said.message:
            case Error("offer_expired", _, job_id):
                link = server.links.get(said.client)
                if link is not None and link.up and not link.closed_here:
                    raise Broken(f"the offer of {job_id} was not answered, and its link is well")
            case Position(job_id, told):
                line = place.replay(server.broker.groups["cpu"].book)
                names = [(call.client.number, call.job_id) for call in line if isinstance(call, Call)]
                mine = (said.client, job_id)
                if mine in names and names.index(mine) != told:
                    raise Broken(f"{job_id} is told {told} ahead, and {names.index(mine)} are")


def run(seed: int) -> Told:
    """Plays the history of a seed.

    Raises: Broken if something did not hold.
    """
    fleet = fleets.Fleet(seed, Checks())

    def all_done() -> bool:
        return sum(client.done for client in fleet.clients) == fleet.calls

    fleet.time.run(fleets.FAULTS_UNTIL_S)
    fleet.time.run(fleets.LIMIT_S, all_done)
    if not all_done():
        left = {job_id: client.demand.placed_on(job_id) for client in fleet.clients for job_id in client.calls}
        raise Broken(f"wants were lost: {left or 'a call that nobody holds'}")
    took = fleet.time.now
    fleet.time.run(took + SETTLE_S)
    _at_rest(fleet)
    frames, dials = fleet.frames, fleet.dials
    fleet.time.run(fleet.time.now + fleets.IDLE_S)
    if (fleet.frames, fleet.dials) != (frames, dials):
        raise Broken(f"I8: {fleet.frames - frames} frames and {fleet.dials - dials} dials while nothing waited")
    return Told(fleet.calls, fleet.starts, fleet.retries, fleet.faults, frames, took)


def _at_rest(fleet: "fleets.Fleet") -> None:
    for server in fleet.servers():
        broker = server.broker
        if (broker.in_use, broker.waiting, server.alive) != (0, 0, {}):
            raise Broken(f"{server.name} still has {broker.in_use} slots in use, {broker.waiting} wants")
        held = [client for client in broker.clients.values() if client.calls]
        links = [link for link in server.links.values() if link.up and not link.closed_here]
        if held or len(broker.clients) != len(links):
            raise Broken(f"{server.name} knows {len(broker.clients)} clients, and {len(links)} are connected")
    for client in fleet.clients:
        reached = [id(link.server) for link in client.links.values()]
        if len(set(reached)) != len(reached):
            raise Broken(f"{client.name} has two connections to one exec server")
        for pool in client.pools:
            if len(set(pool.instances.values())) != len(pool.instances):
                raise Broken(f"{client.name} is connected twice to one of {pool.instances}")
            if not pool.instances:
                raise Broken(f"{client.name} gave up an address")
        for link in client.links.values():
            told = fleet.told.get(id(link))
            if told != len(link.server.broker.clients):
                raise Broken(f"{client.name} was told of {told} clients of {link.server.name}")
            if not link.server.up or link.closed_there:
                raise Broken(f"{client.name} did not notice that {link.server.name} is gone")
