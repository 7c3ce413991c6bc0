"""Folders of commands and sessions: own, empty, gone afterwards; and what the dead have left (S61, S82)."""

import asyncio
import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from rota.io.scratch import LOCK, SETTLED_S, Scratch


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


@pytest.mark.parametrize("how", ["a link", "a folder of all", "own"])
async def test_a_folder_that_others_made_in_the_temp_folder_is_not_used(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    name = tmp_path / f"rota-scratch-{os.getuid()}"
    if how == "a link":
        (tmp_path / "theirs").mkdir()
        name.symlink_to("theirs")
    else:
        name.mkdir()
        name.chmod(0o777 if how == "a folder of all" else 0o700)
    scratch = Scratch(None)
    if how == "own":
        assert scratch.take().startswith(f"{name}/")
    else:
        with pytest.raises(PermissionError, match="others may write there"):
            scratch.take()
    await scratch.close()


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


async def test_a_folder_that_nothing_was_done_to_is_not_listed_once_its_change_time_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, listed = 0.0, 0
    listdir = os.listdir

    def count(path: str) -> list[str]:
        nonlocal listed
        listed += 1
        return listdir(path)

    monkeypatch.setattr("rota.io.scratch.time.monotonic", lambda: now)
    monkeypatch.setattr("rota.io.scratch.os.listdir", count)
    scratch = Scratch(tmp_path)
    folder = scratch.take()
    scratch.give_back(folder)
    assert scratch.take() == folder
    scratch.give_back(folder)
    assert listed == 2  # a change within the same tick of the file system's clock could not be told
    now += SETTLED_S * 2
    assert scratch.take() == folder
    scratch.give_back(folder)
    assert listed == 2
    # What comes and goes leaves a mark, and what stays is found.
    assert scratch.take() == folder
    await later_than(os.stat(folder).st_ctime_ns, tmp_path / "probe")
    passing = Path(folder) / "passing"
    passing.touch()
    passing.unlink()
    scratch.give_back(folder)
    assert listed == 3
    now += SETTLED_S * 2
    assert scratch.take() == folder
    await later_than(os.stat(folder).st_ctime_ns, tmp_path / "probe")
    (Path(folder) / "stays").touch()
    scratch.give_back(folder)
    assert scratch.take() != folder
    await scratch.close()


async def later_than(changed_ns: int, probe: Path) -> None:
    """Waits for the next tick of the file system's clock."""
    async with asyncio.timeout(30):
        while True:
            probe.touch()
            if probe.stat().st_ctime_ns > changed_ns:
                return
            await asyncio.sleep(0)
