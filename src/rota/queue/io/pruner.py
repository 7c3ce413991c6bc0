"""Removes ended jobs after their retention, with their tries and lines: the prune loop of a worker.

Every worker prunes for all kinds. It works each rule off from where it came to before, so that neither what stays for
long nor the whole history is read each minute; after a start, and now and then, it looks at everything once.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Final

from rota.io.backoff import Backoff
from rota.io.clock import lease_clock
from rota.queue.io.store import Store
from rota.queue.kind import Kind
from rota.queue.retention import Keep, Rule, rules

EVERY_S: Final = 60.0
"""Between two looks, about; each server has its own moment."""
BATCH: Final = 5000
"""Jobs that one statement removes: some tens of milliseconds."""
LATE_S: Final = 120.0
"""How much later than it says a job's end may become visible: a statement takes 30 seconds at most."""
AFRESH_S: Final = 3600.0
"""How often to look at everything: for rows that another server had locked and did not remove after all."""


class Pruner:
    """One background task.

    Args:
        store: the queue.
        kinds: those of the program, with what they say about retention.
        keep_s: how long ended jobs stay of kinds that say nothing.
        keep_failed_s: the same for failed ones.
        random: for jitter.
    """

    def __init__(
        self, store: Store, kinds: Sequence[Kind], *, keep_s: float, keep_failed_s: float, random: Random
    ) -> None:
        self._store = store
        self._keeps = [Keep(kind.name, kind.keep_s, kind.keep_failed_s) for kind in kinds]
        self._keep_s = keep_s
        self._keep_failed_s = keep_failed_s
        self._random = random
        self._gone_before: dict[Rule, datetime] = {}
        self._afresh_at = 0.0

    async def run(self, backoff: Backoff) -> None:
        """Prunes about once a minute, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S * (0.5 + self._random.random()))
            await self.prune()
            backoff.reset()

    async def prune(self) -> int:
        """Removes what is to be removed now, and says how many jobs that were."""
        if lease_clock() >= self._afresh_at:
            self._afresh_at = lease_clock() + AFRESH_S * (0.5 + self._random.random())
            self._gone_before.clear()
        keeps = await self._store.keep(self._keeps)
        all_removed = 0
        for rule in rules(keeps, keep_s=self._keep_s, keep_failed_s=self._keep_failed_s):
            removed = BATCH
            while removed >= BATCH:
                pruned = await self._store.prune(rule, since=self._gone_before.get(rule), limit=BATCH)
                removed = pruned.removed
                all_removed += removed
            self._gone_before[rule] = pruned.before - timedelta(seconds=LATE_S)
        while await self._store.prune_batches(keep_s=self._keep_s, limit=BATCH) >= BATCH:
            pass
        return all_removed
