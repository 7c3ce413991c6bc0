"""The four sorts of histories, and what is asked of each: that the rules hold in all, and that a broken one shows.

A history is played from a seed, by `./dev sim` or by the tests beside this module.
"""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.simulation import fleet_checks, flow, history, runner_checks
from tests.simulation.checks import Broken
from tests.simulation.mutations import Mutation


@dataclass(frozen=True, slots=True)
class Play:
    """One sort of histories.

    Attributes:
        run: plays the history of a seed. Raises: Broken.
        word: its name for `./dev sim`; empty for that without one.
        shows: what else than Broken a broken rule may end in.
    """

    run: Callable[[int], Any]
    word: str = ""
    shows: tuple[type[Exception], ...] = (AssertionError,)

    def told(self, seed: int, error: Broken) -> str:
        """Which history broke a rule, and how to see it again."""
        return f"seed {seed}: {error}\nReplay it with ./dev sim {f'{self.word} {seed}'.strip()}"

    def holds(self, seeds: Iterable[int]) -> None:
        """Fails with the first of these histories that breaks a rule."""
        for seed in seeds:
            try:
                self.run(seed)
            except Broken as error:
                pytest.fail(self.told(seed, error), pytrace=False)

    def holds_afresh(self, count: int) -> None:
        """The same for so many histories that nobody has seen."""
        first = secrets.randbelow(10**12)
        self.holds(range(first, first + count))

    def shows_broken(self, mutation: Mutation, monkeypatch: pytest.MonkeyPatch, *, within: int) -> None:
        """Fails unless a rule that is broken on purpose shows in the first histories."""
        mutation.patch(monkeypatch)
        with pytest.raises((Broken, *self.shows)):
            for seed in range(within):
                self.run(seed)

    def repeats(self) -> None:
        """Fails unless one history is the same twice."""
        assert self.run(7) == self.run(7)


def name_of(mutation: Mutation) -> str:
    """Its name in the report of a test."""
    return f"{mutation.invariant} {mutation.name}".replace(" ", "-")


SERVERS: Final = Play(history.run)
FLOW: Final = Play(flow.run, "flow")
FLEETS: Final = Play(fleet_checks.run, "slots", shows=(AssertionError, KeyError))
RUNNERS: Final = Play(runner_checks.run, "runners", shows=(AssertionError, KeyError))
