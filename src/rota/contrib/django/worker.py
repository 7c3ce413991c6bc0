"""The project's rota.App, for a worker: Django is set up before the module of handlers is imported.

rota worker rota.contrib.django.worker:app
"""

import importlib

import django

from rota.app import App
from rota.contrib.django import conf
from rota.errors import SettingsError


def _load() -> App:
    django.setup()
    module, _, attribute = conf.program().partition(":")
    found = getattr(importlib.import_module(module), attribute, None)
    if not isinstance(found, App):
        raise SettingsError(f"ROTA_APP names {module}:{attribute}, and that is no rota.App.")
    return found


app = _load()
