"""A gateway's address: what may be dialled, and how it is written."""

from random import Random

import pytest

from rota.errors import SettingsError
from rota.runners.dial import REDIAL_CAP_S, Gateway, parse_gateway, redial_wait_s


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wss://Runner.Example", Gateway("runner.example", 443, True)),
        ("runner.example", Gateway("runner.example", 443, True)),
        ("runner.example:8443", Gateway("runner.example", 8443, True)),
        ("https://runner.example:8443/fabric/", Gateway("runner.example", 8443, True, "/fabric")),
        ("wss://runner.example/v1/connect", Gateway("runner.example", 443, True)),
        ("wss://[::1]:9000", Gateway("::1", 9000, True)),
        ("ws://127.0.0.1:9000", Gateway("127.0.0.1", 9000, False)),
        ("http://localhost", Gateway("localhost", 80, False)),
        (" wss://runner.example. ", Gateway("runner.example", 443, True)),
    ],
)
def test_addresses_that_may_be_dialled(text: str, expected: Gateway) -> None:
    assert parse_gateway(text) == expected
    assert parse_gateway(expected.shown) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ws://runner.example", "without TLS only"),
        ("http://10.0.0.1:80", "without TLS only"),
        ("ftp://runner.example", "ftp is not wss"),
        ("wss://", "no host"),
        ("wss://a b", "no host"),
        ("wss://user:secret@runner.example", "no account"),
        ("wss://runner.example?token=secret", "no account, query"),
        ("wss://runner.example:0", "port is 0"),
        ("wss://runner.example:99999", "Port out of range"),
        ("wss://a|b", "no host"),
    ],
)
def test_addresses_that_are_refused_say_why_and_no_secret(text: str, why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_gateway(text)
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)


def test_development_may_dial_without_tls() -> None:
    gateway = parse_gateway("ws://runner.example:81/x", plain_allowed=True)
    assert gateway.connect_url == "ws://runner.example:81/x/v1/connect"
    assert gateway.pair_url == "http://runner.example:81/x/v1/pair"
    assert Gateway("::1", 443, True).connect_url == "wss://[::1]/v1/connect"


def test_waits_grow_to_a_cap_with_full_jitter() -> None:
    random = Random(1)
    first, late = ([redial_wait_s(random, failures) for _ in range(500)] for failures in (0, 30))
    assert 0 <= min(first) < 0.05 and 0.95 < max(first) <= 1
    assert 0 <= min(late) < 2 and 28 < max(late) <= REDIAL_CAP_S


def test_nobody_comes_before_the_time_that_the_gateway_asked_for_nor_all_at_that_time() -> None:
    random = Random(1)
    waits = [redial_wait_s(random, 0, retry_after_s=20) for _ in range(500)]
    assert 20 <= min(waits) < 20.5 and 29 < max(waits) <= 30


def test_a_lease_is_not_waited_away() -> None:
    """S46"""
    random = Random(1)
    for left_s in (44.0, 20.0, 5.0):
        waits = [redial_wait_s(random, 20, retry_after_s=60, lease_left_s=left_s) for _ in range(500)]
        assert left_s * 0.2 <= min(waits) and max(waits) <= left_s * 0.4
    assert max(redial_wait_s(random, 20, lease_left_s=0.1) for _ in range(500)) <= 1, "a hasty one is of no use"
    assert max(redial_wait_s(random, 20, lease_left_s=0.0) for _ in range(500)) > 20, "it is lost"
    waits = [redial_wait_s(random, 0, lease_left_s=40.0) for _ in range(500)]
    assert min(waits) < 0.05, "where nothing speaks against it, it comes at once"
