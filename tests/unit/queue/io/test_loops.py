"""The loops of a worker: what is done aside is not lost."""

import asyncio

from rota.errors import DatabaseAway
from rota.queue.io import loops


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
