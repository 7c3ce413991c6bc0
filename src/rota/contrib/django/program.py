"""The rota.App of a Django project: it works on the project's own database, and its handlers mind Django's
connections."""

import functools
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlencode

from rota.app import App
from rota.contrib.django import conf
from rota.queue.handler import Handler


def make_app(**options: Any) -> App:
    """Makes the project's rota.App, on the database that Django's settings name.

    Each plain handler begins and ends as a request does: connections that are broken or past CONN_MAX_AGE are closed,
    so that no thread of the worker keeps one that the server has given up.

    Args:
        options: as for `rota.App`; a `dsn` here, in ROTA_DSN or in rota.toml goes before Django's settings.

    Raises: SettingsError if the database is no PostgreSQL.
    """
    return _DjangoApp(**options)


class _DjangoApp(App):
    """Reads Django's settings when it is first needed, because a module of handlers may be imported before them."""

    @cached_property
    def settings(self) -> Any:
        found = App.settings.func(self)  # type: ignore[attr-defined]
        if found.dsn is None:
            found = replace(found, dsn=_dsn_of(conf.connection().get_connection_params()), schema=conf.schema())
        return found

    @cached_property
    def handlers(self) -> dict[str, Handler]:
        found: dict[str, Handler] = App.handlers.func(self)  # type: ignore[attr-defined]
        return {kind: _minding_connections(handler) for kind, handler in found.items()}


def _minding_connections(handler: Handler) -> Handler:
    if handler.is_async or handler.kind.isolation == "process":
        return handler
    return replace(handler, function=_around(handler.function))


def _around(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        from django.db import close_old_connections  # noqa: PLC0415 - Django is set up by now, and was not before

        close_old_connections()
        try:
            return function(*args)
        finally:
            close_old_connections()

    return call


def _dsn_of(params: dict[str, Any]) -> str:
    """The address that libpq's words for these parameters make."""
    user, password = params.get("user"), params.get("password")
    who = (
        "" if not user else quote(str(user), safe="") + (f":{quote(str(password), safe='')}" if password else "") + "@"
    )
    host, query = str(params.get("host") or ""), {}
    if host.startswith("/"):
        query["host"], host = host, ""
    port = f":{params['port']}" if params.get("port") and host else ""
    if params.get("port") and not host:
        query["port"] = str(params["port"])
    if params.get("sslmode"):
        query["sslmode"] = str(params["sslmode"])
    database = quote(str(params.get("dbname") or params.get("database") or ""), safe="")
    return f"postgresql://{who}{host}{port}/{database}" + (f"?{urlencode(query)}" if query else "")
