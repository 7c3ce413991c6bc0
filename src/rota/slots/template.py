"""Command lines with typed holes: what a caller may say to a service, and the argv that becomes of it.

A command is a list of words; `{name}` in a word is a hole, `{scratch}` the command's own folder, `{*}` as a whole word
the list that the caller gave. Nothing is ever given to a shell. A value that does not fit its declared type is refused,
so that a caller can name no option and no file that the service did not declare. Pure.
"""

import posixpath
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rota.errors import ArgumentsError

REST: Final = "*"
"""The name of the arguments that are handed on as a list."""
SCRATCH: Final = "scratch"
"""The hole that stands for the folder of the command."""
ARGUMENT_BYTES_MAX: Final = 32 * 1024
"""One argument or variable; Linux takes 128 KiB."""
ARGUMENTS_BYTES_MAX: Final = 96 * 1024
"""All arguments, or all variables, of one command; well under what the smallest systems take."""
ARGUMENTS_MAX: Final = 1000
"""Arguments of one command."""
TEXT_LENGTH_MAX: Final = 1000
"""Characters of a `text` or `path` whose declaration names no other bound."""
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_BOUNDS: Final = re.compile(r"(-?\d+(?:\.\d+)?)?\.\.(-?\d+(?:\.\d+)?)?")

KINDS: Final = "int, number, word, choice, text, path, argument"

Kind = Literal["int", "number", "word", "choice", "text", "path", "argument"]
Value = str | int | float | bool
Arguments = Mapping[str, Value] | Sequence[Value]


@dataclass(frozen=True, slots=True)
class ArgumentType:
    """What one argument may be.

    Attributes:
        kind: `int` and `number` with bounds; `word`, letters, digits and `_.+-`, not beginning with a dash or a dot;
            `choice` of listed words; `text` without slashes and control characters; `path`, a relative path below
            `folder`; `argument`, anything, also options and paths.
        low, high: bounds of a number; `high` also bounds the characters of a text.
        choices: what a `choice` may be.
        folder: where a `path` lies.
        default: used where the caller gives none; None: the caller has to give one.
    """

    kind: Kind
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    folder: str | None = None
    default: str | None = None

    def text(self, value: Value) -> str:
        """The value as it stands in the command line.

        Raises: ArgumentsError that says what is allowed.
        """
        text = _as_text(value)
        if "\0" in text or len(text.encode("utf-8", "replace")) > ARGUMENT_BYTES_MAX:
            raise ArgumentsError(f"give text without NUL of at most {ARGUMENT_BYTES_MAX:,} bytes")
        match self.kind:
            case "int" | "number":
                return self._number(text)
            case "word":
                return _matching(
                    text, _WORD.fullmatch(text), "give letters, digits and _.+-, not beginning with a dash"
                )
            case "choice":
                return _matching(text, text in self.choices, f"give one of {', '.join(self.choices)}")
            case "text":
                return self._free(text)
            case "path":
                return self._path(text)
            case "argument":
                return text

    def _number(self, text: str) -> str:
        pattern = r"[+-]?\d{1,18}" if self.kind == "int" else r"[+-]?(\d{1,18}(\.\d{0,18})?|\.\d{1,18})"
        fits = re.fullmatch(pattern, text, re.ASCII) is not None
        if fits and self.low is not None:
            fits = float(text) >= self.low
        if fits and self.high is not None:
            fits = float(text) <= self.high
        what = "a whole number" if self.kind == "int" else "a number"
        low, high = ("" if bound is None else f"{bound:.15g}" for bound in (self.low, self.high))
        return _matching(text, fits, f"give {what}" + (f" in {low}..{high}" if low or high else ""))

    def _free(self, text: str) -> str:
        length_max = int(self.high) if self.high is not None else TEXT_LENGTH_MAX
        fits = len(text) <= length_max and "/" not in text and not _CONTROL.search(text)
        return _matching(text, fits, f"give at most {length_max:,} characters without slashes and control characters")

    def _path(self, text: str) -> str:
        assert self.folder is not None, "a path type has its folder"
        fits = (
            0 < len(text) <= TEXT_LENGTH_MAX
            and not text.startswith("/")
            and ".." not in text.split("/")
            and not _CONTROL.search(text)
        )
        _matching(text, fits, f"give a relative path below {self.folder}, without ..")
        return posixpath.normpath(posixpath.join(self.folder, text))


def argument_type(declared: object) -> ArgumentType:
    """Reads a declaration such as `int 144..2160 = 720`, `choice fast|slow`, `text ..200` or `path /srv/media`.

    Raises: ValueError with what is wrong, for a person.
    """
    if not isinstance(declared, str):
        raise ValueError("give a text such as 'int 1..10'")
    kind, _, rest = declared.strip().partition(" ")
    rest, equals, default = rest.partition("=") if kind != "path" else (rest, "", "")
    detail = rest.strip()
    found = _of_kind(kind, detail)
    if not equals:
        return found
    try:
        checked = found.text(default.strip())
    except ArgumentsError as error:
        raise ValueError(f"its default does not fit: {error}") from None
    return ArgumentType(found.kind, found.low, found.high, found.choices, found.folder, checked)


def _of_kind(kind: str, detail: str) -> ArgumentType:
    match kind:
        case "int" | "number" | "text":
            bounds = _BOUNDS.fullmatch(detail or "..")
            if bounds is None:
                raise ValueError(f"'{detail}' is no range: write it as '{kind} 1..10', '{kind} ..10' or '{kind}'")
            low, high = (float(bound) if bound else None for bound in bounds.groups())
            if low is not None and high is not None and low > high:
                raise ValueError(f"the range '{detail}' is empty")
            return ArgumentType(kind, low, high)
        case "choice":
            choices = tuple(choice.strip() for choice in detail.split("|"))
            if not all(choices):
                raise ValueError("list what may be chosen, as 'choice fast|slow'")
            return ArgumentType(kind, choices=choices)
        case "path":
            if not detail.startswith("/"):
                raise ValueError("name the folder of the files by its absolute path, as 'path /srv/media'")
            return ArgumentType(kind, folder=posixpath.normpath(detail))
        case "word" | "argument":
            if detail:
                raise ValueError(f"'{kind}' takes nothing after it, so '{detail}' is wrong")
            return ArgumentType("word" if kind == "word" else "argument")
        case _:
            raise ValueError(f"'{kind}' is no type of argument: use one of {KINDS}")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word: text as it stands, then perhaps a hole."""

    literal: str
    hole: str | None = None


Word = tuple[Piece, ...]


def parse_word(text: object) -> Word:
    """Reads one word of a command; `{{` and `}}` stand for braces.

    Raises: ValueError with what is wrong, for a person.
    """
    if not isinstance(text, str) or "\0" in text:
        raise ValueError("give text without NUL")
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"'{text}' cannot be read ({error}): write {{{{ and }}}} for braces") from None
    for _, hole, detail, conversion in parts:
        if hole is not None and (detail or conversion or not (hole == REST or NAME.fullmatch(hole))):
            raise ValueError(f"'{text}' has a hole that is no name: write {{name}}, or {{{{ and }}}} for braces")
    return tuple(Piece(literal, hole) for literal, hole, _, _ in parts) or (Piece(""),)


@dataclass(frozen=True, slots=True)
class Filled:
    """A command line. `paths` are the files that the caller named, each with the folder that it has to be in."""

    argv: tuple[str, ...]
    paths: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Template:
    """The command of a service and the types of its holes.

    Attributes:
        words: the program and its arguments.
        types: what the caller may give, by name, in the order in which a list of arguments fills them.
    """

    words: tuple[Word, ...]
    types: Mapping[str, ArgumentType]

    def fill(self, given: Arguments, *, scratch: str) -> Filled:
        """The command line for these arguments.

        Args:
            given: by name, or a list: handed on as it is where the command has `{*}`, else read as `--name value`,
                `--name=value` and, for the rest, in the order in which the service declares them.
            scratch: the folder of the command.

        Raises: ArgumentsError that names the argument.
        """
        named, rest = self._sort(given)
        values = self._values(named)
        values[SCRATCH] = scratch
        argv: list[str] = []
        options_ended = False
        for word in self.words:
            if word == (Piece("", REST),):
                argv.extend(self._checked(f"argument {number}", REST, value) for number, value in enumerate(rest, 1))
                continue
            text = fill_word(word, values)
            first = word[0]
            if not options_ended and first.literal == "" and first.hole in self.types and text.startswith("-"):
                self._refuse_option(first.hole, text)
            options_ended = options_ended or text == "--"
            argv.append(text)
        if sum(len(text.encode()) + 1 for text in argv) > ARGUMENTS_BYTES_MAX:
            raise ArgumentsError(f"The arguments are over {ARGUMENTS_BYTES_MAX:,} bytes: send what is long by stdin.")
        return Filled(tuple(argv), self._paths(values, argv if REST in self.types else ()))

    def _paths(self, values: Mapping[str, str], rest: Sequence[str]) -> tuple[tuple[str, str], ...]:
        found = []
        for name, declared in self.types.items():
            if declared.folder is not None:
                inside = declared.folder.rstrip("/") + "/"
                named = [text for text in rest if text.startswith(inside)] if name == REST else [values[name]]
                found += [(text, declared.folder) for text in named]
        return tuple(found)

    def _sort(self, given: Arguments) -> tuple[dict[str, Value], list[Value]]:
        if isinstance(given, Mapping):
            return dict(given), []
        if len(given) > ARGUMENTS_MAX:
            raise ArgumentsError(f"There are {len(given):,} arguments: at most {ARGUMENTS_MAX:,} are taken.")
        if REST in self.types:
            return {}, list(given)
        return _named(list(given), list(self.types)), []

    def _values(self, named: Mapping[str, Value]) -> dict[str, str]:
        for name in named:
            if name not in self.types or name == REST:
                known = ", ".join(self.types) or "it takes none"
                raise ArgumentsError(f"The service has no argument '{name[:80]}': {known}.")
        values: dict[str, str] = {}
        for name, declared in self.types.items():
            if name in named:
                values[name] = self._checked(f"argument '{name}'", name, named[name])
            elif declared.default is not None:
                values[name] = declared.default
            elif name != REST:
                raise ArgumentsError(f"The argument '{name}' is missing: the service has no default for it.")
        return values

    def _checked(self, place: str, name: str, value: Value) -> str:
        try:
            return self.types[name].text(value)
        except ArgumentsError as error:
            raise ArgumentsError(f"The {place} does not fit: {error}.") from None

    def _refuse_option(self, name: str | None, text: str) -> None:
        # A text that begins with a dash would be read as an option that the service did not offer.
        if name is not None and self.types[name].kind == "text":
            raise ArgumentsError(f"The argument '{name}' does not fit: '{text[:20]}' begins with a dash.")


def fill_word(word: Word, values: Mapping[str, str]) -> str:
    """One word with its holes filled."""
    return "".join(piece.literal + (values[piece.hole] if piece.hole is not None else "") for piece in word)


def _named(given: list[Value], names: list[str]) -> dict[str, Value]:
    named: dict[str, Value] = {}
    loose: list[Value] = []
    words = iter(given)
    for word in words:
        option = (
            re.fullmatch(r"--([A-Za-z_][A-Za-z0-9_-]*)(?:=(.*))?", word, re.DOTALL) if isinstance(word, str) else None
        )
        if option is None:
            loose.append(word)
            continue
        name = option[1].replace("-", "_")
        value = option[2] if option[2] is not None else next(words, None)
        if value is None:
            raise ArgumentsError(f"The argument --{option[1][:80]} has no value.")
        named[name] = value
    free = [name for name in names if name not in named]
    if len(loose) > len(free):
        takes = ", ".join(names) or "none"
        raise ArgumentsError(f"There are {len(given)} arguments, more than the service takes ({takes}).")
    return named | dict(zip(free, loose, strict=False))


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ArgumentsError("give text or a number")


def _matching(text: str, fits: object, allowed: str) -> str:
    if not fits:
        raise ArgumentsError(f"{allowed}, not {text[:40]!r}")
    return text
