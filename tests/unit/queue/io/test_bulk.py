"""Which jobs may go by COPY, and the bytes that are sent for them."""

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from rota.ids import uuid_v7s
from rota.queue.io import bulk
from rota.queue.io.bulk import CHUNK_BYTES, COPY_PAYLOAD_CHARS_MAX
from rota.queue.job import NewJob, forever_key, open_key, queued_key

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class TestPlan:
    def test_only_columns_that_some_job_sets(self) -> None:
        def columns(*jobs: NewJob) -> set[str]:
            plan = bulk._plan(jobs)
            assert plan is not None
            return set(plan.columns)

        assert columns(NewJob("a"), NewJob("b")) == set()
        assert columns(NewJob("a"), NewJob("b", priority=0)) == {"priority"}
        assert columns(NewJob("a", tenant=""), NewJob("b", trace="x")) == {"tenant", "trace"}
        assert columns(NewJob("a", max_tries=1), NewJob("b", max_tries=1000)) == {"max_tries"}
        assert columns(NewJob("a", run_after=NOON)) == {"run_after"}

    def test_the_first_job_of_each_kind_says_when(self) -> None:
        hour = timedelta(hours=1)
        jobs = [("a", 2), ("b", 5), ("a", 1), ("a", 3), ("b", 7)]
        plan = bulk._plan([NewJob(kind, run_after=NOON + hours * hour) for kind, hours in jobs])
        assert plan is not None
        assert plan.first_due == {"a": NOON + hour, "b": NOON + 5 * hour}

    def test_without_times_all_kinds_are_due(self) -> None:
        plan = bulk._plan([NewJob("a"), NewJob("b"), NewJob("a")])
        assert plan is not None
        assert plan.first_due == {"a": None, "b": None}

    @pytest.mark.parametrize(
        "job",
        [
            NewJob("a", dedupe=open_key("k")),
            NewJob("a", dedupe=queued_key("k")),
            NewJob("a", dedupe=forever_key("k")),
            NewJob("a", delay_s=0.0),
            NewJob(""),
            NewJob("k" * 201),
            NewJob("a", "x" * (COPY_PAYLOAD_CHARS_MAX + 1)),
            NewJob("a", max_tries=0),
            NewJob("a", max_tries=1001),
            NewJob("a", priority=2**31),
            NewJob("a", priority=-(2**31) - 1),
            NewJob("a", run_after=NOON),
        ],
    )
    def test_one_job_that_needs_the_function_is_enough(self, job: NewJob) -> None:
        assert bulk._plan([NewJob("a"), job, NewJob("a")]) is None

    def test_a_time_without_zone_needs_the_driver_to_refuse_it(self) -> None:
        naive = NOON.replace(tzinfo=None)
        assert bulk._plan([NewJob("a", run_after=NOON), NewJob("a", run_after=naive)]) is None


class TestIds:
    def test_they_are_those_of_uuid_v7s(self) -> None:
        us = 1_893_456_000_000_000 - 1500
        ours = [raw.hex() for raw in bulk._new_ids(5000, unix_us=us)]
        theirs = [new.hex for new in uuid_v7s(5000, unix_us=us)]
        assert [new[:16] for new in ours] == [new[:16] for new in theirs]
        assert {new[16] for new in ours} <= set("89ab")

    def test_they_sort_and_differ_from_another_batch(self) -> None:
        ids = bulk._new_ids(3000, unix_us=1)
        assert all(one < other for one, other in pairwise(ids))
        assert not set(ids) & set(bulk._new_ids(3000, unix_us=1))


class TestChunks:
    def test_the_bytes_of_a_row(self) -> None:
        new = bytes(range(16))
        job = NewJob("é", '{"a":1}', priority=None, tenant=None, max_tries=3, trace="t", run_after=NOON)
        columns = ("priority", "tenant", "max_tries", "trace", "run_after")

        sent = b"".join(bulk._chunks([job], [new], columns))

        micros = (NOON - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        assert sent == (
            b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0"
            b"\0\x08"
            b"\0\0\0\x10" + new + b"\0\0\0\x02\xc3\xa9"
            b'\0\0\0\x08\x01{"a":1}'
            b"\0\0\0\x04\0\0\0\0"
            b"\xff\xff\xff\xff"
            b"\0\0\0\x04\0\0\0\x03"
            b"\0\0\0\x01t"
            b"\0\0\0\x08" + micros.to_bytes(8, "big") + b"\xff\xff"
        )

    @pytest.mark.parametrize(("payload_chars", "count"), [(2, 20_000), (1000, 1000), (CHUNK_BYTES * 2, 5)])
    def test_chunks_are_bounded(self, payload_chars: int, count: int) -> None:
        jobs = [NewJob("a", json.dumps("x" * (payload_chars - 2)))] * count
        chunks = list(bulk._chunks(jobs, [bytes(16)] * count, ()))
        assert len(chunks) > 2
        assert all(len(chunk) < CHUNK_BYTES + payload_chars + 100 for chunk in chunks)
        assert all(len(chunk) >= CHUNK_BYTES for chunk in chunks[:-1])
        assert sum(map(len, chunks)) == 19 + count * (2 + 20 + 5 + 5 + payload_chars) + 2


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (datetime(2000, 1, 1, tzinfo=UTC), 0),
        (datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), -1),
        (datetime.max.replace(tzinfo=UTC), 252_455_615_999_999_999),
    ],
)
def test_instants_are_exact(value: Any, sent: int) -> None:
    assert bulk._instant(value) == b"\0\0\0\x08" + sent.to_bytes(8, "big", signed=True)
