"""The loop of a worker that asks, once a second, what it cannot know by itself, and does what follows. Effects only.

Whose leases ran out, which jobs somebody cancelled, what is paused, when the next job is due: one query (I8). Beside it
the worker sees to batches that nobody has closed.

Spec: job queue, "Leases, heartbeats and the stall kill".
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection
from random import Random
from typing import Final

from rota.io.backoff import Backoff
from rota.io.clock import lease_clock
from rota.io.log import get_logger
from rota.queue.dispatcher import Slots
from rota.queue.io.adding import BATCHES_MAX
from rota.queue.io.claim_loop import ClaimLoop
from rota.queue.io.claims import Claims
from rota.queue.io.crew import Crew
from rota.queue.io.metering import Metering
from rota.queue.io.registry import Registry
from rota.queue.io.store import Store
from rota.queue.job import State
from rota.queue.pause import paused_of
from rota.queue.standing import ServerFacts

BATCHES_EVERY_S: Final = 15.0
"""How often each worker looks for batches that nobody has closed."""
CANCEL_MARGIN_S: Final = 5.0
"""A holder has this long after the grace to kill what was cancelled and to say so, before others end the job."""

log = get_logger("rota.worker")


class LookLoop:
    """What one worker looks after.

    Args:
        kinds: those that this worker takes.
        store: the queue.
        claims: its memory of the queue's answers.
        slots: what has room here.
        crew: the running jobs.
        registry: the row of this worker.
        claiming: told what is due.
        facts: asked what to say of this worker with its row.
        poll_s: seconds between two looks.
        cancel_grace_s: how long a job that somebody cancelled may take to stop.
        stopping: set when the worker takes no new work.
        ready: set once an answer has come.
        random: for jitter.
        metering: counts, if anybody does.

    Attributes:
        looked_at: when it looked last, by the lease clock. The heart reads it.
    """

    def __init__(
        self,
        kinds: Collection[str],
        *,
        store: Store,
        claims: Claims,
        slots: Slots,
        crew: Crew,
        registry: Registry,
        claiming: ClaimLoop,
        facts: Callable[[], ServerFacts],
        poll_s: float,
        cancel_grace_s: float,
        stopping: asyncio.Event,
        ready: asyncio.Event,
        random: Random,
        metering: Metering | None,
    ) -> None:
        self._kinds = kinds
        self._store = store
        self._claims = claims
        self._slots = slots
        self._crew = crew
        self._registry = registry
        self._claiming = claiming
        self._facts = facts
        self._poll_s = poll_s
        self._cancel_grace_s = cancel_grace_s
        self._stopping = stopping
        self._ready = ready
        self._random = random
        self._metering = metering
        self.looked_at = lease_clock()

    async def run(self, backoff: Backoff) -> None:
        """Looks, and says that this worker is there, until the worker stops."""
        while not self._stopping.is_set():
            await self.look()
            await self._registry.beat(self._slots.running, facts=self._facts())
            backoff.reset()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s * (0.9 + 0.2 * self._random.random())):
                    await self._stopping.wait()

    async def look(self) -> None:
        """The one query of an idle server (I8), and what follows from its answer."""
        self.looked_at = lease_clock()
        await self._claiming.wish_again()
        self._slots.heard(self._kinds)
        free = self._slots.free_kinds()
        # A job makes no room for one that nobody may claim.
        full = self._crew.full([*free, *self._slots.paused_kinds()])
        seen = await self._claims.look(free, full=full, grace_s=self._unanswered_s)
        self._ready.set()
        self._crew.make_room(seen.urgent)
        for job_id in seen.cancels:
            self._crew.cancel(job_id)
        paused = paused_of(seen.paused)
        if paused != self._slots.paused:
            # At the start it is the first that is known of pauses, and nothing was claimed before.
            self._slots.paused = paused
            # Jobs of a tenant that is not paused any more stand where claims have passed.
            self._claims.returned(self._kinds)
            self._claiming.want_all()
        if seen.expired:
            await self._sweep()
        if seen.next_due_s is None:
            return
        if seen.next_due_s <= 0:
            self._claiming.want_all()
        elif seen.next_due_s < self._poll_s:
            asyncio.get_running_loop().call_later(seen.next_due_s, self._claiming.want_all)

    @property
    def _unanswered_s(self) -> float:
        """How long after a cancel a job ends without its holder, which should have killed it by then."""
        return self._cancel_grace_s + CANCEL_MARGIN_S

    async def _sweep(self) -> None:
        ended = await self._store.sweep(grace_s=self._unanswered_s)
        self._claims.returned(swept.kind for swept in ended)
        for swept in ended:
            facts = {
                "job_id": str(swept.lease.job_id), "kind": swept.kind, "epoch": swept.lease.epoch,
                "holder": swept.holder,
            }  # fmt: skip
            if swept.state is State.FAILED:
                if self._metering is not None:
                    self._metering.meters.failed(swept.kind)
                log.warning("job failed: its lease ran out on its last try", **facts)
            else:
                log.warning("lease ran out", state=swept.state.value, **facts)
        self._claiming.want_all()

    async def close_batches(self, backoff: Backoff) -> None:
        """Closes, for ever, batches whose last job ended with the process that ran it."""
        while True:
            await asyncio.sleep(BATCHES_EVERY_S * (0.5 + self._random.random()))
            while len(await self._store.close_batches()) >= BATCHES_MAX:
                pass
            backoff.reset()
