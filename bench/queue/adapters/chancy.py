"""Chancy: its async executor, 200 jobs at once, eager polling, default plugins."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from bench.queue.meter import Meter

PENDING = """
    SELECT EXISTS (SELECT FROM chancy_jobs WHERE state NOT IN ('succeeded', 'failed') AND scheduled_at <= now())"""
DONE = "SELECT count(*) FROM chancy_jobs WHERE state = 'succeeded'"
_meters: list[Meter] = []


async def noop(*, payload: dict[str, Any]) -> None:
    """The job."""
    _meters[0].handled(payload)


def _program(dsn: str) -> Any:
    from chancy import Chancy

    logging.getLogger("chancy").setLevel(logging.WARNING)
    return Chancy(dsn, log=logging.getLogger("chancy"))


def _job(number: int, sent_at: float) -> Any:
    from chancy import Job

    payload = {"number": number, "sent_at": sent_at}
    return Job(func="bench.queue.adapters.chancy.noop", kwargs={"payload": payload}, queue="noop")


async def setup(dsn: str) -> None:
    """Installs its schema."""
    from chancy import Chancy, Queue

    async with _program(dsn) as program:
        await program.migrate()
        await program.declare(
            Queue("noop", executor=Chancy.Executor.Async, concurrency=200, polling_interval=1, eager_polling=True)
        )


async def open(dsn: str) -> Any:
    """A producer's connection."""
    program = _program(dsn)
    await program.__aenter__()
    return program


async def close(client: Any) -> None:
    """Ends it."""
    await client.__aexit__(None, None, None)


async def enqueue_one(client: Any, number: int, sent_at: float) -> None:
    """Adds one job and commits."""
    await client.push(_job(number, sent_at))


async def _described(client: Any, count: int) -> Callable[[], Awaitable[None]]:
    async def add() -> None:
        async for _ in client.push_many([_job(number, 0.0) for number in range(count)], batch_size=count):
            pass

    return add


bulks = {"described": _described}


async def worker(dsn: str, meter: Meter) -> None:
    """Works until it is stopped."""
    from chancy import Worker

    _meters.append(meter)
    async with _program(dsn) as program, Worker(program) as working:
        await working.wait_for_shutdown()
