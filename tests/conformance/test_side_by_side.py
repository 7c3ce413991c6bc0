"""The reference and PostgreSQL side by side: whatever is said to both, in any order, both answer and hold the same."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from rota.errors import JobNotFound
from rota.ids import Holder, JobId
from rota.io.postgres import Database, Target
from rota.lease import Lease, Renewal
from rota.queue.io.store import Store
from rota.queue.job import Ask, Dedupe, Finish, JobFilter, JobRow, NewJob, Outcome, Release, Scope, State
from rota.queue.reference import Reference
from tests.conformance.queues import FIRST_ID, HOLDER, LAST_ID, NOBODY, OTHER, empty, plain

GRACE_S = 20.0
START = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = ("a", "b")

IN_CI = "CI" in os.environ
SETTINGS = settings(
    # To make a failure small may take minutes.
    phases=[Phase.generate] if IN_CI else [Phase.generate, Phase.shrink],
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    database=None,
    derandomize=IN_CI,
    suppress_health_check=list(HealthCheck),
)

seconds = st.sampled_from([0.0, 10.0, 30.0])
new_jobs = st.builds(
    NewJob,
    kind=st.sampled_from(KINDS),
    payload=st.sampled_from(["{}", '{"n": 1}']),
    priority=st.sampled_from([None, 0, 1, 5]),
    tenant=st.sampled_from([None, "org"]),
    dedupe=st.none() | st.builds(Dedupe, st.sampled_from(["x", "y"]), st.sampled_from(list(Scope))),
    run_after=st.sampled_from([None, None, START - timedelta(days=1), START + timedelta(seconds=60)]),
    delay_s=st.sampled_from([None, None, 0.0, 10.0]),
    max_tries=st.sampled_from([None, None, 1, 2]),
)
asks = st.lists(
    st.builds(Ask, st.sampled_from(KINDS), st.integers(0, 3), st.sampled_from([20.0, 60.0]), st.integers(1, 3)),
    min_size=1,
    max_size=2,
    unique_by=lambda ask: ask.kind,
)
filters = st.builds(
    JobFilter,
    kinds=st.none() | st.just(("a",)),
    states=st.none() | st.sets(st.sampled_from(list(State))).map(tuple),
    tenant=st.sampled_from([None, "org"]),
    older_s=st.none() | seconds,
    newer_s=st.none() | seconds,
)
reasons = st.sampled_from([None, "why"])
texts = st.sampled_from([None, "1", '{"n": 2}'])


class Mirror(Reference):
    """The reference, with the ids that PostgreSQL has given."""

    given: Sequence[JobId] = ()

    def _new_ids(self, count: int, at: datetime) -> list[JobId]:
        assert len(self.given) == count, f"{count} ids wanted at {at}"
        return list(self.given)


class SideBySide(RuleBasedStateMachine):
    def __init__(self, runner: asyncio.Runner, store: Store) -> None:
        super().__init__()
        self.now = START
        self.runner = runner
        self.store = store
        self.mirror = Mirror(clock=lambda: self.now, random=Random(1))
        self.ids: list[JobId] = [NOBODY]
        self.leases: list[Lease] = []
        runner.run(empty(store.database))

    def both(self, name: str, *args: Any, **options: Any) -> Any:
        """Says one thing to both, and compares what they say and hold."""
        told = self.runner.run(getattr(self.store, name)(*args, now=self.now, **options))
        expected = getattr(self.mirror, name)(*args, now=self.now, **options)
        assert told == expected
        self.compare()
        return told

    def compare(self) -> None:
        self.mirror.check_invariants()
        told = self.runner.run(self.store.show(FIRST_ID, LAST_ID, limit=10_000))
        expected = self.mirror.show(FIRST_ID, LAST_ID, limit=10_000)
        assert [self.plain(row) for row in told] == [self.plain(row) for row in expected]

    def plain(self, row: JobRow) -> JobRow:
        return replace(
            row, now=START, payload=plain(row.payload), progress=plain(row.progress), result=plain(row.result)
        )

    def keyed(self, lease: Lease) -> bool:
        rows = self.mirror.show(lease.job_id)
        return bool(rows) and rows[0].dedupe_scope is Scope.QUEUED

    @rule(jobs=st.lists(new_jobs, min_size=1, max_size=4))
    def enqueue(self, jobs: list[NewJob]) -> None:
        self.now += timedelta(milliseconds=1)  # ids of the same microsecond are in no order
        told = self.runner.run(self.store.enqueue_many(jobs, now=self.now))
        self.mirror.given = [one.id if one.created else NOBODY for one in told]
        assert told == self.mirror.enqueue_many(jobs, now=self.now)
        self.compare()
        self.ids += [one.id for one in told if one.created]

    @rule(job=new_jobs)
    def enqueue_one(self, job: NewJob) -> None:
        self.now += timedelta(milliseconds=1)
        told = self.runner.run(self.store.enqueue(job, now=self.now))
        self.mirror.given = [told.id if told.created else NOBODY]
        assert told == self.mirror.enqueue(job, now=self.now)
        self.compare()
        if told.created:
            self.ids.append(told.id)

    @rule(asks=asks, holder=st.sampled_from([HOLDER, OTHER]), seconds=st.sampled_from([0.0, 0.0, 10.0]))
    def claim(self, asks: list[Ask], holder: Holder, seconds: float) -> None:
        self.later(seconds)
        told = self.runner.run(self.store.claim(asks, holder=holder, now=self.now))
        expected = self.mirror.claim(asks, holder=holder, now=self.now)
        assert [job.lease for job in told] == [job.lease for job in expected]
        assert [(job.tries, job.max_tries, job.run_after, plain(job.progress)) for job in told] == [
            (job.tries, job.max_tries, job.run_after, plain(job.progress)) for job in expected
        ]
        self.compare()
        self.leases += [job.lease for job in told]

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), lease_s=st.sampled_from([20.0, 60.0]), progress=st.none() | st.integers(0, 9))
    def renew(self, data: st.DataObject, lease_s: float, progress: int | None) -> None:
        self.both("renew", [Renewal(lease, lease_s, progress) for lease in self.some_leases(data)])

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        finishes = []
        for lease in self.some_leases(data):
            outcome = data.draw(st.sampled_from(list(Outcome)))
            finish = Finish(
                lease,
                outcome,
                error=data.draw(reasons),
                wait_s=data.draw(seconds),
                result=data.draw(texts) if outcome is Outcome.DONE else None,
                progress=data.draw(texts),
                keyed=self.keyed(lease),
            )
            finishes.append(finish)
        self.both("finish", finishes)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.both(
            "release",
            [
                Release(
                    lease,
                    wait_s=data.draw(st.none() | seconds),
                    reason=data.draw(reasons),
                    progress=data.draw(texts),
                    keyed=self.keyed(lease),
                )
                for lease in self.some_leases(data)
            ],
        )

    def some_leases(self, data: st.DataObject) -> list[Lease]:
        """Old ones and new ones, but the new ones more often."""
        recent = st.sampled_from(self.leases[-6:])
        return data.draw(st.lists(recent | recent | st.sampled_from(self.leases), min_size=1, max_size=5, unique=True))

    @rule(data=st.data(), holder=st.sampled_from([HOLDER, OTHER]))
    def disown(self, data: st.DataObject, holder: Holder) -> None:
        self.both("disown", holder, known=data.draw(st.lists(st.sampled_from(self.ids), max_size=4)))

    @rule(seconds=st.sampled_from([0.0, 1.0, 25.0, 65.0]))
    def sweep(self, seconds: float) -> None:
        self.later(seconds)
        self.both("sweep", grace_s=GRACE_S)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.ids), min_size=1, max_size=4))
        self.both("cancel", ids, reason=data.draw(st.sampled_from(["one", "two"])))

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(self.ids))
        try:
            self.both("retry", job_id)
        except JobNotFound:
            assert not self.mirror.show(job_id)

    @rule(kinds=st.sets(st.sampled_from(KINDS)), holder=st.sampled_from([HOLDER, OTHER]))
    def poll(self, kinds: set[str], holder: Holder) -> None:
        told = self.runner.run(self.store.poll(sorted(kinds), holder=holder, grace_s=GRACE_S, now=self.now))
        expected = self.mirror.poll(sorted(kinds), holder=holder, grace_s=GRACE_S, now=self.now)
        assert (told.next_due_s, told.expired, sorted(told.cancels)) == (
            expected.next_due_s,
            expected.expired,
            list(expected.cancels),
        )

    @rule(keep_s=st.sampled_from([0.0, 60.0]))
    def prune(self, keep_s: float) -> None:
        self.both("prune", keep_s=keep_s)

    @rule(data=st.data(), wanted=filters, limit=st.integers(1, 5))
    def page(self, data: st.DataObject, wanted: JobFilter, limit: int) -> None:
        below = data.draw(st.none() | st.sampled_from(self.ids))
        told = self.runner.run(self.store.page(wanted, limit=limit, below=below, now=self.now))
        expected = self.mirror.page(wanted, limit=limit, below=below, now=self.now)
        assert [self.plain(row) for row in told] == [self.plain(row) for row in expected]

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def test_side_by_side(stored: Target) -> None:
    with asyncio.Runner() as runner:
        database = Database(stored, size=1)
        runner.run(database.start())
        machine: Any = lambda: SideBySide(runner, Store(database))  # noqa: E731
        try:
            run_state_machine_as_test(machine, settings=SETTINGS)
        finally:
            runner.run(database.stop())
