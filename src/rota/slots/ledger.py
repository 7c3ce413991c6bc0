"""The slots of one waitgroup: how many are in use, and by which services. Pure.

A slot is in use from the moment it is reserved for an offer until the offer is over or the command's processes are
dead. It never counts more slots than there are, and never gives back one that was not taken. Where the waitgroup is
made smaller while commands run, more may be in use than there are, until enough of them have ended.
"""


class Ledger:
    """Counts the slots of a waitgroup with this many processes (1 or more)."""

    __slots__ = ("by_service", "in_use", "processes")

    def __init__(self, processes: int) -> None:
        assert processes >= 1, processes
        self.processes = processes
        self.in_use = 0
        self.by_service: dict[str, int] = {}  # only those with slots in use

    @property
    def free(self) -> int:
        """Slots that nobody has."""
        return max(0, self.processes - self.in_use)

    def take(self, service: str) -> None:
        """One slot is reserved."""
        assert self.in_use < self.processes, "a slot that is not there"
        self.in_use += 1
        self.by_service[service] = self.by_service.get(service, 0) + 1

    def give_back(self, service: str) -> None:
        """One slot is free again."""
        left = self.by_service[service] - 1
        if left:
            self.by_service[service] = left
        else:
            del self.by_service[service]
        self.in_use -= 1
