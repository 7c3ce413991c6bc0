"""Seeded histories of passes, batches, families, limits and pauses: a fixed set, and fresh ones; and every rule broken
once.

`./dev sim flow SEED` replays one.
"""

import secrets

import pytest

from tests.simulation import flow
from tests.simulation.checks import Broken
from tests.simulation.flow_mutations import FLOW_MUTATIONS
from tests.simulation.mutations import Mutation

FIXED = 100
FRESH = 50
BATCH = 50
CATCHES_WITHIN = 40
"""Histories in which a broken rule must show."""


def _all_kept(seeds: range) -> None:
    for seed in seeds:
        try:
            flow.run(seed)
        except Broken as error:
            pytest.fail(f"seed {seed}: {error}\nReplay it with ./dev sim flow {seed}", pytrace=False)


@pytest.mark.parametrize("first", range(0, FIXED, BATCH))
def test_flow_holds_in_the_fixed_histories(first: int) -> None:
    _all_kept(range(first, first + BATCH))


@pytest.mark.parametrize("number", range(FRESH // BATCH))
def test_flow_holds_in_fresh_histories(number: int) -> None:
    first = secrets.randbelow(10**12)
    _all_kept(range(first, first + BATCH))


@pytest.mark.parametrize("mutation", FLOW_MUTATIONS, ids=lambda m: f"{m.invariant} {m.name}".replace(" ", "-"))
def test_a_broken_rule_of_flow_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.patch(monkeypatch)
    with pytest.raises((Broken, AssertionError)):
        for seed in range(CATCHES_WITHIN):
            flow.run(seed)


def test_a_history_of_flow_repeats() -> None:
    assert flow.run(7) == flow.run(7)
