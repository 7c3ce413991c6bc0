"""Rasters of passes against naive walks, with clocks that change both ways."""

import os
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from rota.queue.periodic import Cron, Every, next_due

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata")
START = datetime(2025, 1, 1, tzinfo=UTC)
LINES = ("0 3 * * *", "30 2 * * *", "*/20 * * * *", "15 1 * * sun", "0 0 1 * *", "59 23 * * mon-fri", "30 */2 * * *")

instants = st.integers(0, 3 * 365 * 86_400_000).map(lambda ms: START + timedelta(milliseconds=ms))
intervals = st.integers(1, 200_000_000).map(lambda us: 1 + us / 1000)
late = st.timedeltas(timedelta(days=-1), timedelta(days=400))
crons = st.builds(Cron, st.sampled_from(LINES), st.sampled_from(ZONES))
IN_CI = "CI" in os.environ
FEW = settings(max_examples=150, deadline=None, database=None, derandomize=IN_CI)


@FEW
@given(intervals, instants, late)
def test_an_interval_is_the_first_of_its_raster_that_is_to_come(
    interval_s: float, due_at: datetime, late: timedelta
) -> None:
    now, interval = due_at + late, timedelta(seconds=interval_s)
    found = next_due(Every(interval_s), due_at=due_at, now=now)
    assert (found - due_at) % interval == timedelta(0)
    assert found > now and found > due_at
    assert found - interval <= max(now, due_at)


@FEW
@given(crons, instants, late)
def test_a_line_is_the_first_of_its_times_that_is_to_come(cron: Cron, due_at: datetime, late: timedelta) -> None:
    now = due_at + late
    found = next_due(cron, due_at=due_at, now=now)
    assert found.tzinfo is UTC and found > max(now, due_at)
    # Whoever asks at any moment before it gets the same answer: no time lies between.
    for share in (0.0, 0.25, 0.5, 0.999):
        asked = max(now, due_at) + (found - max(now, due_at)) * share
        assert next_due(cron, due_at=asked, now=asked) == found


@settings(max_examples=40, deadline=None, database=None, derandomize=IN_CI)
@given(st.sampled_from(ZONES), st.integers(0, 23), st.integers(0, 59), instants)
def test_a_daily_line_runs_once_each_day_of_its_zone(tz: str, hour: int, minute: int, start: datetime) -> None:
    cron, zone = Cron(f"{minute} {hour} * * *", tz), ZoneInfo(tz)
    times = [start]
    for _ in range(250):
        times.append(next_due(cron, due_at=times[-1], now=times[-1]))
    days = [time.astimezone(zone).date() for time in times[1:]]
    assert [later - earlier for earlier, later in pairwise(days)] == [timedelta(days=1)] * 249
