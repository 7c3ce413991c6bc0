"""Waiting for results, over a store that a test answers for."""

import asyncio
from collections.abc import Iterable
from uuid import UUID

import pytest

import rota
from rota.ids import JobId
from rota.queue.io import results as results_module
from rota.queue.io.results import Results
from rota.queue.job import Answer, State

ONE, TWO = JobId(UUID(int=1)), JobId(UUID(int=2))


class Asked:
    """Answers what it is told to, and counts the questions."""

    def __init__(self) -> None:
        self.stands: dict[JobId, Answer] = {
            ONE: Answer(State.LEASED, None, None),
            TWO: Answer(State.QUEUED, None, None),
        }
        self.raises: Exception | None = None
        self.questions: list[set[JobId]] = []

    async def __call__(self, ids: Iterable[JobId]) -> dict[JobId, Answer]:
        wanted = set(ids)
        self.questions.append(wanted)
        if self.raises is not None:
            raise self.raises
        return {job_id: answer for job_id, answer in self.stands.items() if job_id in wanted}


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_module, "PAUSE_MIN_S", 0.0)
    monkeypatch.setattr(results_module, "PAUSE_MAX_S", 0.0)


async def until_asked(asked: Asked, count: int) -> None:
    async with asyncio.timeout(30):
        while len(asked.questions) < count:
            await asyncio.sleep(0)


async def test_one_question_for_all() -> None:
    asked = Asked()
    results = Results(asked)
    waits = [asyncio.create_task(results.wait(job_id, timeout_s=None)) for job_id in (ONE, ONE, TWO)]
    await until_asked(asked, 3)
    assert asked.questions[-1] == {ONE, TWO}
    asked.stands[ONE] = Answer(State.DONE, '{"n": [1, null]}', None)
    assert await waits[0] == await waits[1] == {"n": [1, None]}
    assert results.waiting == 1
    asked.stands[TWO] = Answer(State.EXPIRED, None, "too late")
    with pytest.raises(rota.JobFailed, match="expired: too late"):
        await waits[2]
    assert results.waiting == 0
    count = len(asked.questions)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(asked.questions) == count, "nobody waits, and nothing is asked"


async def test_a_database_that_is_away_is_asked_again() -> None:
    asked = Asked()
    asked.raises = rota.DatabaseAway("away")
    results = Results(asked)
    wait = asyncio.create_task(results.wait(ONE, timeout_s=None))
    await until_asked(asked, 3)
    asked.raises, asked.stands[ONE] = None, Answer(State.DONE, None, None)
    assert await wait is None
    asked.raises = rota.SchemaError("missing")
    with pytest.raises(rota.SchemaError):
        await results.wait(TWO, timeout_s=None)


async def test_who_gives_up_leaves_nothing() -> None:
    asked = Asked()
    results = Results(asked)
    wait = asyncio.create_task(results.wait(ONE, timeout_s=None))
    await until_asked(asked, 1)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    assert results.waiting == 0
    await results.stop()
    await results.stop()


async def test_the_end_of_a_program_ends_its_waits() -> None:
    asked = Asked()
    results = Results(asked)
    wait = asyncio.create_task(results.wait(ONE, timeout_s=None))
    await until_asked(asked, 1)
    await results.stop()
    with pytest.raises(rota.DatabaseAway, match="The program is stopping"):
        await wait
