"""`rota doctor`: what is wrong with the database and with the workers, and what to do about it."""

import asyncio
from dataclasses import asdict
from typing import Any, Final

import typer
from rich.text import Text

from rota.app import App
from rota.cli.options import Dsn, Json, Schema, read_settings
from rota.io import terminal
from rota.queue.fleet_health import examine_fleet
from rota.queue.health import Check, Level, examine, has_findings
from rota.queue.io.health import read_fleet, read_health
from rota.runners.health import examine_runners
from rota.runners.io.survey import read_runners

MARKS: Final = {
    Level.OK: ("ok", "green"),
    Level.NOTE: ("note", "cyan"),
    Level.WARNING: ("warning", "bold yellow"),
    Level.PROBLEM: ("problem", "bold red"),
}
INDENT: Final = 24


def doctor(dsn: Dsn = None, schema: Schema = None, as_json: Json = False) -> None:
    """Look at the database and the workers; each finding says what to do. Status 1 if there is one."""

    async def run() -> list[Check]:
        program = App(settings=read_settings(dsn=dsn, schema=schema))
        try:
            database = await program.database()
            health = await read_health(database)
            # What is behind in its schema cannot be asked for its servers, and a standby does not have them.
            if health.missing or health.in_recovery:
                return examine(health)
            runners = await read_runners(database, program.settings)
            return examine(health) + examine_fleet(await read_fleet(database)) + examine_runners(runners)
        finally:
            await program.stop()

    checks = asyncio.run(run())
    if as_json:
        terminal.print_json(plain(checks))
    else:
        for check in checks:
            show(check)
    if has_findings(checks):
        raise typer.Exit(1)


def plain(checks: list[Check]) -> dict[str, Any]:
    """The checks as JSON values."""
    return {"ok": not has_findings(checks), "checks": [asdict(check) for check in checks]}


def show(check: Check) -> None:
    """One check: how bad, about what, in words, and below it what to do."""
    word, style = MARKS[check.level]
    terminal.print_hanging(Text.assemble((f"{word:<9}", style), check.about), check.words, indent=INDENT)
    if check.advice is not None:
        terminal.print_hanging(Text(), Text.assemble(("→ ", "dim"), terminal.plain(check.advice)), indent=INDENT)
