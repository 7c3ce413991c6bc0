"""How a runner reaches the world: which certificates it trusts, and through which proxy it goes; and whom those trust
who reach a gateway's internal API.

A runner's certificates are the system's, and those of one more file, as a company's proxy needs. Proxies are the
system's settings and HTTPS_PROXY, HTTP_PROXY and NO_PROXY, as Python's own library reads them. Whatever leaves a runner
asks here, so that all of it takes the same way.
"""

import ssl
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from rota.errors import SettingsError
from rota.runners.dial import is_here


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


def trusted_gateways(ca: str | None) -> ssl.SSLContext | None:
    """For connections of engines, of an operator and of other replicas to a gateway's internal API.

    Args:
        ca: `gateway_ca`, a file of PEM certificates that are trusted in place of the system's.

    Returns: None to trust whom the system trusts.

    Raises: SettingsError if the file cannot be used.
    """
    if ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"gateway_ca = {ca!r} cannot be used: {error}. Give a file of PEM certificates.") from None


def proxy_to(host: str, port: int, *, tls: bool) -> str | None:
    """The address of the proxy on the way to a host; None: none. There is none to this machine itself.

    It may hold an account, percent-encoded, which is a secret.

    Raises: SettingsError if the proxy that is set cannot be used; its words tell no account.
    """
    if is_here(host) or proxy_bypass(f"{host}:{port}"):
        return None
    found = getproxies().get("https" if tls else "http", "").strip()
    if not found:
        return None
    address = found if "://" in found else f"http://{found}"
    try:
        parts = urlsplit(address)
        good = bool(parts.hostname) and parts.path in ("", "/") and not parts.query and not parts.fragment
        _ = parts.port
    except ValueError:
        good = False
    if not good:
        raise _no_proxy("its address is not like http://host:port")
    if parts.scheme not in ("http", "https"):
        raise _no_proxy("it is neither http nor https")
    return address


def with_plain_account(proxy: str) -> str:
    """The address of a proxy with its account as it is sent, for a library that decodes nothing.

    Raises: SettingsError if it cannot be written so.
    """
    parts = urlsplit(proxy)
    if parts.username is None:
        return proxy
    account = unquote(parts.username), unquote(parts.password or "")
    made = f"{parts.scheme}://{':'.join(account)}@{parts.netloc.rpartition('@')[2]}"
    try:
        again = urlsplit(made)
        same = (again.username, again.password, again.hostname) == (*account, parts.hostname)
    except ValueError:
        same = False
    if not same or not made.isascii():
        raise _no_proxy("its account has characters that cannot be sent, such as / ? # [ or a colon in the name")
    return made


def _no_proxy(why: str) -> SettingsError:
    return SettingsError(f"The proxy that HTTPS_PROXY or the system names cannot be used: {why}.")
