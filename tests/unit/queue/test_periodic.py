"""When passes are due, also where clocks are changed, and what becomes of them with code and servers."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from rota.errors import SettingsError
from rota.ids import JobId
from rota.queue import periodic
from rota.queue.periodic import Cron, Declared, Every, Mark, PassRow, Put, Schedule, first_due, next_due, reconcile

BERLIN = "Europe/Berlin"
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
SPRING = datetime(2026, 3, 29, 1, tzinfo=UTC)
"""In Berlin, 02:00 is followed by 03:00."""
AUTUMN = datetime(2026, 10, 25, 1, tzinfo=UTC)
"""In Berlin, 03:00 summer time is followed by 02:00."""


def dues(schedule: Schedule, start: datetime, count: int) -> list[datetime]:
    """The due times after `start` of a pass whose runs take no time."""
    found = [start]
    for _ in range(count):
        found.append(next_due(schedule, due_at=found[-1], now=found[-1]))
    return found[1:]


def berlin(times: list[datetime]) -> list[str]:
    assert all(time.tzinfo is UTC for time in times)
    return [f"{time.astimezone(ZoneInfo(BERLIN)):%d %H:%M%z}" for time in times]


# The raster


@pytest.mark.parametrize("change", [SPRING, AUTUMN])
@pytest.mark.parametrize("interval", [HOUR, DAY])
def test_intervals_are_elapsed_time_where_clocks_are_changed(change: datetime, interval: timedelta) -> None:
    """S16: neither skipped nor doubled, and stored in UTC."""
    start = (change - 2 * DAY).astimezone(ZoneInfo(BERLIN))
    times = dues(Every(interval.total_seconds()), start, 100)
    assert [later - earlier for earlier, later in pairwise([start, *times])] == [interval] * 100


def test_a_daily_line_follows_the_clocks_into_summer() -> None:
    assert berlin(dues(Cron("0 3 * * *", BERLIN), SPRING - DAY, 3)) == [
        "28 03:00+0100",
        "29 03:00+0200",
        "30 03:00+0200",
    ]
    # 02:30 does not come that day: the run comes as soon as the clocks are past it.
    assert berlin(dues(Cron("30 2 * * *", BERLIN), SPRING - DAY, 3)) == [
        "28 02:30+0100", "29 03:00+0200", "30 02:30+0200",
    ]  # fmt: skip


def test_a_daily_line_runs_once_where_its_hour_comes_twice() -> None:
    assert berlin(dues(Cron("30 2 * * *", BERLIN), AUTUMN - DAY, 3)) == [
        "25 02:30+0200", "26 02:30+0100", "27 02:30+0100",
    ]  # fmt: skip
    between = AUTUMN + timedelta(minutes=15)  # the second 02:15
    assert berlin([next_due(Cron("30 2 * * *", BERLIN), due_at=between, now=between)]) == ["26 02:30+0100"]


@pytest.mark.parametrize("change", [SPRING, AUTUMN])
def test_a_line_of_every_hour_runs_each_hour_that_there_is(change: datetime) -> None:
    times = dues(Cron("0 * * * *", BERLIN), change - 3 * HOUR, 8)
    assert [later - earlier for earlier, later in pairwise(times)] == [HOUR] * 7


def test_a_line_means_the_clocks_of_its_zone() -> None:
    assert dues(Cron("0 3 * * *"), NOW, 1) == [datetime(2026, 6, 2, 3, tzinfo=UTC)]
    assert dues(Cron("0 3 * * *", "Asia/Kolkata"), NOW, 1) == [datetime(2026, 6, 1, 21, 30, tzinfo=UTC)]


def test_the_next_run_is_due_from_the_one_before_and_missed_ones_collapse() -> None:
    hourly = Every(3600)
    for late_s, hours in ((0, 1), (60, 1), (3599, 1), (3600, 2), (3601, 2), (36_000, 11), (-60, 1)):
        now = NOW + timedelta(seconds=late_s)
        assert next_due(hourly, due_at=NOW, now=now) == NOW + hours * HOUR, late_s
    daily = Cron("0 3 * * *")
    assert next_due(daily, due_at=NOW, now=NOW + 10 * DAY) == datetime(2026, 6, 12, 3, tzinfo=UTC)
    assert next_due(daily, due_at=NOW, now=NOW - 10 * DAY) == datetime(2026, 6, 2, 3, tzinfo=UTC)


def test_a_new_pass_is_never_due_at_once_unless_its_code_says_so() -> None:
    assert first_due(Declared("every 3600 s"), now=NOW) == NOW + HOUR
    assert first_due(Declared("every 3600 s", first_after_s=0.0), now=NOW) == NOW
    assert first_due(Declared("cron 0 12 * * * UTC"), now=NOW) == NOW + DAY


# What is no schedule


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Every(0.5), "interval of 0.5 s"), (Every(-1), "interval"), (Every(float("nan")), "interval"),
        (Every(1e12), "interval"), (Cron("0 3 * *"), "'0 3 \\* \\*'"), (Cron("61 * * * *"), "'61"),
        (Cron("0 0 31 2 *"), "'0 0 31 2 \\*'"), (Cron("0 3 * * *", "Mars/Base"), "Mars/Base"),
        (Cron("0 3 * * *", "../etc/passwd"), "no time zone"), (Cron("0 3 * * *", ""), "no time zone"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_by_the_name_of_the_pass(schedule: Schedule, words: str) -> None:
    with pytest.raises(SettingsError, match=f"The pass 'nightly' has .*{words}"):
        periodic.check(schedule, name="nightly")


@pytest.mark.parametrize(
    "schedule", [Every(1), Every(86_400), Every(0.1 + 1.2), Every(300_000_000), Cron("*/5 1-3 * * mon", BERLIN)]
)
def test_a_schedule_is_read_as_it_was_written(schedule: Schedule) -> None:
    periodic.check(schedule, name="nightly")
    read = periodic.parse(str(schedule))
    assert str(read) == str(schedule)
    assert dues(read, NOW, 5) == dues(schedule, NOW, 5)


def test_the_schedule_of_another_version_is_no_schedule() -> None:
    with pytest.raises(ValueError, match="no schedule of this version"):
        periodic.parse("moon full")


# Code and servers

HOURLY, TWO_HOURLY = Declared("every 3600 s", 5), Declared("every 7200 s", 5)
RUN = JobId(UUID(int=1))
WAITS = PassRow(
    "p", HOURLY.schedule, 5, due_at=NOW + HOUR, extra=False, missing_since=None, removed_at=None, open_id=RUN,
    open_state="queued", open_run_after=NOW + HOUR, open_tries=0, paused=False, now=NOW,
)  # fmt: skip
NONE_OPEN = replace(WAITS, open_id=None, open_state=None, open_run_after=None, open_tries=None)


def steps(*rows: PassRow, **declared: Declared) -> list[Put | Mark]:
    return reconcile(rows, declared=declared, now=NOW, gone_s=600)


def test_what_is_as_the_code_says_is_left_alone() -> None:
    assert steps(WAITS, p=HOURLY) == []
    assert steps(replace(WAITS, open_state="leased"), p=HOURLY) == []
    assert steps(replace(WAITS, extra=True, open_run_after=NOW), p=HOURLY) == []


def test_a_new_pass_is_added() -> None:
    assert steps(p=HOURLY) == [Put("p", HOURLY, NOW + HOUR, None)]


def test_a_pass_without_a_run_gets_its_next() -> None:
    """A person cancelled it, or its last try ended with its lease."""
    assert steps(NONE_OPEN, p=HOURLY) == [Put("p", HOURLY, NOW + 2 * HOUR, NONE_OPEN)]
    late = replace(NONE_OPEN, due_at=NOW - 5 * HOUR - timedelta(minutes=10))
    assert steps(late, p=HOURLY) == [Put("p", HOURLY, NOW + timedelta(minutes=50), late)]
    extra = replace(NONE_OPEN, extra=True)
    assert steps(extra, p=HOURLY) == [Put("p", HOURLY, NOW + HOUR, extra)]


def test_a_change_of_the_interval_goes_on_from_the_last_run() -> None:
    assert steps(WAITS, p=TWO_HOURLY) == [Put("p", TWO_HOURLY, NOW + 2 * HOUR, WAITS)]
    slow = replace(WAITS, schedule="every 86400 s", due_at=NOW + 10.25 * HOUR)
    assert steps(slow, p=HOURLY) == [Put("p", HOURLY, NOW + 0.25 * HOUR, slow)]


def test_a_change_between_interval_and_line_begins_anew() -> None:
    nightly = Declared("cron 0 3 * * * UTC", 5)
    assert steps(WAITS, p=nightly) == [Put("p", nightly, datetime(2026, 6, 2, 3, tzinfo=UTC), WAITS)]
    was = replace(WAITS, schedule=nightly.schedule, due_at=NOW + 15 * HOUR)
    assert steps(was, p=HOURLY) == [Put("p", HOURLY, NOW + HOUR, was)]


@pytest.mark.parametrize(
    "row",
    [
        replace(WAITS, open_state="leased", due_at=NOW - HOUR),
        replace(WAITS, due_at=NOW, open_run_after=NOW),
        replace(WAITS, open_tries=1, open_run_after=NOW + HOUR),
        replace(WAITS, extra=True, open_run_after=NOW),
    ],
)
def test_a_change_leaves_a_run_that_is_due_or_begun(row: PassRow) -> None:
    assert steps(row, p=TWO_HOURLY) == [Put("p", TWO_HOURLY, row.due_at, row, extra=row.extra)]


def test_a_change_of_the_priority_moves_nothing() -> None:
    urgent = replace(HOURLY, priority=9)
    assert steps(WAITS, p=urgent) == [Put("p", urgent, WAITS.due_at, WAITS)]
    # When it runs first is of no account once it is known.
    assert steps(WAITS, p=replace(HOURLY, first_after_s=0.0)) == []


def test_a_pass_that_no_live_code_has_goes_after_a_while() -> None:
    assert steps(WAITS) == [Mark("p", missing=True)]
    since = replace(WAITS, missing_since=NOW - timedelta(seconds=599))
    assert steps(since) == []
    long = replace(WAITS, missing_since=NOW - timedelta(seconds=600))
    assert steps(long) == [Mark("p", missing=True, removed=True, cancels=RUN)]
    assert steps(replace(long, open_state="leased")) == [Mark("p", missing=True, removed=True)]
    assert steps(since, p=HOURLY) == [Mark("p", missing=False)]


def test_a_removed_pass_has_no_queued_run() -> None:
    gone = replace(WAITS, missing_since=NOW - HOUR, removed_at=NOW - HOUR)
    assert steps(replace(gone, open_id=None, open_state=None)) == []
    assert steps(replace(gone, open_state="leased")) == []
    # The run that went on when it was removed came back to the queue.
    assert steps(gone) == [Mark("p", missing=True, removed=True, cancels=RUN)]


def test_a_pass_that_comes_back_goes_on_in_its_raster() -> None:
    gone = replace(NONE_OPEN, due_at=NOW - 30.25 * HOUR, missing_since=NOW - DAY, removed_at=NOW - DAY)
    assert steps(gone, p=HOURLY) == [Put("p", HOURLY, NOW + 0.75 * HOUR, gone)]


def test_a_schedule_of_a_newer_version_is_left_to_it() -> None:
    assert steps(WAITS, p=Declared("moon full"), q=Declared("moon full")) == []
    assert steps(replace(WAITS, schedule="moon full"), p=HOURLY) == []
    assert periodic.next_runs([replace(WAITS, schedule="moon full"), replace(WAITS, removed_at=NOW)], ends=RUN) == []


def test_the_end_of_a_run_is_followed_by_the_next() -> None:
    late = replace(WAITS, due_at=NOW - 2.5 * HOUR, open_state="leased")
    assert periodic.next_runs([late], ends=RUN) == [Put("p", HOURLY, NOW + 0.5 * HOUR, late)]
    extra = replace(WAITS, extra=True)
    assert periodic.next_runs([extra], ends=RUN) == [Put("p", HOURLY, NOW + HOUR, extra)]
    assert periodic.next_runs([late], ends=JobId(UUID(int=2))) == [], "another job of its kind"


def test_two_versions_side_by_side_decide_the_same() -> None:
    """A rolling deploy: the server that started last is believed, whoever asks and in whatever order."""
    old: Mapping[str, Declared] = {"p": HOURLY, "q": HOURLY}
    new: Mapping[str, Declared] = {"p": TWO_HOURLY}
    servers = [(NOW, "a", old), (NOW + HOUR, "b", new), (NOW - HOUR, "c", old)]
    for order in (servers, servers[::-1]):
        declared = periodic.latest(order)
        assert declared == {"p": TWO_HOURLY, "q": HOURLY}
        changed = replace(WAITS, schedule=TWO_HOURLY.schedule)
        assert reconcile([changed, replace(WAITS, name="q")], declared=declared, now=NOW) == []
