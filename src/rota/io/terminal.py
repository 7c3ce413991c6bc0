"""What a terminal shows: tables that fit it, times a person can read, colour only where there is a terminal."""

import json
import os
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rota.durations import measured
from rota.io.visible import visible

STATE_STYLES = {
    "queued": "cyan",
    "leased": "bold blue",
    "done": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "expired": "magenta",
}

GAP = "  "
WIDTH_MIN = 12
"""No column is cut to less than this. The first digits of an id tell one job from the others."""
AGE_MAX_S = 100 * 365 * 86_400.0
WIDE = 100_000
"""Where no terminal limits the width, nothing is cut: the lines go to a file or to another program."""


def _open_what_is_closed() -> None:
    """Who starts a program with `>&-` wants nothing from there. Left closed, its number would be given to the next
    file or socket, which all that is written there would go into."""
    for number, mode in enumerate("rww"):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one: those below it are open.
            nothing = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)
            # What it starts is not to miss it either.
            os.set_inheritable(nothing, True)
            stream = os.fdopen(nothing, mode, encoding="utf-8")
            setattr(sys, ("stdin", "stdout", "stderr")[number], stream)


_open_what_is_closed()


class _Out(Console):
    def on_broken_pipe(self) -> None:
        has_enough()


out = _Out(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else WIDE)


def has_enough() -> NoReturn:
    """Whoever reads the output (`| head`) has enough of it: ends the program, and well."""
    discard()
    sys.exit(0)


def discard() -> None:
    """Throws away what was not written yet, and what is to come: Python would write it when the program ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write(text: str) -> None:
    """Text on standard output, as it is."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        has_enough()


def fail(message: str, *, status: int) -> NoReturn:
    """Says on standard error what went wrong, and ends the program."""
    Console(stderr=True, highlight=False).print(Text.assemble(("rota: ", "bold red"), visible(message)), soft_wrap=True)
    sys.exit(status)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str | Text]], *, right: Sequence[str] = ()) -> None:
    """A plain table: every column as wide as its content, and the widest ones cut where the terminal ends.

    A terminal that is too narrow for that gets each row as facts, whole.
    """
    cells = [[cell if isinstance(cell, Text) else plain(cell) for cell in row] for row in rows]
    widths = [max([len(column), *(row[index].cell_len for row in cells)]) for index, column in enumerate(columns)]
    room = out.width - len(GAP) * (len(widths) - 1)
    widths[-1] = min(widths[-1], max(WIDTH_MIN, room - sum(widths[:-1])))
    while sum(widths) > room and max(widths) > WIDTH_MIN:
        widest = widths.index(max(widths))
        widths[widest] = max(WIDTH_MIN, widths[widest] - (sum(widths) - room))
    if sum(widths) > room and cells:
        for number, row in enumerate(cells):
            if number:
                out.print()
            print_facts([(column, cell) for column, cell in zip(columns, row, strict=True) if cell])
        return
    lines = [[Text(column, style="bold") for column in columns], *cells]
    for line in lines:
        shown = []
        for column, cell, width in zip(columns, line, widths, strict=True):
            cell.truncate(width, overflow="ellipsis")
            space = " " * (width - cell.cell_len)
            shown.append(Text.assemble(space, cell) if column in right else Text.assemble(cell, space))
        joined = Text(GAP).join(shown)
        joined.rstrip()
        out.print(joined, no_wrap=True, overflow="ignore", crop=False)


def print_facts(facts: Sequence[tuple[str, str | Text | None]]) -> None:
    """Names and values, one pair a line; long values go on below themselves. Pairs without a value are left out."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False, show_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in facts:
        if value is not None:
            made.add_row(name, value if isinstance(value, Text) else plain(value))
    out.print(made)


def print_hanging(head: Text, text: str | Text, *, indent: int) -> None:
    """A line that goes on below its own text, `indent` columns in, where the terminal ends."""
    made = Table(box=None, pad_edge=False, padding=0, show_header=False, show_edge=False)
    made.add_column(width=indent, no_wrap=True)
    made.add_column(overflow="fold")
    made.add_row(head, text if isinstance(text, Text) else plain(text))
    out.print(made)


def state(value: str) -> Text:
    """A state in its colour."""
    return Text(value, style=STATE_STYLES.get(value, ""))


def plain(text: str | None) -> Text:
    """Text from a job as one line, with what would drive a terminal made visible."""
    return Text(visible(" ".join((text or "").split())))


def between(then: datetime | None, now: datetime) -> str:
    """How long ago, or in how long."""
    if then is None:
        return ""
    seconds = (now - then).total_seconds()
    return f"{measured(seconds)} ago" if seconds >= 0 else f"in {measured(-seconds)}"


def print_json(value: Any) -> None:
    """One JSON document on standard output; what would drive a terminal is escaped."""
    everywhere = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    text = json.dumps(value, ensure_ascii=everywhere, indent=2, default=str)
    # Outside of its strings, JSON has no such characters but line breaks.
    write("".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text) + "\n")


def parse_age(text: str) -> float:
    """Reads an age: `90`, `90s`, `15m`, `2h`, `3d`.

    Raises: ValueError that says what is understood.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?", text.strip())
    if not match:
        raise ValueError(f"{text!r} is no age: give seconds, or a number with s, m, h or d, such as 15m")
    seconds = float(match[1]) * {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}[match[2] or "s"]
    if seconds > AGE_MAX_S:
        raise ValueError(f"{text!r} is more than a hundred years")
    return seconds
