"""The live view on terminals of 40 to 120 columns, looked at as lines."""

import pytest
from rich.console import Console

from rota.cli.top import screen
from rota.queue.board import Board, ServerLine, board
from rota.queue.job import State
from rota.queue.watching import EndedCount, JobCount

LONG = "a kind with a name that goes on and on, and on, as far as a kind's name may"
ODD = "bad\x1b[31mkind\nwith lines"
BUSY = board(
    [
        JobCount("film", State.QUEUED, 123_456, due=120_000, oldest_due_s=734),
        JobCount("film", State.LEASED, 8, overdue=1),
        JobCount(LONG, State.QUEUED, 3, due=3, oldest_due_s=100_000),
        JobCount(ODD, State.LEASED, 2),
    ],
    [EndedCount("film", State.DONE, 1_234_567), EndedCount("film", State.FAILED, 3)],
    [
        ServerLine(
            "web-1.internal.example.com:12345:deadbeef", "api, builds", {"film": 4, ODD: 8}, {"film": 4}, False, 3
        ),
        ServerLine("web-2:1:aa", "all", {"film": 4}, {}, True, 50),
    ],
)


def shown(now: Board, *, width: int, lines: int | None = None) -> list[str]:
    """The view as a terminal of this width shows it."""
    console = Console(width=width, highlight=False, markup=False, emoji=False, color_system=None)
    with console.capture() as captured:
        console.print(screen(now, place="postgresql://db.internal.example.com:5432/shop", width=width, lines=lines))
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_none_is_broken(width: int) -> None:
    lines = shown(BUSY, width=width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 3 + 4 + 1 + 3
    assert not any("\x1b" in line for line in lines)


def test_names_give_way_and_numbers_do_not() -> None:
    lines = shown(BUSY, width=80)
    assert lines[1] == "10 running, 120,003 waiting, 2 servers"
    assert lines[2].startswith("nobody takes: a kind with a name")
    assert lines[3].split() == ["kind", "running", "waiting", "later", "oldest", "done/min", "failed/min"]
    assert lines[4].split() == ["film", "8/4", "120,000", "3,456", "12", "min", "1,234,567", "3"]
    assert "a kind with a name that…" in lines[5] and lines[5].split()[-4:] == ["28", "h", "·", "·"]
    assert lines[6].startswith(r"bad\x1b[31mkind with")
    assert lines[9].split()[-6:] == ["api,", "builds", "2", "4/12", "3.0", "s"]
    assert lines[10].split() == ["web-2:1:aa", "stops", "1", "0/4", "50", "s"]
    assert LONG in "\n".join(shown(BUSY, width=160))


def test_a_narrow_terminal_has_fewer_columns_and_no_number_that_is_cut() -> None:
    lines = shown(BUSY, width=40)
    assert lines[3].split() == ["kind", "running", "waiting", "later"]
    assert lines[4].split() == ["film", "8/4", "120,000", "3,456"]
    assert lines[8].split() == ["server", "role", "kinds"]


def test_what_does_not_fit_the_screen_is_said_to_be_there() -> None:
    now = board([JobCount(f"kind {n}", State.QUEUED, n, due=n, oldest_due_s=1) for n in range(1, 41)], [], BUSY.servers)
    lines = shown(now, width=80, lines=24)
    assert len(lines) <= 24
    assert "; 26 more kinds" in lines[1], lines[1]
    assert lines[4].split()[:2] == ["kind", "40"], "the most waiting stay"


def test_an_empty_queue_has_its_headings() -> None:
    lines = shown(Board([], []), width=80)
    assert lines[1] == "0 running, 0 waiting, 0 servers"
    assert lines[3].split()[0] == "kind" and lines[5].split()[0] == "server"
