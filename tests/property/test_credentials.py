"""Nothing that looks like a credential is found to be harmless, wherever it stands; and what people really send passes.

Spec: runners, "Security invariants": "fuzzing assigned jobs and ops for credential-shaped material".
"""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.runners.credentials import NAMES, find_credential

OWN = ("the token of the internal API", "k" * 32)
HEX = st.text("0123456789abcdef", min_size=24, max_size=64)
UPPER = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=16, max_size=16)
WORD = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=12)
TOKEN = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=30, max_size=50)


def b64(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


CREDENTIALS = st.one_of(
    st.sampled_from(OWN),
    st.builds("postgresql://{}:{}@{}/{}".format, WORD, WORD, WORD, WORD),
    st.builds("{}://{}/{}".format, st.sampled_from(["postgres", "mysql", "mongodb+srv", "rediss", "amqp"]), WORD, WORD),
    st.builds("https://{}:{}@{}.example/x".format, WORD, WORD, WORD),
    st.builds("{}{}".format, st.sampled_from(["AKIA", "ASIA"]), UPPER),
    st.builds("-----BEGIN {}-----\n{}\n".format, st.sampled_from(["PRIVATE KEY", "CERTIFICATE"]), TOKEN),
    st.builds(lambda org: f"{b64({'alg': 'HS256'})}.{b64({'orgId': org})}.{'s' * 43}", WORD),
    st.builds("Bearer {}".format, TOKEN), st.builds("Authorization: Basic {}".format, TOKEN),
    st.builds("rpool_{}".format, TOKEN), st.builds("sk-proj-{}1{}".format, HEX, TOKEN),
    st.builds("sk_live_1{}".format, HEX),
    st.builds("ghp_{}".format, TOKEN), st.builds("hf_{}".format, TOKEN), st.builds("xoxb-{}".format, TOKEN),
    st.builds("https://s3.example/b/k?X-Amz-Signature={}".format, HEX), st.builds("password={}{}".format, HEX, WORD),
)  # fmt: skip
"""Each made by what it is in the world, and not by the patterns that look for it."""

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=10))
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcdef", max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def planted(value: Any, draw: Any, secret: str) -> Any:
    """The value, with the secret somewhere in it."""
    if isinstance(value, list):
        at = draw(st.integers(0, len(value)))
        deeper = at < len(value) and draw(st.booleans())
        return [*value[:at], planted(value[at], draw, secret) if deeper else secret, *value[at + deeper :]]
    if isinstance(value, dict):
        key = draw(st.sampled_from([*value, "more"]))
        if key in value and draw(st.booleans()):
            return value | {key: planted(value[key], draw, secret)}
        return value | ({secret: 1} if draw(st.booleans()) else {key: secret})
    return secret


@given(data=st.data(), spec=JSON, secret=CREDENTIALS, before=st.sampled_from(["", "x ", "\n", '"', "="]), after=WORD)
def test_a_credential_is_found_wherever_it_stands(data: Any, spec: Any, secret: str, before: str, after: str) -> None:
    text = f"{before}{secret} {after}"
    value = planted(spec, data.draw, text)
    found = find_credential(value, own=OWN)
    assert found is not None
    # What is said of it tells nobody what it is.
    assert secret not in found.what


@given(secret=CREDENTIALS, extra=st.text(max_size=20))
def test_it_is_found_in_the_content_of_a_file_also_in_base64(secret: str, extra: str) -> None:
    content = base64.b64encode(f"{extra}\n{secret}\n".encode()).decode()
    assert find_credential({"path": "a", "content": content, "encoding": "base64"}, own=OWN)
    assert find_credential(
        {"op": "ffmpeg", "args": {"argv": ["-i", "a.mp4", "-metadata", f"comment={secret}"]}}, own=OWN
    )


@given(name=st.sampled_from(sorted(NAMES)), dash=st.sampled_from(["", "-", "_"]), value=WORD, spec=JSON)
def test_a_field_that_is_named_as_a_credential_is_refused(name: str, dash: str, value: str, spec: Any) -> None:
    written = name[:3].upper() + dash + name[3:]
    assert find_credential([spec, {"deep": {written: value}}])
    assert find_credential({written: ""}) is None and find_credential({written: 5}) is None


URL = "https://s3.example/bucket/runner-staging/j/1?X-Amz-Credential=AKIAABCDEFGHIJKLMNOP&X-Amz-Signature=0123"


def test_an_op_may_carry_a_url_for_one_object_where_it_belongs_and_a_spec_none() -> None:
    for args in ({"url": URL}, {"putUrl": URL}, {"manifest": [{"path": "a", "url": URL}]}):
        assert find_credential({"op": "stage", "args": args}, urls=True) is None
        assert find_credential({"spec": args}) is not None
    assert find_credential({"args": {"argv": ["-i", URL]}}, urls=True) is not None
    # Also there, a URL opens that object alone.
    for url in (URL.replace("//", "//user:word@"), f"{URL}&x=Bearer%20 Bearer {'a' * 30}", f"{URL}&t={OWN[1]}"):
        assert find_credential({"args": {"url": url}}, own=OWN, urls=True) is not None


def test_what_people_really_send_passes() -> None:
    corpus = Path(__file__).parents[1] / "runners" / "argv-corpus.jsonl"
    lines = [json.loads(line) for line in corpus.read_text().splitlines()]
    for line in lines:
        args = {"argv": line["argv"]}
        assert line["expect"] == "reject" or find_credential({"args": args}, own=OWN, urls=True) is None, line
    for text in (
        "drawtext=text='Bearer of news':fontfile=a.ttf", "https://a.example/b?size=3", "sk-a-very-long-word-of-none",
        "task-list-of-the-seventh-day-1234567890123456789", "key = value", "concat:a.ts|b.ts", "http://[::1]:80/a@b",
        "rota.example:8760", "password", "env:", "AKIA", "the secret of the sea",
    ):  # fmt: skip
        assert find_credential({"spec": {"text": text}}, own=OWN) is None, text


@pytest.mark.parametrize(
    "text", ["a." * 10**6, "eyJ-" * 10**6, "sk-" * 10**6, "://" * 10**6, "bearer " * 10**5, "?&" * 10**6]
)
def test_long_texts_cost_no_more_than_their_length(text: str) -> None:
    assert find_credential({"content": text * (4_000_000 // len(text)) + "://"}) is None


def test_letters_that_grow_in_lower_case_hide_nothing() -> None:
    assert find_credential({"content": "İ" * 50_000 + " Bearer " + "a1" * 20})
    assert find_credential({"content": "x" * 50_000 + " Bearer " + "a1" * 20 + " y" * 50_000})
    assert find_credential({"content": "bearer " * 1000 + "Bearer " + "a1" * 20})


def test_a_deep_value_needs_no_deep_stack() -> None:
    value: Any = "AKIAABCDEFGHIJKLMNOP"
    for _ in range(20_000):
        value = [value]
    assert find_credential(value) is not None
