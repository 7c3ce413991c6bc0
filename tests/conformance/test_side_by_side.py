"""The reference and PostgreSQL side by side: whatever is said to both, in any order, both answer and hold the same."""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from msgspec import structs

from rota.errors import JobNotFound
from rota.ids import JobId
from rota.io.postgres import Database, Target
from rota.lease import Lease, Renewal
from rota.queue.history import Stopped
from rota.queue.io.store import Store
from rota.queue.job import (
    Ask,
    Dedupe,
    Finish,
    Full,
    JobFilter,
    JobRow,
    NewJob,
    Outcome,
    Release,
    Scope,
    State,
    debounce_key,
    forever_key,
    merge_key,
    open_key,
    queued_key,
    replace_key,
    throttle_key,
)
from rota.queue.limits import Limits, Rate
from rota.queue.marks import Mark
from rota.queue.reference import Reference
from rota.queue.retention import Rule
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

MAKERS: list[Callable[[str], Dedupe]] = [
    open_key, queued_key, forever_key, replace_key, merge_key,
    lambda key: debounce_key(key, wait_s=10.0), lambda key: debounce_key(key, wait_s=10.0, at_most_s=15.0),
    lambda key: throttle_key(key, window_s=20.0),
]  # fmt: skip
seconds = st.sampled_from([0.0, 10.0, 30.0])
lengths = st.sampled_from([20.0, 60.0])
new_jobs = st.builds(
    NewJob,
    kind=st.sampled_from(KINDS),
    payload=st.sampled_from(["{}", '{"n": 1}', '{"a": [1], "n": 2}', "[1, 2]"]),
    priority=st.sampled_from([None, 0, 1, 5]),
    tenant=st.sampled_from([None, "org", "club"]),
    dedupe=st.none() | st.builds(lambda make, key: make(key), st.sampled_from(MAKERS), st.sampled_from(["x", "y"])),
    run_after=st.sampled_from([None, None, START - timedelta(days=1), START + timedelta(seconds=60)]),
    delay_s=st.sampled_from([None, None, 0.0, 10.0]),
    max_tries=st.sampled_from([None, None, 1, 2]),
)
asks = st.lists(
    st.builds(
        Ask,
        kind=st.sampled_from(KINDS),
        free=st.sampled_from([4, 2, 1, 0]),
        lease_s=lengths,
        max_tries=st.sampled_from([3, 1, 2]),
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda ask: ask.kind,
)
marks = st.lists(
    st.builds(
        Mark,
        kind=st.sampled_from(KINDS),
        priority=st.sampled_from([0, 1, 5, 7]),
        age_s=st.sampled_from([0.0, 5.0, 40.0]),
    )
    | st.builds(
        Mark,
        kind=st.sampled_from(KINDS),
        priority=st.sampled_from([0, 1, 5]),
        run_after=st.sampled_from([START, START + timedelta(seconds=30), START + timedelta(seconds=60)]),
        job_id=st.just(NOBODY),
    ),
    max_size=3,
    unique_by=lambda mark: (mark.kind, mark.priority),
)
limits = st.builds(
    Limits,
    fleet=st.sampled_from([None, 1, 3]),
    tenant=st.sampled_from([None, None, 1, 2]),
    fair=st.booleans(),
    rate=st.sampled_from([None, None, Rate(3, per_s=60.0)]),
)
lowests = st.sampled_from([None, None, None, 1])
filters = st.builds(
    JobFilter,
    kinds=st.none() | st.just(("a",)),
    states=st.none() | st.sets(st.sampled_from(list(State))).map(tuple),
    tenant=st.sampled_from([None, "org"]),
    older_s=st.none() | seconds,
    newer_s=st.none() | seconds,
)
holders = st.sampled_from([HOLDER, OTHER])
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
        tries = self.runner.run(self.store.tries(self.ids, now=self.now))
        assert tries == self.mirror.tries(self.ids, now=self.now)
        overlap_s = self.runner.run(self.store.overlap_s(now=self.now))
        assert overlap_s == self.mirror.overlap_s(now=self.now) == sum(one.overlap_s for one in tries)

    def plain(self, row: JobRow) -> JobRow:
        return replace(
            row, now=START, payload=plain(row.payload), progress=plain(row.progress), result=plain(row.result)
        )

    def keyed(self, lease: Lease) -> bool:
        rows = self.mirror.show(lease.job_id)
        return bool(rows) and rows[0].dedupe_scope is Scope.QUEUED

    @initialize(jobs=st.lists(new_jobs, min_size=8, max_size=8))
    def begin(self, jobs: list[NewJob]) -> None:
        self.add(jobs)

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        """One rule for all: as rules of their own, hypothesis would leave some out for a whole run."""
        acts = [self.enqueue, self.claim, self.claim, self.finish, self.release, self.sweep, *self.other_acts]
        data.draw(st.sampled_from(acts))(data)

    @property
    def other_acts(self) -> list[Callable[[st.DataObject], None]]:
        return [
            self.enqueue_one, self.renew, self.disown, self.cancel, self.retry, self.poll, self.prune, self.page,
            self.move, self.stopped, self.retry_many,
            self.move, self.claim_turns, self.claim_turns, self.unstart,
        ]  # fmt: skip

    def enqueue(self, data: st.DataObject) -> None:
        self.add(data.draw(st.lists(new_jobs, min_size=1, max_size=4)))

    def add(self, jobs: list[NewJob]) -> None:
        self.now += timedelta(milliseconds=1)  # ids of the same microsecond are in no order
        told = self.runner.run(self.store.enqueue_many(jobs, now=self.now))
        self.mirror.given = [one.id if one.created else NOBODY for one in told]
        assert told == self.mirror.enqueue_many(jobs, now=self.now)
        self.compare()
        self.ids += [one.id for one in told if one.created]

    def enqueue_one(self, data: st.DataObject) -> None:
        self.now += timedelta(milliseconds=1)
        job = data.draw(new_jobs)
        told = self.runner.run(self.store.enqueue(job, now=self.now))
        self.mirror.given = [told.id if told.created else NOBODY]
        assert told == self.mirror.enqueue(job, now=self.now)
        self.compare()
        if told.created:
            self.ids.append(told.id)

    def claim(self, data: st.DataObject) -> None:
        self.now += timedelta(seconds=data.draw(seconds))
        wanted = [structs.replace(ask, lowest=data.draw(lowests)) for ask in data.draw(asks)]
        self.claimed("claim", wanted, holder=data.draw(holders), marks=data.draw(st.just([]) | marks))

    def claim_turns(self, data: st.DataObject) -> None:
        self.now += timedelta(seconds=data.draw(seconds))
        wanted = [
            structs.replace(
                ask,
                lowest=data.draw(lowests),
                limits=data.draw(limits),
                after=data.draw(st.sampled_from([None, "club", "dog", "org"])),
            )
            for ask in data.draw(asks)
        ]
        self.claimed("claim_turns", wanted, holder=data.draw(holders))

    def claimed(self, name: str, wanted: list[Ask], **options: Any) -> None:
        told = self.runner.run(getattr(self.store, name)(wanted, now=self.now, **options))
        expected = getattr(self.mirror, name)(wanted, now=self.now, **options)
        assert [job.lease for job in told] == [job.lease for job in expected]
        assert [(job.tries, job.max_tries, job.run_after, plain(job.progress)) for job in told] == [
            (job.tries, job.max_tries, job.run_after, plain(job.progress)) for job in expected
        ]
        self.compare()
        self.leases += [job.lease for job in told]

    def unstart(self, data: st.DataObject) -> None:
        leases = self.some_leases(data)
        told = self.runner.run(self.store.unstart(leases, per_s=60.0))
        assert told == self.mirror.unstart(leases, per_s=60.0)
        self.compare()

    def renew(self, data: st.DataObject) -> None:
        lease_s, progress = data.draw(lengths), data.draw(st.none() | st.integers(0, 9))
        self.both("renew", [Renewal(lease, lease_s, progress) for lease in self.some_leases(data)])

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

    def release(self, data: st.DataObject) -> None:
        releases = [
            Release(
                lease,
                wait_s=data.draw(st.none() | seconds),
                reason=data.draw(reasons),
                progress=data.draw(texts),
                keyed=self.keyed(lease),
            )
            for lease in self.some_leases(data)
        ]
        self.both("release", releases)

    def some_leases(self, data: st.DataObject) -> list[Lease]:
        """Old ones and new ones, but the new ones more often."""
        if not self.leases:
            return []
        recent = st.sampled_from(self.leases[-6:])
        return data.draw(st.lists(recent | recent | st.sampled_from(self.leases), max_size=4, unique=True))

    def disown(self, data: st.DataObject) -> None:
        lost = data.draw(st.sampled_from(self.ids))
        known = [job_id for job_id in self.ids if job_id != lost]
        before = self.now - timedelta(seconds=data.draw(st.sampled_from([0.0, 5.0])))
        self.both("disown", data.draw(holders), known=known, before=before)

    def stopped(self, data: st.DataObject) -> None:
        stops = [Stopped(lease, data.draw(st.sampled_from([0.0, 1.0, 30.0]))) for lease in self.some_leases(data)]
        self.both("stopped", stops, holder=data.draw(holders))

    def retry_many(self, data: st.DataObject) -> None:
        failed = self.runner.run(self.store.failed(now=self.now))
        assert failed == self.mirror.failed(now=self.now)
        self.both("retry_many", [job.id for job in failed[:2]] + data.draw(st.lists(st.sampled_from(self.ids))))

    def sweep(self, data: st.DataObject) -> None:
        self.now += timedelta(seconds=data.draw(st.sampled_from([25.0, 0.0, 1.0, 65.0])))
        self.both("sweep", grace_s=GRACE_S)

    def cancel(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.ids), min_size=1, max_size=2))
        self.both("cancel", ids, reason=data.draw(st.sampled_from(["one", "two"])))

    def retry(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(self.ids))
        try:
            self.both("retry", job_id)
        except JobNotFound:
            assert not self.mirror.show(job_id)

    def poll(self, data: st.DataObject) -> None:
        kinds, holder = sorted(data.draw(st.sets(st.sampled_from(KINDS)))), data.draw(holders)
        options = {
            "holder": holder, "grace_s": GRACE_S, "now": self.now, "marks": data.draw(marks),
            "none_expired_s": data.draw(st.sampled_from([None, 3.0, 50.0])),
            "full": [Full(kind, data.draw(st.integers(1, 3)), data.draw(st.integers(0, 1))) for kind in KINDS],
        }  # fmt: skip
        told = self.runner.run(self.store.poll(kinds, **options))
        expected = self.mirror.poll(kinds, **options)
        assert (told.next_due_s, told.expired, told.urgent) == (expected.next_due_s, expected.expired, expected.urgent)
        assert sorted(told.cancels) == list(expected.cancels)

    def move(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.ids), min_size=1, max_size=2))
        priority, delay_s = data.draw(st.sampled_from([None, 0, 5])), data.draw(st.none() | seconds)
        self.both("move", ids, priority=priority, delay_s=delay_s)

    def prune(self, data: st.DataObject) -> None:
        kind, others = data.draw(st.sampled_from([(None, ()), (None, ("a",)), ("a", ())]))
        rule = Rule(kind, data.draw(st.booleans()), data.draw(st.sampled_from([120.0, 10.0, 0.0])), others)
        self.both("prune", rule)

    def page(self, data: st.DataObject) -> None:
        wanted, limit = data.draw(filters), data.draw(st.integers(1, 5))
        below = data.draw(st.none() | st.sampled_from(self.ids))
        told = self.runner.run(self.store.page(wanted, limit=limit, below=below, now=self.now))
        expected = self.mirror.page(wanted, limit=limit, below=below, now=self.now)
        assert [self.plain(row) for row in told] == [self.plain(row) for row in expected]


def test_side_by_side(stored: Target) -> None:
    with asyncio.Runner() as runner:
        database = Database(stored, size=1)
        runner.run(database.start())
        machine: Any = lambda: SideBySide(runner, Store(database))  # noqa: E731
        try:
            run_state_machine_as_test(machine, settings=SETTINGS)
        finally:
            runner.run(database.stop())
