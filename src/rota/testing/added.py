"""Jobs that were added, as a test speaks of them, and what it says when they are not as wanted.

Pure: the queue in memory and a real database bring their rows here, and the same words come back.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypedDict

from rota.ids import JobId
from rota.queue.job import State
from rota.queue.new_job import kind_of
from rota.queue.payload import encode

SHOWN_MAX: Final = 10
"""Jobs that a failed assertion lists."""


@dataclass(frozen=True, slots=True)
class Added:
    """One job that was added.

    Attributes:
        payload: as JSON values.
        run_after: when it is due; a retry and its like move it.
        created_at: when it was added.
    """

    id: JobId
    kind: str
    tenant: str | None
    priority: int
    state: State
    payload: Any
    dedupe_key: str | None
    run_after: datetime
    created_at: datetime

    @property
    def delay_s(self) -> float:
        """How long after it was added it is due, in seconds."""
        return (self.run_after - self.created_at).total_seconds()


class Wanted(TypedDict, total=False):
    """What a wanted job is; what is left out may be anything.

    payload: the whole payload, as it was given to `enqueue`.
    tenant, priority, dedupe_key, state: as they stand now.
    delay_s: how long after it was added it is due.
    """

    payload: Any
    tenant: str | None
    priority: int
    dedupe_key: str | None
    state: State
    delay_s: float


def check_enqueued(
    jobs: Sequence[Added], kind: str | Callable[..., Any], *, count: int | None, wanted: Wanted
) -> list[Added]:
    """The jobs of a kind that are as wanted: at least one, or as many as `count` says.

    Raises: AssertionError that lists what was added.
    """
    name, found = _found(jobs, kind, wanted)
    if (count is None and found) or count == len(found):
        return found
    wanted_count = "a job" if count is None else f"{count} jobs"
    found_count = "no such job was" if not found else "1 was" if len(found) == 1 else f"{len(found)} were"
    raise AssertionError(
        f"Wanted {wanted_count} of kind {name!r}{_said(wanted)}, but {found_count} added. {_others(jobs, name)}"
    )


def check_not_enqueued(jobs: Sequence[Added], kind: str | Callable[..., Any], *, wanted: Wanted) -> None:
    """No job of a kind is as described.

    Raises: AssertionError that lists what was added.
    """
    name, found = _found(jobs, kind, wanted)
    if found:
        raise AssertionError(f"Wanted no job of kind {name!r}{_said(wanted)}. {_others(found, name)}")


def _found(jobs: Sequence[Added], kind: str | Callable[..., Any], wanted: Wanted) -> tuple[str, list[Added]]:
    name, values = kind_of(kind), dict(wanted)
    if "payload" in values:
        values["payload"] = json.loads(encode(values["payload"])) if values["payload"] is not None else {}
    return name, [
        job for job in jobs if job.kind == name and all(getattr(job, field) == value for field, value in values.items())
    ]


def _said(wanted: Wanted) -> str:
    return " with " + ", ".join(f"{name}={value!r}" for name, value in wanted.items()) if wanted else ""


def _others(jobs: Sequence[Added], name: str) -> str:
    of_kind = [job for job in jobs if job.kind == name]
    if not of_kind:
        kinds = ", ".join(sorted({job.kind for job in jobs}))
        return f"Kinds that were added: {kinds}." if kinds else "Nothing was added."
    lines = [
        f"  {job.state} payload={job.payload!r} tenant={job.tenant!r} priority={job.priority} delay_s={job.delay_s:g} "
        f"dedupe_key={job.dedupe_key!r}"
        for job in of_kind[:SHOWN_MAX]
    ]
    more = [f"  and {len(of_kind) - SHOWN_MAX} more"] if len(of_kind) > SHOWN_MAX else []
    return "\n".join([f"Jobs of this kind: {len(of_kind)}", *lines, *more])
