"""Seeded histories of several servers over one database: a fixed set, and fresh ones; and every rule broken once.

`./dev sim SEED` replays one.
"""

import pytest

from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.plays import SERVERS, name_of

FIXED = 1400
FRESH = 600
BATCH = 100
KNOWN = (158_435_943_666,)
"""Histories that once broke a rule: a process stood still between its last words and its end."""
CATCHES_WITHIN = 150
"""Histories in which a broken rule must show."""


@pytest.mark.parametrize("first", range(0, FIXED, BATCH))
def test_the_invariants_hold_in_the_fixed_histories(first: int) -> None:
    SERVERS.holds(range(first, first + BATCH))


def test_the_invariants_hold_in_histories_that_once_broke_one() -> None:
    SERVERS.holds(KNOWN)


@pytest.mark.parametrize("number", range(FRESH // BATCH))
def test_the_invariants_hold_in_fresh_histories(number: int) -> None:
    SERVERS.holds_afresh(BATCH)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=name_of)
def test_a_broken_rule_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    SERVERS.shows_broken(mutation, monkeypatch, within=CATCHES_WITHIN)


def test_a_history_repeats() -> None:
    SERVERS.repeats()
