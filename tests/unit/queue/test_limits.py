"""Limits beyond one server: what they may be, and whose turn was the last."""

from typing import Any

import pytest

import rota
from rota.errors import SettingsError
from rota.queue.kind import Kind
from rota.queue.limits import NO_LIMITS, Limits, Rate, last_turn


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(fleet=0), "has fleet_limit=0; give 1 to 100,000"),
        (Limits(tenant=-1), "has tenant_limit=-1"),
        (Limits(fleet="4"), "has fleet_limit='4'"),  # type: ignore[arg-type]
        (Limits(fair=1), "has fair=1; give True or False"),  # type: ignore[arg-type]
        (Limits(rate=5), "has rate=5; give rota.Rate(count, per_s=seconds)"),  # type: ignore[arg-type]
        (Limits(rate=Rate(0)), "has a rate of 0 starts"),
        (Limits(rate=Rate(5, per_s=0.5)), "has a rate per 0.5 seconds"),
    ],
)
def test_wrong_limits_are_refused_by_name(limits: Limits, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Kind("work", limits=limits).check()
    assert said in str(refused.value)


def test_limits_that_can_work_are_taken() -> None:
    Kind("work", limits=Limits(5, 2, True, Rate(100, per_s=60))).check()


def test_what_needs_a_claim_of_its_own() -> None:
    assert not NO_LIMITS
    assert not NO_LIMITS.by_turns
    for limits in (Limits(fleet=1), Limits(tenant=1), Limits(fair=True), Limits(rate=Rate(1))):
        assert limits
    assert Limits(tenant=1).by_turns
    assert not Limits(fleet=1).by_turns


@pytest.mark.parametrize(
    ("tenants", "after", "last"),
    [
        ([], "b", "b"),
        (["a"], None, "a"),
        (["a", "b", "c"], None, "c"),
        (["a", "b", "c"], "a", "a"),
        (["a", "b", "c"], "b", "b"),
        (["c", None, "a"], "b", "a"),
        (["c", None], "b", None),
        (["a", "b", ""], None, None),
        (["a", "a", "b", "b", "c"], "a", "a"),
        (["a", "a", "b", "b", "b", "c"], "c", "b"),
    ],
)
def test_the_last_turn(tenants: list[str | None], after: str | None, last: str | None) -> None:
    assert last_turn(tenants, after=after) == last


def test_the_program_and_the_settings_say_the_limits() -> None:
    app = rota.App(settings=rota.Settings(fleet_limits={"ROTA_FLEET_LIMIT_BUILD": 3}, limits={"scan": 2}))

    @app.job(fleet_limit=9, tenant_limit=2, rate=rota.Rate(5, per_s=10))
    def build() -> None: ...

    @app.job(limit="cpu", urgent_priority=5)
    def render() -> None: ...

    @app.job(limit="cpu", urgent_priority=5)
    def scan() -> None: ...

    kinds = {name: handler.kind for name, handler in app.handlers.items()}
    assert kinds["build"].limits == Limits(3, 2, False, Rate(5, per_s=10))
    assert (kinds["render"].cpu_bound, kinds["render"].urgent_priority) == (True, 5)
    assert kinds["render"].limit >= 1
    assert (kinds["scan"].cpu_bound, kinds["scan"].urgent_priority, kinds["scan"].limit) == (False, None, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"urgent_priority": 5}, "only means something with limit='cpu'"),
        ({"fleet_limit": 0}, "has fleet_limit=0"),
        ({"limit": "gpu"}, "has limit='gpu'"),
    ],
)
def test_wrong_limits_of_a_handler_are_refused(options: dict[str, Any], said: str) -> None:
    app = rota.App(settings=rota.Settings())

    @app.job(**options)
    def build() -> None: ...

    with pytest.raises(SettingsError) as refused:
        _ = app.handlers
    assert said in str(refused.value)


def test_limits_are_said_without_what_is_not_set() -> None:
    assert Limits().said() == {}
    assert Limits(fleet=9, tenant=2, fair=True, rate=Rate(5, per_s=60)).said() == {
        "fleet": 9, "tenant": 2, "fair": True, "rate_count": 5, "rate_s": 60
    }  # fmt: skip
