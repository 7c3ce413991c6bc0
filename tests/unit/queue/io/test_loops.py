"""The loops of a worker: one that misses its cancellation is told again; what is done aside is not lost."""

import asyncio

import pytest

from rota.errors import DatabaseAway
from rota.queue.io import loops


async def test_a_loop_that_misses_its_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "CANCEL_AGAIN_S", 0.01)
    missed = []

    async def deaf_once() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            missed.append(True)
        await asyncio.sleep(3600)

    task = asyncio.create_task(deaf_once())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await loops.cancelled({task})
    assert task.cancelled() and missed


async def test_what_is_done_aside_is_kept_until_it_is_done_and_may_find_the_database_away() -> None:
    asides, go_on, done = loops.Asides(), asyncio.Event(), []

    async def work() -> None:
        await go_on.wait()
        done.append(True)
        raise DatabaseAway("It restarts.")

    asides.begin(work())
    assert len(asides.tasks) == 1
    go_on.set()
    async with asyncio.timeout(30):
        await asyncio.gather(*asides.tasks)
    assert done and not asides.tasks
