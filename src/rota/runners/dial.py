"""The address of a gateway as a setting gives it, what it means to dial it, and when to dial again. Pure.

A runner speaks TLS to every gateway but one on its own machine: what it signs and what it is sent would otherwise be
there for whoever sits in between. The host that is dialled goes into the signature, so that a hello serves nowhere
else.

Spec: runners, "Transport and envelope", "Connection handshake and authentication".
"""

import ipaddress
import re
from dataclasses import dataclass
from random import Random
from typing import Final
from urllib.parse import urlsplit

from rota.errors import SettingsError

REDIAL_FIRST_S: Final = 1.0
REDIAL_CAP_S: Final = 30.0
LEASE_SHARE: Final = 0.4
"""Of what is left of a lease, at most so much is waited before the next try: there are several before it is over."""
_SCHEMES: Final = {"wss": True, "https": True, "ws": False, "http": False}
_PORTS: Final = {True: 443, False: 80}


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway's address.

    Attributes:
        host: the name or IP address that is dialled, without brackets, in lower case.
        port: 1 to 65,535.
        tls: whether it is spoken to over TLS.
        path: what stands before the routes, "" or `/prefix`.
    """

    host: str
    port: int
    tls: bool
    path: str = ""

    @property
    def connect_url(self) -> str:
        """Where the websocket is."""
        return f"{'wss' if self.tls else 'ws'}://{self._place}{self.path}/v1/connect"

    @property
    def pair_url(self) -> str:
        """Where a device registers its key."""
        return f"{'https' if self.tls else 'http'}://{self._place}{self.path}/v1/pair"

    @property
    def rotate_url(self) -> str:
        """Where a device registers its next key."""
        return f"{'https' if self.tls else 'http'}://{self._place}{self.path}/v1/rotate"

    @property
    def shown(self) -> str:
        """The address for people, in the form in which it can be set."""
        return f"{'wss' if self.tls else 'ws'}://{self._place}{self.path}"

    @property
    def _place(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.tls] else f"{host}:{self.port}"


def parse_gateway(text: str, *, plain_allowed: bool = False) -> Gateway:
    """Reads `wss://host`, `https://host:port/prefix`, or a bare `host`, which is spoken to over TLS.

    Args:
        text: the address.
        plain_allowed: whether `ws://` and `http://` may lead beyond this machine: for development alone.

    Raises: SettingsError that says what is wrong with it.
    """
    whole = text.strip()
    scheme, _, _ = whole.rpartition("://")
    try:
        parts = urlsplit(whole if scheme else f"wss://{whole}")
        port = parts.port
    except ValueError as error:
        raise _bad(text, str(error)) from None
    tls = _SCHEMES.get(parts.scheme.lower())
    if tls is None:
        raise _bad(text, f"{parts.scheme} is not wss or https")
    # A final dot names the same host; the gateway does not sign with it either.
    host = (parts.hostname or "").rstrip(".")
    if not host or re.search(r"[\s/|]", host):
        raise _bad(text, "it names no host")
    if parts.username is not None or parts.query or parts.fragment:
        raise _bad(text, "it may have no account, query or fragment")
    if port == 0:
        raise _bad(text, "its port is 0")
    if not tls and not plain_allowed and not is_here(host):
        raise _bad(text, "without TLS only a gateway on this machine may be dialled")
    path = parts.path.rstrip("/").removesuffix("/v1/connect")
    return Gateway(host, port or _PORTS[tls], tls, path)


def redial_wait_s(
    random: Random, failures: int, *, retry_after_s: float = 0.0, lease_left_s: float | None = None
) -> float:
    """How long to wait before the next try. Full jitter, so that many do not march in step.

    Args:
        random: for the jitter.
        failures: tries since the last welcome.
        retry_after_s: what the gateway asked for; nobody comes before it, unless a lease would be lost.
        lease_left_s: seconds until the first lease of a job that runs here is over; None if none does.
    """
    wait_s = random.random() * min(REDIAL_CAP_S, REDIAL_FIRST_S * 2.0 ** min(failures, 20))
    wait_s = max(wait_s, retry_after_s * (1.0 + 0.5 * random.random()))
    if lease_left_s is None or lease_left_s <= 0:
        return wait_s
    return min(wait_s, max(REDIAL_FIRST_S, lease_left_s * LEASE_SHARE) * (0.5 + 0.5 * random.random()))


def is_here(host: str) -> bool:
    """Whether a name or an IP address means this machine.

    Args:
        host: without brackets, in lower case.
    """
    found = _address_of(host)
    return found.is_loopback if found is not None else host == "localhost" or host.endswith(".localhost")


def is_near(host: str) -> bool:
    """Whether it means this machine or what only this machine can reach, such as the metadata of a cloud's machine."""
    found = _address_of(host)
    return is_here(host) or (found is not None and (found.is_link_local or found.is_unspecified))


def _address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _bad(text: str, why: str) -> SettingsError:
    # An account in an address may be a secret.
    shown = re.sub(r"//[^/@]*@", "//…@", text.partition("?")[0])
    return SettingsError(f"{shown!r} is no address of a gateway: {why}. Give wss://host, such as wss://runner.example.")
