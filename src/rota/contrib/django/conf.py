"""What a Django project says of Rota in its settings."""

from typing import Any

from django.conf import settings
from django.db import connections

from rota.errors import SettingsError


def schema() -> str:
    """The schema of Rota's tables."""
    return str(getattr(settings, "ROTA_SCHEMA", "rota"))


def alias() -> str:
    """The alias of the database that holds them."""
    return str(getattr(settings, "ROTA_DATABASE", "default"))


def program() -> str:
    """Where the project's rota.App is: module:attribute.

    Raises: SettingsError if the project does not say.
    """
    named = getattr(settings, "ROTA_APP", None)
    if not isinstance(named, str) or ":" not in named:
        raise SettingsError('Set ROTA_APP in the Django settings to where your rota.App is, such as "shop.jobs:app".')
    return named


def connection() -> Any:
    """Django's connection to that database, of this thread.

    Raises: SettingsError if it is no PostgreSQL.
    """
    found = connections[alias()]
    if found.vendor != "postgresql":
        raise SettingsError(
            f"The database {alias()!r} is {found.vendor}, and Rota's jobs need PostgreSQL: "
            "name its alias in ROTA_DATABASE."
        )
    return found
