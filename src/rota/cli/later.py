"""Commands that are loaded when they are called.

A command line that imports all of its commands makes each wait for the libraries of the others: `rota jobs list` for an
HTTP server, a runner for the drivers of a database.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup
from typer.main import get_group


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command stands.

    Attributes:
        module: its module in `rota.cli`.
        attribute: its function there, or the Typer of a group.
        help: what a list of commands says of it.
        takes_unknown_options: options that it does not know are words for what it runs.
        adds: commands of other modules that stand in this group.
    """

    module: str
    attribute: str
    help: str
    takes_unknown_options: bool = False
    adds: Mapping[str, "Entry"] = field(default_factory=dict)

    def load(self, name: str) -> Any:
        """Imports it, and makes what typer calls by this name: a command of click, which typer has a copy of."""
        found = getattr(import_module(f"rota.cli.{self.module}"), self.attribute)
        holder = typer.Typer(rich_markup_mode=None)
        if not isinstance(found, typer.Typer):
            settings = {"ignore_unknown_options": True} if self.takes_unknown_options else None
            holder.command(name, short_help=self.help, context_settings=settings)(found)
            return get_group(holder).commands[name]
        holder.add_typer(found, name=name, short_help=self.help)
        group = get_group(holder).commands[name]
        assert isinstance(group, TyperGroup), "a Typer in another one is a group"
        if self.adds:
            group.commands = _Later(self.adds, own=group.commands)
        return group


class _Later(dict[str, Any]):
    """Commands by name. Their names are there; whoever asks for one has it loaded."""

    def __init__(self, entries: Mapping[str, Entry], *, own: Mapping[str, Any] | None = None) -> None:
        self._entries = entries
        # Lists of names, and what a mistyped one might have meant, need no more.
        super().__init__({**(own or {}), **dict.fromkeys(entries)})

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if found is None:
            found = self[name] = self._entries[name].load(name)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 - the dict's own gives what is not loaded

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]


class LaterGroup(TyperGroup):
    """A group of the commands in `entries`."""

    entries: ClassVar[Mapping[str, Entry]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Later(self.entries)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the list of commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])
