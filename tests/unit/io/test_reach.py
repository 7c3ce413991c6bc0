"""Why somebody was not reached, in words."""

import socket
import ssl
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from rota.io.reach import why_not_reached

KEY: Any = ConnectionKey("gw.example", 443, True, ssl.create_default_context(), None, None, None)


untrusted = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
untrusted.verify_message = "self-signed"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(111, "Connection refused")),
            "gw.example:443 cannot be reached (Connection refused)",
        ),
        (
            aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(-2, "Name or service not known")),
            "gw.example:443 cannot be reached (Name or service not known)",
        ),
        (aiohttp.ClientConnectorError(KEY, OSError("odd")), "gw.example:443 cannot be reached (odd)"),
        (aiohttp.ClientConnectorError(KEY, OSError()), "gw.example:443 cannot be reached (OSError)"),
        (
            aiohttp.ClientConnectorCertificateError(KEY, untrusted),
            "the certificate of gw.example:443 is not trusted (self-signed)",
        ),
        (aiohttp.ServerDisconnectedError(), "Server disconnected"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_it_names_what_to_look_at(error: Exception, words: str) -> None:
    assert words in why_not_reached(error)
    assert "object at" not in why_not_reached(error)
