"""What a terminal shows: it fits, a person can read it, and no text from a job drives the terminal."""

import io
import json
import sys
import unicodedata
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rota.io import terminal
from rota.io.terminal import between, parse_age, plain, print_facts, print_json, print_table

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NASTY = "a\x1b[31mred\x07\x9b2J\rb\nc\td\0\u202eevil\u200b <b>&amp; [red]rich[/red] \x7f"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Calls one of the functions, and gives the lines that a terminal of 80 columns gets."""

    def show(call: Callable[..., None], *args: object, width: int = 80, **named: object) -> list[str]:
        file = io.StringIO()
        monkeypatch.setattr(terminal, "out", Console(file=file, width=width, highlight=False))
        call(*args, **named)
        return file.getvalue().splitlines()

    return show


def harmless(text: str) -> bool:
    """Whether a terminal only prints it."""
    return all(unicodedata.category(char)[0] != "C" for char in text)


# --- text from a job ---


def test_text_becomes_one_line_that_drives_nothing() -> None:
    assert str(plain(NASTY)) == (
        "a\\x1b[31mred\\x07\\x9b2J b c d\\x00\\x202eevil\\x200b <b>&amp; [red]rich[/red] \\x7f"
    )
    assert plain(NASTY).spans == [], "it is no markup"
    assert str(plain(None)) == ""


@settings(max_examples=50)
@given(st.text())
def test_no_text_drives_a_terminal(text: str) -> None:
    assert harmless(str(plain(text)))


def test_neither_tables_nor_facts_pass_on_what_drives_a_terminal(shown: Callable[..., list[str]]) -> None:
    for lines in (
        shown(print_table, ("id", "about"), [(NASTY, NASTY), ("x", plain(NASTY))], width=300),
        shown(print_facts, [("error", NASTY), ("payload", json.dumps(NASTY, ensure_ascii=False))], width=300),
    ):
        assert all(map(harmless, lines))
        assert "[red]rich[/red]" in "".join(lines)


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_comes_back_as_it_was_and_drives_nothing(value: object) -> None:
    kept = sys.stdout
    sys.stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n", errors="surrogatepass")
    try:
        print_json(value)
        sys.stdout.seek(0)
        text = sys.stdout.read()
    finally:
        sys.stdout = kept
    assert json.loads(text) == value
    assert text.endswith("\n") and all(map(harmless, text.split("\n")))


def test_json_is_readable_where_it_can_be_and_ascii_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding, expected in (
        ("utf-8", '"größe"\n'),
        ("latin-1", '"gr\\u00f6\\u00dfe"\n'),
        ("ascii", '"gr\\u00f6\\u00dfe"\n'),
    ):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, newline="\n"))
        print_json("größe")
        assert raw.getvalue().decode(encoding) == expected
        monkeypatch.undo()


# --- tables ---


def rows(*cells: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(row) for row in cells]


def test_columns_are_as_wide_as_their_content(shown: Callable[..., list[str]]) -> None:
    lines = shown(print_table, ("id", "kind", "n"), rows(("1", "thumbnail", "5"), ("22", "x", "15")), right=("n",))
    assert lines == ["id  kind        n", "1   thumbnail   5", "22  x          15"]


def test_the_last_column_is_cut_where_the_terminal_ends(shown: Callable[..., list[str]]) -> None:
    lines = shown(print_table, ("id", "about"), rows(("1", "x" * 200)))
    assert lines[1] == "1   " + "x" * 75 + "…"
    assert cell_len(lines[1]) == 80


def test_a_long_column_in_the_middle_gives_way_too(shown: Callable[..., list[str]]) -> None:
    lines = shown(print_table, ("id", "kind", "state", "about"), rows(("1" * 18, "k" * 200, "queued", "a" * 200)))
    assert [cell_len(line) for line in lines] == [len("1" * 18 + "  ") + 38 + 2 + 6 + 2 + 5, 80]
    assert lines[1].endswith("queued  aaaaaaaaaaa…")


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.text(max_size=90) | st.just("漢字かな" * 30), min_size=5, max_size=5), max_size=4),
    st.integers(80, 200),
)
def test_every_table_of_a_few_columns_fits(cells: list[list[str]], width: int) -> None:
    file = io.StringIO()
    kept, terminal.out = terminal.out, Console(file=file, width=width, highlight=False)
    try:
        print_table(("a", "b", "c", "d", "e"), cells, right=("b",))
    finally:
        terminal.out = kept
    lines = file.getvalue().split("\n")
    assert len(lines) == len(cells) + 2, "one line each, and the end of the last"
    assert all(cell_len(line) <= width for line in lines)


@pytest.mark.parametrize("width", [20, 40, 60])
def test_where_not_even_that_fits_each_row_is_told_whole(shown: Callable[..., list[str]], width: int) -> None:
    columns, row = (
        ("id", "kind", "state", "added", "ran", "about"),
        ("1" * 18, "k" * 30, "done", "9 s ago", "", "a b " * 9),
    )
    lines = shown(print_table, columns, rows(row, row), width=width)
    assert all(cell_len(line) <= width for line in lines)
    head, *rest = "\n".join(lines).split("\n\n")
    assert rest == [head], "an empty line stands between two"
    assert "".join(head.split()) == "id" + "1" * 18 + "kind" + "k" * 30 + "statedoneadded9sagoabout" + "ab" * 9


def test_where_no_terminal_ends_nothing_is_cut(shown: Callable[..., list[str]]) -> None:
    assert not sys.stdout.isatty() and terminal.out.width == terminal.WIDE
    lines = shown(print_table, ("id", "about"), rows(("1", "x" * 5000)), width=terminal.WIDE)
    assert lines[1] == "1   " + "x" * 5000


def test_a_table_without_rows_is_its_head(shown: Callable[..., list[str]]) -> None:
    assert shown(print_table, ("id", "about"), []) == ["id  about"]


def test_facts_without_a_value_are_left_out_and_long_ones_go_on_below_themselves(
    shown: Callable[..., list[str]],
) -> None:
    lines = shown(print_facts, [("kind", "build"), ("error", None), ("payload", "x" * 100), ("state", Text("done"))])
    assert [line.rstrip() for line in lines] == [
        "kind     build", "payload  " + "x" * 71, "         " + "x" * 29, "state    done",
    ]  # fmt: skip


# --- times ---


def test_a_time_is_so_long_ago_or_so_far_away() -> None:
    assert between(NOW - timedelta(minutes=5), NOW) == "5 min ago"
    assert between(NOW + timedelta(days=3), NOW) == "in 3 d"
    assert between(NOW, NOW) == "0.0 s ago"
    assert between(None, NOW) == ""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("90s", 90), ("15m", 900), ("15 min", 900), ("2h", 7200), ("3d", 259_200), (" 1.5h ", 5400),
        ("0", 0), ("36500d", 36_500 * 86_400),
    ],
)  # fmt: skip
def test_ages_are_understood(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "-5", "5w", "5 hours", "1,5h", "1h30m", "nan", "inf", "1e9", "5\n6", ".5h"]
)
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no age: give seconds, or a number with s, m, h or d, such as 15m"):
        parse_age(text)


@pytest.mark.parametrize("text", ["36501d", "9" * 400])
def test_an_age_beyond_all_databases_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is more than a hundred years"):
        parse_age(text)


def test_a_failure_is_said_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        terminal.fail("It did not [red]work[/red]. " + "x" * 200, status=2)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "rota: It did not [red]work[/red]. " + "x" * 200 + "\n")
