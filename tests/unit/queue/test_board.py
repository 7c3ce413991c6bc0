"""The live view's lines, made of counts, ends and servers."""

from rota.queue.board import Board, ServerLine, board
from rota.queue.job import State
from rota.queue.watching import EndedCount, JobCount

ONE = ServerLine("web-1", "all", {"film": 4, "sound": 2}, {"film": 3}, draining=False, seen_ago_s=2)


def test_a_line_for_each_kind_that_anybody_knows_the_most_waiting_first() -> None:
    now = board(
        [
            JobCount("film", State.QUEUED, 7, due=5, oldest_due_s=12.0), JobCount("film", State.LEASED, 3, overdue=1),
            JobCount("lost", State.QUEUED, 9, due=9, oldest_due_s=99.0),
        ],
        [
            EndedCount("film", State.DONE, 40), EndedCount("film", State.CANCELLED, 2),
            EndedCount("old", State.FAILED, 1),
        ],
        [ONE, ServerLine("web-2", "all", {"film": 4}, {}, draining=True, seen_ago_s=2)],
    )  # fmt: skip
    assert [line.kind for line in now.kinds] == ["lost", "film", "old", "sound"]
    lost, film, old, sound = now.kinds
    assert (film.running, film.overdue, film.room, film.due, film.later, film.oldest_due_s) == (3, 1, 4, 5, 2, 12.0)
    assert (film.done, film.failed, film.taken) == (40, 0, True)
    assert (lost.room, lost.taken, old.failed, sound.room) == (0, False, 1, 2)
    assert (now.running, now.due) == (3, 14)


def test_it_is_json_too() -> None:
    said = board([], [], [ONE]).plain()
    assert said["servers"][0]["holder"] == "web-1" and said["kinds"][0]["kind"] == "film"
    assert Board([], []).plain() == {"running": 0, "due": 0, "kinds": [], "servers": []}
