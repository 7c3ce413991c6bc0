"""What is gathered, and what keeps its order."""

import asyncio

import pytest

from rota.runners.io.lanes import Gathered, Lanes


async def settle(lanes: Lanes) -> None:
    """Until nothing is under way."""
    while lanes._tasks:
        await asyncio.sleep(0)


async def test_what_comes_while_work_is_under_way_goes_with_the_next() -> None:
    lanes, done = Lanes(), asyncio.Event()
    batches: list[list[int]] = []

    async def work(batch: list[int]) -> None:
        batches.append(batch)
        await done.wait()

    gathered = Gathered(lanes, work, most=3, gather_s=0)
    gathered.put(1)
    gathered.put(2)
    while not batches:
        await asyncio.sleep(0)
    for number in range(3, 8):
        gathered.put(number)
    done.set()
    await settle(lanes)
    assert batches == [[1, 2], [3, 4, 5], [6, 7]]


async def test_work_that_fails_is_logged_and_the_next_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    lanes = Lanes()
    batches: list[list[str]] = []

    async def work(batch: list[str]) -> None:
        batches.append(batch)
        if batch == ["bad"]:
            raise RuntimeError("of the test")

    gathered = Gathered(lanes, work, most=1, gather_s=0)
    for word in ("bad", "good"):
        gathered.put(word)
    await settle(lanes)
    assert batches == [["bad"], ["good"]]


async def test_a_lane_keeps_its_order_and_others_do_not_wait() -> None:
    lanes, done = Lanes(), asyncio.Event()
    said: list[str] = []

    async def slow() -> None:
        await done.wait()
        said.append("slow")

    async def say(word: str) -> None:
        said.append(word)

    lanes.put("a", slow)
    lanes.put("a", lambda: say("after slow"))
    lanes.put("b", lambda: say("beside"))
    while not said:
        await asyncio.sleep(0)
    done.set()
    await settle(lanes)
    assert said == ["beside", "slow", "after slow"]
