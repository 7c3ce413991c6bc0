"""The bounds of a runner's disk: what counts, and what is said."""

import os
from pathlib import Path

from rota.runners.io.disk import MIB, Room, used_bytes


def test_a_sparse_file_costs_what_it_takes_and_many_names_cost_too(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        os.truncate(file.fileno(), 1024 * MIB)
    assert used_bytes(tmp_path) < MIB
    (tmp_path / "folder").mkdir()
    for number in range(1000):
        (tmp_path / "folder" / str(number)).touch()
    assert used_bytes(tmp_path) >= 1000 * 4096
    (tmp_path / "outside").symlink_to("/")
    assert used_bytes(tmp_path) < 8 * MIB
    assert used_bytes(tmp_path / "gone") == 0


def test_a_room_says_what_it_lacks(tmp_path: Path) -> None:
    assert Room(floor_bytes=0, quota_bytes=MIB).lacks(tmp_path) is None
    floor = Room(floor_bytes=2**62, quota_bytes=MIB).lacks(tmp_path)
    assert floor is not None
    assert "are free" in floor.why
    assert not floor.over_quota
    (tmp_path / "big").write_bytes(b"x" * MIB)
    quota = Room(floor_bytes=0, quota_bytes=MIB).lacks(tmp_path)
    assert quota is not None
    assert quota.over_quota
