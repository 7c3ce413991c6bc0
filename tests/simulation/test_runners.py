"""Seeded histories of gateways, runners and engines: a fixed set, and fresh ones; and every rule broken once.

`./dev sim runners SEED` replays one.
"""

import pytest

from tests.simulation.mutations import Mutation
from tests.simulation.plays import RUNNERS, name_of
from tests.simulation.runner_mutations import MUTATIONS

FIXED = 150
FRESH = 60
CATCHES_WITHIN = 150
"""Histories in which a broken rule must show."""


def test_the_rules_hold_in_the_fixed_histories() -> None:
    RUNNERS.holds(range(FIXED))


def test_the_rules_hold_in_fresh_histories() -> None:
    RUNNERS.holds_afresh(FRESH)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=name_of)
def test_a_broken_rule_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    RUNNERS.shows_broken(mutation, monkeypatch, within=CATCHES_WITHIN)


def test_a_history_repeats() -> None:
    RUNNERS.repeats()
