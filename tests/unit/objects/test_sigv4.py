"""PUT URLs of S3: what is signed is what a client will send."""

from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest

from rota.errors import ObjectError
from rota.objects.sigv4 import Signer, presign_put
from rota.objects.store import check_content_type

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


def url_for(endpoint: str) -> str:
    signer = Signer(endpoint, "media", "us-east-1", "key", "secret")
    return presign_put(signer, "runner-staging/1/2", content_type="video/mp4", expires_s=60, now=NOW)


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("https://store.example:443", "store.example"), ("https://Store.Example", "store.example"),
        ("http://store.example:80/", "store.example"), ("https://store.example:80", "store.example:80"),
        ("https://store.example:8443/s3", "store.example:8443"), ("http://[::1]:9000", "[::1]:9000"),
        ("http://[FE80::1]:80", "[fe80::1]"),
    ],
)  # fmt: skip
def test_S87_the_host_is_signed_as_clients_send_it(written: str, sent: str) -> None:
    """A port that the scheme has anyway is left out by every client, and then the signature would not fit."""
    parts = urlsplit(url_for(written))
    assert parts.netloc == sent
    plain = f"{parts.scheme}://{sent}{urlsplit(written).path}"
    assert url_for(written) == url_for(plain)


def test_other_hosts_have_other_signatures() -> None:
    assert len({url_for(f"https://{name}") for name in ("a.example", "b.example", "a.example:444")}) == 3


@pytest.mark.parametrize(
    "good", ["video/mp4", "Video/MP4", 'video/mp4; codecs="avc1.42E01E, mp4a.40.2"', "text/plain; charset=utf-8"]
)
def test_S83_content_types_that_arrive_as_they_were_signed(good: str) -> None:
    assert check_content_type(good) == good


@pytest.mark.parametrize(
    "bad", ["", " ", "video/mp4 ", " video/mp4", "a/b  c", "a/b\tc", "a/b\r\nX: y", "x/\u00e9", "a/b\n", "a" * 201]
)
def test_S83_content_types_that_do_not_are_refused_before_a_url_is_made(bad: str) -> None:
    with pytest.raises(ObjectError, match="no content type"):
        check_content_type(bad)
