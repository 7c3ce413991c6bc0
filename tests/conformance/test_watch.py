"""What people look at, as the statements and the queue in memory give it: counts, ends, failures; S95, S97."""

import inspect
from typing import Any

import pytest

from rota.lease import Lease
from rota.queue.io.watch import Watch
from rota.queue.job import NewJob, Outcome, Scope, State, forever_key, open_key, queued_key
from rota.queue.watching import EVERYTHING, EndedCount, JobCount, KeyHolder, Viewer, WatchedReference
from tests.conformance.queues import LEASE_S, Queue


class Watched:
    """One face for both ways of looking."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._inner: Any = Watch(queue.inner.database) if queue.reference is None else WatchedReference(queue.reference)

    async def __call__(self, name: str, **options: Any) -> Any:
        answer = getattr(self._inner, name)(**options)
        return await answer if inspect.isawaitable(answer) else answer

    async def counts(self, **options: Any) -> list[JobCount]:
        counts: list[JobCount] = await self("counts", **{"ended": True, "now": self.queue.now, **options})
        return counts


@pytest.fixture
def watched(queue: Queue) -> Watched:
    return Watched(queue)


async def take(queue: Queue, kind: str) -> Lease:
    (job,) = await queue.claim(kind=kind, free=1)
    return job.lease


async def test_counts_are_by_kind_and_state_the_most_first(queue: Queue, watched: Watched) -> None:
    for _ in range(3):
        await queue.add("film")
    await queue.add("film", delay_s=60)
    await queue.add("sound")
    await queue.end(await take(queue, "sound"))
    queue.later(10)
    await take(queue, "film")
    assert await watched.counts() == [
        JobCount("film", State.QUEUED, 3, due=2, oldest_due_s=pytest.approx(10.001, abs=0.01)),  # type: ignore[arg-type]
        JobCount("film", State.LEASED, 1),
        JobCount("sound", State.DONE, 1),
    ]
    assert [one.kind for one in await watched.counts(ended=False)] == ["film", "film"]


async def test_a_lease_past_its_end_is_counted_until_it_is_swept(queue: Queue, watched: Watched) -> None:
    await queue.add("film")
    await take(queue, "film")
    queue.later(LEASE_S)
    assert [one.overdue for one in await watched.counts()] == [0]
    queue.later(1)
    assert [one.overdue for one in await watched.counts()] == [1]
    await queue.sweep()
    assert [(one.state, one.overdue) for one in await watched.counts()] == [(State.QUEUED, 0)]


async def test_ends_are_counted_within_a_time(queue: Queue, watched: Watched) -> None:
    for outcome in (Outcome.DONE, Outcome.DONE, Outcome.FAILED):
        await queue.add("film")
        await queue.end(await take(queue, "film"), outcome)
    queue.later(30)
    await queue.add("sound")
    await queue.end(await take(queue, "sound"))
    assert await watched("ended", within_s=60, now=queue.now) == [
        EndedCount("film", State.DONE, 2), EndedCount("film", State.FAILED, 1), EndedCount("sound", State.DONE, 1)
    ]  # fmt: skip
    assert await watched("ended", within_s=20, now=queue.now) == [EndedCount("sound", State.DONE, 1)]


async def test_the_last_failures_are_newest_first_and_cut(queue: Queue, watched: Watched) -> None:
    """Seed 003: the last 20, each error cut to 500 characters. S97: newest first."""
    ids = []
    for number in range(23):
        ids.append(await queue.add("film"))
        await queue.end(await take(queue, "film"), Outcome.FAILED, error=f"{number} " + "ü" * 600)
        queue.later(1)
    failed = await watched("failed")
    assert [one.id for one in failed] == ids[:2:-1]
    assert [one.error for one in failed[:1]] == ["22 " + "ü" * 497]
    assert failed[0].tries == 1


async def test_a_tenant_sees_its_own_and_the_deployments_jobs_alone_S95(queue: Queue, watched: Watched) -> None:
    for tenant in ("a", "b", None):
        for _ in range(2):
            await queue.add("film", tenant=tenant)
            await queue.end(await take(queue, "film"), Outcome.FAILED, error=f"of {tenant}")
        await queue.add("secret of b" if tenant == "b" else "open", tenant=tenant)
    sees = {"viewer": Viewer.of_tenant("a")}
    assert {(one.kind, one.state, one.count) for one in await watched.counts(**sees)} == {
        ("film", State.FAILED, 4), ("open", State.QUEUED, 2)
    }  # fmt: skip
    assert {(one.tenant, one.error) for one in await watched("failed", **sees)} == {("a", "of a"), (None, "of None")}
    assert await watched("ended", within_s=60, now=queue.now, **sees) == [EndedCount("film", State.FAILED, 4)]
    nobody = {"viewer": Viewer.of_tenant("c")}
    assert {one.tenant for one in await watched("failed", **nobody)} == {None}
    assert {(one.count) for one in await watched.counts(viewer=EVERYTHING)} == {6, 2, 1}


async def test_a_key_names_its_holder_as_far_as_its_scope_reaches(queue: Queue, watched: Watched) -> None:
    opened = await queue.add("film", dedupe=open_key("o"))
    waiting = await queue.add("sound", dedupe=queued_key("q"))
    once = await queue.add("text", dedupe=forever_key("f"))
    assert await watched("key_holders", key="o") == [KeyHolder(opened, Scope.OPEN, exists=True)]
    assert await watched("key_holders", key="q") == [KeyHolder(waiting, Scope.QUEUED, exists=True)]
    assert await watched("key_holders", key="f") == [KeyHolder(once, Scope.FOREVER, exists=True)]
    lease = await take(queue, "film")
    await take(queue, "sound")
    await queue.end(await take(queue, "text"))
    assert await watched("key_holders", key="o") == [KeyHolder(opened, Scope.OPEN, exists=True)]
    assert await watched("key_holders", key="q") == [], "while it runs, another may wait"
    await queue.end(lease)
    assert await watched("key_holders", key="o") == []
    queue.later(10)
    await queue.prune(keep_s=1)
    assert await watched("key_holders", key="f") == [KeyHolder(once, Scope.FOREVER, exists=False)]


async def test_pages_lose_and_repeat_nothing_while_jobs_come_and_go_S97(queue: Queue) -> None:
    await queue.enqueue_many([NewJob("film") for _ in range(9)])
    for job in await queue.claim(kind="film", free=9):
        await queue.end(job.lease, Outcome.FAILED, error="no")
    before = [row.id for row in await queue.page(states=(State.FAILED,))]
    seen, below = [], None
    while page := await queue.page(states=(State.FAILED,), limit=2, below=below):
        seen += [row.id for row in page]
        below = page[-1].id
        # One comes above, and the row that the page ended with goes.
        await queue.add("film")
        await queue.end(await take(queue, "film"), Outcome.FAILED, error="late")
        await queue.retry(below)
    assert seen == before
