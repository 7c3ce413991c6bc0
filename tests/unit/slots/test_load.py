"""Learned run times: what counts, what survives, and which services a slot is closed to."""

from typing import Any

import pytest

from rota.slots.load import Load, Reserve


def learned(**runs: list[float]) -> Load:
    load = Load()
    for service, durations_s in runs.items():
        for duration_s in durations_s:
            load.observe(service, "exit", duration_s)
    return load


def test_the_mean_follows_the_newest_runs() -> None:
    load = learned(cut=[10.0] * 20)
    assert load.of("cut").mean_s == pytest.approx(10)
    for _ in range(20):
        load.observe("cut", "exit", 2.0)
    assert 2 < load.of("cut").mean_s < 2.2
    low_s, high_s = load.range_s("cut")
    assert low_s <= load.of("cut").mean_s <= high_s


def test_two_runs_may_be_a_fluke() -> None:
    load = learned(cut=[0.1] * 2)
    assert not load.quick("cut")
    load.observe("cut", "exit", 0.1)
    assert load.quick("cut")


def test_a_run_that_was_cut_short_from_outside_says_nothing() -> None:
    load = Load()
    for ended_by in ("cancelled", "stopped", "refused", "broken", "word of a newer version"):
        load.observe("cut", ended_by, 1.0)
    assert load.of("cut") is None
    load.observe("cut", "timeout", 60.0)
    assert load.of("cut").runs == 1


def test_what_is_known_survives_as_plain_data() -> None:
    load = learned(cut=[1, 2, 3], mix=[600, 500, 600])
    again = Load(load.data())
    assert again.data() == load.data()
    assert again.quick("cut") and not again.quick("mix")


@pytest.mark.parametrize(
    "broken",
    [
        7,
        {},
        {"runs": 0, "mean_s": 1, "spread_s": 0},
        {"runs": 3, "mean_s": -1.0, "spread_s": 0},
        {"runs": 3, "mean_s": float("nan"), "spread_s": 0.0},
    ],
)
def test_data_that_is_broken_is_left_out(broken: Any) -> None:
    good = {"runs": 3, "mean_s": 1.0, "spread_s": 0.0}
    assert list(Load({"cut": broken, "mix": good}).data()) == ["mix"]


def test_learning_can_be_switched_off() -> None:
    load = Load(learned(cut=[600] * 3).data(), learns=False)
    load.observe("cut", "exit", 1.0)
    assert load.data() == {}
    assert load.closed(Reserve(frozenset({"cut", "mix"}), 8), {"cut": 8}) == frozenset()


RESERVE = Reserve(frozenset({"cut", "mix", "new"}), 8)


def test_long_and_unknown_services_are_closed_out_of_the_reserve() -> None:
    load = learned(cut=[600] * 3, mix=[0.1] * 3)
    assert load.closed(RESERVE, {"cut": 5}) == frozenset()
    assert load.closed(RESERVE, {"cut": 5, "new": 1}) == {"cut", "new"}
    assert load.closed(RESERVE, {"cut": 5, "mix": 2}) == frozenset(), "quick ones do not fill the others' slots"


def test_without_quick_services_only_unknown_ones_are_held_back() -> None:
    load = learned(cut=[600] * 3, mix=[600] * 3)
    assert load.closed(RESERVE, {"cut": 6}) == {"new"}


@pytest.mark.parametrize(
    ("services", "processes", "slots", "size"),
    [("ab", 8, None, 2), ("ab", 3, None, 0), ("a", 8, None, 0), ("ab", 8, 0, 0), ("ab", 2, 5, 1), ("ab", 1, 1, 0)],
)
def test_the_size_of_the_reserve(services: str, processes: int, slots: int | None, size: int) -> None:
    assert Reserve(frozenset(services), processes, slots).size == size
