"""What a worker's heart writes before the process ends: also what has ended and is on its way to the database."""

import asyncio
import contextlib
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from uuid import UUID

import pytest

import rota
from rota.ids import JobId
from rota.io.clock import lease_clock
from rota.io.postgres import Target
from rota.lease import Lease
from rota.queue import dispatcher
from rota.queue.handler import make_handler
from rota.queue.io.heart import Last
from rota.queue.io.leases import GuardedBook
from rota.queue.io.store import Store
from rota.queue.io.worker import Worker
from rota.queue.job import ClaimedJob, Finish, Outcome, State
from rota.queue.kind import Kind

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def claimed(number: int, epoch: int = 1) -> ClaimedJob:
    return ClaimedJob(
        Lease(JobId(UUID(int=number)), epoch), "film", None, "{}", 0, 1, 3, run_after=NOW, created_at=NOW,
        dedupe_scope=None, progress=None, trace=None,
    )  # fmt: skip


async def test_an_end_that_a_statement_has_taken_up_is_written_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blocked event loop may have taken it up and not sent it: its job would lose a try, and be done again."""
    taken_up = asyncio.Event()

    async def never_answered(store: Store, finishes: Iterable[Finish]) -> dict[JobId, State]:
        taken_up.set()
        return await asyncio.Future()

    async def film(ctx: rota.Context) -> None:
        if ctx.id != JobId(UUID(int=1)):
            await asyncio.Event().wait()

    monkeypatch.setattr(Store, "finish", never_answered)
    worker = Worker({"film": make_handler(film, kind=Kind("film"))}, target=Target("postgresql:///"))
    ended, stuck, innocent = (claimed(number) for number in (1, 2, 3))
    completing = asyncio.create_task(worker._completer.run())
    worker._slots.took([ended, stuck, innocent])
    worker._crew.start([ended, stuck, innocent], sent_at=lease_clock())
    async with asyncio.timeout(30):
        await taken_up.wait()
    last = worker._last_words(stuck.lease)
    assert {finish.lease: finish.outcome for finish in last.finishes} == {
        ended.lease: Outcome.DONE, stuck.lease: Outcome.RETRY,
    }  # fmt: skip
    assert [release.lease for release in last.releases] == [innocent.lease]
    for task in (completing, *worker._crew._tasks):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_job_that_finds_its_lease_abandoned_meanwhile_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next step comes before the heart has gone on, and it ends without a word."""
    stepped = threading.Event()

    async def film(ctx: rota.Context) -> None:
        while True:
            await asyncio.sleep(0)

    abandon = GuardedBook.abandon

    def abandon_and_wait(leases: GuardedBook) -> None:
        abandon(leases)
        stepped.wait(30)

    monkeypatch.setattr(GuardedBook, "abandon", abandon_and_wait)
    worker = Worker({"film": make_handler(film, kind=Kind("film"))}, target=Target("postgresql:///"))
    stuck, innocent = claimed(1), claimed(2)
    worker._slots.took([stuck, innocent])
    worker._crew.start([stuck, innocent], sent_at=lease_clock())
    words = asyncio.create_task(asyncio.to_thread(worker._last_words, stuck.lease))
    async with asyncio.timeout(30):
        await worker._crew.wait_idle()
    stepped.set()
    last = await words
    assert [finish.lease for finish in last.finishes] == [stuck.lease]
    assert [release.lease for release in last.releases] == [innocent.lease]


async def test_a_job_that_ends_again_before_its_first_end_is_answered_is_written_too() -> None:
    """It went back, and was claimed here once more by the time that the answer to its release came."""

    async def film(ctx: rota.Context) -> None: ...

    worker = Worker({"film": make_handler(film, kind=Kind("film"))}, target=Target("postgresql:///"))
    first, second = claimed(1), claimed(1, epoch=2)
    worker._slots.took([first, second])
    went_back, done = dispatcher.give_back(first), Finish(second.lease, Outcome.DONE)
    worker._ending.begins("film", went_back)
    worker._ending.begins("film", done)
    worker._ending.arrived([(went_back, State.QUEUED)])
    assert worker._ending.with_these(Last([], [], threading.Thread())).finishes == [done]
    assert worker._ending.kind_of(second.lease.job_id) == "film"
    worker._ending.arrived([(done, State.DONE)])
    assert worker._ending.kind_of(second.lease.job_id) == ""
