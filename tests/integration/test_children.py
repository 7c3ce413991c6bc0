"""The idle child processes of a worker: one that is dead, or about to be, gets no job."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from rota.queue.io.children import Children

WAIT_S = 60.0


@pytest.fixture
async def children() -> AsyncIterator[Children]:
    made = Children(idle_max=2)
    yield made
    await made.close()


def unheard() -> None:
    """For tests that do not ask what is told while a child starts."""


async def test_a_child_is_there_for_the_next_job(children: Children) -> None:
    told: list[None] = []
    child = await children.take(starting=lambda: told.append(None))
    assert told, "a job has not stalled while its child starts"
    told.clear()
    await children.give_back(child)
    assert await children.take(starting=lambda: told.append(None)) is child
    assert not told


async def test_one_that_was_killed_gets_no_other_job_although_its_end_is_not_told_yet(children: Children) -> None:
    child = await children.take(starting=unheard)
    child.kill()
    assert not child.alive
    await children.give_back(child)
    other = await children.take(starting=unheard)
    assert other is not child and other.alive


async def test_one_that_died_while_it_was_idle_gets_no_other_job(children: Children) -> None:
    child = await children.take(starting=unheard)
    await children.give_back(child)
    os.kill(child.pid, signal.SIGKILL)
    async with asyncio.timeout(WAIT_S):
        while child.alive:  # nobody waits for it: its end of the wire tells
            await asyncio.sleep(0.01)
    assert await children.take(starting=unheard) is not child
