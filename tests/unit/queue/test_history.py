"""The bounds of what one run of a job may log, and how long runs overlapped."""

import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.ids import JobId
from rota.lease import Lease
from rota.queue.history import (
    DROPPED,
    EVENT_BYTES_MAX,
    FIELDS_BYTES_MAX,
    FULL,
    LOG_BYTES_MAX,
    LOG_LINES_MAX,
    JobLog,
    LogLine,
    TryEnd,
    overlap_s,
)

LEASE = Lease(JobId(UUID(int=1)), 3)
START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_lines_are_numbered_and_keep_their_lease() -> None:
    log = JobLog(LEASE)
    assert log.say("info", "began", {"file": "a.mp4"}, now=7.5) == LogLine(
        LEASE, 1, 7.5, "info", "began", '{"file":"a.mp4"}'
    )
    assert log.say("warning", "odd", {}, now=8.0) == LogLine(LEASE, 2, 8.0, "warning", "odd", None)
    assert log.close(now=9.0) is None


def test_what_is_too_much_is_counted() -> None:
    log = JobLog(LEASE)
    lines = [log.say("info", str(number), {}, now=0.0) for number in range(LOG_LINES_MAX + 10)]
    kept = [line for line in lines if line is not None]
    assert [line.event for line in kept[-2:]] == [str(LOG_LINES_MAX - 3), FULL]
    last = log.close(now=1.0)
    assert last is not None
    assert (last.number, last.event, last.level) == (LOG_LINES_MAX, DROPPED, "warning")
    assert json.loads(last.fields or "") == {"dropped": 12}


def test_a_log_has_a_size() -> None:
    log = JobLog(LEASE)
    kept = [log.say("info", "x" * EVENT_BYTES_MAX, {}, now=0.0) for _ in range(300)]
    assert sum(len(line.event) for line in kept if line is not None) <= LOG_BYTES_MAX + len(FULL)
    assert log.dropped > 0


def test_events_are_cut_by_bytes_at_a_border() -> None:
    """S10."""
    line = JobLog(LEASE).say("info", "😀" * 2000, {}, now=0.0)
    assert line is not None and line.event.endswith("😀…")
    assert len(line.event.encode()) <= EVENT_BYTES_MAX


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"a": float("nan"), "b": "c\0d"}, {"a": "nan", "b": "c�d"}),
        ({"odd": object}, {"odd": "<class 'object'>"}),
        ({"\ud800": 1}, {"?": "1"}),
        ({"n": 2**70}, {"n": str(2**70)}),
    ],
)
def test_a_value_that_cannot_be_stored_is_shown(fields: dict[str, object], shown: dict[str, object]) -> None:
    line = JobLog(LEASE).say("info", "said", fields, now=0.0)
    assert line is not None and json.loads(line.fields or "") in (shown, fields)


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.floats() | st.none(), max_size=5))
def test_any_fields_can_be_kept(fields: dict[str, object]) -> None:
    line = JobLog(LEASE).say("info", "said", fields, now=0.0)
    assert line is not None
    if fields:
        text = line.fields or ""
        json.loads(text)
        assert "\\u0000" not in text and "\0" not in text


def test_large_fields_are_cut() -> None:
    line = JobLog(LEASE).say("info", "said", {f"k{n}": "😀" * 5000 for n in range(200)}, now=0.0)
    assert line is not None and len((line.fields or "").encode()) < 2 * FIELDS_BYTES_MAX


# Overlap


@pytest.mark.parametrize(
    ("stopped_at", "later", "seconds"),
    [
        (None, [(at(0), at(10))], 0),
        (at(5), [], 0),
        (at(5), [(at(5), at(10))], 0),
        (at(4), [(at(5), at(10))], 0),
        (at(7), [(at(5), at(10))], 2),
        (at(20), [(at(5), at(10))], 5),
        (at(20), [(at(5), at(10)), (at(12), at(30))], 13),
    ],
)
def test_how_long_runs_overlapped(
    stopped_at: datetime | None, later: list[tuple[datetime, datetime]], seconds: float
) -> None:
    assert overlap_s(stopped_at, later) == seconds


def test_each_end_has_its_word() -> None:
    assert {end.value for end in TryEnd} == {
        "done", "failed", "cancelled", "retry", "stopped", "killed", "fenced", "lost", "given_back", "snoozed",
        "yielded",
    }  # fmt: skip
