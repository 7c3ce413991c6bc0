"""What a worker process says of itself, and what it sees to for all: that live code's passes are in the table, and that
somebody hears of work that nobody takes. Effects only; what becomes of passes is decided in `rota.queue.periodic`.

It has no loop of its own: the worker's look calls it, so a process whose looks do not get through is soon not counted
as live. A few short statements every 15 seconds.
"""

from collections.abc import Mapping
from random import Random
from typing import Final

from rota.io.clock import lease_clock
from rota.io.log import get_logger
from rota.queue.io.store import Store
from rota.queue.periodic import GONE_S, Mark, Put, latest, reconcile
from rota.queue.server import SEEN_EVERY_S, Glance, Server, set_back_between
from rota.queue.standing import NO_FACTS, ServerFacts, news

ORPHANS_EVERY: Final = 4
"""Beats between two looks for kinds that nobody takes: about once a minute."""
NEWS_EVERY_S: Final = 3.0
"""How soon news are said again: people wait for them in another process, and a line that moves is news all the time."""

log = get_logger("rota.worker")


class Registry:
    """The row of one worker process.

    Args:
        store: where it stands.
        server: what to say.
        random: for jitter, so that servers that started together do not look together.
        gone_s: how long a pass may be in no live server's code before it is removed.
    """

    def __init__(self, store: Store, server: Server, *, random: Random, gone_s: float = GONE_S) -> None:
        self._store = store
        self._server = server
        self._random = random
        self._gone_s = gone_s
        self._due_at = 0.0
        self._said_at = 0.0
        self._news: object = None
        self._beats = 0
        self._clock: Glance | None = None
        self._orphans: frozenset[str] = frozenset()

    async def beat(
        self,
        running: Mapping[str, int],
        *,
        facts: ServerFacts = NO_FACTS,
        draining: bool = False,
        now: bool = False,
    ) -> None:
        """Says that the process is there, if it is time to (or `now`), or if its facts are news to people.

        Raises: DatabaseAway and its kin; the next call tries again.
        """
        clock, running = lease_clock(), {kind: count for kind, count in running.items() if count}
        if clock < self._due_at and not now:
            if news(facts) != self._news and clock >= self._said_at + NEWS_EVERY_S:
                await self._say(running, facts, draining, clock)
            return
        await self._say(running, facts, draining, clock)
        if not draining:
            await self.tend_passes()
            if self._beats % ORPHANS_EVERY == ORPHANS_EVERY - 1:
                await self._tell_of_orphans()
        self._beats += 1
        self._due_at = clock + SEEN_EVERY_S * (0.9 + 0.2 * self._random.random())

    async def _say(self, running: Mapping[str, int], facts: ServerFacts, draining: bool, clock: float) -> None:
        said = await self._store.serve(self._server, running=running, draining=draining, facts=facts)
        self._news, self._said_at = news(facts), clock
        await self._watch_clock(Glance(clock, said, lease_clock()))

    async def _watch_clock(self, seen: Glance) -> None:
        """Sees to it that nobody waits until the database's clock has caught up, where it was set back: also before
        this process was there."""
        if self._clock is None or set_back_between(self._clock, seen):
            leases, due = await self._store.set_back()
            if leases or due:
                log.warning("the database's clock was set back", leases=leases, due=due)
        self._clock = seen

    async def leave(self) -> None:
        """Takes the row away."""
        await self._store.leave(self._server.holder)

    async def tend_passes(self) -> None:
        """Brings the table of passes to what live code says."""
        rows = await self._store.passes()
        live = [server for server in await self._store.servers() if server.live]
        declared = latest((server.started_at, server.holder, server.passes) for server in live)
        if not rows and not declared:
            return
        now = rows[0].now if rows else max(server.seen_at for server in live)
        for step in reconcile(rows, declared=declared, now=now, gone_s=self._gone_s):
            match step:
                case Put():
                    await self._put(step)
                case Mark():
                    await self._mark(step)

    async def _put(self, put: Put) -> None:
        if not await self._store.put_pass(put):
            return
        facts = {"name": put.name, "schedule": put.declared.schedule, "due_at": put.due_at.isoformat()}
        if put.seen is None or put.seen.removed_at is not None:
            log.info("pass added", **facts)
        elif put.seen.schedule != put.declared.schedule:
            log.info("pass changed", **facts)

    async def _mark(self, mark: Mark) -> None:
        await self._store.mark_pass(mark)
        if mark.removed:
            log.info("pass removed: no live server has it in its code", name=mark.name)
        if mark.cancels is not None:
            await self._store.cancel([mark.cancels], reason=f"The pass {mark.name} is no longer in the program's code")

    async def _tell_of_orphans(self) -> None:
        orphans = {orphan.kind: orphan for orphan in await self._store.orphan_kinds()}
        for kind in sorted(orphans.keys() - self._orphans):
            log.warning(
                "no live server takes this kind", kind=kind, due_at=orphans[kind].due_at.isoformat(),
                is_pass=orphans[kind].is_pass,
            )  # fmt: skip
        for kind in sorted(self._orphans - orphans.keys()):
            log.info("a live server takes this kind again, or its work is gone", kind=kind)
        self._orphans = frozenset(orphans)
