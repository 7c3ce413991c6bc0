"""What the demo of slots sees of its exec servers: their overviews side by side, and the grants between two looks."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import msgspec

from rota.demo.slots_program import Planned
from rota.demo.view import worker_of
from rota.queue.job import JobRow
from rota.slots.messages import JobView, Overview

ANSWER_S: Final = 2.0
WAITS_SHOWN: Final = 200

_decoder: Final = msgspec.json.Decoder(Overview)


@dataclass(frozen=True, slots=True)
class Grant:
    """A slot that was dealt: to which job, where, after how long in line."""

    job_id: str
    label: str
    kind: str
    server: str
    worker: str
    waited_s: float | None


@dataclass(slots=True)
class Fleet:
    """The exec servers as they were last seen.

    Args:
        ports: the port of each by its name, on loopback.
        planned: the jobs of the demo by their ids.

    Attributes:
        seen: the newest overview of each; of a dead one the last there was.
        dead: those that do not answer any more.
        grants: all that were seen, in order.
    """

    ports: Mapping[str, int]
    planned: Mapping[str, Planned]
    seen: dict[str, Overview] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    grants: list[Grant] = field(default_factory=list)
    _waited: dict[str, float] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)

    async def look(self, session: aiohttp.ClientSession, rows: Sequence[JobRow], workers: Mapping[str, str]) -> None:
        """Asks every exec server, and notes what is new."""
        names = [name for name in self.ports if name not in self.dead]
        found = await asyncio.gather(*(_ask(session, self.ports[name]) for name in names))
        holders = {str(row.id): worker_of(row, workers) for row in rows}
        for name, overview in zip(names, found, strict=True):
            if overview is not None:
                self.seen[name] = overview
                self._note(name, overview, holders)

    def running(self, name: str) -> list[JobView]:
        """What runs in the slots of one that lives."""
        overview = self.seen.get(name)
        if overview is None or name in self.dead:
            return []
        return [view for view in overview.jobs if view.state == "running"]

    def waiting(self) -> list[JobView]:
        """Who stands in line, once for each although it is parked at several; whoever is dealt a slot next comes
        first."""
        first: dict[str, JobView] = {}
        for name, overview in self.seen.items():
            for view in overview.jobs if name not in self.dead else ():
                known = first.get(view.job_id)
                if view.state == "waiting" and (known is None or (view.ahead or 0) < (known.ahead or 0)):
                    first[view.job_id] = view
        taken = {view.job_id for name in self.seen for view in self.running(name)}
        left = [view for view in first.values() if view.job_id not in taken]
        return sorted(left, key=lambda view: (view.ahead or 0, -view.priority, view.job_id))

    def ran(self, name: str) -> int:
        """Commands that ended well there, as far as was seen."""
        overview = self.seen.get(name)
        return 0 if overview is None else sum(service.runs for service in overview.services.values())

    def plan_of(self, view: JobView) -> Planned | None:
        """The job that a call is of."""
        return self.planned.get(job_of(view))

    def _note(self, name: str, overview: Overview, holders: Mapping[str, str]) -> None:
        for view in overview.jobs:
            if view.state == "waiting":
                self._waited[view.job_id] = max(view.for_s, self._waited.get(view.job_id, 0.0))
            elif view.state == "running" and view.job_id not in self._known:
                self._known.add(view.job_id)
                plan = self.plan_of(view)
                if plan is not None:
                    self.grants.append(
                        Grant(
                            view.job_id, plan.label, plan.kind, name, holders.get(job_of(view), ""),
                            self._waited.get(view.job_id),
                        )
                    )  # fmt: skip


def job_of(view: JobView) -> str:
    """The job of a call: its id begins with that of the job."""
    return view.job_id.rpartition(".")[0]


async def _ask(session: aiohttp.ClientSession, port: int) -> Overview | None:
    try:
        async with session.get(f"http://127.0.0.1:{port}/overview", timeout=aiohttp.ClientTimeout(ANSWER_S)) as answer:
            return _decoder.decode(await answer.read())
    except (OSError, aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
        return None


def spread(grants: Sequence[Grant], by: str) -> dict[str, int]:
    """How many grants each had: `by` is `server`, `worker` or `kind`."""
    found: dict[str, int] = {}
    for grant in grants:
        key: Any = getattr(grant, by) or "?"
        found[key] = found.get(key, 0) + 1
    return dict(sorted(found.items()))
