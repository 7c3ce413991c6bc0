"""Bodies and rules of the internal API."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rota.ids import JobId
from rota.runners import api, records
from rota.runners.openapi import document
from rota.runners.records import Depth, SessionRow, idempotency_key, version_key
from rota.runners.registry import Figures

JOB = UUID(int=7)
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def session(**changes: Any) -> SessionRow:
    row = SessionRow(
        UUID(int=1), JobId(JOB), 1, "e", "r", "mine", None, None, "leased", "video.compile", False, True, 60, "http://a"
    )
    return replace(row, **changes)


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        (None, 0), ("0", 0), ("30s", 30), ("30", 30), ("60", 60), ("61s", 60), ("999999", 60), ("-1", None),
        ("abc", None), ("", None), ("3.5", None), ("s", None), ("٣", None), ("1m", None),
    ],
)  # fmt: skip
def test_s96_waits_are_whole_seconds_and_clamped(text: str | None, wait: int | None) -> None:
    assert api.wait_s(text) == wait


@pytest.mark.parametrize(
    ("row", "forwarded", "where"),
    [
        (None, False, "session_not_found"),
        (session(closed_at=NOW, closed_reason="done"), False, "session_lost"),
        (session(held=False, gateway_instance="other"), False, "session_lost"),
        (session(cancel_asked=True, gateway_instance="other"), False, "session_lost"),
        (session(), False, "session_lost"),
        (session(), True, "session_lost"),
        (session(gateway_instance="other"), True, "session_owner_unreachable"),
        (session(gateway_instance="other", address=None), False, "session_owner_unreachable"),
    ],
)
def test_where_an_op_goes_that_has_no_session_here(row: SessionRow | None, forwarded: bool, where: str) -> None:
    found = api.seek(row, instance="mine", forwarded=forwarded)
    assert isinstance(found, api.Problem) and found.code == where
    assert (found.reason is not None) == (where == "session_lost")


def test_an_op_is_forwarded_to_the_owner_of_its_session() -> None:
    assert api.seek(session(gateway_instance="other"), instance="mine", forwarded=False) == "http://a"


def test_the_key_is_the_protocols_and_defaults_are_its_caps() -> None:
    asked = api.CreateJob(
        target="CloudPool",
        org_id="o",
        job_type="video.compile",
        execution_id="e",
        step_id="s",
        iteration=2,
        purpose="p",
    )
    new = api.new_job(asked)
    assert new.idempotency_key == idempotency_key("e", "s", "2", "p")
    assert new.idempotency_key == hashlib.sha256(b"e|s|2|p").hexdigest()
    assert (new.output_bytes_max, new.timeout_s, new.idle_s) == (4 * 1024**3, 14_400, 1_800)


def test_versions_sort_as_numbers() -> None:
    assert version_key("2025.10") > version_key("2025.9")  # type: ignore[operator]
    assert version_key("v1.0.0") == version_key("1") == (1,)
    assert version_key("none") is None and version_key("0.0") == ()


def test_the_signal_counts_the_pool_alone() -> None:
    depths = [Depth(records.POOL, "a", "queued", 2), Depth(records.POOL, "b", "leased", 3)]
    depths.append(Depth(records.DESKTOP, "a", "queued", 9))
    found = api.scaling(depths, Figures(connected_cloud_pool=1), buffer=4)
    assert (found.desired_cloud_pool_slots, found.queued, found.running) == (9, 2, 3)
    assert len(msgspec.to_builtins(found)) == 10


def test_every_answer_of_the_document_is_described() -> None:
    made = document()
    for path in made["paths"].values():
        for name, route in path.items():
            if name != "parameters":
                assert route["summary"] and route["responses"]
