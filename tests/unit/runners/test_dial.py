"""A gateway's address: what may be dialled, and how it is written."""

import pytest

from rota.errors import SettingsError
from rota.runners.dial import Gateway, parse_gateway


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
