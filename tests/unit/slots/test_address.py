"""Addresses of exec servers, as people write them."""

import pytest

from rota.errors import SettingsError
from rota.slots.address import PORT, Address, parse_address, parse_addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("exec-1", Address("exec-1")),
        ("exec-1:9000", Address("exec-1", 9000)),
        ("http://exec-1", Address("exec-1", 80)),
        ("https://exec.example/pool/", Address("exec.example", 443, tls=True, path="/pool")),
        ("ws://10.0.0.7:8080", Address("10.0.0.7", 8080)),
        ("WSS://exec.example:8443", Address("exec.example", 8443, tls=True)),
        ("[::1]:9000", Address("::1", 9000)),
        ("http://exec-1:80/job/transcode", Address("exec-1", 80, service="transcode")),
        ("exec-1:9000/a/job/ocr/", Address("exec-1", 9000, path="/a", service="ocr")),
    ],
)
def test_is_read(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "ftp://exec-1", "http://", "http://me:secret@exec-1", "exec-1:70000", "exec-1:0", "http://a/?x=1"]
)
def test_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingsError, match=f"exec-1:{PORT}"):
        parse_address(text)


def test_gives_the_places_to_dial() -> None:
    address = parse_address("https://[::1]:9000/pool/job/ocr")
    assert address.broker_url == "wss://[::1]:9000/pool/broker"
    assert address.route("/healthz") == "https://[::1]:9000/pool/healthz"
    assert parse_address("exec-1").broker_url == f"ws://exec-1:{PORT}/broker"


def test_a_list_keeps_its_order_and_no_doubles() -> None:
    assert parse_addresses(" b:1, a:2  b:1,") == (Address("b", 1), Address("a", 2))
    assert parse_addresses("") == ()
