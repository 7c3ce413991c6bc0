"""How a statement of Rota's .sql files is written for each library. Pure text, cached per statement.

The files number their parameters as PostgreSQL does ($1, $2), which asyncpg takes as it is; psycopg, psycopg2 and
Django name them (%(p1)s) and read every % as a mark of theirs, also inside quotes. Comments are dropped, because those
of the files speak of $1 too.

A caller's asyncpg connection may have its own codec for jsonb, most often `json.dumps`, which would store our JSON
text as one JSON string. So JSON always travels as text, and PostgreSQL parses it.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

STATEMENTS_MAX: Final = 64
"""Statements kept in each style: a few for every schema that one program uses."""

_TOKEN: Final = re.compile(
    r"""
      (?P<comment> --[^\n]* | /\*.*?\*/ )
    | (?P<quoted> '(?:[^']|'')*' | "(?:[^"]|"")*" )
    | (?P<json> CAST\( \$(?P<json_number>\d+) \s AS \s jsonb\) )
    | \$ (?P<number>\d+)
    | (?P<percent> % )
    """,
    re.VERBOSE | re.DOTALL,
)


@lru_cache(maxsize=STATEMENTS_MAX)
def numbered(text: str) -> str:
    """The statement with $1, $2 …, for asyncpg and for psycopg's raw cursors; JSON goes as text."""
    return _TOKEN.sub(lambda token: _written(token, "${}", "%"), text).strip()


@lru_cache(maxsize=STATEMENTS_MAX)
def named(text: str) -> str:
    """The statement with %(p1)s, %(p2)s …, for psycopg, psycopg2 and Django; any other % is doubled."""
    return _TOKEN.sub(lambda token: _written(token, "%(p{})s", "%%"), text).strip()


def by_name(args: Sequence[Any]) -> dict[str, Any]:
    """The parameters for `named`: p1, p2 …"""
    return {f"p{number}": _of_one_type(value) for number, value in enumerate(args, 1)}


def _written(token: re.Match[str], mark: str, percent: str) -> str:
    if token["comment"]:
        return " "  # a comment parts two words as a space does
    if token["quoted"]:
        return token["quoted"].replace("%", percent)
    if token["percent"]:
        return percent
    if token["json"]:
        return f"CAST(CAST({mark.format(token['json_number'])} AS text) AS jsonb)"
    return mark.format(token["number"])


def _of_one_type(value: Any) -> Any:
    """A list of seconds may hold 5 beside 0.5, and psycopg refuses a list that holds both int and float."""
    if isinstance(value, list) and {int, float} <= set(map(type, value)):
        return [None if item is None else float(item) for item in value]
    return value
