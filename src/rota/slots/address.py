"""The address of an exec server, or of a balancer in front of several, as a setting gives it. Pure.

Only this address is ever dialled: never a pod behind it (Spec: slot broker, "Only the balancer, only on demand").
A path `/job/SERVICE` at its end keeps an address for that service alone, as in the older transport.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from rota.errors import SettingsError

PORT: Final = 8750
"""Where an exec server listens unless it is told otherwise."""
_SCHEMES: Final = {"ws": False, "http": False, "wss": True, "https": True}
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """One address of `exec_addresses`.

    Attributes:
        host: a name or an IP address, without brackets.
        port: 1 to 65,535.
        tls: whether it is spoken to over TLS.
        path: what stands before the routes, "" or `/prefix`.
        service: the one service that it is for; None for all that it offers.
    """

    host: str
    port: int = PORT
    tls: bool = False
    path: str = ""
    service: str | None = None

    @property
    def shown(self) -> str:
        """The address in logs and messages; it holds no secret."""
        return f"{'https' if self.tls else 'http'}://{self._place}{self.path}"

    @property
    def broker_url(self) -> str:
        """Where the websocket is."""
        return f"{'wss' if self.tls else 'ws'}://{self._place}{self.path}/broker"

    def route(self, path: str) -> str:
        """The URL of another route of the exec server, such as `/healthz`."""
        return self.shown + path

    @property
    def _place(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Reads `host`, `host:port`, `http(s)://host:port/prefix` or `ws(s)://…`, each with an optional `/job/SERVICE`.

    Raises: SettingsError that says what is wrong with it.
    """
    whole = text.strip()
    scheme, _, _ = whole.rpartition("://")
    try:
        parts = urlsplit(whole if scheme else f"//{whole}")
        port = parts.port
    except ValueError as error:
        raise _bad(text, str(error)) from None
    if scheme and scheme.lower() not in _SCHEMES:
        raise _bad(text, f"{scheme} is not http, https, ws or wss")
    if not parts.hostname or re.search(r"[\s/]", parts.hostname):
        raise _bad(text, "it names no host")
    if parts.username is not None or parts.query or parts.fragment:
        raise _bad(text, "it may have no account, query or fragment; the token is the setting exec_token")
    path, service = parts.path.rstrip("/"), None
    if match := re.fullmatch(r"(.*)/job/([^/]+)", path):
        path, service = match[1], match[2]
    if port is None:
        port = _DEFAULT_PORTS.get(scheme.lower(), PORT)
    if port == 0:
        raise _bad(text, "its port is 0")
    return Address(parts.hostname, port, _SCHEMES.get(scheme.lower(), False), path, service)


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Reads a list with commas or spaces between its addresses; what is there twice counts once.

    Raises: SettingsError.
    """
    return tuple(dict.fromkeys(parse_address(part) for part in re.split(r"[,\s]+", text.strip()) if part))


def _bad(text: str, why: str) -> SettingsError:
    return SettingsError(
        f"{text!r} is no address of an exec server: {why}. Give host:port or http://host:port, such as exec-1:{PORT}."
    )
