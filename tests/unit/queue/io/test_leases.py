"""Whom the book of leases tells by when somebody has to look, and by when the process has to end."""

from math import inf
from uuid import UUID

import pytest

from rota.ids import JobId
from rota.io.clock import lease_clock
from rota.lease import Lease
from rota.queue.io.leases import GuardedBook

LEASE = Lease(JobId(UUID(int=1)), 1)


def listened() -> tuple[GuardedBook, list[float], list[float]]:
    leases, looks, ends = GuardedBook(), list[float](), list[float]()
    leases.warned, leases.timed = looks.append, ends.append
    return leases, looks, ends


def test_a_lease_that_is_granted_is_told_before_anybody_looks_and_a_later_one_is_not() -> None:
    leases, looks, _ = listened()
    leases.granted(look_by=158.0)
    leases.granted(look_by=398.0)
    assert looks == [158.0]
    leases.granted(look_by=129.0)
    assert looks == [158.0, 129.0]


def test_who_looks_tells_what_has_changed_and_nothing_else() -> None:
    leases, looks, ends = listened()
    now = lease_clock()
    held = leases.book.grant(LEASE, lease_s=300.0, heartbeat_s=30.0, sent_at=now)
    leases.looked()
    leases.looked()
    assert looks == [pytest.approx(now + 298.0)]
    leases.begins_in_thread(held)
    leases.looked()
    assert ends == [held.deadline]
    leases.book.drop(LEASE)
    leases.looked()
    assert (looks[1:], ends[1:]) == ([inf], [inf])


def test_who_gives_jobs_back_that_go_on_has_to_be_gone_by_then_also_when_no_lease_counts_any_more() -> None:
    leases, looks, ends = listened()
    leases.begins_in_thread(leases.book.grant(LEASE, lease_s=300.0, heartbeat_s=30.0, sent_at=lease_clock()))
    leases.abandon()
    gone_by = lease_clock() + 1.0
    leases.gone_by(gone_by)
    assert looks[-1] == ends[-1] == gone_by
