"""Passes in the reference and in PostgreSQL side by side: after any story both hold the same passes and runs, and of
each pass one run at most is open."""

import asyncio
import os
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rota.io.postgres import Database, Target
from rota.lease import Lease
from rota.queue.io.store import Store
from rota.queue.job import Ask, ClaimedJob, Finish, Outcome
from rota.queue.periodic import Declared, Mark, PassRow, Put, latest, reconcile
from rota.queue.reference import Reference
from tests.conformance.queues import FIRST_ID, HOLDER, LAST_ID, empty, plain

START = datetime(2026, 3, 28, 22, 30, tzinfo=UTC)
"""Some hours before the clocks of Berlin are changed."""
IN_CI = "CI" in os.environ
CODE = {
    "old": {"a": Declared("every 3600 s", 1), "b": Declared("cron 30 2 * * * Europe/Berlin")},
    "new": {"a": Declared("every 1800 s", 1), "c": Declared("every 600 s", 0, 0.0)},
    "both": {"a": Declared("every 3600 s", 5), "b": Declared("cron 0 3 * * * UTC"), "c": Declared("every 600 s")},
}
steps = st.one_of(
    st.tuples(st.just("tend"), st.sampled_from(list(CODE)), st.sampled_from([0.0, 600.0])),
    st.tuples(st.just("later"), st.sampled_from([1.0, 300.0, 1800.0, 3600.0, 90_000.0])),
    st.tuples(st.just("claim")),
    st.tuples(st.just("claim")),
    st.tuples(st.just("finish"), st.sampled_from(list(Outcome))),
    st.tuples(st.just("finish"), st.just(Outcome.DONE)),
    st.tuples(st.just("run"), st.sampled_from("abcd")),
    st.tuples(st.just("cancel"), st.sampled_from("abc")),
    st.tuples(st.just("sweep")),
)


class Told:
    """One of the two, with the leases that it gave."""

    def __init__(self, runner: asyncio.Runner, queue: Any) -> None:
        self.runner = runner
        self.queue = queue
        self.leases: dict[str, list[Lease]] = {}

    def call(self, name: str, *args: Any, now: datetime, **options: Any) -> Any:
        answer = getattr(self.queue, name)(*args, now=now, **options)
        return self.runner.run(answer) if asyncio.iscoroutine(answer) else answer

    def tell(self, step: tuple[Any, ...], now: datetime) -> Any:
        """Does one thing, and gives what may be compared of the answer."""
        match step:
            case ("tend", code, gone_s):
                return self.tend(CODE[code], gone_s, now)
            case ("claim",):
                wanted = [Ask(kind, 1, 7200.0, 2) for kind in "abc"]
                claimed: list[ClaimedJob] = self.call("claim", wanted, holder=HOLDER, now=now)
                for job in claimed:
                    self.leases.setdefault(job.kind, []).append(job.lease)
                return sorted((job.kind, plain(job.payload), job.tries, job.run_after) for job in claimed)
            case ("finish", outcome):
                finishes = [
                    Finish(leases[-1], outcome, wait_s=60.0, error="why", follows=kind, keyed=True)
                    for kind, leases in sorted(self.leases.items())
                ]
                written = self.call("finish", finishes, now=now)
                return [written.get(finish.lease.job_id) for finish in finishes]
            case ("run", name):
                ran = self.call("run_pass", name, now=now)
                return ran and ran[1]
            case ("cancel", name):
                open_ids = [row.open_id for row in self.passes(now) if row.name == name and row.open_id]
                return list(self.call("cancel", open_ids, now=now).values())
            case _:
                return sorted((swept.kind, swept.state) for swept in self.call("sweep", now=now))

    def tend(self, code: dict[str, Declared], gone_s: float, now: datetime) -> Any:
        """What a server with this code does, as `rota.queue.io.registry` has it."""
        todo = reconcile(self.passes(now), declared=latest([(now, "h", code)]), now=now, gone_s=gone_s)
        for step in todo:
            if isinstance(step, Put):
                assert self.call("put_pass", step, now=now)
            else:
                self.call("mark_pass", step, now=now)
                self.call("cancel", [step.cancels] if step.cancels else [], reason="gone", now=now)
        return [replace(step, cancels=None) if isinstance(step, Mark) else step.due_at for step in todo]

    def passes(self, now: datetime) -> list[PassRow]:
        found: list[PassRow] = self.call("passes", now=now)
        return found

    def held(self, now: datetime) -> Any:
        """Passes and jobs without their ids."""
        rows = self.queue.show(FIRST_ID, LAST_ID, limit=10_000)
        rows = self.runner.run(rows) if asyncio.iscoroutine(rows) else rows
        open_runs = Counter(row.dedupe_key for row in rows if row.finished_at is None)
        assert all(count == 1 for count in open_runs.values()), f"more than one open run: {open_runs}"
        shown = [
            (row.kind, row.state, row.run_after, row.priority, row.tries, row.finished_at, row.last_error,
             plain(row.payload)) for row in rows
        ]  # fmt: skip
        return [replace(row, open_id=None) for row in self.passes(now)], sorted(shown, key=repr)


def test_passes_side_by_side(stored: Target) -> None:
    with asyncio.Runner() as runner:
        database = Database(stored, size=1)
        runner.run(database.start())

        @settings(
            max_examples=25, deadline=None, database=None, derandomize=IN_CI, suppress_health_check=list(HealthCheck)
        )
        @given(st.lists(steps, min_size=5, max_size=25))
        def story(told: list[tuple[Any, ...]]) -> None:
            runner.run(empty(database))
            now = START
            store = Told(runner, Store(database))
            reference = Told(runner, Reference(clock=lambda: now, random=Random(1)))
            for step in [("tend", "old", 0.0), *told]:
                now += timedelta(milliseconds=1)
                if step[0] == "later":
                    now += timedelta(seconds=step[1])
                    continue
                assert store.tell(step, now) == reference.tell(step, now), step
                assert store.held(now) == reference.held(now), step

        try:
            story()
        finally:
            runner.run(database.stop())
