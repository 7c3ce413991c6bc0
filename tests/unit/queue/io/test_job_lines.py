"""Lines on their way: what the database does not take waits, within bounds, and comes in the order it was said."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from rota.errors import DatabaseAway
from rota.ids import JobId
from rota.lease import Lease
from rota.queue.history import LOG_LINES_MAX, LogLine
from rota.queue.io import job_lines
from rota.queue.io.job_lines import JobLines

LEASE = Lease(JobId(UUID(int=1)), 1)


class FakeStore:
    """Takes lines, unless it is told to raise."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.raises: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def log(self, lines: Sequence[LogLine], *, clock: float) -> None:
        await self.answers.wait()
        if self.raises is not None:
            raise self.raises
        self.taken += [line.event for line in lines]


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def lines(store: FakeStore) -> JobLines:
    made: Any = store
    return JobLines(made, random=Random(1))


async def test_lines_wait_for_the_database(store: FakeStore, lines: JobLines) -> None:
    store.raises = DatabaseAway("away")
    lines.say(LEASE, "info", "first", {})
    assert not await lines.write()
    lines.say(LEASE, "info", "second", {})
    store.raises = None
    assert await lines.write()
    assert store.taken == ["first", "second"]


async def test_lines_whose_statement_is_broken_off_by_a_stop_are_written_then(
    store: FakeStore, lines: JobLines
) -> None:
    store.answers.clear()
    lines.say(LEASE, "info", "first", {})
    writing = asyncio.create_task(lines.write())
    await asyncio.sleep(0)
    lines.say(LEASE, "info", "second", {})
    writing.cancel()
    await asyncio.wait([writing])
    store.answers.set()
    assert await lines.write()
    assert store.taken == ["first", "second"]


async def test_lines_that_wait_are_bounded(store: FakeStore, lines: JobLines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_lines, "BATCH_MAX", 100)
    store.raises = DatabaseAway("away")
    for number in range(job_lines.PENDING_MAX + 5):
        lines.keep(LogLine(LEASE, number, 0.0, "info", str(number), None))
    assert not await lines.write()
    store.raises = None
    assert await lines.write()
    assert len(store.taken) == job_lines.PENDING_MAX
    assert store.taken[0] == "5" and store.taken[-1] == str(job_lines.PENDING_MAX + 4)


async def test_where_all_room_is_taken_meanwhile_the_oldest_go(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_lines, "PENDING_MAX", 2)
    made: Any = store
    lines = JobLines(made, random=Random(1))
    store.answers.clear()
    store.raises = DatabaseAway("away")
    for event in ("first", "second"):
        lines.say(LEASE, "info", event, {})
    writing = asyncio.create_task(lines.write())
    await asyncio.sleep(0)
    for event in ("third", "fourth"):
        lines.say(LEASE, "info", event, {})
    store.answers.set()
    assert not await writing
    store.raises = None
    assert await lines.write()
    assert store.taken == ["third", "fourth"]


async def test_lines_that_are_refused_hold_up_no_others(store: FakeStore, lines: JobLines) -> None:
    store.raises = asyncpg.exceptions.DataError("no")
    lines.say(LEASE, "info", "bad", {})
    assert await lines.write()
    store.raises = None
    lines.say(LEASE, "info", "good", {})
    assert await lines.write()
    assert store.taken == ["good"]


async def test_what_was_dropped_is_said_at_the_end(store: FakeStore, lines: JobLines) -> None:
    for number in range(LOG_LINES_MAX + 1):
        lines.say(LEASE, "info", str(number), {})
    lines.close(LEASE)
    lines.close(LEASE)
    assert await lines.write()
    assert len(store.taken) == LOG_LINES_MAX


async def test_lines_are_written_a_moment_after_they_were_said(
    store: FakeStore, lines: JobLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_lines, "GATHER_S", 0.0)
    running = asyncio.create_task(lines.run())
    try:
        await asyncio.sleep(0)
        await asyncio.to_thread(lines.say, LEASE, "info", "from a thread", {})
        async with asyncio.timeout(30):
            while not store.taken:
                await asyncio.sleep(0)
    finally:
        running.cancel()
    assert store.taken == ["from a thread"]
