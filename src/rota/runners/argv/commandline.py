"""The command line of ffmpeg, taken apart as ffmpeg takes it apart: options, inputs, outputs.

ffmpeg reads left to right. An option that takes a value takes the next element, whatever it looks like; `-i` ends an
input, a bare word ends an output, and what stands before it belongs to it. Nothing is judged here but the shape.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rota.errors import ArgvNotAllowed
from rota.runners.argv.options import REFUSED, RULES, OptionRule

ARGUMENTS_MAX = 5000
ARGUMENT_CHARACTERS_MAX = 256 * 1024
CHARACTERS_MAX = 1024 * 1024
"""Of a whole command line: no system starts a program with many more."""

_SPECIFIER = re.compile(r"[\w.:#+@ /-]*")
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*")


@dataclass(frozen=True, slots=True)
class Given:
    """An option as it was given."""

    name: str
    specifier: str
    value: str | None
    """None for a switch."""
    negated: bool
    rule: OptionRule

    @property
    def argument(self) -> str:
        """How a message names it."""
        return "-" + ("no" if self.negated else "") + self.name + (f":{self.specifier}" if self.specifier else "")


@dataclass(frozen=True, slots=True)
class File:
    """An input or an output, with the options before it."""

    name: str
    options: tuple[Given, ...]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A whole command line."""

    everywhere: tuple[Given, ...]
    inputs: tuple[File, ...]
    outputs: tuple[File, ...]


def check_elements(argv: Sequence[str]) -> None:
    """Refuse what no program could be given, or what is too long to be judged.

    Raises:
        ArgvNotAllowed: An element holds a NUL or is no Unicode, or there is too much of it.
    """
    if len(argv) > ARGUMENTS_MAX:
        raise ArgvNotAllowed(f"{len(argv)} arguments", f"there are more than {ARGUMENTS_MAX}")
    if sum(map(len, argv)) > CHARACTERS_MAX:
        raise ArgvNotAllowed("the command line", f"it is longer than {CHARACTERS_MAX:,} characters")
    for index, element in enumerate(argv):
        where = f"argument {index + 1}"
        if len(element) > ARGUMENT_CHARACTERS_MAX:
            raise ArgvNotAllowed(where, f"it is longer than {ARGUMENT_CHARACTERS_MAX} characters")
        if "\0" in element:
            raise ArgvNotAllowed(where, "it holds a NUL")
        try:
            element.encode()
        except UnicodeEncodeError:
            raise ArgvNotAllowed(where, "it is no Unicode text") from None


def split_option(element: str) -> tuple[str, str]:
    """Take `-name:specifier` apart.

    Args:
        element: An element that begins with `-`.

    Returns:
        The name and the specifier; an empty one if there is none.

    Raises:
        ArgvNotAllowed: No option of ffmpeg is written like this.
    """
    if element == "--":
        raise ArgvNotAllowed("'--'", "write a name that begins with '-' as './-name'")
    if element.startswith("-/"):
        raise ArgvNotAllowed(repr(element[:60]), "options whose value is read from a file are not allowed")
    # An empty specifier (`-codec: copy`) means all streams, as none does.
    name, _, specifier = element[1:].partition(":")
    if not _NAME.fullmatch(name) or not _SPECIFIER.fullmatch(specifier):
        raise ArgvNotAllowed(repr(element[:60]), "this is no option that is known here")
    return name, specifier


def find_rule(element: str) -> tuple[str, str, OptionRule, bool]:
    """Find the rule of an option.

    Args:
        element: An element that begins with `-`.

    Returns:
        Name, specifier, rule, and whether it is the `no` form of a switch.

    Raises:
        ArgvNotAllowed: The option is unknown or refused.
    """
    name, specifier = split_option(element)
    rule = RULES.get(name)
    negated = False
    if rule is None and name.startswith("no"):
        switch = RULES.get(name[2:])
        if switch is not None and switch.value == "bool":
            name, rule, negated = name[2:], switch, True
    if rule is None:
        raise ArgvNotAllowed(f"-{name[:60]}", REFUSED.get(name, "this option is not allowed"))
    if specifier and not rule.specifier:
        raise ArgvNotAllowed(f"-{name}:{specifier[:40]}", "this option takes no stream specifier here")
    return name, specifier, rule, negated


def parse(argv: Sequence[str]) -> CommandLine:
    """Take an ffmpeg command line apart.

    Args:
        argv: The elements, without the program.

    Returns:
        Its options, inputs and outputs, in order.

    Raises:
        ArgvNotAllowed: It holds an unknown option, or one in a place where it means nothing.
    """
    check_elements(argv)
    everywhere: list[Given] = []
    pending: list[Given] = []
    inputs: list[File] = []
    outputs: list[File] = []
    at = 0
    while at < len(argv):
        element = argv[at]
        at += 1
        if element == "-i":
            if at >= len(argv):
                raise ArgvNotAllowed("-i", "its value is missing")
            inputs.append(_file(argv[at], pending, side="input"))
            at += 1
        elif not element.startswith("-") or element == "-":
            outputs.append(_file(element, pending, side="output"))
        else:
            name, specifier, rule, negated = find_rule(element)
            value = None
            if rule.value != "bool":
                if at >= len(argv):
                    raise ArgvNotAllowed(element, "its value is missing")
                value = argv[at]
                at += 1
            given = Given(name, specifier, value, negated, rule)
            (everywhere if "global" in rule.places else pending).append(given)
    if pending:
        raise ArgvNotAllowed(pending[0].argument, "no input or output follows it")
    return CommandLine(tuple(everywhere), tuple(inputs), tuple(outputs))


def _file(name: str, pending: list[Given], *, side: str) -> File:
    for given in pending:
        if side not in given.rule.places:
            raise ArgvNotAllowed(given.argument, f"this is no option of an {side}")
    file = File(name, tuple(pending))
    pending.clear()
    return file
