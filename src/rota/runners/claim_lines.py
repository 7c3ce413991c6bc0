"""Which runners wait for the claim of another that is like them, and for whom nothing is queued. Pure.

Where thousands connect at once, one claim that finds nothing does for all that are alike: the others stand in line for
its answer, and for a moment nobody asks again. Whatever may have made work forgets all that was found dry.

Spec: runners, "Routing and targets".
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from rota.runners.messages import Capabilities

DRY_S: Final = 1.0
"""For how long a claim that found nothing speaks for all runners that are alike: till the next look for queued jobs."""
DRY_MAX: Final = 4096
"""Sorts of runners about which this is remembered."""

Sort = tuple[str, str | None, Capabilities]
"""What the claims of runners that are alike have in common: kind, organisation, and what they can do."""


@dataclass(slots=True)
class ClaimLines:
    """The lines, one for each sort of runner that has a claim under way.

    Attributes:
        stirred: how often there may have been work where there was none.
        demands: how often queued jobs were heard of.
    """

    stirred: int = 0
    demands: int = 0
    _dry: dict[Sort, float] = field(default_factory=dict)
    _lines: dict[Sort, dict[int, None]] = field(default_factory=dict)
    _leaders: dict[int, Sort] = field(default_factory=dict)

    def stir(self) -> None:
        """There may be work where there was none."""
        self.stirred += 1
        self._dry.clear()

    def is_dry(self, sort: Sort, now: float) -> bool:
        """Whether nothing was found for this sort a moment ago."""
        return now < self._dry.get(sort, 0.0)

    def note_dry(self, sort: Sort, now: float) -> None:
        """A claim has found nothing for any runner of this sort."""
        if len(self._dry) >= DRY_MAX:
            self._dry.clear()
        self._dry[sort] = now + DRY_S

    def join(self, sort: Sort, numbers: Iterable[int]) -> bool:
        """Whether there is a line; these connections stand at its end then."""
        line = self._lines.get(sort)
        if line is None:
            return False
        line.update(dict.fromkeys(numbers))
        return True

    def lead(self, sort: Sort, number: int) -> None:
        """This connection asks for all that come after it."""
        self._lines[sort] = {}
        self._leaders[number] = sort

    def end(self, number: int) -> tuple[Sort, deque[int]] | None:
        """The one that asked has its answer: the sort, and who stood in line; None if it asked for itself alone."""
        sort = self._leaders.pop(number, None)
        return None if sort is None else (sort, deque(self._lines.pop(sort)))
