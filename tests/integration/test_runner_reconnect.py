"""A whole runner against gateways and balancers that refuse it, say nothing or hang up: it dials again, and says why.

How long it waits is in `tests/unit/runners/test_agent.py`; time is moved on here.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from rota.runners.agent_events import DialFailed, Dropped, Hang
from rota.runners.codes import CloseCode
from rota.runners.io import agent_client
from tests.integration.stand_in_gateway import WAIT_S
from tests.integration.test_runner_agent import Started, running, welcomed

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "runner-machines.md"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_client, "LOOK_S", 0.01)


@asynccontextmanager
async def hurried(started: Started) -> AsyncIterator[None]:
    """Lets its time go faster than it is, but never by so much at once that it takes it for sleep."""

    async def hurry() -> None:
        while True:
            await asyncio.sleep(0.005)
            started.ahead_s += 0.3

    task = asyncio.create_task(hurry())
    try:
        yield
    finally:
        task.cancel()


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (502, {}, "status 502"), (503, {}, "not ready"), (503, {"Retry-After": "7"}, "not ready"),
        (429, {"Retry-After": "7"}, "status 429"), (404, {}, "no gateway"), (200, {}, "status 200"),
        (301, {"Location": "http://127.0.0.1:9/v1/connect"}, "status 301"),
    ],
)  # fmt: skip
async def test_what_a_balancer_answers_is_told_and_it_dials_again(
    tmp_path: Path, status: int, headers: dict[str, str], says: str
) -> None:
    async with running(tmp_path) as (gateway, started):
        connection = await welcomed(gateway)
        gateway.refuses = web.Response(status=status, headers=headers)
        connection.transport().abort()
        async with hurried(started):
            failed = await started.shown.until(lambda what: isinstance(what, DialFailed))
            assert isinstance(failed, DialFailed)
            assert says in failed.reason
            assert failed.retry_after_s == (7.0 if "Retry-After" in headers else None)
            gateway.refuses = None
            await welcomed(gateway)


async def test_whatever_the_close_code_it_comes_back(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, started):
        for code in (*CloseCode, 4999):
            async with hurried(started):
                connection = await welcomed(gateway)
            await connection.socket.close(code=int(code), message=b"because")
            dropped = await started.shown.until(
                lambda what, code=code: isinstance(what, Dropped) and what.code == code  # type: ignore[misc]
            )
            assert isinstance(dropped, Dropped) and dropped.reason == "because"


async def test_a_gateway_that_takes_the_hello_and_says_nothing_is_given_up(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, started):
        first = await gateway.connected()
        async with hurried(started):
            await welcomed(gateway)
        assert first.seen == []


async def test_a_gateway_that_does_not_answer_the_upgrade_is_given_up(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, started):
        connection = await welcomed(gateway)
        gateway.silent = True
        connection.transport().abort()
        async with hurried(started):
            await asyncio.wait_for(gateway.taken.wait(), WAIT_S)
            gateway.silent = False
            await welcomed(gateway)
        assert isinstance(await started.shown.until(lambda what: isinstance(what, Hang)), Hang)


def test_the_guide_tells_of_each_close_code() -> None:
    table = GUIDE.read_text(encoding="utf-8").partition("## When the line is bad")[2].partition("\n## ")[0]
    told = {int(code) for code in re.findall(r"\b(\d{4})\b", table)}
    assert set(CloseCode) <= told
