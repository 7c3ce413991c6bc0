import pytest

from rota.errors import ArgumentsError
from rota.slots.config import read_exec_config
from rota.slots.service import Service

CONFIG = """
[services.s]
command = ["prog", "{n}"]
args = { n = "int = 1" }
timeout_s = 100
env = { HOME = "{scratch}", LANG = "C" }
accepts_env = { TZ = "word = UTC", LANG = "choice C|C.UTF-8" }
"""


def service() -> Service:
    return read_exec_config(CONFIG).services["s"]


def test_the_environment_is_what_is_declared() -> None:
    plan = service().plan({}, scratch="/s", env={"LANG": "C.UTF-8"})
    assert plan.argv == ("prog", "1")
    assert plan.env == {"HOME": "/s", "TZ": "UTC", "LANG": "C.UTF-8"}


def test_a_caller_can_only_shorten_the_limit() -> None:
    assert service().plan({}, scratch="", timeout_s=5).limits.timeout_s == 5
    assert service().plan({}, scratch="", timeout_s=500).limits.timeout_s == 100
    with pytest.raises(ArgumentsError, match="more than 0"):
        service().plan({}, scratch="", timeout_s=0)


@pytest.mark.parametrize(
    ("env", "message"),
    [({"LD_PRELOAD": "x.so"}, "'LD_PRELOAD' cannot be set"), ({"TZ": "../x"}, "'TZ' does not fit")],
)
def test_other_variables_are_refused(env: dict[str, str], message: str) -> None:
    with pytest.raises(ArgumentsError, match=message):
        service().plan({}, scratch="", env=env)


def test_a_command_without_holes_is_known_beforehand_and_still_refuses_what_does_not_fit() -> None:
    plain = read_exec_config('[services.s]\ncommand = ["prog", "-x"]\nenv = { A = "b" }\ntimeout_s = 9').services["s"]
    plan = plain.plan([], scratch="/one")
    assert plain.plan({}, scratch="/two") is plan
    assert (plan.argv, plan.env, plan.limits.timeout_s) == (("prog", "-x"), {"A": "b"}, 9)
    assert plain.plan([], scratch="", timeout_s=1).limits.timeout_s == 1
    with pytest.raises(ArgumentsError, match="more than the service takes"):
        plain.plan(["y"], scratch="")
    with pytest.raises(ArgumentsError, match="'B' cannot be set"):
        plain.plan([], scratch="", env={"B": "c"})
    # One whose folder is a part of it is not.
    assert service().plan([], scratch="/one").env["HOME"] == "/one"
    assert service().plan([], scratch="/two").env["HOME"] == "/two"
