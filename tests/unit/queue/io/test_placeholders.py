"""Statements in each library's words: parameters, percent signs, quotes, comments, JSON."""

from datetime import UTC, datetime
from typing import Any

import pytest

from rota.io.postgres import statement
from rota.queue.io.placeholders import by_name, named, numbered


@pytest.mark.parametrize(
    ("text", "as_numbered", "as_named"),
    [
        ("SELECT CAST($1 AS text)", "SELECT CAST($1 AS text)", "SELECT CAST(%(p1)s AS text)"),
        ("SELECT $2, $1, $2, $10", "SELECT $2, $1, $2, $10", "SELECT %(p2)s, %(p1)s, %(p2)s, %(p10)s"),
        ("SELECT 7 % $1", "SELECT 7 % $1", "SELECT 7 %% %(p1)s"),
        ("SELECT 'a%', $1", "SELECT 'a%', $1", "SELECT 'a%%', %(p1)s"),
        ("SELECT '$1 it''s $2', $1", "SELECT '$1 it''s $2', $1", "SELECT '$1 it''s $2', %(p1)s"),
        ('SELECT "$1 ""% " FROM "a:b"', 'SELECT "$1 ""% " FROM "a:b"', 'SELECT "$1 ""%% " FROM "a:b"'),
        ("SELECT '--', $1 -- with $2 and 100%", "SELECT '--', $1", "SELECT '--', %(p1)s"),
        ("-- the '$1 head\nSELECT $1", "SELECT $1", "SELECT %(p1)s"),
        ("SELECT/* $2 '%\n*/$1", "SELECT $1", "SELECT %(p1)s"),
        ("SELECT $1::text, x:y", "SELECT $1::text, x:y", "SELECT %(p1)s::text, x:y"),
        (
            "f(CAST($2 AS jsonb), CAST($3 AS jsonb[]))",
            "f(CAST(CAST($2 AS text) AS jsonb), CAST($3 AS jsonb[]))",
            "f(CAST(CAST(%(p2)s AS text) AS jsonb), CAST(%(p3)s AS jsonb[]))",
        ),
    ],
)
def test_statements(text: str, as_numbered: str, as_named: str) -> None:
    assert numbered(text) == as_numbered
    assert named(text) == as_named


@pytest.mark.parametrize(("name", "count"), [("enqueue.sql", 14), ("enqueue_many.sql", 14), ("wake.sql", 2)])
def test_the_statements_of_the_files(name: str, count: int) -> None:
    text = statement("rota.queue.io.sql", name, "rota")
    assert numbered(text).startswith("SELECT")
    assert "--" not in named(text)
    assert named(text) % {f"p{number}": f"${number}" for number in range(1, count + 1)} % () == numbered(text)


def test_parameters_by_name() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    args: list[Any] = ["a", None, ["x", None], now]
    assert by_name(args) == {"p1": "a", "p2": None, "p3": ["x", None], "p4": now}


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ([5, 0.5, None], [5.0, 0.5, None]),
        ([5, None], [5, None]),
        ([0.5, 1.5], [0.5, 1.5]),
        ([True, 0.5], [True, 0.5]),
        ([], []),
    ],
)
def test_seconds_in_one_list_are_of_one_type(value: list[Any], sent: list[Any]) -> None:
    (found,) = by_name([value]).values()
    assert found == sent
    assert list(map(type, found)) == list(map(type, sent))


def test_statements_are_written_once() -> None:
    assert named("SELECT $1 -- once") is named("SELECT $1 -- once")
    assert numbered("SELECT $1 -- once") is numbered("SELECT $1 -- once")
