"""Jobs that need slots of exec servers and that no worker has claimed: they stand in no want-book yet, and only a
database knows of them. Without one to ask, or where it does not answer, nothing is told; one that is embedded is not
started for a look."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from math import inf
from typing import Final

from rota.app import EMBEDDED, App
from rota.commands import Call
from rota.errors import RotaError
from rota.io.clock import lease_clock
from rota.io.postgres import Database
from rota.queue.io.store import Store
from rota.queue.io.watch import Watch
from rota.queue.job import State
from rota.queue.standing import kinds_before, unclaimed_of
from rota.settings import Settings

ANSWER_S_MAX: Final = 1.0
"""How long the database may take; a place in line is not held up by it."""
ASK_EVERY_S: Final = 5.0
"""How old a count may be: workers say what their jobs need every few seconds, too."""

Unclaimed = Callable[[Iterable[str]], int]


async def of_services(settings: Settings) -> Unclaimed | None:
    """What tells how many due jobs need one of some services; None: nobody can."""
    try:
        async with _database(settings) as database:
            if database is None:
                return None
            counts = await Watch(database).counts(ended=False)
            everybody = [row.facts for row in await Store(database).servers() if row.live]
    except (RotaError, OSError):
        return None
    due = {one.kind: one.due for one in counts if one.state is State.QUEUED}
    return lambda services: unclaimed_of(services, due, everybody)


class Above:
    """How many due jobs that draw from the same slots are more urgent than a call. Somebody may look every second: each
    question takes a connection, so it is asked now and then.

    Args:
        settings: where the database is.
        clock: seconds that never step.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = lease_clock) -> None:
        self._settings = settings
        self._clock = clock
        self._count = 0
        self._asks_at = -inf

    async def count(self, call: Call) -> int:
        """So many, ASK_EVERY_S ago at most; 0 where nobody can tell."""
        if self._clock() >= self._asks_at:
            self._count = await _above(self._settings, call)
            self._asks_at = self._clock() + ASK_EVERY_S
        return self._count


async def _above(settings: Settings, call: Call) -> int:
    try:
        async with asyncio.timeout(ANSWER_S_MAX), _database(settings) as database:
            if database is None:
                return 0
            store = Store(database)
            kinds = kinds_before(call.service, [row.facts for row in await store.servers() if row.live])
            return await store.unclaimed_above(call.priority, kinds=kinds)
    except (RotaError, OSError, TimeoutError):
        # The place in the want-books alone is better than none.
        return 0


@asynccontextmanager
async def _database(settings: Settings) -> AsyncIterator[Database | None]:
    if settings.dsn is None or settings.dsn.startswith(EMBEDDED):
        yield None
        return
    async with App(settings=settings) as program:
        yield await program.database()
