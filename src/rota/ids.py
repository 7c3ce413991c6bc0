"""Names for the values that travel through every layer, so that one cannot be taken for another."""

import os
from typing import Final, NewType
from uuid import UUID

JobId = NewType("JobId", UUID)
"""The id of a job: a uuid v7, so ids sort by the time at which jobs were added."""

SHORT_ID: Final = 18
"""Characters of an id that a person reads: the time to the microsecond, so they seldom name two jobs."""

BatchId = NewType("BatchId", UUID)
"""The id of a batch: jobs that were added together, with one follow-up when all have ended."""

Holder = NewType("Holder", str)
"""Who holds leases: one process start, `host:pid:random`. Never a host name alone, which a namesake could bear."""


def new_holder(*, host: str, pid: int) -> Holder:
    """Names this process start. A restart under the same host name and pid gets another name."""
    return Holder(f"{host[:100]}:{pid}:{os.urandom(4).hex()}")


def uuid_v7s(count: int, *, unix_us: int, random_bits: int | None = None) -> list[UUID]:
    """Makes `count` ids (RFC 9562, version 7) that sort in the order of the list.

    Args:
        count: how many, 0 or more.
        unix_us: microseconds since 1970; each id stands one microsecond after the one before.
        random_bits: 62 of them; None takes them from the system.

    Returns: the ids. They share their random half, which is safe because their times differ.
    """
    tail = 0x8000_0000_0000_0000 | (int.from_bytes(os.urandom(8), "big") >> 2 if random_bits is None else random_bits)
    ids = []
    for us in range(unix_us, unix_us + count):
        head = us // 1000 << 16 | 0x7000 | (us % 1000) * 4096 // 1000
        ids.append(UUID(int=head << 64 | tail))
    return ids
