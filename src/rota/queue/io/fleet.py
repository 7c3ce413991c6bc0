"""The store's part for servers, passes and pauses: one method for each statement, as in `rota.queue.io.store`.

The rules of passes are in `rota.queue.periodic`; here is only what is read and written. The same methods, over plain
dicts, are in `rota.queue.reference_fleet`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rota.ids import Holder, JobId
from rota.io.postgres import Connection
from rota.queue.io.statements import Statements
from rota.queue.job import State
from rota.queue.pause import Pause, PauseScope
from rota.queue.periodic import Declared, Mark, PassRow, Put
from rota.queue.server import LIVE_S, STALE_S, OrphanKind, Server, ServerRow
from rota.queue.standing import NO_FACTS, ServerFacts, heard, said


class Fleet(Statements):
    """Servers, passes and pauses in one schema of one database."""

    # Servers

    async def serve(
        self,
        server: Server,
        *,
        running: Mapping[str, int],
        draining: bool = False,
        facts: ServerFacts = NO_FACTS,
        stale_s: float = STALE_S,
        now: datetime | None = None,
    ) -> datetime:
        """Says that a worker process is there and what it runs; rows that were silent for `stale_s` seconds go.

        Returns: the database's clock.
        """
        rows = await self._fetch(
            "serve.sql", server.holder, server.host, server.pid, server.version, server.role, server.settings_digest,
            json.dumps(dict(server.kinds)), json.dumps(dict(running)),
            json.dumps({name: asdict(declared) for name, declared in server.passes.items()}), draining,
            json.dumps(dict(server.limits)), stale_s, said(facts), now,
        )  # fmt: skip
        seen_at: datetime = rows[0]["seen_at"]
        return seen_at

    async def leave(self, holder: Holder) -> None:
        """Takes back what `serve` said."""
        await self._fetch("leave.sql", holder)

    async def servers(self, *, live_s: float = LIVE_S, now: datetime | None = None) -> list[ServerRow]:
        """The worker processes, by host and start; `live` are those seen within `live_s` seconds."""
        return [_server(row) for row in await self._fetch("servers.sql", live_s, now)]

    async def orphan_kinds(self, *, live_s: float = LIVE_S, now: datetime | None = None) -> list[OrphanKind]:
        """The kinds with due work, and the passes, that no live server takes."""
        rows = await self._fetch("orphan_kinds.sql", live_s, now)
        return [OrphanKind(row["kind"], row["due_at"], row["is_pass"]) for row in rows]

    # Passes

    async def passes(
        self, name: str | None = None, *, now: datetime | None = None, conn: Connection | None = None
    ) -> list[PassRow]:
        """The passes, or this one alone, each with its open run; also those that were removed."""
        rows = await self._fetch("passes.sql", name, now, conn=conn)
        return [
            PassRow(**{**row, "open_id": None if row["open_id"] is None else JobId(row["open_id"])}) for row in rows
        ]

    async def hold_pass(self, name: str, *, conn: Connection) -> None:
        """Takes a pass for the transaction of `conn`."""
        await self._fetch("hold_pass.sql", name, conn=conn)

    async def put_pass(self, put: Put, *, now: datetime | None = None, conn: Connection | None = None) -> bool:
        """Writes a pass and sees that a run is open. Returns: False if it was no longer as `put.seen` says."""
        rows = await self._fetch(
            "put_pass.sql", put.name, put.declared.schedule, put.declared.priority, put.due_at, put.extra,
            put.seen.schedule if put.seen else None, put.seen.due_at if put.seen else None, now, conn=conn,
        )  # fmt: skip
        return bool(rows)

    async def mark_pass(self, mark: Mark, *, now: datetime | None = None) -> None:
        """Notes whether live code has a pass."""
        await self._fetch("mark_pass.sql", mark.name, mark.missing, mark.removed, now)

    async def run_pass(self, name: str, *, now: datetime | None = None) -> tuple[JobId, State] | None:
        """Makes a run due now because a person asks: its id, and LEASED if one is under way; None: no such pass."""
        rows = await self._fetch("run_pass.sql", name, now)
        return (JobId(rows[0]["id"]), State(rows[0]["state"])) if rows else None

    # Pauses

    async def pause(
        self,
        scope: PauseScope,
        name: str = "",
        *,
        note: str | None = None,
        paused_by: str,
        for_s: float | None = None,
        now: datetime | None = None,
    ) -> None:
        """Holds back a kind, a tenant or all; a pause that stands is replaced, and keeps its beginning."""
        await self._fetch("pause.sql", scope.value, name, note, paused_by, for_s, now)

    async def resume(self, scope: PauseScope, name: str = "", *, now: datetime | None = None) -> Pause | None:
        """Takes back a pause. Returns: the pause; None if nothing was paused."""
        rows = await self._fetch("resume.sql", scope.value, name, now)
        return _pause(rows[0]) if rows else None

    async def pauses(self, *, now: datetime | None = None) -> list[Pause]:
        """What is held back now."""
        return [_pause(row) for row in await self._fetch("pauses.sql", now)]


def _server(row: Mapping[str, Any]) -> ServerRow:
    values = dict(row)
    values["holder"] = Holder(values["holder"])
    for name in ("kinds", "running", "limits"):
        values[name] = json.loads(values[name])
    values["facts"] = heard(values["facts"])
    values["passes"] = {name: Declared(**declared) for name, declared in json.loads(values["passes"]).items()}
    return ServerRow(**values)


def _pause(row: Mapping[str, Any]) -> Pause:
    values = dict(row)
    values["scope"] = PauseScope(values["scope"])
    return Pause(**values)
