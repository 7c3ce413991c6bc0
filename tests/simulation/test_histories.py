"""Seeded histories of several servers over one database: a fixed set, and fresh ones; and every rule broken once.

`./dev sim SEED` replays one.
"""

import secrets
from collections.abc import Iterable

import pytest

from tests.simulation import history
from tests.simulation.checks import Broken
from tests.simulation.mutations import MUTATIONS, Mutation

FIXED = 1500
FRESH = 600
BATCH = 100
KNOWN = (158_435_943_666,)
"""Histories that once broke a rule: a process stood still between its last words and its end."""
CATCHES_WITHIN = 150
"""Histories in which a broken rule must show."""


def _all_kept(seeds: Iterable[int]) -> None:
    for seed in seeds:
        try:
            history.run(seed)
        except Broken as error:
            pytest.fail(f"seed {seed}: {error}\nReplay it with ./dev sim {seed}", pytrace=False)


@pytest.mark.parametrize("first", range(0, FIXED, BATCH))
def test_the_invariants_hold_in_the_fixed_histories(first: int) -> None:
    _all_kept(range(first, first + BATCH))


def test_the_invariants_hold_in_histories_that_once_broke_one() -> None:
    _all_kept(KNOWN)


@pytest.mark.parametrize("number", range(FRESH // BATCH))
def test_the_invariants_hold_in_fresh_histories(number: int) -> None:
    first = secrets.randbelow(10**12)
    _all_kept(range(first, first + BATCH))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.invariant} {m.name}".replace(" ", "-"))
def test_a_broken_rule_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.patch(monkeypatch)
    with pytest.raises((Broken, AssertionError)):
        for seed in range(CATCHES_WITHIN):
            history.run(seed)


def test_a_history_repeats() -> None:
    assert history.run(7) == history.run(7)
