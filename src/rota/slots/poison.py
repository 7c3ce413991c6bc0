"""Which work takes the exec server down with it, and is not begun again for a while. Pure; the caller keeps the files.

A record names what runs. What a record still names when an exec server starts was running when the one before it ended
without saying so. Others ran beside the culprit, so it takes several such ends in a short time to be refused.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from rota.slots.messages import Work

CRASHES_MAX: Final = 3
"""So many ends of the exec server under the same work, and it is refused."""
FORGET_S: Final = 3600.0
"""Since the last of them; then it may try again."""
SUSPECTS_MAX: Final = 1000
"""Suspects that are remembered, the last ones: each ran when an exec server ended."""

BEGAN: Final = "+"
ENDED: Final = "-"


def subject_of(service: str, work: Work) -> str:
    """What stands for this work in the record: what the client says, else what it would run."""
    said = msgspec.json.encode([service, work.subject] if work.subject else [service, work.args, work.env])
    return hashlib.sha256(said).hexdigest()[:32]


def left_running(lines: Iterable[str]) -> set[str]:
    """The subjects that a record names as begun and not as ended; lines that were cut are passed over."""
    running: dict[str, int] = {}
    for line in lines:
        sign, _, subject = line.partition(" ")
        if len(subject) != 32:
            continue
        if sign == BEGAN:
            running[subject] = running.get(subject, 0) + 1
        elif sign == ENDED and subject in running:
            running[subject] -= 1
    return {subject for subject, count in running.items() if count > 0}


@dataclass(frozen=True, slots=True)
class Suspect:
    """How often the exec server ended under this work, and when last, in seconds since the epoch."""

    crashes: int
    last_at: float


def _recent(suspect: Suspect, now: float) -> bool:
    """Whether its last crash counts yet. One in the future was told by a clock that was wrong, and counts no longer
    than one in the past."""
    return abs(now - suspect.last_at) < FORGET_S


class PoisonGuard:
    """Counts crashes by subject.

    Args:
        suspects: what was known when the exec server ended last.
    """

    def __init__(self, suspects: Mapping[str, Suspect] | None = None) -> None:
        self._suspects = dict(suspects or {})

    def crashed(self, subjects: Iterable[str], now: float) -> None:
        """An exec server ended while these ran."""
        for subject in sorted(subjects):
            known = self._suspects.get(subject)
            fresh = known is not None and _recent(known, now)
            self._suspects[subject] = Suspect(known.crashes + 1 if known is not None and fresh else 1, now)
        kept = sorted(self._suspects.items(), key=lambda item: -item[1].last_at)[:SUSPECTS_MAX]
        self._suspects = {subject: suspect for subject, suspect in kept if _recent(suspect, now)}

    def refuses(self, subject: str, now: float) -> str | None:
        """Why this work is not begun; None: it may."""
        suspect = self._suspects.get(subject)
        if suspect is None or suspect.crashes < CRASHES_MAX or not _recent(suspect, now):
            return None
        wait_min = (FORGET_S - abs(now - suspect.last_at)) / 60
        return (
            f"The exec server ended {suspect.crashes} times while this ran, so it is not begun for another "
            f"{wait_min:.0f} min. Look at what it does to the machine (memory, disk), then remove suspects.json "
            "from the state folder."
        )

    def suspects(self) -> Mapping[str, Suspect]:
        """What has to outlive a restart."""
        return dict(self._suspects)
