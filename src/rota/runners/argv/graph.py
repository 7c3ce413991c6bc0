"""Filtergraphs: read as libavfilter reads them, and written again in one spelling.

A graph takes quotes and backslashes off once, each filter's arguments a second time; names of filters and of
options may be hidden in both (`mo\\vie`, `te\\xtfile`), so nothing is judged before both are off. What is written
has every special character escaped and nothing quoted: it reads back as the same graph, which makes compiling
idempotent.
"""

import re
from dataclasses import dataclass

from rota.errors import ArgvNotAllowed
from rota.runners.argv.tokens import WHITESPACE, Cursor, escape, take

GRAPH_CHARACTERS_MAX = 128 * 1024
FILTERS_MAX = 2000

_SCALER_FLAGS = re.compile(r"sws_flags=([\w+:=.\-]*);")
_LABEL = re.compile(r"[^\[\]\\',;=\x00-\x1f\x7f]+")
_KEY = re.compile(rf"[{WHITESPACE}]*([A-Za-z0-9_./-]*)[{WHITESPACE}]*=")
_NAME = re.compile(r"\w+", re.ASCII)
_INSTANCE = re.compile(r"[\w.-]*")


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a filter; `key` is None where it is given by its place."""

    key: str | None
    value: str

    @property
    def written(self) -> str:
        """Its spelling, from which one level of quotes and backslashes comes off."""
        # A value by its place must not look like `key=value`: its equals signs are escaped too.
        # An empty one at the end would be nothing without its quotes.
        if self.key is None:
            return escape(self.value, ":=") or "''"
        return f"{self.key}={escape(self.value, ':')}"


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter of a graph, with the labels before and after it."""

    inputs: tuple[str, ...]
    name: str
    instance: str | None
    options: tuple[Option, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """Chains of filters."""

    scaler_flags: str | None
    chains: tuple[tuple[Filter, ...], ...]


def parse(text: str, *, argument: str) -> Graph:
    """Read a graph.

    Args:
        text: The graph as it stands in the argv.
        argument: Where it stands, for a message.

    Returns:
        The graph, with all quotes and backslashes off.

    Raises:
        ArgvNotAllowed: It does not parse.
    """
    if len(text) > GRAPH_CHARACTERS_MAX:
        raise ArgvNotAllowed(argument, f"the graph is longer than {GRAPH_CHARACTERS_MAX} characters")
    cursor = Cursor(text)
    cursor.skip_blanks()
    flags = _SCALER_FLAGS.match(text, cursor.at)
    if flags:
        cursor.at = flags.end()
    chains: list[tuple[Filter, ...]] = []
    chain: list[Filter] = []
    count = 0
    while True:
        chain.append(_filter(cursor, argument))
        count += 1
        if count > FILTERS_MAX:
            raise ArgvNotAllowed(argument, f"the graph has more than {FILTERS_MAX} filters")
        mark = cursor.next
        cursor.at += 1
        if mark in {"", ";"}:
            chains.append(tuple(chain))
            chain = []
        if mark == "":
            return Graph(scaler_flags=flags[1] if flags else None, chains=tuple(chains))
        if mark not in {",", ";"}:
            raise ArgvNotAllowed(argument, f"the graph does not parse at {text[cursor.at - 1 : cursor.at + 20]!r}")
        cursor.skip_blanks()
        if mark == ";" and not cursor.next:
            return Graph(scaler_flags=flags[1] if flags else None, chains=tuple(chains))


def emit(graph: Graph) -> str:
    """Write a graph.

    Args:
        graph: The graph.

    Returns:
        Its one spelling: `parse` gives the same graph back.
    """
    head = "" if graph.scaler_flags is None else f"sws_flags={graph.scaler_flags};"
    return head + ";".join(",".join(_emit_filter(each) for each in chain) for chain in graph.chains)


def parse_options(text: str) -> tuple[Option, ...]:
    """Read the arguments of a filter, from which the graph's own escapes are off."""
    cursor = Cursor(text)
    found: list[Option] = []
    while cursor.next:
        key = _KEY.match(text, cursor.at)
        if key:
            cursor.at = key.end()
        found.append(Option(key[1] if key else None, take(cursor, ":")))
        cursor.at += 1
    return tuple(found)


def _filter(cursor: Cursor, argument: str) -> Filter:
    inputs = _labels(cursor, argument)
    name, at, instance = take(cursor, "=,;[").partition("@")
    if not _NAME.fullmatch(name):
        raise ArgvNotAllowed(argument, f"the graph holds a filter without a name that can be read: {name[:40]!r}")
    if not _INSTANCE.fullmatch(instance):
        raise ArgvNotAllowed(
            argument, f"the graph names an instance {instance!r}: letters, digits, '_', '.' and '-' only"
        )
    options: tuple[Option, ...] = ()
    if cursor.next == "=":
        cursor.at += 1
        options = parse_options(take(cursor, "[],;"))
    outputs = _labels(cursor, argument)
    return Filter(inputs=inputs, name=name, instance=instance if at else None, options=options, outputs=outputs)


def _labels(cursor: Cursor, argument: str) -> tuple[str, ...]:
    found: list[str] = []
    cursor.skip_blanks()
    while cursor.next == "[":
        cursor.at += 1
        label = take(cursor, "]")
        if cursor.next != "]" or not _LABEL.fullmatch(label) or label != label.strip():
            raise ArgvNotAllowed(argument, f"the graph holds a label that cannot be read: {label[:40]!r}")
        cursor.at += 1
        cursor.skip_blanks()
        found.append(label)
    return tuple(found)


def _emit_filter(each: Filter) -> str:
    name = each.name if each.instance is None else f"{each.name}@{each.instance}"
    options = ":".join(option.written for option in each.options)
    inside = "=" + escape(options, "[],;\n") if each.options else ""
    labels = ("".join(f"[{label}]" for label in side) for side in (each.inputs, each.outputs))
    before, after = labels
    return before + name + inside + after
