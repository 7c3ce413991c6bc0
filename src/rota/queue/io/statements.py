"""How each part of the store runs its statements: from their files, in one schema of one database."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from rota.io.postgres import Connection, Database, statement, translated


class Statements:
    """What the parts of the store share: the database, and how a file under `sql/` is run on it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._schema = database.target.schema

    def _sql(self, name: str) -> str:
        return statement("rota.queue.io.sql", name, self._schema)

    async def _fetch(self, name: str, *args: Any, conn: Connection | None = None) -> list[Any]:
        return await self.database.fetch(self._sql(name), *args, conn=conn)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """One transaction for several statements, which take its connection; they are written all or none.

        Raises: as `Database.fetch`.
        """
        try:
            async with self.database.acquire() as conn, conn.transaction():
                yield conn
        except Exception as error:
            raise translated(error, self.database.target) from error
