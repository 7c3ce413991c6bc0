"""What must be true of every history, whatever happened to it. Each broken rule is named by its invariant.

The checks look at what handlers did and at what each statement changed; they know nothing of how the rules are kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from operator import is_
from typing import Any

from rota.ids import JobId
from rota.lease import Lease
from rota.queue.job import ENDED, NEXT_STATES, Scope, State
from tests.simulation.scripts import PLAIN, Program
from tests.simulation.world import Rows, World

SLACK_S = 60.0
"""What lies between a job's last move and the last renewal that tells of it: calls that wait, and repeated ones."""


class Broken(AssertionError):
    """An invariant did not hold."""


@dataclass(slots=True)
class Checks:
    """Watches one world.

    Attributes:
        starts: how many runs of a handler began.
    """

    world: World
    program: Program = PLAIN
    starts: int = 0
    _moved_at: dict[Lease, float] = field(default_factory=dict)
    _known: set[JobId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.world.watchers.append(self.statement)

    # What handlers do

    def acted(self, lease: Lease) -> None:
        """A handler takes a step under this lease."""
        if lease not in self._moved_at:
            self.starts += 1
            self._moved_at[lease] = self.world.now_s
        row = self.world.row(lease.job_id)
        if row is None:
            raise Broken(f"I1: {lease} runs, and its job is nowhere")
        if row.lease_epoch > lease.epoch:
            raise Broken(f"I2: {lease} acts at {self.world.now_s:.3f}, and epoch {row.lease_epoch} was claimed since")

    def moved(self, lease: Lease) -> None:
        """A handler made progress."""
        self._moved_at[lease] = self.world.now_s

    # What statements do

    def statement(self, name: str, args: tuple[Any, ...], answer: Any, before: Rows, after: Rows) -> None:
        """Looks at what a statement changed."""
        # Most statements find nothing to do, and a row is never changed in place.
        same = len(before) == len(after) and all(map(is_, before.values(), after.values()))
        changed = [] if same else self._changes(name, before, after)
        if name in ("finish", "release", "renew"):
            self._fenced(name, args[0], changed, before)
        if name == "renew":
            self._follows_progress(args[0], answer, before)
        if name in ("claim", "claim_turns"):
            self._claims(answer, before, after)
        if name == "sweep":
            self._sweeps(answer, before)

    def _changes(self, name: str, before: Rows, after: Rows) -> list[JobId]:
        """The jobs whose rows were there and are others now, after what must hold of any rows."""
        try:
            self.world.database.check_invariants()
        except AssertionError as error:
            raise Broken(f"the store's own: {error}") from error
        self._known.update(after)
        lost = self._known.difference(after)
        if lost:
            raise Broken(f"I1: {name} lost {sorted(lost)}")
        unchanged = set(map(id, before.values()))
        changed = [row.id for row in after.values() if id(row) not in unchanged and row.id in before]
        for job_id in changed:
            old, new = before[job_id], after[job_id]
            if new.state is not old.state and new.state not in NEXT_STATES[old.state]:
                raise Broken(f"I1: {name} moved {job_id} from {old.state} to {new.state}")
            if old.state in ENDED and name != "retry":
                raise Broken(f"I1: {name} changed {job_id}, which had ended")
        self._keys(after)
        return changed

    def _fenced(self, name: str, said: Any, changed: list[JobId], before: Rows) -> None:
        leases = {word.lease for word in said}
        for job_id in changed:
            row = before[job_id]
            if row.state is not State.LEASED or Lease(job_id, row.lease_epoch) not in leases:
                raise Broken(f"I3: {name} changed {job_id} under a lease that is over")

    def _follows_progress(self, renewals: Any, kept: Any, before: Rows) -> None:
        for renewal in renewals:
            if renewal.lease.job_id not in kept:
                continue
            row = before[renewal.lease.job_id]
            if row.lease_until is None or row.lease_until <= self.world.clock():
                raise Broken(f"I2: a lease that had run out was extended: {renewal.lease}")
            moved_at = self._moved_at.get(renewal.lease)
            if moved_at is None or self.world.now_s - moved_at > self.program.kinds[row.kind].lease_s + SLACK_S:
                raise Broken(f"I4: {renewal.lease} was extended, and last moved at {moved_at}")

    def _claims(self, claimed: Any, before: Rows, after: Rows) -> None:
        for job in claimed:
            row = before[job.id]
            if row.state is not State.QUEUED:
                raise Broken(f"I2: {job.id} was claimed while it was {row.state}")
            if row.run_after > self.world.clock():
                raise Broken(f"I5: {job.id} was claimed before its time")
            if job.lease.epoch != row.lease_epoch + 1:
                raise Broken(f"I3: {job.id} was claimed without a new epoch")
            if job.tries != row.tries + 1 or after[job.id].tries != job.tries:
                raise Broken(f"I1: the claim of {job.id} counted no try")
            if job.tries > job.max_tries:
                raise Broken(f"I1: {job.id} begins try {job.tries} of {job.max_tries}")

    def _sweeps(self, swept: Any, before: Rows) -> None:
        for one in swept:
            row = before[one.lease.job_id]
            over = row.lease_until is not None and row.lease_until < self.world.clock()
            unanswered = row.cancel_asked_at is not None and row.cancel_asked_at < self.world.clock() - timedelta(
                seconds=30
            )
            if not over and not unanswered:
                raise Broken(f"I2: the lease of {one.lease} was ended before its time")

    def _keys(self, rows: Rows) -> None:
        seen: set[tuple[str, Scope]] = set()
        for row in rows.values():
            if row.dedupe_key is None or row.dedupe_scope is None or row.state in ENDED:
                continue
            if row.dedupe_scope is Scope.QUEUED and row.state is not State.QUEUED:
                continue
            if row.dedupe_scope is not Scope.FOREVER and (row.dedupe_key, row.dedupe_scope) in seen:
                raise Broken(f"I6: two jobs share the key {row.dedupe_key!r}")
            seen.add((row.dedupe_key, row.dedupe_scope))

    # At the end

    def open_jobs(self) -> Iterator[JobId]:
        """The jobs that have not ended, without runs of passes that wait for their time."""
        passes = self.program.passes
        return (
            job_id
            for job_id, row in self.world.rows().items()
            if row.state not in ENDED and not (row.kind in passes and row.state is State.QUEUED)
        )

    def ended(self) -> None:
        """Without faults, and with time, every job ends."""
        left = list(self.open_jobs())
        if left:
            rows = [self.world.rows()[job_id] for job_id in left[:3]]
            raise Broken(f"I1: {len(left)} jobs never ended, among them {rows}")
