"""How a runner reaches the world: which certificates it trusts, and through which proxy it goes.

Certificates are the system's, and those of one more file, as a company's proxy needs. Proxies are the system's settings
and HTTPS_PROXY, HTTP_PROXY and NO_PROXY, as Python's own library reads them; the websocket's library does the same.
"""

import ssl
from urllib.request import getproxies, proxy_bypass

from rota.errors import SettingsError


def trusted(ca: str | None) -> ssl.SSLContext:
    """A context for connections to gateways and object stores; names are checked, always.

    Args:
        ca: a file of PEM certificates to trust beside the system's.

    Raises: SettingsError if the file cannot be used.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is not None:
        try:
            context.load_verify_locations(cafile=ca)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                f"runner_ca = {ca!r} cannot be used: {error}. Give a file of PEM certificates."
            ) from None
    return context


def proxy_to(host: str, *, tls: bool) -> str | None:
    """The proxy for a host; None: none."""
    return None if proxy_bypass(host) else getproxies().get("https" if tls else "http")
