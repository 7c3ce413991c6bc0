"""How each part of the store runs its statements: from their files, in one schema of one database."""

from typing import Any

from rota.io.postgres import Connection, Database, statement


class Statements:
    """What the parts of the store share: the database, and how a file under `sql/` is run on it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._schema = database.target.schema

    def _sql(self, name: str) -> str:
        return statement("rota.queue.io.sql", name, self._schema)

    async def _fetch(self, name: str, *args: Any, conn: Connection | None = None) -> list[Any]:
        return await self.database.fetch(self._sql(name), *args, conn=conn)
