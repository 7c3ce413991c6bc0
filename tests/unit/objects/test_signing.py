"""Signed URLs of the folder store: any part that is changed breaks them."""

from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

import pytest

from rota.errors import ObjectError
from rota.objects.keys import check_key, staging_key, staging_prefix, verifying_key
from rota.objects.signing import Grant, refusal, signed_url
from rota.objects.sigv4 import Signer

SECRET = b"fixture"
GRANT = Grant("PUT", "a/ü b", 1000, 60, "video/mp4")
NO_JOB = UUID(int=1)


def judged(
    url: str, *, method: str = "PUT", key: str = "a/ü b", kind: str = "video/mp4", now: float = 1000
) -> str | None:
    query = dict(parse_qsl(urlsplit(url).query))
    no = refusal(SECRET, method=method, key=key, query=query, content_type=kind, now=now)
    return None if no is None else no.code


def test_what_was_granted_is_allowed_until_its_time_is_up() -> None:
    url = signed_url("https://x.invalid/objects", SECRET, GRANT)
    assert url.startswith("https://x.invalid/objects/a/%C3%BC%20b?")
    assert [judged(url, now=now) for now in (100, 1000, 1059.9, 1060)] == [None, None, None, "AccessDenied"]
    assert judged(url, now=99) == "RequestTimeTooSkewed"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("method=PUT", "method=GET"), ("date=1000", "date=1001"), ("expires=60", "expires=61"), ("mp4", "mp5"),
        ("signature=", "signature=x"), ("&signature", "&other"), ("date=1000", "date=x"), ("expires=60", "expires=6e1"),
        ("expires=60", "expires=%2B60"), ("expires=60", "expires=060"), ("expires=60", "expires=%D9%A6%D9%A0"),
        ("expires=60", "expires=60&more=1"), ("method=PUT", "Method=PUT"), ("expires=60", f"expires={'6' * 5000}"),
    ],
)  # fmt: skip
def test_any_change_breaks_it(old: str, new: str) -> None:
    url = signed_url("https://x.invalid", SECRET, GRANT).replace(old, new)
    assert judged(url) in ("SignatureDoesNotMatch", "AccessDenied")


def test_it_is_for_one_method_one_key_and_one_content_type() -> None:
    url = signed_url("https://x.invalid", SECRET, GRANT)
    assert judged(url, method="GET") == "MethodNotAllowed"
    assert judged(url, key="a/b") == "SignatureDoesNotMatch"
    assert judged(url, kind="video/mp4;x") == "SignatureDoesNotMatch"


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", ".", "a/../b", "a\\b", "a\nb", "a\0", "x" * 1025, "\udcff"])
def test_keys_that_are_none(key: str) -> None:
    with pytest.raises(ObjectError):
        check_key(key)


def test_staging_keys() -> None:
    staged = staging_key(NO_JOB, 7)
    assert staged == f"{staging_prefix(NO_JOB)}7" == "runner-staging/00000000-0000-0000-0000-000000000001/7"
    assert verifying_key(staged, "a") == "runner-verifying/00000000-0000-0000-0000-000000000001/7/a"
    for key in ("project/x/7", "runner-staging/7", "runner-staging/a/b/c"):
        with pytest.raises(ObjectError):
            verifying_key(key, "a")


def test_a_signer_does_not_show_its_secret() -> None:
    assert "fixture" not in repr(Signer("https://x.invalid", "media", "r", "id", "fixture"))
