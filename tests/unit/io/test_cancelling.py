"""The end of tasks: one that misses its cancellation is told again."""

import asyncio

import pytest

from rota.io import cancelling


async def test_a_task_that_misses_its_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancelling, "CANCEL_AGAIN_S", 0.01)
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
        await cancelling.cancelled([task])
    assert task.cancelled() and missed


async def test_without_tasks_nothing_is_waited_for() -> None:
    await cancelling.cancelled([])
