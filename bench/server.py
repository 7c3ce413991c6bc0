"""The private PostgreSQL that everything is measured on, durable as in production, and its databases.

Each measurement gets a database of its own, copied from a template, so none finds what another left behind.
"""

import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from rota.io.embedded import EmbeddedPostgres

SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "shared_buffers": "1GB",
        "max_wal_size": "4GB",
    }
)


class Server:
    """A running server."""

    def __init__(self, postgres: EmbeddedPostgres, folder: Path) -> None:
        self._postgres = postgres
        self.folder = folder
        self._templates: set[str] = set()

    def dsn(self, database: str = "postgres") -> str:
        """The address of one database."""
        return urlunsplit(urlsplit(self._postgres.dsn)._replace(path=f"/{database}"))

    async def run(self, *statements: str, database: str = "postgres") -> None:
        """Runs statements, each in a transaction of its own."""
        connection = await asyncpg.connect(self.dsn(database))
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def ask(self, question: str, *args: Any, database: str = "postgres") -> Any:
        """The one value that a query gives."""
        connection = await asyncpg.connect(self.dsn(database))
        try:
            return await connection.fetchval(question, *args)
        finally:
            await connection.close()

    async def template(self, name: str, *, base: str, fill: Callable[[str], Awaitable[None]]) -> str:
        """Makes a template when it is first asked for.

        Args:
            name: what it is called.
            base: the template that it starts from.
            fill: what to do in it, given its address.

        Returns: its name.
        """
        if name not in self._templates:
            await self._copy(base, name)
            await fill(self.dsn(name))
            await self.run("VACUUM (FREEZE, ANALYZE)", database=name)
            self._templates.add(name)
        return name

    async def fresh(self, template: str) -> str:
        """Makes the database of the next measurement anew, and gives its name."""
        await self._copy(template, "measured")
        return "measured"

    async def _copy(self, template: str, name: str) -> None:
        await self.run(
            f"DROP DATABASE IF EXISTS {name} WITH (FORCE)",
            f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY",
        )


@contextmanager
def private_server(place: Path | None) -> Iterator[Server]:
    """Starts a server in a new folder and removes both at the end; call it in the main thread.

    Args:
        place: where to make the folder; else where temp files lie. It should be a real disk.
    """
    folder = Path(tempfile.mkdtemp(prefix="rota-bench-", dir=place))
    os.chmod(folder, 0o711)  # the server may run as another user
    try:
        with EmbeddedPostgres(folder / "postgres", settings=SETTINGS) as postgres:
            yield Server(postgres, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
