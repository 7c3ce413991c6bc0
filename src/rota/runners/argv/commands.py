"""Commands that `sendcmd` and `asendcmd` give to filters while a graph runs: read as they read them, and written anew.

Most set an option of a filter to another value, by its name. One that names a file is not set by such a command, but
by drawtext's `reinit`, which takes options of its own: there a file is judged like any other. A file of commands is
put in the place of its name.
"""

import re
from collections.abc import Callable

from rota.errors import ArgvNotAllowed
from rota.runners.argv.graph import Option, parse_options
from rota.runners.argv.tokens import Cursor, escape, take

_SPACES = " \f\t\n\r"
_DELIMITERS = _SPACES + ",;"
_FLAGS = re.compile(r"\[(?:enter|leave|expr)(?:[+|](?:enter|leave|expr))*\]")
_INTERVAL = re.compile(r"[\d:.]+(?:-[\d:.]+)?", re.ASCII)
_COMMAND = re.compile(r"-?\w+", re.ASCII)
_TARGET = re.compile(r"(?:Parsed_(?P<parsed>\w+)_\d+|(?P<plain>\w+))(?:@[\w.-]*)?", re.ASCII)

JudgeOptions = Callable[[str, str, tuple[Option, ...]], tuple[Option, ...]]
"""Judges the options of a filter: where they stand, its name, the options; raises ArgvNotAllowed."""

Refused = Callable[[str], frozenset[str]]
"""By a filter's name, or a name that nobody knows: the options that no command sets."""


def compile_commands(where: str, text: str, *, refused: Refused, judge: JudgeOptions) -> str:
    """Judge a list of commands and write it anew.

    Args:
        where: Where it stands, for a message.
        text: The list, such as `1.5-2 [enter] hue s 0; 3 drawtext@t reinit text=end`.
        refused: The options that no command sets.
        judge: Judges what `reinit` gives to a filter.

    Returns:
        The list, without comments.

    Raises:
        ArgvNotAllowed: It does not parse, or a command is not allowed.
    """
    cursor = Cursor(text)
    intervals: list[str] = []
    while _skip_comments(cursor):
        interval = take(cursor, _DELIMITERS)
        if not _INTERVAL.fullmatch(interval):
            raise ArgvNotAllowed(where, f"{interval[:40]!r} is no time of a command")
        commands: list[str] = []
        while _skip(cursor) and cursor.next != ";":
            commands.append(_command(where, cursor, refused, judge))
            if _skip(cursor) and cursor.next not in ",;":
                raise ArgvNotAllowed(where, "a command has a target, a name and one argument: quote one with blanks")
            if cursor.next == ",":
                cursor.at += 1
        cursor.at += 1
        intervals.append(f"{interval} {','.join(commands)}")
    return ";".join(intervals)


def _skip(cursor: Cursor) -> str:
    while cursor.next and cursor.next in _SPACES:
        cursor.at += 1
    return cursor.next


def _skip_comments(cursor: Cursor) -> str:
    while _skip(cursor) == "#":
        end = cursor.text.find("\n", cursor.at)
        cursor.at = len(cursor.text) if end < 0 else end + 1
    return cursor.next


def _command(where: str, cursor: Cursor, refused: Refused, judge: JudgeOptions) -> str:
    flags = _FLAGS.match(cursor.text, cursor.at)
    if flags:
        cursor.at = flags.end()
    target, command, argument = (_skip(cursor) and take(cursor, _DELIMITERS) for _ in range(3))
    found = _TARGET.fullmatch(target)
    if not found or not _COMMAND.fullmatch(command):
        raise ArgvNotAllowed(where, f"the command {target[:40]!r} {command[:40]!r} cannot be read")
    name = found["parsed"] or found["plain"]
    if command == "reinit":
        if name != "drawtext":
            raise ArgvNotAllowed(where, "the command reinit is for drawtext, by its name")
        argument = ":".join(option.written for option in judge(where, name, parse_options(argument)))
    elif command in refused(name):
        raise ArgvNotAllowed(where, f"the command {command[:40]!r} is not allowed")
    before = f"{flags[0]} " if flags else ""
    return f"{before}{target} {command} {escape(argument, _DELIMITERS)}"
