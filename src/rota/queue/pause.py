"""What is held back for now: all work, kinds, tenants. Pure.

A pause touches no job: who claims passes over what is paused, and jobs that run go on. It ends when somebody resumes,
or by itself at its end time, by the database's clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from rota.errors import EnqueueError
from rota.queue.payload import check_text

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
    """What a worker has to know of the pauses. Those of tenants the claim itself keeps; the worker sees them change."""

    all: bool = False
    kinds: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()

    def holds(self, kind: str) -> bool:
        """Whether no job of this kind may be claimed."""
        return self.all or kind in self.kinds


NOTHING_PAUSED: Final = Paused()


def check(*, note: str | None, paused_by: str | None, for_s: float | None) -> None:
    """Refuses a pause that cannot be stored.

    Raises: EnqueueError that names the value.
    """
    for what, text in (("note", note), ("paused_by", paused_by)):
        if text is not None:
            check_text(what, text)
            if len(text) > NOTE_CHARACTERS_MAX:
                raise EnqueueError(f"{what} is too long: give at most {NOTE_CHARACTERS_MAX} characters.")
    # In this order NaN is refused, too.
    if for_s is not None and not 0 < for_s <= FOR_S_MAX:
        raise EnqueueError(f"for_s={for_s!r} is no good: give seconds above 0, at most ten years.")


def paused_of(words: Iterable[str]) -> Paused:
    """Reads what a poll answers: `kind:thumbnail`, `tenant:acme`, `all:`."""
    named: dict[str, set[str]] = {scope: set() for scope in PauseScope}
    for word in words:
        scope, _, name = word.partition(":")
        named[scope].add(name)
    return Paused(
        all=bool(named[PauseScope.ALL]),
        kinds=frozenset(named[PauseScope.KIND]),
        tenants=frozenset(named[PauseScope.TENANT]),
    )
