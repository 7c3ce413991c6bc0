"""What a worker asks of the queue and what it remembers of the answers: where lines begin, and whose turn it was.

Kinds with limits beyond one server have a statement of their own, so the others pay nothing for them. The rules are in
`rota.queue.marks` and `rota.queue.limits`; here are the calls, and the clock that times them.
"""

from collections.abc import Iterable, Sequence

from rota.ids import Holder
from rota.io.clock import lease_clock
from rota.queue.io.store import Store
from rota.queue.job import Ask, ClaimedJob, Full, Poll
from rota.queue.limits import last_turn
from rota.queue.marks import Marks, Wholes


class Claims:
    """The claims and looks of one worker.

    Args:
        store: the queue.
        holder: who claims.
    """

    def __init__(self, store: Store, *, holder: Holder) -> None:
        self._store = store
        self._holder = holder
        self._marks = Marks()
        self._turns: dict[str, str | None] = {}
        self._looks = Wholes()
        self._none_expired_at: float | None = None

    async def take(self, asks: Sequence[Ask]) -> list[ClaimedJob]:
        """Claims, in the queue's order. The asks are all of kinds with limits beyond one server, or all of others."""
        return await (self._limited(asks) if asks[0].limits else self._plain(asks))

    async def _plain(self, asks: Sequence[Ask]) -> list[ClaimedJob]:
        sent_at = lease_clock()
        marks = self._marks.of((ask.kind for ask in asks), now=sent_at)
        jobs = await self._store.claim(asks, holder=self._holder, marks=marks)
        self._marks.claimed(asks, jobs, marks=marks, sent_at=sent_at, took_s=lease_clock() - sent_at)
        return jobs

    async def _limited(self, asks: Sequence[Ask]) -> list[ClaimedJob]:
        asks = [ask.behind(self._turns.get(ask.kind)) for ask in asks]
        jobs = await self._store.claim_turns(asks, holder=self._holder)
        for ask in asks:
            if ask.limits.by_turns:
                self._turns[ask.kind] = last_turn((job.tenant for job in jobs if job.kind == ask.kind), after=ask.after)
        return jobs

    async def look(self, kinds: Sequence[str], *, full: Sequence[Full], grace_s: float) -> Poll:
        """Asks what a worker needs to know; `Store.poll` has the arguments. From time to time it looks at all of it,
        else at what is new."""
        sent_at = lease_clock()
        whole = self._looks.due(sent_at)
        none_expired_s = None if whole or self._none_expired_at is None else sent_at - self._none_expired_at
        seen = await self._store.poll(
            kinds,
            holder=self._holder,
            full=full,
            grace_s=grace_s,
            marks=() if whole else self._marks.all([*kinds, *(one.kind for one in full)], now=sent_at),
            none_expired_s=none_expired_s,
        )
        if whole:
            self._looks.was(sent_at=sent_at, took_s=lease_clock() - sent_at)
        self._none_expired_at = None if seen.expired else sent_at
        return seen

    def returned(self, kinds: Iterable[str]) -> None:
        """Notes that jobs of these kinds went back to their old places."""
        self._marks.forget(kinds)
