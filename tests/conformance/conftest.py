"""The queues that the suite runs against: the reference, and a store on each PostgreSQL that this machine has."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from random import Random

import pytest

from rota.io.migrate import up
from rota.io.postgres import Database, Target
from rota.queue.io.store import Store
from tests.conformance.queues import Queue, empty
from tests.postgres_servers import ALL_SERVERS, PostgresServers

REFERENCE = "reference"


class Databases:
    """One migrated database on each server, made when first asked for."""

    def __init__(self, servers: PostgresServers, stack: ExitStack) -> None:
        self._servers = servers
        self._stack = stack
        self._made: dict[str, Target] = {}

    def on(self, name: str) -> Target:
        """The database on the server of this name."""
        if name not in self._made:
            dsn = self._stack.enter_context(self._servers.get(name).database())
            # The user has the schema's name, so that an unqualified name would be found by luck.
            target = Target(dsn + ("&" if "?" in dsn else "?") + "options=-c%20search_path%3Dpg_catalog")
            asyncio.run(up(target))
            self._made[name] = target
        return self._made[name]


@pytest.fixture(scope="session")
def databases(postgres_servers: PostgresServers) -> Iterator[Databases]:
    with ExitStack() as stack:
        yield Databases(postgres_servers, stack)


@pytest.fixture(scope="session", params=[REFERENCE, *ALL_SERVERS])
def target(request: pytest.FixtureRequest) -> Target | None:
    """The database to run against; None for the reference, which then needs no server at all."""
    if request.param == REFERENCE:
        return None
    databases: Databases = request.getfixturevalue("databases")
    return databases.on(request.param)


@pytest.fixture(scope="session", params=ALL_SERVERS)
def stored(request: pytest.FixtureRequest, databases: Databases) -> Target:
    """The database on each server in turn."""
    return databases.on(request.param)


@pytest.fixture
async def queue(target: Target | None) -> AsyncIterator[Queue]:
    """An empty queue."""
    if target is None:
        yield Queue(random=Random(1))
        return
    database = Database(target, size=2)
    await database.start()
    queue = Queue(Store(database), dsn=target.dsn)
    try:
        await empty(database)
        yield queue
    finally:
        await queue.close()
        await database.stop()
