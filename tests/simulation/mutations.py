"""Rules broken on purpose: each must be caught by some history, or the checks are blind to it.

A mutation replaces one method of the program's own rules for the length of a test. Each names the invariant that it
breaks.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import pytest

from rota.lease import Held, Lease, LeaseBook, Loss, Renewal
from rota.queue.job import JobRow, State
from rota.queue.reference import Reference
from tests.simulation.server import Server

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Mutation:
    """A broken rule."""

    invariant: str
    name: str
    patch: Patch


def method(owner: type, name: str, replacement: Callable[..., Any]) -> Patch:
    """Replaces a method."""
    return lambda monkeypatch: monkeypatch.setattr(owner, name, replacement)


def around(owner: type, name: str, change: Callable[..., Any]) -> Patch:
    """Replaces a method by one that is given the original first."""
    original = getattr(owner, name)

    def replacement(self: Any, *args: Any, **options: Any) -> Any:
        return change(original, self, *args, **options)

    return method(owner, name, replacement)


def _longer_trust(original: Any, book: LeaseBook, lease: Lease, **options: Any) -> Held:
    held: Held = original(book, lease, **options)
    held.deadline += held.lease_s
    return held


def _trust_from_the_answer(
    original: Any, book: LeaseBook, renewals: Iterable[Renewal], *, kept: Any, now: float
) -> list[Lease]:
    for renewal in renewals:
        held = book._held.get(renewal.lease.job_id)
        if held is not None and held.sent_at is not None:
            held.sent_at = now
    lost: list[Lease] = original(book, renewals, kept=kept, now=now)
    return lost


def _unanswered_is_kept(book: LeaseBook, renewals: list[Renewal], *, now: float) -> None:
    book.renewed(renewals, kept=[renewal.lease.job_id for renewal in renewals], now=now)


def _always_due(original: Any, book: LeaseBook, *, now: float) -> list[Renewal]:
    for held in book._held.values():
        held.progressed = True
    due: list[Renewal] = original(book, now=now)
    return due


def _any_epoch(reference: Reference, lease: Lease) -> JobRow | None:
    row = reference._open.get(lease.job_id)
    return row if row is not None and row.state is State.LEASED else None


def _renews_the_dead(original: Any, reference: Reference, renewals: Any, *, now: datetime | None = None) -> Any:
    return original(reference, renewals, now=datetime(2000, 1, 1, tzinfo=reference._clock().tzinfo))


def _no_new_epoch(original: Any, reference: Reference, row: JobRow, **changes: Any) -> JobRow:
    if changes.get("state") is State.LEASED:
        changes["lease_epoch"] = max(1, row.lease_epoch)
    written: JobRow = original(reference, row, **changes)
    return written


def _early_sweep(original: Any, reference: Reference, *, now: datetime | None = None, **options: Any) -> Any:
    return original(reference, now=reference._at(now) + timedelta(seconds=3), **options)


def _early_claim(original: Any, reference: Reference, asks: Any, *, holder: Any, now: datetime | None = None) -> Any:
    return original(reference, asks, holder=holder, now=reference._at(now) + timedelta(seconds=1))


def _claims_the_leased(reference: Reference) -> list[JobRow]:
    return list(reference._open.values())


def _forgets_the_swept(original: Any, reference: Reference, row: JobRow, at: datetime) -> Any:
    swept = original(reference, row, at)
    reference._open.pop(row.id, None)
    return swept


def _forgets_the_ended(original: Any, reference: Reference, row: JobRow, state: State, at: datetime, **c: Any) -> None:
    original(reference, row, state, at, **c)
    if state is State.FAILED:
        reference._ended.pop(row.id, None)


def _late_disown(original: Any, reference: Reference, holder: Any, *, known: Any, before: datetime, **o: Any) -> Any:
    return original(reference, holder, known=known, before=before + timedelta(days=1), **o)


def _no_key(reference: Reference, dedupe: Any, at: Any) -> None:
    return None


def _counts_no_try(original: Any, reference: Reference, asks: Any, **options: Any) -> Any:
    claimed = original(reference, asks, **options)
    for job in claimed:
        row = reference._open[job.id]
        reference._open[job.id] = replace(row, tries=max(0, row.tries - 1))
    return claimed


def _never_told(original: Any, book: LeaseBook, *, now: float) -> list[tuple[Lease, Loss]]:
    return []


def _never_ends(server: Server, lease: Lease) -> None:
    server._on_heart(1.0, server._beat)


MUTATIONS: Final = (
    Mutation("I1", "the sweep forgets jobs", around(Reference, "_end_lease", _forgets_the_swept)),
    Mutation("I1", "a failed job is not kept", around(Reference, "_end", _forgets_the_ended)),
    Mutation("I1", "leases that ran out are never swept", method(Reference, "sweep", lambda self, **o: [])),
    Mutation("I1", "a claim counts no try", around(Reference, "claim", _counts_no_try)),
    Mutation("I2", "a claimed lease is trusted for longer", around(LeaseBook, "grant", _longer_trust)),
    Mutation("I2", "a lease counts from the answer", around(LeaseBook, "renewed", _trust_from_the_answer)),
    Mutation("I2", "a renewal without an answer counts", method(LeaseBook, "unanswered", _unanswered_is_kept)),
    Mutation("I2", "a lease that ran out is renewed", around(Reference, "renew", _renews_the_dead)),
    Mutation("I2", "a leased job is claimed", method(Reference, "_queued", _claims_the_leased)),
    Mutation("I2", "leases are swept early", around(Reference, "sweep", _early_sweep)),
    Mutation("I2", "a late disowning ends new leases", around(Reference, "disown", _late_disown)),
    Mutation("I2", "nobody is told to stop", around(LeaseBook, "overdue", _never_told)),
    Mutation("I2", "a stuck process lives on", method(Server, "_end_process", _never_ends)),
    Mutation("I2", "no step looks at its deadline", method(Server, "_must_stop", lambda self, run: False)),
    Mutation("I2", "an ending process lets its jobs go on", method(LeaseBook, "abandon", lambda self, now: None)),
    Mutation("I3", "any epoch may write", method(Reference, "_held", _any_epoch)),
    Mutation("I3", "a claim makes no epoch", around(Reference, "_write", _no_new_epoch)),
    Mutation("I4", "a lease is renewed without progress", around(LeaseBook, "due", _always_due)),
    Mutation("I5", "a claim takes what is not due", around(Reference, "claim", _early_claim)),
    Mutation("I6", "keys are not looked at", method(Reference, "_key_holder", _no_key)),
)
