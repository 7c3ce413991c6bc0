"""Seeded fleets of clients and exec servers: a fixed set, and fresh ones; and every rule broken once.

`./dev sim slots SEED` replays one.
"""

import pytest

from tests.simulation.fleet_mutations import MUTATIONS
from tests.simulation.mutations import Mutation
from tests.simulation.plays import FLEETS, name_of

FIXED = 120
FRESH = 60
CATCHES_WITHIN = 60
"""Histories in which a broken rule must show."""


def test_the_rules_hold_in_the_fixed_fleets() -> None:
    FLEETS.holds(range(FIXED))


def test_the_rules_hold_in_fresh_fleets() -> None:
    FLEETS.holds_afresh(FRESH)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=name_of)
def test_a_broken_rule_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    FLEETS.shows_broken(mutation, monkeypatch, within=CATCHES_WITHIN)


def test_a_fleet_repeats() -> None:
    FLEETS.repeats()
