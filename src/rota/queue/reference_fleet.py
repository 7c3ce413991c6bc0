"""The reference's part for servers, passes and pauses: what the statements of `rota.queue.io.fleet` do, over dicts.

Like the rest of `rota.queue.reference` it is the oracle for the SQL: one conformance suite holds the two together.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from rota.ids import Holder, JobId
from rota.queue.job import JobRow, NewJob, State, open_key
from rota.queue.pause import Pause, PauseScope
from rota.queue.periodic import Mark, PassRow, Put, key_of, next_runs
from rota.queue.reference_batches import ReferenceBatches
from rota.queue.server import LIVE_S, STALE_S, OrphanKind, Server, ServerRow
from rota.queue.standing import NO_FACTS, ServerFacts


class ReferenceFleet(ReferenceBatches):
    """Jobs in memory, and servers, passes and pauses beside them."""

    def __init__(self, *, clock: Callable[[], datetime], random: Random) -> None:
        super().__init__(clock=clock, random=random)
        self._servers: dict[Holder, ServerRow] = {}
        self._passes: dict[str, PassRow] = {}
        self._pauses: dict[tuple[PauseScope, str], Pause] = {}

    # Servers

    def serve(
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

        Returns: the clock.
        """
        at = self._at(now)
        known = self._servers.get(server.holder)
        if known is None:
            known = ServerRow(**_shallow(server), running={}, draining=False, started_at=at, seen_at=at, live=True)
        kept = [row for row in self._servers.values() if row.seen_at >= at - timedelta(seconds=stale_s)]
        self._servers = {row.holder: row for row in kept}
        self._servers[server.holder] = replace(known, running=dict(running), draining=draining, facts=facts, seen_at=at)
        return at

    def _see_again(self, at: datetime, ahead: datetime) -> None:
        """Has servers that were seen later than `ahead` be seen now."""
        for row in list(self._servers.values()):
            if row.seen_at > ahead:
                self._servers[row.holder] = replace(row, seen_at=at)

    def leave(self, holder: Holder) -> None:
        """Takes back what `serve` said."""
        self._servers.pop(holder, None)

    def servers(self, *, live_s: float = LIVE_S, now: datetime | None = None) -> list[ServerRow]:
        """The worker processes, by host and start; `live` are those seen within `live_s` seconds."""
        seen_since = self._at(now) - timedelta(seconds=live_s)
        rows = [replace(row, live=row.seen_at >= seen_since) for row in self._servers.values()]
        return sorted(rows, key=lambda row: (row.host, row.started_at, row.holder))

    def orphan_kinds(self, *, live_s: float = LIVE_S, now: datetime | None = None) -> list[OrphanKind]:
        """The kinds with due work, and the passes, that no live server takes."""
        at = self._at(now)
        live = [row for row in self.servers(live_s=live_s, now=at) if row.live and not row.draining]
        taken = {kind for row in live for kind in row.kinds}
        passes = {row.name: row.due_at for row in self._passes.values() if row.removed_at is None}
        waiting = [(row.kind, row.run_after) for row in self._queued() if row.run_after <= at] + list(passes.items())
        oldest: dict[str, datetime] = {}
        for kind, due_at in waiting:
            if kind not in taken:
                oldest[kind] = min(due_at, oldest.get(kind, due_at))
        return [OrphanKind(kind, due_at, kind in passes) for kind, due_at in sorted(oldest.items())]

    # Passes

    def passes(self, name: str | None = None, *, now: datetime | None = None) -> list[PassRow]:
        """The passes, or this one alone, each with its open run; also those that were removed."""
        at = self._at(now)
        found = []
        for row in sorted(self._passes.values(), key=lambda row: row.name):
            if name is not None and row.name != name:
                continue
            run = self._run_of(row.name)
            held = any(
                pause.scope is PauseScope.ALL or (pause.scope, pause.name) == (PauseScope.KIND, row.name)
                for pause in self.pauses(now=at)
            )
            found.append(
                replace(
                    row,
                    open_id=run.id if run else None,
                    open_state=run.state.value if run else None,
                    open_run_after=run.run_after if run else None,
                    open_tries=run.tries if run else None,
                    paused=held,
                    now=at,
                )
            )
        return found

    def put_pass(self, put: Put, *, now: datetime | None = None) -> bool:
        """Writes a pass and sees that a run is open. Returns: False if it was no longer as `put.seen` says."""
        at = self._at(now)
        row = self._passes.get(put.name)
        if row is not None and (put.seen is None or (row.schedule, row.due_at) != (put.seen.schedule, put.seen.due_at)):
            return False
        self._passes[put.name] = PassRow(
            put.name, put.declared.schedule, put.declared.priority, put.due_at, put.extra, None, None,
            open_id=None, open_state=None, open_run_after=None, open_tries=None, paused=False, now=at,
        )  # fmt: skip
        run = self._run_of(put.name)
        if run is None:
            self._add_run(put.name, put.declared.priority, due_at=put.due_at, at=at)
        elif put.seen is not None and run.state is State.QUEUED and run.run_after == put.seen.due_at > at:
            self._write(run, run_after=put.due_at, priority=put.declared.priority, payload=_payload(put.due_at))
        return True

    def mark_pass(self, mark: Mark, *, now: datetime | None = None) -> None:
        """Notes whether live code has a pass."""
        at, row = self._at(now), self._passes.get(mark.name)
        if row is not None:
            self._passes[mark.name] = replace(
                row,
                missing_since=(row.missing_since or at) if mark.missing else None,
                removed_at=(row.removed_at or at) if mark.removed else None,
            )

    def run_pass(self, name: str, *, now: datetime | None = None) -> tuple[JobId, State] | None:
        """Makes a run due now because a person asks: its id, and LEASED if one is under way; None: no such pass."""
        at, row = self._at(now), self._passes.get(name)
        if row is None or row.removed_at is not None:
            return None
        run = self._run_of(name)
        if run is not None and (run.state is not State.QUEUED or run.run_after <= at):
            return run.id, run.state
        if row.due_at > at:
            self._passes[name] = replace(row, extra=True)
        if run is None:
            return self._add_run(name, row.priority, due_at=at, at=at), State.QUEUED
        self._write(run, run_after=at, payload=_payload(at))
        self._wake([name], at)
        return run.id, State.QUEUED

    def _next_runs(self, name: str, *, ends: JobId, at: datetime) -> list[Put]:
        """What to write once a job of this pass's kind has ended."""
        return next_runs(self.passes(name, now=at), ends=ends)

    def _add_run(self, name: str, priority: int, *, due_at: datetime, at: datetime) -> JobId:
        job = NewJob(name, _payload(due_at), priority=priority, dedupe=open_key(key_of(name)), run_after=due_at)
        return self.enqueue(job, now=at).id

    def _run_of(self, name: str) -> JobRow | None:
        key = open_key(key_of(name))
        return next(
            (row for row in self._open.values() if (row.dedupe_key, row.dedupe_scope) == (key.key, key.scope)), None
        )

    # Pauses

    def pause(
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
        at = self._at(now)
        self._pauses = {key: pause for key, pause in self._pauses.items() if pause.until is None or pause.until > at}
        stands = self._pauses.get((scope, name))
        until = None if for_s is None else at + timedelta(seconds=for_s)
        self._pauses[scope, name] = Pause(scope, name, note, paused_by, stands.paused_at if stands else at, until)

    def resume(self, scope: PauseScope, name: str = "", *, now: datetime | None = None) -> Pause | None:
        """Takes back a pause. Returns: the pause; None if nothing was paused."""
        pause = self._pauses.pop((scope, name), None)
        return pause if pause is not None and (pause.until is None or pause.until > self._at(now)) else None

    def pauses(self, *, now: datetime | None = None) -> list[Pause]:
        """What is held back now."""
        at = self._at(now)
        held = [pause for pause in self._pauses.values() if pause.until is None or pause.until > at]
        return sorted(held, key=lambda pause: (pause.scope.value, pause.name))

    def _paused_tenants(self, at: datetime) -> set[str]:
        return {pause.name for pause in self.pauses(now=at) if pause.scope is PauseScope.TENANT}


def _shallow(server: Server) -> dict[str, Any]:
    return {name: getattr(server, name) for name in Server.__dataclass_fields__}


def _payload(due_at: datetime) -> str:
    return json.dumps({"due_at": f"{due_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"})
