"""What must be true of passes, batches, families, limits and pauses in every history, whatever happened to it.

They look at rows before and after each statement, as `Checks` does, and read what the database keeps beside the jobs.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from rota.ids import BatchId, JobId
from rota.queue.job import ENDED, Outcome, State
from rota.queue.pause import PauseScope
from rota.queue.periodic import Every, parse
from tests.simulation.checks import Broken
from tests.simulation.scripts import Program
from tests.simulation.world import Rows, World


@dataclass(slots=True)
class FlowChecks:
    """Watches one world.

    Attributes:
        batches: those that were added.
    """

    world: World
    program: Program
    batches: set[BatchId] = field(default_factory=set)
    _anchors: dict[str, datetime] = field(default_factory=dict)
    """A due time of each pass; all others lie on its raster."""

    def __post_init__(self) -> None:
        self.world.watchers.append(self.statement)

    def statement(self, name: str, args: tuple[Any, ...], answer: Any, before: Rows, after: Rows) -> None:
        """Looks at what a statement changed."""
        new = after.keys() - before.keys()
        if name in ("claim", "claim_turns"):
            self._limits(after)
            self._pauses(answer)
        if name == "finish":
            self._next_runs(args[0], answer, after)
            self._follow_ups(args[0], new, before, after)
        for job_id, row in before.items():
            asked = row.cancel_asked_at is not None and row.state is State.LEASED
            if asked and after[job_id].state is State.QUEUED and name != "retry":
                raise Broken(f"flow: {name} put {job_id} back, which somebody had cancelled")
        self._passes(set() if name == "run_pass" else new, after)

    # Limits and pauses

    def _limits(self, rows: Rows) -> None:
        now = self.world.clock()
        for name, kind in self.program.kinds.items():
            fleet = kind.limits.fleet
            live = [row for row in rows.values() if row.kind == name and row.lease_until and row.lease_until > now]
            if fleet is not None and len(live) > fleet:
                raise Broken(f"limits: {len(live)} jobs of {name} run at once, and {fleet} may")

    def _pauses(self, claimed: Any) -> None:
        now = self.world.clock()
        held = {
            pause.name
            for pause in self.world.database._pauses.values()
            if pause.scope is PauseScope.TENANT and (pause.until is None or pause.until > now)
        }
        for job in claimed:
            if job.tenant in held:
                raise Broken(f"pauses: {job.id} was claimed while {job.tenant} was paused")

    # Families

    def family_cancelled(self, parent_id: JobId) -> None:
        """Somebody has just cancelled a job with its children: the end of each is there, or was asked of its holder."""
        rows, family = self.world.rows(), {parent_id}
        while more := {row.id for row in rows.values() if row.parent_id in family} - family:
            family |= more
        for job_id in family:
            row = rows[job_id]
            if row.state is State.QUEUED or (row.state is State.LEASED and row.cancel_asked_at is None):
                raise Broken(f"flow: {job_id} goes on, and was to end with {parent_id}")

    # Passes

    def _passes(self, new: set[JobId], rows: Rows) -> None:
        for name, row in self.world.database._passes.items():
            schedule = parse(row.schedule)
            assert isinstance(schedule, Every)
            anchor = self._anchors.setdefault(name, row.due_at)
            if (row.due_at - anchor) % timedelta(seconds=schedule.interval_s):
                raise Broken(f"passes: {name} is due at {row.due_at}, which is not on its raster")
            runs = [job for job in rows.values() if job.kind == name and job.state not in ENDED]
            if len(runs) > 1:
                raise Broken(f"passes: {name} has {len(runs)} open runs")
            for job in runs:
                if job.id in new and not row.extra and job.run_after != row.due_at:
                    raise Broken(f"passes: the new run of {name} is due at {job.run_after}, and not at {row.due_at}")

    def _next_runs(self, finishes: Any, written: dict[JobId, State], rows: Rows) -> None:
        for finish in finishes:
            if finish.follows is None or finish.lease.job_id not in written:
                continue
            runs = [job for job in rows.values() if job.kind == finish.follows and job.state not in ENDED]
            if not runs:
                raise Broken(f"passes: a run of {finish.follows} ended, and no next one is open")
            if runs[0].state is State.QUEUED and runs[0].run_after <= self.world.clock():
                raise Broken(f"passes: the next run of {finish.follows} is due in the past: it has not collapsed")

    # Follow-ups

    def _follow_ups(self, finishes: Any, new: set[JobId], before: Rows, after: Rows) -> None:
        wanted: dict[JobId, int] = {}
        for finish in finishes:
            row = before[finish.lease.job_id]
            holds = row.state is State.LEASED and row.lease_epoch == finish.lease.epoch
            if holds and row.cancel_asked_at is None and finish.outcome is Outcome.DONE:
                wanted[row.id] = len(finish.follow_ups)
        added = Counter(after[job_id].parent_id for job_id in new if after[job_id].parent_id is not None)
        if +Counter(wanted) != added:
            raise Broken(f"flow: successes were to be followed by {wanted} jobs, and {dict(added)} were added")

    def ended(self) -> None:
        """With time, each batch is followed by one job, and each pass has a run that waits."""
        rows = self.world.rows()
        for batch_id in self.batches:
            status = self.world.database.batch(batch_id)
            following = [
                row.id for row in rows.values() if row.kind == "after" and str(batch_id) in (row.payload or "")
            ]
            if status.ended_at is None or following != [status.then_id]:
                raise Broken(f"batches: {batch_id} has ended at {status.ended_at}, and is followed by {following}")
            counts = json.loads(rows[following[0]].payload or "")["batch"]
            if counts["jobs"] != counts["done"] + counts["failed"] + counts["cancelled"]:
                raise Broken(f"batches: {batch_id} was closed with {counts}")
        for name in self.program.passes:
            runs = [row for row in rows.values() if row.kind == name and row.state not in ENDED]
            if len(runs) != 1:
                raise Broken(f"passes: {name} has {len(runs)} open runs in the end")
