"""What a worker puts on its heap, and what becomes of it at a snapshot and at its end."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from rota.ids import JobId
from rota.lease import Lease
from rota.queue.io.metering import Metering
from rota.queue.job import ClaimedJob
from rota.queue.meters import Meters


def claimed(kind: str, *, due_ago_s: float) -> ClaimedJob:
    due = datetime.now(UTC) - timedelta(seconds=due_ago_s)
    return ClaimedJob(
        Lease(JobId(UUID(int=1)), 1), kind, None, "{}", 0, 1, 3, run_after=due, created_at=due, dedupe_scope=None,
        progress=None, trace=None,
    )  # fmt: skip


def written(file: Path) -> Meters:
    return msgspec.json.decode(file.read_bytes(), type=Meters)


def from_the_heart(call: Callable[[], None]) -> None:
    heart = threading.Thread(target=call)
    heart.start()
    heart.join()


def test_a_snapshot_has_all_that_was_noted_once() -> None:
    metering = Metering()
    metering.claimed([claimed("film", due_ago_s=100), claimed("sound", due_ago_s=-5)], took_s=0.004)
    metering.claimed([], took_s=0.002)
    metering.ran("film", 2.0)
    for _ in range(2):
        meters = metering.snapshot()
        assert sum(meters.claim.counts) == 2 and meters.claim.total == 0.006
        assert 100 <= meters.wait["film"].total < 130
        assert meters.wait["sound"].total == 0, "a clock that is behind makes no negative wait"
        assert meters.run["film"].total == 2.0 and sum(meters.run["film"].counts) == 1


def test_numbers_for_a_parent_are_written_whole(tmp_path: Path) -> None:
    file = tmp_path / "7.json"
    metering = Metering(file)
    assert metering.is_for_parent and not Metering().is_for_parent
    metering.ran("film", 2.0)
    metering.write()
    assert written(file).run["film"].total == 2.0
    assert list(tmp_path.iterdir()) == [file], "nothing half-written stays"


def test_a_process_that_is_about_to_end_writes_once_more_from_its_heart(tmp_path: Path) -> None:
    file = tmp_path / "7.json"
    metering = Metering(file)
    metering.ran("film", 2.0)
    from_the_heart(lambda: metering.fenced("film"))
    assert written(file).fenced == 1
    from_the_heart(lambda: metering.failed_last(["film"]))
    meters = written(file)
    assert (meters.fenced, meters.stall_kills, meters.failures) == (1, {"fenced": 1}, {"film": 1})
    assert meters.run["film"].total == 2.0


def test_what_the_heart_writes_last_is_not_overwritten_by_older_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop has its numbers ready, and the heart is quicker to write its own."""
    file = tmp_path / "7.json"
    metering = Metering(file)
    write_bytes = Path.write_bytes

    def slowly(path: Path, data: bytes) -> int:
        monkeypatch.setattr(Path, "write_bytes", write_bytes)
        from_the_heart(lambda: metering.fenced("film"))
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", slowly)
    metering.write()
    assert written(file).fenced == 1


def test_a_folder_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    metering = Metering(tmp_path / "gone" / "7.json")
    metering.write()
    assert metering.snapshot().fenced == 0
