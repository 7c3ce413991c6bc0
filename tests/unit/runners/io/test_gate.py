"""The gate of executions: one after the other, whoever stops waiting."""

import asyncio

import pytest

from rota.errors import SessionError
from rota.runners.io.gate import Gates


async def waiting(gates: Gates, *names: str) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(gates.take("e"), name=name) for name in names]
    await asyncio.sleep(0)
    return tasks


async def test_they_go_first_in_first_out_and_nothing_is_kept_of_them() -> None:
    gates = Gates()
    await gates.take("e")
    await gates.take("another")
    first, second = await waiting(gates, "first", "second")
    gates.free("e")
    await first
    assert not second.done()
    gates.free("e")
    await second
    gates.free("e")
    gates.free("another")
    assert len(gates) == 0


async def test_a_task_that_would_wait_for_itself_is_told_so() -> None:
    gates = Gates()
    await gates.take("e")
    with pytest.raises(SessionError, match="this would wait for itself"):
        await gates.take("e")


@pytest.mark.parametrize("freed", ["never", "before", "meanwhile"])
async def test_who_is_cancelled_leaves_the_line_to_the_next(freed: str) -> None:
    gates = Gates()
    await gates.take("e")
    first, second = await waiting(gates, "first", "second")
    if freed == "before":
        gates.free("e")  # it is its turn, and it has not heard of it
    first.cancel()
    if freed == "meanwhile":
        gates.free("e")  # it is cancelled, and still in the line
    with pytest.raises(asyncio.CancelledError):
        await first
    if freed == "never":
        gates.free("e")
    await second
    gates.free("e")
    assert len(gates) == 0


async def test_the_last_one_is_cancelled_when_the_gate_is_freed() -> None:
    gates = Gates()
    await gates.take("e")
    (only,) = await waiting(gates, "only")
    only.cancel()
    gates.free("e")
    with pytest.raises(asyncio.CancelledError):
        await only
    assert len(gates) == 0
