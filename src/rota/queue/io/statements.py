"""How each part of the store runs its statements: from their files, in one schema of one database."""

from typing import Any

from rota.ids import Holder
from rota.io.postgres import Connection, Database, statement


class Statements:
    """What the parts of the store share: the database, and how a file under `sql/` is run on it.

    Args:
        database: where.
        holder: whose leases it speaks of. One history of a database gives an epoch once; after a failover to a standby
            that was behind, or a restore, the epoch that a former holder has may be another's (I3). None: anybody's.
    """

    def __init__(self, database: Database, *, holder: Holder | None = None) -> None:
        self.database = database
        self.holder = holder
        self._schema = database.target.schema

    def _sql(self, name: str) -> str:
        return statement("rota.queue.io.sql", name, self._schema)

    async def _fetch(self, name: str, *args: Any, conn: Connection | None = None) -> list[Any]:
        return await self.database.fetch(self._sql(name), *args, conn=conn)
