"""`rota top`: the queue as it is now, in a terminal: kinds, what runs and waits, rates, servers."""

import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rota.app import App
from rota.cli.options import Dsn, Json, Schema, read_settings
from rota.errors import DatabaseAway
from rota.io import terminal
from rota.queue.board import RATE_S, Board, KindLine, ServerLine, board
from rota.queue.io.watch import Watch

NAME_MIN = 12
"""Columns that the name of a kind or of a server gets at least."""
FRAME_LINES = 6
"""Lines of the screen that are no rows: title, headings, gaps."""


def top(
    every: Annotated[float, typer.Option("--every", min=0.5, max=3600, help="Seconds between looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print it once.")] = False,
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Show the queue as it is now; Ctrl-C ends. Without a terminal, and with --json, it is printed once."""

    async def run() -> None:
        async with App(settings=read_settings(dsn=dsn, schema=schema)) as program:
            watch = Watch(await program.database())
            if as_json:
                terminal.print_json((await look(watch)).plain())
            elif once or not sys.stdout.isatty():
                terminal.out.print(screen(await look(watch), place=program.target.shown))
            else:
                await _live(watch, place=program.target.shown, every_s=every)

    asyncio.run(run())


async def look(watch: Watch) -> Board:
    """Reads what the view shows."""
    counts, ended = await watch.counts(ended=False), await watch.ended(within_s=RATE_S)
    return board(counts, ended, [])


async def _live(watch: Watch, *, place: str, every_s: float) -> None:
    shown: Group | Text = Text("")
    with Live(shown, console=terminal.out, screen=True, auto_refresh=False) as live:
        while True:
            try:
                shown = screen(await look(watch), place=place, lines=terminal.out.height)
            except DatabaseAway as error:
                shown = Text(f"{error} Trying again.", style="bold red")
            live.update(shown, refresh=True)
            await asyncio.sleep(every_s)


def screen(now: Board, *, place: str, lines: int | None = None) -> Group:
    """The view.

    Args:
        now: what to show.
        place: the database, without what is secret.
        lines: how many lines there are; what does not fit is said to be there.
    """
    room = None if lines is None else max(2, lines - FRAME_LINES)
    servers = now.servers if room is None else now.servers[: max(1, room // 3)]
    kinds = now.kinds if room is None else now.kinds[: room - len(servers)]
    title = Text.assemble(
        ("rota top", "bold"), f"  {place}  {datetime.now(UTC):%H:%M:%S} UTC", no_wrap=True, overflow="ellipsis"
    )  # fmt: skip
    totals = Text(
        f"{now.running:,} running, {now.due:,} waiting, {_plural(len(now.servers), 'server')}"
        + (f"; {len(now.kinds) - len(kinds)} more kinds" if len(kinds) < len(now.kinds) else "")
    )
    return Group(title, totals, Text(), _kinds(kinds), Text(), _servers(servers))


def _kinds(lines: Sequence[KindLine]) -> Table:
    table = _table("kind", ("running", "waiting", "later", "oldest", "done/min", "failed/min"))
    for line in lines:
        running = Text(f"{line.running:,}" + (f"/{line.room:,}" if line.room else ""))
        if line.overdue:
            running.stylize("bold red")
        name = terminal.plain(line.kind)
        if line.due and not line.taken:
            name.append("  nobody takes it", "bold red")
        table.add_row(
            name, running, _count(line.due), _count(line.later),
            "" if line.oldest_due_s is None else terminal.duration(line.oldest_due_s), _count(line.done),
            _count(line.failed, style="bold red"),
        )  # fmt: skip
    return table


def _servers(lines: Sequence[ServerLine]) -> Table:
    table = _table("server", ("role", "kinds", "running", "seen"))
    for line in lines:
        running = f"{sum(line.running.values()):,}/{sum(line.kinds.values()):,}"
        table.add_row(
            terminal.plain(line.holder), terminal.plain("stops" if line.draining else line.role), f"{len(line.kinds)}",
            running, terminal.duration(line.seen_ago_s),
        )  # fmt: skip
    return table


def _table(name: str, numbers: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    # The name gives way where the terminal ends; numbers that are cut would be other numbers.
    table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=NAME_MIN)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table


def _count(count: int, *, style: str = "") -> Text:
    return Text(f"{count:,}", style=style) if count else Text("·", style="dim")


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
