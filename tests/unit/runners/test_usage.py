"""What a job costs."""

from decimal import Decimal
from typing import Any

import pytest

from rota.runners.usage import Rates, usage_of


def credits(spec: dict[str, Any], *, job_type: str = "video.compile", target: str = "CloudPool", **how: Any) -> Decimal:
    rates = how.pop("rates", Rates())
    return usage_of(job_type, spec, target=target, failure_class=how.pop("failed", None), rates=rates).credits


def asked(duration_s: Any, width: Any = 1920, height: Any = 1080) -> dict[str, Any]:
    return {"requested": {"durationSec": duration_s, "width": width, "height": height}}


def test_length_and_size_count() -> None:
    assert credits(asked(60)) == 2
    assert credits(asked(60, 3840, 2160)) == 5
    assert credits(asked(60), job_type="remotion.workspace-session") == 6
    assert credits(asked(60), job_type="from.the.future") == 2
    assert credits({}) == 1


def test_a_machine_of_the_customers_own_costs_a_share() -> None:
    assert credits(asked(60), target="OrgRunner") == 0
    assert credits(asked(60), target="OrgRunner", rates=Rates(desktop_share=Decimal("0.25"))) == Decimal("0.5")


@pytest.mark.parametrize(("failed", "charged"), [("platform", 0), ("runner", 2), ("input", 2), ("from the future", 2)])
def test_only_our_own_failures_are_refunded(failed: str, charged: int) -> None:
    assert credits(asked(60), failed=failed) == charged


@pytest.mark.parametrize("value", [-1, 0, "60", None, True, float("nan"), [], {}])
def test_what_is_no_request_counts_as_none(value: Any) -> None:
    assert credits(asked(value)) == 1
    assert credits(asked(60, value)) == 2


def test_what_is_too_much_is_bounded() -> None:
    assert credits(asked(float("inf"), 10**300, 10**300)) == credits(asked(24 * 3600, 16384, 16384))
