"""Gives back the jobs of a worker that its warden has killed, but for those one of which was to blame.

It runs in a process of its own, which the warden starts when the worker is gone: none of its jobs goes on by then, but
for those in child processes, whose leases run out like those of the suspects.
"""

import asyncio
from typing import Any, Final
from uuid import UUID

import asyncpg

from rota.errors import RotaError
from rota.ids import Holder, JobId
from rota.io.log import get_logger, setup_as
from rota.io.postgres import Database, Target
from rota.queue.io.store import Store

STATEMENTS_S: Final = 10.0

log = get_logger("rota.warden")


async def give_back(target: Target, holder: Holder, *, left: list[JobId]) -> int:
    """Ends the leases of a holder that is gone, and takes back the tries that they counted.

    Args:
        target: the database.
        holder: whose process is no more.
        left: the jobs whose leases run out by themselves, and whose tries count.

    Returns: how many jobs went back.
    """
    database = Database(target, size=1)
    store = Store(database)
    try:
        async with asyncio.timeout(STATEMENTS_S):
            return await store.disown(holder, known=left, before=await store.clock())
    finally:
        await database.stop()


def main(told: dict[str, Any]) -> None:
    """Does what the warden was told for this case."""
    if told["log_format"] is not None:
        setup_as(told["log_format"], told["log_level"])
    left = [JobId(UUID(one)) for one in (*told["suspects"], *told["apart"])]
    try:
        count = asyncio.run(give_back(Target(**told["target"]), Holder(told["holder"]), left=left))
    except (RotaError, OSError, TimeoutError, asyncpg.exceptions.PostgresError) as error:
        # They run out by themselves; each has lost a try.
        log.error("the other jobs of a killed worker could not be given back", error=str(error) or "no answer")
    else:
        log.warning("the other jobs of a killed worker were given back", given_back=count, suspects=told["suspects"])
