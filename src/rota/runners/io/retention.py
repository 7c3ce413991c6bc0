"""What gateways remove: nonces, ended runner jobs, events of the audit trail, and what is left of either.

Any replica does so, beside the others and beside workers, in pieces that hold few locks. Where only gateways run,
nothing else would remove a runner job. Usage records stay for ever: they are what somebody is charged by.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

from rota.io.clock import lease_clock
from rota.io.postgres import Database
from rota.runners.io.store import Statements

NONCE_S: Final = 600.0
"""How long nonces are kept: the protocol asks for 240 s at least, and clocks may differ by 120 s either way."""
BATCH: Final = 5000
FACTS_EVERY_S: Final = 3600.0
"""Between two looks for what is left of jobs that workers have removed, which reads all facts."""


class Retention(Statements):
    """What one replica removes.

    Args:
        database: where from.
        keep_s: how long ended jobs stay.
        keep_failed_s: the same for failed ones, which never go before the others.
        audit_s: how long events of the audit trail stay.
    """

    def __init__(self, database: Database, *, keep_s: float, keep_failed_s: float, audit_s: float) -> None:
        super().__init__(database)
        self._keep_s = keep_s
        self._keep_failed_s = keep_failed_s
        self._audit_s = audit_s
        self._facts_at = 0.0

    async def remove(self, *, batch: int = BATCH) -> None:
        """Removes all that is to be removed now.

        Raises: DatabaseAway.
        """
        pieces: list[Callable[[], Awaitable[int]]] = [
            lambda: self.tidy(limit=batch), lambda: self.prune_jobs(limit=batch), lambda: self.prune_audit(limit=batch)
        ]  # fmt: skip
        if lease_clock() >= self._facts_at:
            self._facts_at = lease_clock() + FACTS_EVERY_S
            pieces.append(lambda: self.prune_facts(limit=batch))
        for piece in pieces:
            while await piece() >= batch:
                pass

    async def tidy(self, *, nonce_s: float = NONCE_S, limit: int = BATCH, now: datetime | None = None) -> int:
        """Removes nonces, at most so many, and what there is little of: codes, rejections, secrets out of use, replicas
        that are gone. Returns: how many nonces went."""
        return await self._removed("tidy.sql", nonce_s, limit, now)

    async def prune_jobs(self, *, limit: int = BATCH, now: datetime | None = None) -> int:
        """Removes ended runner jobs after their retention, at most so many. Returns: how many went."""
        return await self._removed("prune_jobs.sql", self._keep_s, self._keep_failed_s, limit, now)

    async def prune_facts(self, *, limit: int = BATCH, now: datetime | None = None) -> int:
        """Removes what is left of runner jobs that workers have removed, of at most so many. Returns: of how many."""
        return await self._removed("prune_facts.sql", limit, now)

    async def prune_audit(self, *, limit: int = BATCH, now: datetime | None = None) -> int:
        """Removes old events of the audit trail, at most so many. Returns: how many went."""
        return await self._removed("prune_audit.sql", self._audit_s, limit, now)

    async def _removed(self, name: str, *args: object) -> int:
        removed: int = (await self._fetch(name, *args))[0]["removed"]
        return removed
