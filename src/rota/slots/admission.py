"""How many jobs a worker may take of kinds that need slots of exec servers. Pure.

It is the worker's share of what the exec servers have, `ceil(slots / clients)` for each instance and a small
headroom, so that one worker never claims the whole queue while its siblings idle. No exec server connected, nothing
claimed. The numbers come from HELLO alone; there is nothing to configure.

Spec: slot broker, "Claim fairness" and "No more worker-pool configuration".
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

HEADROOM: Final = 2
"""Jobs that a worker claims beyond its share, so that a freed slot finds a parked want and not a round trip."""
LEGACY_SHARE: Final = 2
"""Jobs for an address that is polled: it tells nobody how many slots it has."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One exec server as its HELLO tells of it.

    Attributes:
        instance_id: made when it started.
        services: the waitgroup of each service.
        waitgroups: the slots of each waitgroup.
        clients: how many are connected, this process among them.
        draining: it takes no new work.
    """

    instance_id: str
    services: Mapping[str, str]
    waitgroups: Mapping[str, int]
    clients: int = 1
    draining: bool = False

    def share(self, service: str) -> int:
        """This client's share of the slots that the service draws from; 0 where it is not offered."""
        waitgroup = self.services.get(service)
        if waitgroup is None or self.draining:
            return 0
        return -(-self.waitgroups.get(waitgroup, 0) // max(1, self.clients))


def share(service: str, instances: Iterable[Instance], *, legacy: int = 0) -> int:
    """How many jobs that need this service one worker process may hold at once.

    Args:
        service: a service's name.
        instances: those that are connected, each once.
        legacy: addresses that are polled, and may offer it.

    Returns: 0 where nothing that is connected offers it.
    """
    slots = sum(instance.share(service) for instance in instances) + LEGACY_SHARE * legacy
    return slots + HEADROOM if slots else 0


def slots_of(services: Iterable[str], instances: Sequence[Instance]) -> int:
    """How many slots all clients together have for the one of these services that has the fewest."""
    here = [instance for instance in instances if not instance.draining]
    return min(
        (
            sum(instance.waitgroups.get(instance.services.get(service, ""), 0) for instance in here)
            for service in services
        ),
        default=0,
    )


def room(
    kind: str,
    *,
    services: Mapping[str, Sequence[str]],
    running: Mapping[str, int],
    instances: Sequence[Instance],
    legacy: int = 0,
) -> int:
    """How many more jobs of an exec-bound kind may be claimed now.

    Kinds whose services draw from the same slots share them: what one has claimed, another may not.

    Args:
        kind: the kind that is asked about.
        services: the services of each exec-bound kind.
        running: the jobs of each kind that run here.
        instances: the exec servers that are connected, each once.
        legacy: addresses that are polled.

    Returns: 0 or more; the least of its services' answers.
    """
    return min(
        (
            max(0, share(service, instances, legacy=legacy) - _held(service, services, running, instances))
            for service in services[kind]
        ),
        default=0,
    )


def pool_of(services: Sequence[str], instances: Sequence[Instance]) -> tuple[str, ...]:
    """These services, and all that draw from slots from which one of them draws, somewhere."""
    pools = set[tuple[str, str]]().union(*(_pools(service, instances) for service in services))
    found = set(services)
    for instance in instances:
        found |= {name for name, group in instance.services.items() if (instance.instance_id, group) in pools}
    return tuple(sorted(found))


def _held(
    service: str, services: Mapping[str, Sequence[str]], running: Mapping[str, int], instances: Sequence[Instance]
) -> int:
    """The jobs here that draw, or will, from the slots of this service."""
    pools = _pools(service, instances)
    return sum(
        running.get(kind, 0)
        for kind, needed in services.items()
        if service in needed or any(pools & _pools(other, instances) for other in needed)
    )


def _pools(service: str, instances: Sequence[Instance]) -> set[tuple[str, str]]:
    return {
        (instance.instance_id, instance.services[service]) for instance in instances if service in instance.services
    }
