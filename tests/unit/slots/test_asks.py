"""What no exec server could take is refused before it is parked, by name."""

from math import inf, nan
from typing import Any

import pytest

from rota.commands import Call
from rota.errors import ExecRefused
from rota.slots.asks import TENANT_LENGTH_MAX, asks_of, tenant_of
from rota.slots.messages import PRIORITY_MAX, Want, Work


def test_a_call_is_said_as_it_was_made() -> None:
    call = Call(
        "ocr", {"page": 3, "share": 0.5, "fast": True, "name": "\u00fc"}, env={"TZ": "UTC"}, priority=-7,
        tenant="acme", timeout_s=2.5, wait_s=inf, name="job",
    )  # fmt: skip
    want, work = asks_of(call, "job.1")
    assert want == Want("job.1", "ocr", -7, "acme")
    assert work == Work(
        {"page": 3, "share": 0.5, "fast": True, "name": "\u00fc"}, timeout_s=2.5, env={"TZ": "UTC"}, subject="job"
    )
    assert asks_of(Call("ocr", ("a", 1)), "job.1")[1].args == ["a", 1]
    assert asks_of(Call("ocr"), "job.1") == (Want("job.1", "ocr"), Work([]))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"args": ["\ud800"]}, "surrogates"),
        ({"args": {"\ud800": 1}}, "surrogates"),
        ({"args": [nan]}, "nan"),
        ({"args": {"a": -inf}}, "-inf"),
        ({"args": [None]}, "null"),
        ({"args": [["a"]]}, "array"),
        ({"args": [b"a"]}, "bytes"),
        ({"args": {1: "a"}}, "int"),
        ({"args": "abc"}, "arguments are str"),
        ({"args": {"a", "b"}}, "arguments are set"),
        ({"args": 7}, "arguments are int"),
        ({"service": ""}, "service"),
        ({"service": "s" * 101}, "service"),
        ({"service": "\ud800"}, "surrogates"),
        ({"tenant": "\ud800"}, "surrogates"),
        ({"tenant": 7}, "tenant"),
        ({"priority": PRIORITY_MAX + 1}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"timeout_s": -1}, "timeout_s=-1"),
        ({"timeout_s": nan}, "timeout_s=nan"),
        ({"timeout_s": inf}, "timeout_s=inf"),
        ({"timeout_s": "5"}, "timeout_s='5'"),
        ({"wait_s": nan}, "wait_s=nan"),
        ({"wait_s": 0}, "wait_s=0"),
        ({"wait_s": -1}, "wait_s=-1"),
        ({"wait_s": True}, "wait_s=True"),
        ({"env": {"A": 1}}, "env"),
        ({"env": ["A"]}, "env"),
        ({"env": {"A": "\udcff"}}, "surrogates"),
        ({"name": ""}, "subject"),
    ],
)
def test_what_no_exec_server_could_take_is_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ExecRefused) as refused:
        asks_of(Call(**{"service": "ocr", **wrong}), "job.1")
    words = str(refused.value)
    assert named in words and "was not run: " in words, words
    words.encode()


def test_any_tenant_of_the_queue_takes_its_turns() -> None:
    long = "t" * TENANT_LENGTH_MAX
    assert (tenant_of(""), tenant_of(None), tenant_of(long)) == (None, None, long)
    short = [tenant_of(long + end) for end in ("a", "b", "a")]
    assert short[0] == short[2] != short[1]
    assert all(len(tenant) <= TENANT_LENGTH_MAX for tenant in short)
    assert asks_of(Call("ocr", tenant=long + "\u00fc" * 500), "job.1")[0].tenant == tenant_of(long + "\u00fc" * 500)
