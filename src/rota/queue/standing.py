"""What holds jobs back at a worker beside the limits of their kinds: CPU slots, and slots of exec servers. Pure.

Each worker says it with its row among the servers, because people ask in another process (`rota jobs why`), and because
a place in line is only whole with what all of them know: the want-books of exec servers hold what was claimed, and the
database what was not.

Spec: slot broker, "Claim fairness" and "Future extension: queue position".
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
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
    return facts.exec.connected, dict(facts.exec.kinds), calls, facts.exec.parked, list(facts.exec.times)


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


def kinds_before(service: str, everybody: Iterable[ServerFacts]) -> list[str]:
    """The same, by what all workers say."""
    told = [facts.exec for facts in everybody if facts.exec is not None]
    return sorted({kind for standing in told for kind in kinds_of(service, standing)})


def calls_of(job_id: str, facts: ServerFacts | None, *, unclaimed: int) -> list[CallInLine]:
    """The calls of a job that its worker told of; those that wait also behind so many jobs that nobody has claimed."""
    if facts is None or facts.exec is None:
        return []
    return [
        replace(call, place=None if call.place is None else call.place.behind(unclaimed))
        for call in facts.exec.calls
        if call.name == job_id
    ]


def place_of_queued(
    kind: str, priority: int, everybody: Iterable[ServerFacts], *, unclaimed: Mapping[str, int]
) -> Place:
    """Where a job stands that no worker has claimed, and about when its turn comes.

    It is behind the jobs before it, and behind all calls that wait already and are not less urgent. They take the slots
    in turn, each for as long as its service took so far; a job is taken to call each of its kind's services once.

    Args:
        kind, priority: of the job.
        everybody: what the workers say.
        unclaimed: the jobs before it, by kind.
    """
    told = [facts.exec for facts in everybody if facts.exec is not None]
    shares = [standing.kinds[kind] for standing in told if kind in standing.kinds]
    pool = {service for share in shares for service in share.pool}
    parked: Counter[str] = Counter()
    for standing in told:
        for service, its, count in standing.parked:
            if service in pool and its >= priority:
                parked[service] += count
    needed = {name: one.services for standing in told for name, one in standing.kinds.items()}
    wants = Counter(parked)
    for name, count in unclaimed.items():
        for service in needed.get(name, ()):
            wants[service] += count
    busy = {call.service for standing in told for call in standing.calls if call.runs and call.service in pool}
    slots = max((share.slots for share in shares), default=0)
    low_s, high_s = _eta_s(wants, busy, slots, _times(told))
    before = sum(unclaimed.values())
    return Place(parked.total() + before, 0, low_s, high_s, before)


def _times(told: Iterable[Standing]) -> dict[str, tuple[float, float]]:
    """How long commands take, as wide as what any worker saw."""
    found: dict[str, tuple[float, float]] = {}
    for standing in told:
        for service, (low_s, high_s) in standing.times.items():
            known_low_s, known_high_s = found.get(service, (low_s, high_s))
            found[service] = min(low_s, known_low_s), max(high_s, known_high_s)
    return found


def _eta_s(
    wants: Mapping[str, int], busy: Collection[str], slots: int, times: Mapping[str, tuple[float, float]]
) -> tuple[float, float] | tuple[None, None]:
    """When all of these have had a slot. What runs may be over at once, or have just begun."""
    if not slots or any(service not in times for service in (*wants, *busy)):
        return None, None
    low_s, high_s = (sum(count * times[service][end] for service, count in wants.items()) / slots for end in (0, 1))
    return low_s, high_s + max((times[service][1] for service in busy), default=0.0)
