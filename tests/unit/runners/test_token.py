"""Job tokens: what is good, and everything that is not."""

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

from rota.runners.token import Claims, TokenKeys, expiry

KEY, OTHER = b"k" * 32, b"o" * 32
NOW = 1_800_000_000.0
CLAIMS = Claims("0197c7a0-0000-7000-8000-0000000000a1", 3, "org-1", int(NOW) + 600, "session-1")
HEADER = {"alg": "HS256", "typ": "JWT"}
CONTENT = {"jobId": CLAIMS.job_id, "epoch": 3, "orgId": "org-1", "exp": int(NOW) + 600}


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def made(header: Any = HEADER, content: Any = CONTENT, *, key: bytes = KEY, digest: str = "sha256") -> str:
    text = f"{part(header)}.{part(content)}"
    signature = hmac.new(key, text.encode(), getattr(hashlib, digest)).digest()
    return f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def test_a_token_says_what_it_was_made_of() -> None:
    keys = TokenKeys([KEY])
    assert keys.read(keys.mint(CLAIMS), wall=NOW) == CLAIMS
    assert TokenKeys([KEY]).read(made(), wall=NOW) == Claims(CLAIMS.job_id, 3, "org-1", int(NOW) + 600)


def test_the_key_can_change_while_jobs_run() -> None:
    old = TokenKeys([OTHER]).mint(CLAIMS)
    assert TokenKeys([KEY, OTHER]).read(old, wall=NOW) == CLAIMS
    assert TokenKeys([KEY]).read(old, wall=NOW) is None


def test_a_token_ends() -> None:
    token = TokenKeys([KEY]).mint(CLAIMS)
    assert TokenKeys([KEY]).read(token, wall=NOW + 599.9) is not None
    assert TokenKeys([KEY]).read(token, wall=NOW + 600) is None
    assert expiry(wall=NOW, timeout_s=14_400) == int(NOW) + 14_700


@pytest.mark.parametrize(
    "token",
    [
        made({"alg": "none"}),
        made({"alg": "none"}).rsplit(".", 1)[0] + ".",
        made({"alg": "RS256", "typ": "JWT"}),
        made({"alg": "HS512"}, digest="sha512"),
        made({"alg": "HS384"}, digest="sha384"),
        made({"alg": "hs256"}),
        made({"typ": "JWT"}),
        made(HEADER).rsplit(".", 1)[0] + ".",
        made(HEADER).rsplit(".", 1)[0],
        made({**HEADER, "kid": "/dev/null"}, key=b""),
        made({**HEADER, "crit": ["exp"]}),
        made(key=OTHER),
        made() + ".x",
        made() + "x",
        "." + made(),
        made(content={name: value for name, value in CONTENT.items() if name != "exp"}),
        made(content={name: value for name, value in CONTENT.items() if name != "epoch"}),
        made(content={**CONTENT, "exp": str(int(NOW) + 600)}),
        made(content={**CONTENT, "exp": NOW + 600.5}),
        made(content={**CONTENT, "exp": True}),
        made(content={**CONTENT, "exp": None}),
        made(content={**CONTENT, "epoch": "3"}),
        made(content={**CONTENT, "epoch": True}),
        made(content={**CONTENT, "jobId": ["x"]}),
        made(content={**CONTENT, "orgId": 7}),
        made(content={**CONTENT, "sessionId": 7}),
        made(content=[CONTENT]),
        made(content="text"),
        "",
        ".",
        "..",
        "...",
        "FIXTURE.job.token",
        "\u00e9.\u00e9.\u00e9",
        "[" * 5000,
        f"{part(HEADER)}.{base64.urlsafe_b64encode(b'[' * 50_000).decode()}.x",
    ],
    ids=range(36),
)
def test_nothing_else_is_a_token(token: str) -> None:
    """S53"""
    assert TokenKeys([KEY]).read(token, wall=NOW) is None


def test_claims_that_are_of_no_concern_are_not_looked_at() -> None:
    strange = {**CONTENT, "iat": int(NOW) + 10**9, "nbf": int(NOW) + 10**9, "aud": "x", "iss": "y", "news": 1}
    read = TokenKeys([KEY]).read(made(content=strange), wall=NOW)
    assert read is None or read.epoch == 3


@pytest.mark.parametrize("keys", [[], [b"short"], [KEY, b"short"]])
def test_a_key_that_could_be_guessed_is_refused(keys: list[bytes]) -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        TokenKeys(keys)


def test_no_key_is_shown() -> None:
    assert "k" * 8 not in repr(TokenKeys([KEY]))
