"""The client of exec servers that a program's settings describe."""

import ssl

from rota.errors import SettingsError
from rota.settings import Settings
from rota.slots.address import PORT, parse_addresses
from rota.slots.io.client import ClientOptions, SlotClient


def client_of(settings: Settings) -> SlotClient:
    """Makes the client; it connects when it is first needed.

    Raises: SettingsError if no exec server is set, or a setting cannot be used.
    """
    return SlotClient(options_of(settings))


def options_of(settings: Settings) -> ClientOptions:
    """What the settings say of exec servers.

    Raises: as `client_of`.
    """
    if not settings.exec_addresses:
        raise SettingsError(
            f"No exec server is set. Set ROTA_EXEC_ADDRESSES=host:{PORT} (several with commas), or put exec_addresses "
            "into rota.toml; `rota execserver` starts one."
        )
    return ClientOptions(
        addresses=parse_addresses(settings.exec_addresses),
        token=settings.exec_token,
        tls=None if settings.exec_ca is None else _trusting(settings.exec_ca),
        wait_s=settings.exec_wait_s,
        pipe_host=settings.pipe_host,
        pipe_port=settings.pipe_port,
    )


def _trusting(path: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"exec_ca = {path!r} cannot be used: {error}. Give a file of PEM certificates.") from None
