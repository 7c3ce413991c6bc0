"""Rules of flow broken on purpose; see `mutations`."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import pytest
from msgspec import structs

from rota.ids import JobId
from rota.queue import periodic
from rota.queue.job import Finish, JobRow, State
from rota.queue.reference import Reference
from rota.queue.reference_fleet import ReferenceFleet
from tests.simulation.mutations import Mutation, Patch, around, method


def _function(owner: Any, name: str, replacement: Callable[..., Any]) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, replacement)


def _one_more(original: Any, reference: Reference, asks: Any, **options: Any) -> Any:
    """The limit is looked at before the last claim is counted."""
    counted = reference._counted
    reference._counted = lambda: counted()[:-1]  # type: ignore[method-assign]
    try:
        return original(reference, asks, **options)
    finally:
        reference._counted = counted  # type: ignore[method-assign]


def _from_now(_schedule: Any, *, due_at: Any, now: Any) -> Any:
    return now + timedelta(seconds=12)


def _missed_runs_come(schedule: Any, *, due_at: Any, now: Any) -> Any:
    return due_at + timedelta(seconds=12)


def _run_without_a_key(original: Any, reference: Reference, name: str, priority: int, *, due_at: Any, at: Any) -> Any:
    job_id: JobId = original(reference, name, priority, due_at=due_at, at=at)
    reference._write(reference._open[job_id], dedupe_key=None, dedupe_scope=None)
    return job_id


def _closes_again(original: Any, reference: Reference, ids: Any = None, **options: Any) -> Any:
    for batch_id in reference._batches if ids is None else ids:
        if batch_id in reference._batches and not reference.batch(batch_id).open:
            status = reference._batches[batch_id]
            reference._batches[batch_id] = type(status)(
                *(None if name == "ended_at" else getattr(status, name) for name in status.__struct_fields__)
            )
    return original(reference, ids, **options)


def _without_children(original: Any, reference: Reference, ids: Any, **options: Any) -> Any:
    return original(reference, ids, **{**options, "children": False})


def _back_although_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    back = Reference._back

    def forgiving(reference: Reference, row: JobRow, **changes: Any) -> None:
        back(reference, row, cancel_asked_at=None, **changes)

    monkeypatch.setattr(Reference, "_back", forgiving)
    monkeypatch.setattr(Reference, "_returned", lambda self, row: State.QUEUED)


def _follows_twice(original: Any, reference: Reference, finishes: Sequence[Finish], **options: Any) -> Any:
    written = original(reference, finishes, **options)
    for finish in finishes:
        if finish.follow_ups and written.get(finish.lease.job_id) is State.DONE:
            reference.enqueue_many(finish.follow_ups)
    return written


def _forgets_follow_ups(original: Any, reference: Reference, finishes: Sequence[Finish], **options: Any) -> Any:
    return original(reference, [structs.replace(finish, follow_ups=()) for finish in finishes], **options)


FLOW_MUTATIONS: Final = (
    Mutation("limits", "leases are not counted", method(Reference, "_counted", lambda self: [])),
    Mutation("limits", "one lease too many", around(Reference, "claim_turns", _one_more)),
    Mutation("pauses", "paused tenants are claimed", method(Reference, "_paused_tenants", lambda self, at: set())),
    Mutation("passes", "the raster begins anew at each run", _function(periodic, "next_due", _from_now)),
    Mutation("passes", "missed runs come one by one", _function(periodic, "next_due", _missed_runs_come)),
    Mutation("passes", "runs have no key", around(ReferenceFleet, "_add_run", _run_without_a_key)),
    Mutation("passes", "no next run is written", method(Reference, "_next_runs", lambda self, name, **o: [])),
    Mutation("batches", "a batch closes again", around(Reference, "close_batches", _closes_again)),
    Mutation("batches", "no batch is closed", method(Reference, "close_batches", lambda self, *a, **o: {})),
    Mutation("flow", "children are not cancelled", around(Reference, "cancel", _without_children)),
    Mutation("flow", "who was cancelled goes back", _back_although_cancelled),
    Mutation("flow", "follow-ups are added twice", around(Reference, "finish", _follows_twice)),
    Mutation("flow", "follow-ups are forgotten", around(Reference, "finish", _forgets_follow_ups)),
)
