"""What the doctor thinks of the workers and of the work."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rota.ids import Holder
from rota.queue.fleet_health import FleetHealth, examine_fleet
from rota.queue.health import Check, Level
from rota.queue.pause import Pause, PauseScope
from rota.queue.server import OrphanKind, ServerRow

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


ONE = ServerRow(
    Holder("web-1:1:a"), "web-1", 1, "1.0", "all", "aaaa", {"film": 4}, {}, running={}, draining=False,
    started_at=ago(600), seen_at=ago(3), live=True,
)  # fmt: skip
TWO = replace(ONE, holder=Holder("web-2:1:b"))
WORKS = FleetHealth(NOW, servers=[ONE, TWO], due=3)


def found_of(**facts: Any) -> list[Check]:
    return [check for check in examine_fleet(replace(WORKS, **facts)) if check.level is not Level.OK]


def test_workers_that_work_say_so() -> None:
    assert [(check.about, check.words) for check in examine_fleet(WORKS)] == [
        ("servers", "2 live"), ("kinds", "each with due work is taken by a live server"),
        ("leases", "none is past its end"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "about", "level", "words", "advice"),
    [
        ({"servers": []}, "servers", "problem", "no worker runs, and 3 jobs are due", "rota worker"),
        ({"servers": [], "due": 0}, "servers", "note", "no worker runs, and 0 jobs are due", "rota worker"),
        ({"servers": [ONE, replace(TWO, settings_digest="bbbb")]}, "servers", "warning",
         "different settings: aaaa: web-1:1:a | bbbb: web-2:1:b", "the same settings"),
        ({"servers": [ONE, replace(TWO, version="1.1")]}, "servers", "warning",
         "different versions of Rota: 1.0: web-1:1:a | 1.1: web-2:1:b", "rollout"),
        ({"servers": [ONE, replace(TWO, live=False, seen_at=ago(90), settings_digest="bbbb")]}, "servers", "note",
         "seen no more, and without a word: web-2:1:b (90 s ago)", "when their leases run out"),
        ({"orphans": [OrphanKind("report", ago(600), is_pass=False)]}, "kinds", "warning",
         "no live server takes the kind report, and its oldest job has been due for 10 min", "spelled wrong"),
        ({"orphans": [OrphanKind("nightly", ago(-600), is_pass=True)]}, "kinds", "warning",
         "no live server takes the pass nightly", "whose role takes it"),
        ({"overdue": {"film": 2, "sound": 1}}, "leases", "warning",
         "leases have run out and were not swept: 2 of film, 1 of sound", "sweeps once a second"),
        ({"pauses": [Pause(PauseScope.KIND, "film", "bad codec", "ann", ago(60), ago(-60))]}, "pauses", "note",
         "kind film is paused by ann until 2026-12-01 12:01 UTC: bad codec", ""),
        ({"pauses": [Pause(PauseScope.ALL, "", None, "ann", ago(60), None)]}, "pauses", "note",
         "everything is paused by ann until somebody resumes it", ""),
    ],
)  # fmt: skip
def test_each_finding_of_the_fleet_says_what_to_do(
    facts: dict[str, Any], about: str, level: str, words: str, advice: str
) -> None:
    (check,) = found_of(**facts)
    assert (check.about, check.level) == (about, level)
    assert check.words.endswith(words)
    assert advice in (check.advice or "")


def test_without_any_worker_the_kinds_are_not_complained_about_one_by_one() -> None:
    checks = found_of(servers=[], orphans=[OrphanKind("report", ago(600), is_pass=False)])
    assert [check.about for check in checks] == ["servers"]
