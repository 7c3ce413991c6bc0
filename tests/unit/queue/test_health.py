"""What the doctor thinks of what it found: each thing, how bad, and what to do."""

from dataclasses import replace
from typing import Any

import pytest

from rota.queue.health import (
    Check,
    Health,
    Hold,
    Level,
    TableHealth,
    examine,
    has_findings,
)

WELL = Health(180_000, "18.0", connections=7, round_trip_s=0.004, tables=[TableHealth("open_jobs", 10, 3, 60.0)])


def found(**facts: Any) -> list[Check]:
    """What is not fine."""
    return [check for check in examine(replace(WELL, **facts)) if check.level is not Level.OK]


def test_a_healthy_database_says_so_of_each_thing() -> None:
    checks = examine(WELL)
    assert [(check.about, check.words) for check in checks] == [
        ("database", "PostgreSQL 18.0"), ("schema", "up to date"), ("pooler", "none noticed"),
        ("clock", "within 2 ms"), ("connections", "7 of 100 in use"),
        ("notifications", "the queue of notifications is 0% full"),
        ("vacuum", "3 dead rows in all, nothing holds them"),
    ]  # fmt: skip
    assert not has_findings(checks)


@pytest.mark.parametrize(
    ("facts", "about", "level", "words", "advice"),
    [
        ({"version_num": 130_009, "version": "13.9"}, "database", "problem", "13.9 is too old", "14 or later"),
        ({"in_recovery": True}, "database", "problem", "is a standby", "name the primary"),
        ({"read_only_by": "user"}, "database", "problem", "takes no writes", "ALTER ROLE"),
        ({"fsync": "off"}, "database", "problem", "fsync is off", "fsync = on"),
        ({"synchronous_commit": "off"}, "database", "warning", "loses jobs", "synchronous_commit = on"),
        ({"autovacuum": "off"}, "database", "problem", "autovacuum is off", "autovacuum = on"),
        ({"missing": ["0002_flow"]}, "schema", "problem", "lacks 0002_flow", "rota migrate up"),
        ({"hidden": ["open_jobs", "tries"]}, "schema", "problem", "hides rows of open_jobs, tries", "BYPASSRLS"),
        ({"shares_sessions": True}, "pooler", "problem", "nobody told Rota", "ROTA_POOLER=transaction"),
        ({"pooler": "transaction"}, "pooler", "note", "no pooler in transaction mode was noticed", "unset it"),
        ({"lock_timeout": "0"}, "pooler", "warning", "lock_timeout is 0", "drops startup parameters"),
        ({"ahead_s": 4.0}, "clock", "warning", "4.0 s ahead of this machine's", "NTP"),
        ({"ahead_s": -4.0}, "clock", "warning", "4.0 s behind this machine's", "NTP"),
        ({"connections": 90}, "connections", "warning", "90 of 100 in use", "max_connections"),
        ({"notify_usage": 0.2}, "notifications", "warning", "20% full", "end it"),
        ({"notify_usage": 0.6}, "notifications", "problem", "60% full", "every commit that notifies fails"),
        ({"tables": [TableHealth("open_jobs", 10, 20_000)]}, "vacuum", "warning",
         "open_jobs has 20,000 dead rows beside 10 live ones; last vacuumed never", "VACUUM open_jobs"),
        ({"holds": [Hold("session", "77", "user app, idle in transaction", 5, 400.0)]}, "vacuum", "warning",
         "session 77 (user app, idle in transaction) holds a snapshot for 7 min", "pg_terminate_backend(77)"),
        ({"holds": [Hold("session", "77", "user app", 5, 4000.0)]}, "vacuum", "problem", "for 67 min", "(77)"),
        ({"holds": [Hold("standby", "77", "user rep", 5, 400.0)]}, "vacuum", "warning", "a standby's query",
         "hot_standby_feedback"),
        ({"holds": [Hold("prepared", "tx", "of app", 5, 400.0)]}, "vacuum", "warning", "prepared transaction tx",
         "ROLLBACK PREPARED 'tx'"),
        ({"holds": [Hold("slot", "copy", "not in use", 2_000_000, None)]}, "vacuum", "warning",
         "slot copy (not in use) holds back 2,000,000 transactions", "pg_drop_replication_slot('copy')"),
    ],
)  # fmt: skip
def test_each_finding_says_what_is_wrong_and_what_to_do(
    facts: dict[str, Any], about: str, level: str, words: str, advice: str
) -> None:
    (check,) = found(**facts)
    assert (check.about, check.level) == (about, level)
    assert words in check.words
    assert advice in (check.advice or "")
    assert has_findings([check]) == (level != "note")


@pytest.mark.parametrize(
    "facts",
    [
        # A slow line makes the clock uncertain, not wrong.
        {"ahead_s": 4.0, "round_trip_s": 5.0},
        {"ahead_s": 1.9},
        {"connections": 89},
        {"notify_usage": 0.05},
        {"tables": [TableHealth("open_jobs", 10, 19_999)]},
        {"tables": [TableHealth("ended_jobs", 1_000_000, 1_900_000)]},
        {"holds": [Hold("session", "77", "user app", 5, 299.0), Hold("slot", "copy", "in use", 5, None)]},
        {"pooler": "transaction", "shares_sessions": True, "statement_timeout": "0"},
    ],
)
def test_what_is_within_bounds_is_no_finding(facts: dict[str, Any]) -> None:
    assert found(**facts) == []


def test_all_findings_are_given() -> None:
    checks = found(fsync="off", autovacuum="off", missing=["0009_x"], ahead_s=60.0)
    assert [check.about for check in checks] == ["database", "database", "schema", "clock"]
