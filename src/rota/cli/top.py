"""`rota top`: the queue as it is now, in a terminal: kinds, what runs and waits, rates, servers."""

import asyncio
import contextlib
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from rota.app import App
from rota.cli.options import Dsn, Json, Schema, read_settings
from rota.durations import measured
from rota.errors import DatabaseAway
from rota.io import terminal
from rota.io.visible import visible
from rota.queue.board import RATE_S, Board, KindLine, ServerLine, board
from rota.queue.io.store import Store
from rota.queue.io.watch import Watch

NAME_MIN = 12
"""Columns that the name of a kind or of a server gets at least."""
ROLE_MAX = 20
GAP = 2
FRAME_LINES = 6
"""Lines of the screen that are no rows: title, headings, gaps."""


def top(
    every: Annotated[
        float, typer.Option("--every", min=0.5, max=3600, help="Seconds between looks.", metavar="SECONDS")
    ] = 2.0,
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
                terminal.out.print(screen(await look(watch), place=program.target.shown, width=terminal.out.width))
            else:
                await _live(watch, place=program.target.shown, every_s=every)

    # Whoever has seen enough says so by Ctrl-C.
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


async def look(watch: Watch) -> Board:
    """Reads what the view shows."""
    counts, ended = await watch.counts(ended=False), await watch.ended(within_s=RATE_S)
    store = Store(watch.database)
    now = await store.clock()
    servers = [
        ServerLine(
            server.holder, server.role, server.kinds, server.running, server.draining,
            (now - server.seen_at).total_seconds(),
        )
        for server in await store.servers()
        if server.live
    ]  # fmt: skip
    return board(counts, ended, servers)


async def _live(watch: Watch, *, place: str, every_s: float) -> None:
    shown: Group | Text = Text("")
    with Live(shown, console=terminal.out, screen=True, auto_refresh=False) as live:
        while True:
            try:
                shown = screen(await look(watch), place=place, width=terminal.out.width, lines=terminal.out.height)
            except DatabaseAway as error:
                shown = Text(visible(f"{error} Trying again."), style="bold red")
            live.update(shown, refresh=True)
            await asyncio.sleep(every_s)


def screen(now: Board, *, place: str, width: int, lines: int | None = None) -> Group:
    """The view.

    Args:
        now: what to show.
        place: the database, without what is secret.
        width: columns of the terminal; names give way, numbers do not.
        lines: how many lines there are; what does not fit is said to be there.
    """
    room = None if lines is None else max(2, lines - FRAME_LINES)
    servers = now.servers if room is None else now.servers[: max(1, room // 3)]
    kinds = now.kinds if room is None else now.kinds[: room - len(servers)]
    left_out = f"; {len(now.kinds) - len(kinds)} more kinds" if len(kinds) < len(now.kinds) else ""
    orphans = ", ".join(line.kind for line in now.kinds if line.due and not line.taken)
    return Group(
        _cut(Text.assemble(("rota top", "bold"), f"  {place}  {datetime.now(UTC):%H:%M:%S} UTC"), width),
        _cut(
            Text(f"{now.running:,} running, {now.due:,} waiting, {_plural(len(now.servers), 'server')}{left_out}"),
            width,
        ),
        _cut(Text(f"nobody takes: {terminal.plain(orphans)}" if orphans else "", style="bold red"), width),
        *_table(
            ("kind", "running", "waiting", "later", "oldest", "done/min", "failed/min"), map(_kind, kinds), width=width
        ),
        Text(),
        *_table(("server", "role", "kinds", "running", "seen"), map(_server, servers), width=width),
    )


def _kind(line: KindLine) -> Sequence[Text]:
    running = Text(f"{line.running:,}" + (f"/{line.room:,}" if line.room else ""))
    if line.overdue or (line.due and not line.taken):
        running.stylize("bold red")
    oldest = "" if line.oldest_due_s is None else measured(line.oldest_due_s)
    return (
        terminal.plain(line.kind), running, _count(line.due), _count(line.later), Text(oldest), _count(line.done),
        _count(line.failed, style="bold red"),
    )  # fmt: skip


def _server(line: ServerLine) -> Sequence[Text]:
    running = f"{sum(line.running.values()):,}/{sum(line.kinds.values()):,}"
    role = terminal.plain("stops" if line.draining else line.role)
    role.truncate(ROLE_MAX, overflow="ellipsis")
    return (
        terminal.plain(line.holder), role, Text(f"{len(line.kinds)}"), Text(running),
        Text(measured(line.seen_ago_s)),
    )  # fmt: skip


def _table(names: Sequence[str], rows: Iterable[Sequence[Text]], *, width: int) -> list[Text]:
    """Lines of a name and numbers. Where the terminal ends the name gives way, and then the last columns are left out:
    a number that is cut is another one."""
    cells = [[Text(name, style="bold") for name in names], *rows]
    widths = [max(row[column].cell_len for row in cells) for column in range(len(names))]
    while len(widths) > 2 and NAME_MIN + sum(widths[1:]) + GAP * (len(widths) - 1) > width:
        widths.pop()
    widths[0] = min(widths[0], max(NAME_MIN, width - sum(widths[1:]) - GAP * (len(widths) - 1)))
    lines = []
    for first, *numbers in cells:
        name = first.copy()
        name.truncate(widths[0], overflow="ellipsis", pad=True)
        line = name
        for number, size in zip(numbers, widths[1:], strict=False):
            line.append(" " * (GAP + size - number.cell_len))
            line.append_text(number)
        lines.append(_cut(line, width))
    return lines


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


def _count(count: int, *, style: str = "") -> Text:
    return Text(f"{count:,}", style=style) if count else Text("·", style="dim")


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
