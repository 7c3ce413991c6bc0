"""The loop of a worker that claims jobs for free slots, and says when the worker wants to be woken. Effects only.

What to ask for is decided in `rota.queue.dispatcher`. A claim begins when somebody kicks: a job may be due, or a slot
is free where more is due.

Spec: job queue, "How a server takes a job".
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from rota.ids import Holder
from rota.io.backoff import Backoff
from rota.io.clock import lease_clock
from rota.queue.dispatcher import Slots
from rota.queue.io.claims import Claims
from rota.queue.io.completer import PENDING_MAX, Completer
from rota.queue.io.crew import Crew
from rota.queue.io.leases import GuardedBook
from rota.queue.io.loops import Asides
from rota.queue.io.metering import Metering
from rota.queue.io.store import Store
from rota.queue.job import Ask, ClaimedJob

WAITING_S: Final = 30.0
"""How long a sleeping worker's wish to be woken stands; it is said again in good time."""
BUSY_S: Final = 0.25
"""A worker that finds full batches for so long does not want to be woken: it looks anyway."""
ROOM_S: Final = 0.002
"""How long a freed slot waits for others before a claim, where more is due: about as long as a claim takes."""


class ClaimLoop:
    """What one worker claims, and when.

    Args:
        kinds: those that this worker takes.
        holder: who claims.
        store: the queue.
        claims: its memory of the queue's answers.
        slots: what has room here.
        crew: runs what was claimed.
        completer: where ends wait to be written; while too many do, nothing is claimed.
        leases: the leases of this worker.
        stopping: set when it takes no new work.
        ready: set once an answer has come.
        wakes: whether a connection listens for wake-ups.
        asides: does what need not succeed.
        metering: counts, if anybody does.
    """

    def __init__(
        self,
        kinds: Collection[str],
        *,
        holder: Holder,
        store: Store,
        claims: Claims,
        slots: Slots,
        crew: Crew,
        completer: Completer,
        leases: GuardedBook,
        stopping: asyncio.Event,
        ready: asyncio.Event,
        wakes: bool,
        asides: Asides,
        metering: Metering | None,
    ) -> None:
        self._kinds = kinds
        self._holder = holder
        self._store = store
        self._claims = claims
        self._slots = slots
        self._crew = crew
        self._completer = completer
        self._leases = leases
        self._stopping = stopping
        self._ready = ready
        self._wakes = wakes
        self._asides = asides
        self._metering = metering
        self._kick = asyncio.Event()
        self._more = set(kinds)
        """Kinds of which more may be due than the last claim took."""
        self._soon: asyncio.TimerHandle | None = None
        self._failed = False
        self._said_waiting_at: float | None = None
        self._busy_since: float | None = None

    async def run(self, backoff: Backoff) -> None:
        """Claims whenever somebody has kicked, until the worker stops."""
        while not self._stopping.is_set():
            await self._kick.wait()
            self._kick.clear()
            while await self._once():
                backoff.reset()
            backoff.reset()

    def kick(self) -> None:
        """Asks for a look at what there is to claim, if anything is known to be due."""
        self._kick.set()

    def want(self, kind: str) -> None:
        """Notes that jobs of a kind may be due, and claims."""
        self._more.add(kind)
        self._slots.heard([kind])
        self._kick.set()

    def want_all(self) -> None:
        """The same for all kinds."""
        self._more.update(self._kinds)
        self._slots.heard(self._kinds)
        self._kick.set()

    def freed(self, kind: str, *, cpu: bool) -> None:
        """Notes that a slot of a kind is free; with `cpu` one that others may use as well."""
        if not self._kick.is_set() and (cpu or kind in self._more):
            if self._slots.roomy(kind):
                self._kick.set()
            else:
                self._kick_soon()

    def written(self, kinds: Iterable[str]) -> None:
        """Notes that ends have been written: of these kinds others may start now."""
        self._more.update(kinds)
        if self._claims_again():
            self._kick.set()

    async def wish_again(self) -> None:
        """Says once more that this worker wants to be woken, where it has said so and it is time."""
        if self._said_waiting_at is not None and lease_clock() - self._said_waiting_at > WAITING_S / 2:
            await self._say_waiting()

    async def _once(self) -> bool:
        """One claim. Returns: whether to claim again at once."""
        if self._completer.waiting >= PENDING_MAX or self._completer.late:
            return False
        asks = self._slots.asks(self._more)
        if not asks:
            return False
        if self._failed:
            # Its statement may have been taken although its answer was lost: those jobs are nobody's otherwise.
            before = await self._store.clock()
            with self._leases.lock:
                known = [lease.job_id for lease in self._leases.book]
            await self._store.disown(self._holder, known=known, before=before)
            self._failed = False
        got: Counter[str] = Counter()
        for group in ([ask for ask in asks if not ask.limits], [ask for ask in asks if ask.limits]):
            if group:
                got += Counter(job.kind for job in await self._take(group))
        full = got.total() >= sum(ask.free for ask in asks)
        self._note_business(full=full)
        if not full and await self._say_waiting():
            # Somebody may have added a job before the wish to be woken stood: look once more.
            self._more.update(ask.kind for ask in asks)
        return self._claims_again()

    async def _take(self, asks: list[Ask]) -> list[ClaimedJob]:
        """Claims, and starts what it got."""
        self._more.difference_update(ask.kind for ask in asks)
        sent_at = lease_clock()
        try:
            claimed = await self._claims.take(asks)
        except BaseException:
            self._failed = True
            self._more.update(ask.kind for ask in asks)
            raise
        self._ready.set()
        if self._metering is not None:
            self._metering.claimed(claimed, took_s=lease_clock() - sent_at)
        claimed = self._not_begun(claimed)
        if claimed:
            self._slots.took(claimed)
            self._crew.start(claimed, sent_at=sent_at)
            if self._stopping.is_set():
                # What ran before may still come to its own end.
                self._crew.give_back(claimed)
        got = Counter(job.kind for job in claimed)
        for ask in asks:
            self._slots.answered(ask, got[ask.kind])
            # Where only urgent jobs were asked for, others may be due.
            if got[ask.kind] >= ask.free or ask.lowest is not None:
                self._more.add(ask.kind)
            elif got[ask.kind] and ask.limits.rate is not None:
                asyncio.get_running_loop().call_later(ask.limits.rate.slice_s, self.want, ask.kind)
        return claimed

    def _not_begun(self, claimed: list[ClaimedJob]) -> list[ClaimedJob]:
        """Those whose runs have not begun here. A database that lost its last commits, as a standby that was behind and
        took over, gives out again, under the same epoch, what this holder had taken: the run that is under way goes on
        under that lease, or its end is still to be written under it."""
        with self._leases.lock:
            begun = self._leases.book.held_of([job.lease for job in claimed], now=lease_clock())
        return [job for job in claimed if job.lease not in begun] if begun else claimed

    def _note_business(self, *, full: bool) -> None:
        """While batches come back full there is no need to be woken, and enqueueing need not pay for it."""
        now = lease_clock()
        if not full:
            self._busy_since = None
            return
        if self._busy_since is None:
            self._busy_since = now
        elif now - self._busy_since > BUSY_S and self._said_waiting_at is not None:
            self._said_waiting_at = None
            self._asides.begin(self._store.awake(self._holder))

    async def _say_waiting(self) -> bool:
        """Says, at most now and then, that this worker wants to be woken. Returns: whether it had to."""
        now = lease_clock()
        if not self._wakes:
            return False
        if self._said_waiting_at is not None and now - self._said_waiting_at < WAITING_S / 2:
            return False
        fresh = self._said_waiting_at is None or now - self._said_waiting_at > WAITING_S
        await self._store.wait(self._holder, kinds=list(self._kinds), seconds=WAITING_S)
        self._said_waiting_at = now
        return fresh

    def _claims_again(self) -> bool:
        """Whether to claim at once what more is due; with little room it waits a moment for more slots to be free."""
        if any(self._slots.roomy(kind) for kind in self._more):
            return True
        if self._more:
            self._kick_soon()
        return False

    def _kick_soon(self) -> None:
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(ROOM_S, self._kick_now)

    def _kick_now(self) -> None:
        self._soon = None
        self._kick.set()
