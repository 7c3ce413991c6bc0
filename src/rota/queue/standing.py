"""What holds jobs back at a worker beside the limits of their kinds: CPU slots, and slots of exec servers. Pure.

Each worker says it with its row among the servers, because people ask in another process (`rota jobs why`), and because
a place in line is only whole with what all of them know: the want-books of exec servers hold what was claimed, and the
database what was not.

Spec: slot broker, "Claim fairness" and "Future extension: queue position".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from rota.commands import CallInLine, Place, Standing


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a worker says of itself now.

    Attributes:
        cpus: slots that its kinds which are bound by the CPU share.
        cpus_kept: of these, kept for urgent jobs.
        cpu_kinds: those kinds, each with the priority from which on a job is urgent; None: none of its jobs is.
        exec: how it stands with exec servers; None: no kind of its program needs them.
    """

    cpus: int = 0
    cpus_kept: int = 0
    cpu_kinds: Mapping[str, int | None] = field(default_factory=dict)
    exec: Standing | None = None


NO_FACTS: Final = ServerFacts()
UNCLAIMED_MAX: Final = 100_000
"""Jobs before another one that are counted; nobody who hears of so many wants to know it better."""


def said(facts: ServerFacts) -> str:
    """The facts as they stand in the database; the same facts are always the same text."""
    return msgspec.json.encode(facts).decode()


def heard(text: str) -> ServerFacts:
    """The facts of a row. Those of another version of Rota may not be such; then nothing is known."""
    try:
        return msgspec.json.decode(text, type=ServerFacts)
    except msgspec.DecodeError:
        return ServerFacts()


def taken(value: object) -> ServerFacts:
    """The same from what JSON gave."""
    try:
        return msgspec.convert(value, ServerFacts)
    except msgspec.ValidationError:
        return ServerFacts()


def news(facts: ServerFacts) -> object:
    """What of the facts is worth saying before it is time: times go on by themselves."""
    if facts.exec is None:
        return None
    calls = [(call.name, call.runs, call.place and (call.place.ahead, call.place.running)) for call in facts.exec.calls]
    return facts.exec.connected, dict(facts.exec.kinds), calls, facts.exec.parked


def sharing(kind: str, everybody: Iterable[ServerFacts]) -> list[str]:
    """The kinds whose jobs draw from the slots that this kind needs, itself among them; empty if it needs none."""
    told = [facts.exec for facts in everybody if facts.exec is not None]
    pool = {service for standing in told if kind in standing.kinds for service in standing.kinds[kind].pool}
    kinds = {name: one.services for standing in told for name, one in standing.kinds.items()}
    return sorted(name for name, services in kinds.items() if pool.intersection(services))


def unclaimed_of(services: Iterable[str], due: Mapping[str, int], everybody: Iterable[ServerFacts]) -> int:
    """How many due jobs that nobody has claimed need one of these services.

    Args:
        services: such as all of one waitgroup.
        due: the due jobs of each kind.
        everybody: what the workers say of their kinds.
    """
    wanted = set(services)
    told = [facts.exec for facts in everybody if facts.exec is not None]
    kinds = {name for standing in told for name, one in standing.kinds.items() if wanted.intersection(one.services)}
    return sum(due.get(kind, 0) for kind in kinds)


def kinds_of(service: str, standing: Standing) -> list[str]:
    """The kinds whose jobs draw from the slots that a service draws from."""
    pool = {service}.union(*(one.pool for one in standing.kinds.values() if service in one.pool))
    return sorted(name for name, one in standing.kinds.items() if pool.intersection(one.services))


def calls_of(job_id: str, facts: ServerFacts | None, *, unclaimed: int) -> list[CallInLine]:
    """The calls of a job that its worker told of; those that wait also behind so many jobs that nobody has claimed."""
    if facts is None or facts.exec is None:
        return []
    return [
        replace(call, place=None if call.place is None else call.place.behind(unclaimed))
        for call in facts.exec.calls
        if call.name == job_id
    ]


def place_of_queued(kind: str, priority: int, everybody: Iterable[ServerFacts], *, unclaimed: int) -> Place:
    """Where a job stands that no worker has claimed: behind those before it, and behind all calls that wait already
    and are not less urgent. No time is told: how long its turn takes nobody knows before it has called."""
    everybody = list(everybody)
    pool = {
        service
        for facts in everybody
        if facts.exec is not None and kind in facts.exec.kinds
        for service in facts.exec.kinds[kind].pool
    }
    told = [entry for facts in everybody if facts.exec is not None for entry in facts.exec.parked]
    parked = sum(count for service, its, count in told if service in pool and its >= priority)
    return Place(parked + unclaimed, unclaimed=unclaimed)
