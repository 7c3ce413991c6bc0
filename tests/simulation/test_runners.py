"""Seeded histories of gateways, runners and engines: a fixed set, and fresh ones; and every rule broken once.

`./dev sim runners SEED` replays one.
"""

import secrets

import pytest

from tests.simulation import runner_checks
from tests.simulation.checks import Broken
from tests.simulation.mutations import Mutation
from tests.simulation.runner_mutations import MUTATIONS

FIXED = 150
FRESH = 60
CATCHES_WITHIN = 150
"""Histories in which a broken rule must show."""


def _all_kept(seeds: range) -> None:
    for seed in seeds:
        try:
            runner_checks.run(seed)
        except Broken as error:
            pytest.fail(f"seed {seed}: {error}\nReplay it with ./dev sim runners {seed}", pytrace=False)


def test_the_rules_hold_in_the_fixed_histories() -> None:
    _all_kept(range(FIXED))


def test_the_rules_hold_in_fresh_histories() -> None:
    first = secrets.randbelow(10**12)
    _all_kept(range(first, first + FRESH))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.invariant} {m.name}".replace(" ", "-"))
def test_a_broken_rule_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.patch(monkeypatch)
    with pytest.raises((Broken, AssertionError, KeyError)):
        for seed in range(CATCHES_WITHIN):
            runner_checks.run(seed)


def test_a_history_repeats() -> None:
    assert runner_checks.run(7) == runner_checks.run(7)
