"""Fixtures for all tests: databases on real PostgreSQL servers.

dsn            a fresh, empty database on PostgreSQL 18 (the embedded wheel)
migrated_dsn   the same with Rota's schema
any_dsn, any_migrated_dsn   the same on each server this machine has: 18, and Debian's 15
psql           runs SQL at an address and gives the rows as lines
"""

import asyncio
import gc
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import psutil
import pytest

from rota.io.migrate import up
from rota.io.postgres import Target
from tests.order import rank
from tests.postgres_servers import (
    ALL_SERVERS,
    DEFAULT_SERVER,
    PostgresServers,
    Psql,
    Server,
    fast_folder,
    run_psql,
    server_binaries,
)

# A shell starts programs in the background with SIGINT ignored, and what they start inherits that: the programs under
# test, which have to hear it.
signal.signal(signal.SIGINT, signal.default_int_handler)


HERE = Path(__file__).parent
PROCESSES_MIN = 4
"""Tests wait for programs and servers more than they work: few cores carry more processes than cores."""


def pytest_configure(config: pytest.Config) -> None:
    """Leaves the order of files to `tests.order`: pytest-xdist's own is by the number of tests, long or not."""
    config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """How many processes `-n auto` is."""
    return max(PROCESSES_MIN, psutil.cpu_count(logical=False) or 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first."""
    items.sort(key=lambda item: rank(item.path.relative_to(HERE).as_posix()))


def pytest_collection_finish() -> None:
    """What thousands of tests are made of stays: the garbage collector need not look at it again and again."""
    gc.freeze()


def prepare(dsn: str) -> None:
    """Makes, in an empty database, what `migrated_dsn` starts with; called once per server, in the main thread."""
    asyncio.run(up(Target(dsn)))


@pytest.fixture(scope="session")
def fast_place() -> Iterator[Path]:
    """A folder for this run, in memory where there is room; removed at the end."""
    with fast_folder() as place:
        yield place


@pytest.fixture(scope="session")
def postgres_servers(fast_place: Path) -> Iterator[PostgresServers]:
    """All servers of this run, by name."""
    servers = PostgresServers(fast_place / "servers", prepare=prepare)
    try:
        yield servers
    finally:
        servers.stop()


@pytest.fixture(scope="session", params=ALL_SERVERS)
def server(request: pytest.FixtureRequest, postgres_servers: PostgresServers) -> Server:
    """Each server in turn."""
    return postgres_servers.get(request.param)


@pytest.fixture(scope="session")
def default_server(postgres_servers: PostgresServers) -> Server:
    """PostgreSQL 18."""
    return postgres_servers.get(DEFAULT_SERVER)


@pytest.fixture(scope="session")
def psql() -> Psql:
    """Runs SQL at an address: `psql(dsn, "SELECT …")` gives the rows as lines."""
    binaries = server_binaries(DEFAULT_SERVER)
    return lambda dsn, command: run_psql(binaries, dsn, command)


@pytest.fixture
def dsn(default_server: Server) -> Iterator[str]:
    """A fresh, empty database on PostgreSQL 18."""
    with default_server.database() as address:
        yield address


@pytest.fixture
def any_dsn(server: Server) -> Iterator[str]:
    """A fresh, empty database on each server in turn."""
    with server.database() as address:
        yield address


@pytest.fixture
def migrated_dsn(default_server: Server) -> Iterator[str]:
    """A fresh database on PostgreSQL 18 with Rota's schema."""
    with default_server.database(template=default_server.template()) as address:
        yield address


@pytest.fixture
def any_migrated_dsn(server: Server) -> Iterator[str]:
    """A fresh database on each server in turn with Rota's schema."""
    with server.database(template=server.template()) as address:
        yield address


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test logged may hold text that UTF-8 has no bytes for, and a process of pytest-xdist sends it as UTF-8."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
