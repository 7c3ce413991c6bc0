"""What is checked of a hello, and the text that a device signs."""

import base64

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rota.runners import clocks, handshake
from rota.runners.messages import Capabilities, DeviceAuth, Hello, PoolAuth

KEY = bytes(range(32))
PUBLIC = Ed25519PrivateKey.from_private_bytes(KEY).public_key().public_bytes_raw()
NOW = 1_800_000_000.0
CAPABILITIES = Capabilities(
    protocol_version="1.0", agent_version="1.2.0", os="linux", arch="amd64", slots=1, container="none",
    runtime_image_digest=None, ffmpeg_version="8.0", fontset_version="1", job_types=(), max_output_bytes=1,
)  # fmt: skip


def signed(*, wall: float = NOW, host: str = "runner.invalid", nonce: bytes = b"0123456789abcdef") -> DeviceAuth:
    return handshake.sign_hello(private_key=KEY, device_id="device-1", host=host, wall=wall, nonce=nonce)


def hello(auth: DeviceAuth | PoolAuth, version: str = "1.0") -> Hello:
    return Hello(protocol_version=version, auth=auth, capabilities=CAPABILITIES)


def test_the_signed_text_is_the_seeds_to_the_letter() -> None:
    text = handshake.signed_text(device_id="d", ts="2026-01-02T03:04:05Z", nonce="bm9uY2U", host="runner.example.com")
    assert text == b"reelbolt-runner-hello-v1|d|2026-01-02T03:04:05Z|bm9uY2U|runner.example.com"


def test_a_signature_that_another_implementation_makes_is_good() -> None:
    """A golden vector: key 00…1f. Ed25519 is deterministic, so every implementation makes these very bytes."""
    auth = DeviceAuth(
        device_id="device-1", ts="2026-01-02T03:04:05Z", nonce="MDEyMzQ1Njc4OWFiY2RlZg",
        sig="2GzfyqWRHXWkY8TGikjIQRmwVyKk8R7NZrfQ8npU3tWpFmYfPl3iXpH-G3_UCXGGRTqcpne7rblhqPdXm-1yDA",
    )  # fmt: skip
    text = b"reelbolt-runner-hello-v1|device-1|2026-01-02T03:04:05Z|MDEyMzQ1Njc4OWFiY2RlZg|runner.invalid"
    made = base64.urlsafe_b64encode(Ed25519PrivateKey.from_private_bytes(KEY).sign(text)).decode().rstrip("=")
    assert made == auth.sig
    assert handshake.verify_device(auth, public_key=PUBLIC, host="runner.invalid")


def test_what_a_device_signs_is_good_for_its_key_and_host_only() -> None:
    auth = signed()
    assert handshake.check_hello(hello(auth)) is None
    assert handshake.check_time(auth, wall=NOW) is None
    assert handshake.verify_device(auth, public_key=PUBLIC, host="runner.invalid")
    assert not handshake.verify_device(auth, public_key=PUBLIC, host="other.invalid")
    assert not handshake.verify_device(auth, public_key=bytes(32), host="runner.invalid")
    assert not handshake.verify_device(auth, public_key=b"short", host="runner.invalid")
    for field, value in (("device_id", "device-2"), ("ts", clocks.stamp(NOW + 1)), ("nonce", "bm9uY2U" * 4)):
        changed = msgspec.structs.replace(auth, **{field: value})
        assert not handshake.verify_device(changed, public_key=PUBLIC, host="runner.invalid")


@pytest.mark.parametrize(
    ("ahead_s", "says"),
    [
        (119.0, None),
        (-119.0, None),
        (121.0, "121 s ahead"),
        (-121.0, "121 s behind"),
        (315_360_000.0, "315360000 s ahead"),
    ],
)
def test_the_absolute_difference_of_the_clocks_counts(ahead_s: float, says: str | None) -> None:
    """S51, S52"""
    refusal = handshake.check_time(signed(wall=NOW + ahead_s), wall=NOW)
    if says is None:
        assert refusal is None
    else:
        assert refusal is not None
        assert says in refusal.reason
        assert (int(refusal.code), refusal.tells_time) == (4401, True)


@pytest.mark.parametrize(
    "ts",
    [
        "2026-01-02T03:04:05",
        "2026-01-02T03:04:05+02:00",
        "2026-01-02 03:04:05Z",
        "1767323045",
        "",
        "2026-13-02T03:04:05Z",
    ],
)
def test_a_time_that_is_not_in_utc_is_malformed(ts: str) -> None:
    """S51"""
    refusal = handshake.check_hello(hello(msgspec.structs.replace(signed(), ts=ts)))
    assert refusal is not None
    assert (int(refusal.code), "RFC 3339" in refusal.reason) == (4400, True)


@pytest.mark.parametrize("nonce", ["", "c2hvcnQ", "no base64!", "A" * 1000])
def test_a_nonce_is_16_random_bytes_or_more(nonce: str) -> None:
    refusal = handshake.check_hello(hello(msgspec.structs.replace(signed(), nonce=nonce)))
    assert refusal is not None
    assert "nonce" in refusal.reason


@pytest.mark.parametrize("sig", ["", "AAAA", "!" * 86, "A" * 200])
def test_a_signature_has_its_length(sig: str) -> None:
    refusal = handshake.check_hello(hello(msgspec.structs.replace(signed(), sig=sig)))
    assert refusal is not None
    assert "sig" in refusal.reason


@pytest.mark.parametrize(
    ("version", "spoken"),
    [
        ("1.0", "1.0"),
        ("1.7", "1.0"),
        ("2.0", None),
        ("0.9", None),
        ("1", None),
        ("one", None),
        ("", None),
        ("1.0.0", None),
    ],
)
def test_the_highest_minor_of_both_is_spoken(version: str, spoken: str | None) -> None:
    assert handshake.negotiate(version) == spoken
    refusal = handshake.check_hello(hello(PoolAuth(credential="x", worker_name="w"), version))
    assert (refusal is None) == (spoken is not None)
    if refusal is not None:
        assert (int(refusal.code), refusal.reason) == (4400, "supported protocol versions: 1.0")


@pytest.mark.parametrize(
    ("version", "minimum", "older"),
    [
        ("1.2.0", "1.2", False), ("1.2", "1.2.1", True), ("1.10", "1.9", False), ("v2", "1.9.9", False),
        ("0.9-beta", "1", True), ("unknown", "1", True), ("", "0", True), ("2026.1", "2025.12", False),
    ],
)  # fmt: skip
def test_versions_are_compared_by_their_numbers(version: str, minimum: str, *, older: bool) -> None:
    assert handshake.is_older(version, minimum) is older


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("runner.example.com", "runner.example.com"), ("Runner.Example.com:8443", "runner.example.com"),
        ("runner.example.com.", "runner.example.com"), ("[::1]:80", "::1"), ("::1", "::1"), ("evil.example", None),
        ("", None), ("runner.example.com.evil.example", None),
    ],
)  # fmt: skip
def test_only_the_gateways_own_names_are_hosts(header: str, host: str | None) -> None:
    """A replayed hello carries its own Host header: it must not choose what is verified."""
    assert handshake.dialled_host(header, {"runner.example.com", "::1"}) == host


def test_no_refusal_and_no_repr_shows_a_secret() -> None:
    auth = PoolAuth(credential="very-secret", worker_name="w")
    assert "very-secret" not in repr(hello(auth))
    assert signed().sig not in repr(hello(signed()))
    assert handshake.credential_digest("very-secret") != handshake.credential_digest("very-secret ")
    assert len(handshake.credential_digest("very-secret")) == 32


@pytest.mark.parametrize("wall", [0.0, NOW, NOW + 0.123, 253_402_300_799.0])
def test_a_time_is_read_as_it_was_written(wall: float) -> None:
    assert clocks.parse(clocks.stamp(wall)) == pytest.approx(wall, abs=0.001)


def test_a_leap_second_and_fine_fractions_are_times() -> None:
    last = clocks.parse("2026-12-31T23:59:59Z")
    assert last is not None
    assert clocks.parse("2026-12-31T23:59:60Z") == pytest.approx(last + 1, abs=0.01)
    assert clocks.parse("2026-12-31t23:59:59.250000000000z") == last + 0.25
    for text in ("2026-12-31T23:58:60Z", "2026-12-31T23:59:61Z", "2026-12-31T24:00:00Z", "2026-12-31T23:59:59.Z"):
        assert clocks.parse(text) is None, text
