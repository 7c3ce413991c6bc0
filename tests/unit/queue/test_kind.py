"""The settings of a kind, and what is said of bad ones."""

from typing import Any

import pytest

from rota.errors import PayloadError, SettingsError
from rota.queue.kind import Kind
from rota.queue.retry import Exponential, Fixed

NAN = float("nan")


def test_the_defaults_are_those_of_the_seed() -> None:
    kind = Kind("work")
    kind.check()
    assert (kind.limit, kind.lease_s, kind.heartbeat_s, kind.max_tries) == (10, 300.0, 30.0, 3)
    assert kind.retry.wait_s(1, random=None) == 30.0  # type: ignore[arg-type]  # a fixed wait takes no chance


@pytest.mark.parametrize(
    "settings",
    [
        {"limit": 0},
        {"limit": 100_000},
        {"lease_s": 1, "heartbeat_s": 0.5},
        {"lease_s": 1, "heartbeat_s": 0.1},
        {"lease_s": 86_400, "heartbeat_s": 43_200},
        {"max_tries": 1},
        {"max_tries": 1000},
        {"retry": Exponential()},
        {"isolation": "thread"},
        {"isolation": "thread", "exec": ("ocr",)},
        {"isolation": "process", "exec": ("ocr",)},
        {"name": "k" * 200},
        {"name": "漢字 of any kind: 'quotes', \\"},
    ],
)
def test_the_limits_themselves_are_fine(settings: dict[str, Any]) -> None:
    Kind(**{"name": "work", **settings}).check()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": ""}, "needs a name of 1 to 200 characters"),
        ({"name": "k" * 201}, "needs a name of 1 to 200 characters"),
        ({"limit": -1}, 'has limit=-1; give "cpu", or 0 (keeps the kind off) to 100,000'),
        ({"limit": 100_001}, "has limit=100001"),
        ({"lease_s": 0.9, "heartbeat_s": 0.1}, "has lease_s=0.9; give 1 to 86,400 seconds"),
        ({"lease_s": 86_401}, "has lease_s=86401"),
        ({"lease_s": NAN}, "has lease_s=nan"),
        ({"lease_s": float("inf")}, "has lease_s=inf"),
        ({"heartbeat_s": 0.09}, "has heartbeat_s=0.09 with lease_s=300.0"),
        ({"heartbeat_s": 150.1}, "at most half the lease, so that one lost heartbeat does not stop the job"),
        ({"heartbeat_s": NAN}, "has heartbeat_s=nan"),
        ({"max_tries": 0}, "has max_tries=0; give a whole number, 1 to 1,000"),
        ({"max_tries": 2.5}, "has max_tries=2.5"),
        ({"max_tries": True}, "has max_tries=True"),
        ({"limit": True}, "has limit=True"),
        ({"lease_s": "5"}, "has lease_s='5'; give 1 to 86,400 seconds"),
        ({"heartbeat_s": "1"}, "has heartbeat_s='1'"),
        ({"keep_s": "5"}, "has keep_s='5'; give 0 to 315,360,000 seconds"),
        ({"keep_failed_s": NAN}, "has keep_failed_s=nan"),
        ({"cpu_bound": True, "urgent_priority": "x"}, "has urgent_priority='x'; give a whole number"),
        ({"retry": Fixed(-1)}, "has retry=Fixed(seconds=-1); give seconds from 0 to 3,155,760,000"),
        ({"retry": Fixed(NAN)}, "has retry=Fixed(seconds=nan)"),
        ({"retry": Exponential(first_s=-1)}, "give first_s and cap_s from 0 to 3,155,760,000 seconds"),
        ({"retry": Exponential(cap_s=float("inf"))}, "give first_s and cap_s from 0"),
        ({"retry": Exponential(jitter=2)}, "give a jitter from 0 to 1"),
        ({"max_tries": 1001}, "has max_tries=1001"),
        ({"isolation": "fork"}, "has isolation='fork'"),
        ({"retry": 30}, "has a retry without wait_s; give rota.Fixed or Exponential"),
    ],
)
def test_a_bad_setting_names_its_kind_and_itself(settings: dict[str, Any], said: str) -> None:
    kind = Kind(**{"name": "work", **settings})
    with pytest.raises(SettingsError) as caught:
        kind.check()
    assert str(caught.value).startswith(f"Kind {kind.name!r} ")
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_name_that_cannot_be_stored(name: str) -> None:
    with pytest.raises(PayloadError, match="The name of a kind cannot be stored"):
        Kind(name).check()
