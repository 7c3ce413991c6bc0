"""Options that several commands share, and how a command gets its settings and its program."""

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rota import settings as settings_module
from rota.app import App
from rota.errors import SettingsError
from rota.settings import Settings

Dsn = Annotated[
    str | None,
    typer.Option("--dsn", help="The database, or embedded:FOLDER. Else ROTA_DSN or rota.toml.", metavar="DSN"),
]
Schema = Annotated[str | None, typer.Option("--schema", help="Where Rota's tables live (rota).", metavar="NAME")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def read_settings(**flags: Any) -> Settings:
    """The settings of this command."""
    return settings_module.load(flags=flags)


def load_app(name: str, **flags: Any) -> App:
    """Imports the program `module:attribute` from the working folder or the environment.

    Raises: SettingsError that says what was looked for and what to do.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise SettingsError(f"{name!r} names no program: give module:attribute, such as shop:app.")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise SettingsError(f"{module_name} cannot be imported: it needs the module {error.name!r}.") from error
        raise SettingsError(
            f"There is no module {module_name!r} here. Run this in the folder that holds it, or set PYTHONPATH."
        ) from error
    except Exception as error:
        raise SettingsError(
            f"{module_name} cannot be imported: {type(error).__name__}: {str(error).rstrip('.')}."
        ) from error
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        there = sorted(key for key, value in vars(module).items() if isinstance(value, App))
        raise SettingsError(
            f"{name} is no rota.App{'' if found is None else f' but a {type(found).__name__}'}."
            + (f" {module_name}:{there[0]} is one." if there else "")
        )
    given = {key: value for key, value in flags.items() if value is not None}
    if given:
        found.override(**given)
    return found
