"""Seeded fleets of clients and exec servers: a fixed set, and fresh ones; and every rule broken once.

`./dev sim slots SEED` replays one.
"""

import secrets

import pytest

from tests.simulation import fleet_checks
from tests.simulation.checks import Broken
from tests.simulation.fleet_mutations import MUTATIONS
from tests.simulation.mutations import Mutation

FIXED = 120
FRESH = 60
CATCHES_WITHIN = 60
"""Histories in which a broken rule must show."""


def _all_kept(seeds: range) -> None:
    for seed in seeds:
        try:
            fleet_checks.run(seed)
        except Broken as error:
            pytest.fail(f"seed {seed}: {error}\nReplay it with ./dev sim slots {seed}", pytrace=False)


def test_the_rules_hold_in_the_fixed_fleets() -> None:
    _all_kept(range(FIXED))


def test_the_rules_hold_in_fresh_fleets() -> None:
    first = secrets.randbelow(10**12)
    _all_kept(range(first, first + FRESH))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.invariant} {m.name}".replace(" ", "-"))
def test_a_broken_rule_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.patch(monkeypatch)
    with pytest.raises((Broken, AssertionError, KeyError)):
        for seed in range(CATCHES_WITHIN):
            fleet_checks.run(seed)


def test_a_fleet_repeats() -> None:
    assert fleet_checks.run(7) == fleet_checks.run(7)
