"""Folders of commands and sessions: own, empty, gone afterwards; and what the dead have left (S61, S82)."""

import fcntl
import os
from pathlib import Path

from rota.io.scratch import LOCK, Scratch


async def test_what_dead_processes_left_is_removed_and_what_live_ones_use_is_not(tmp_path: Path) -> None:
    """S82."""
    for name in ("runner-dead", "runner-live", "runner-unlocked", "commands-dead", "else"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / LOCK).touch()
    (tmp_path / "runner-unlocked" / LOCK).unlink()
    (tmp_path / "runner-dead" / "1").chmod(0o500)
    with (tmp_path / "runner-live" / LOCK).open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        scratch = Scratch(tmp_path, prefix="runner-")
        own = scratch.open()
        assert scratch.open() == own
        there = {path.name for path in tmp_path.iterdir()}
        assert there == {"runner-live", "runner-unlocked", "commands-dead", "else", own.name}
        other = Scratch(tmp_path, prefix="runner-")
        assert other.open() != own
        assert own.is_dir(), "a live one's"
        await scratch.close()
        await other.close()
        await other.close()
        assert not own.exists()
    assert (tmp_path / "runner-live" / "1").is_dir()


async def test_a_link_in_the_place_of_a_folder_never_serves_the_next(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "scratch")
    (tmp_path / "elsewhere").mkdir(0o700)
    first = scratch.take()
    os.rmdir(first)
    Path(first).symlink_to(tmp_path / "elsewhere")
    scratch.give_back(first)
    assert os.path.realpath(scratch.take()).startswith(str(tmp_path / "scratch"))
    await scratch.close()
    assert (tmp_path / "elsewhere").is_dir()
    assert not list((tmp_path / "scratch").iterdir())


async def test_a_folder_that_cannot_be_removed_is_told_and_the_next_is_fresh(tmp_path: Path) -> None:
    """S61: the removal is made to fail by a name that is no folder any more when it comes to it."""
    left: list[str] = []
    scratch = Scratch(tmp_path, left=left.append)
    first = scratch.take()
    os.rmdir(first)
    Path(first).symlink_to(tmp_path)
    scratch.give_back(first)
    second = scratch.take()
    assert (first != second, os.listdir(second)) == (True, [])
    folder = scratch.open()
    for _ in range(2):
        await scratch.close()
    assert left == [first]
    assert not folder.exists() or list(folder.iterdir())
