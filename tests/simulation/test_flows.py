"""Seeded histories of passes, batches, families, limits and pauses: a fixed set, and fresh ones; and every rule broken
once.

`./dev sim flow SEED` replays one.
"""

import pytest

from tests.simulation.flow_mutations import FLOW_MUTATIONS
from tests.simulation.mutations import Mutation
from tests.simulation.plays import FLOW, name_of

FIXED = 100
FRESH = 50
BATCH = 50
CATCHES_WITHIN = 40
"""Histories in which a broken rule must show."""


@pytest.mark.parametrize("first", range(0, FIXED, BATCH))
def test_flow_holds_in_the_fixed_histories(first: int) -> None:
    FLOW.holds(range(first, first + BATCH))


@pytest.mark.parametrize("number", range(FRESH // BATCH))
def test_flow_holds_in_fresh_histories(number: int) -> None:
    FLOW.holds_afresh(BATCH)


@pytest.mark.parametrize("mutation", FLOW_MUTATIONS, ids=name_of)
def test_a_broken_rule_of_flow_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    FLOW.shows_broken(mutation, monkeypatch, within=CATCHES_WITHIN)


def test_a_history_of_flow_repeats() -> None:
    FLOW.repeats()
