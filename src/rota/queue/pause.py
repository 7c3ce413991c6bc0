"""What is held back for now: all work, kinds, tenants. Pure.

A pause touches no job: who claims passes over what is paused, and jobs that run go on. It ends when somebody resumes,
or by itself at its end time, by the database's clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

FOR_S_MAX: Final = 315_576_000.0
"""Ten years; a pause without an end is said by leaving the time out."""
NOTE_CHARACTERS_MAX: Final = 500


class PauseScope(StrEnum):
    """What a pause holds back."""

    KIND = "kind"
    TENANT = "tenant"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause; `name` is the kind or the tenant, empty for all; `until` None: until somebody resumes."""

    scope: PauseScope
    name: str
    note: str | None
    paused_by: str
    paused_at: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Paused:
    """What a worker has to know of the pauses. Those of tenants the claim itself keeps."""

    all: bool = False
    kinds: frozenset[str] = frozenset()

    def holds(self, kind: str) -> bool:
        """Whether no job of this kind may be claimed."""
        return self.all or kind in self.kinds


def paused_of(words: Iterable[str]) -> Paused:
    """Reads what a poll answers: `kind:thumbnail`, `all:`."""
    words = list(words)
    prefix = f"{PauseScope.KIND}:"
    return Paused(
        all=f"{PauseScope.ALL}:" in words,
        kinds=frozenset(word.removeprefix(prefix) for word in words if word.startswith(prefix)),
    )
