"""Folders of commands and sessions: own, empty, gone afterwards; and what the dead have left (S61, S82)."""

import asyncio
import fcntl
import os
import shutil
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


async def test_a_folder_that_somebody_has_removed_is_made_anew(tmp_path: Path) -> None:
    """What cleans up temp folders removes those in which nothing was done for days."""
    scratch = Scratch(tmp_path / "scratch")
    spare, held = scratch.take(), scratch.take()
    scratch.give_back(spare)
    os.rmdir(spare)
    assert scratch.take() not in (spare, held), "it was only removed by itself"
    first = scratch.open()
    shutil.rmtree(tmp_path / "scratch")
    scratch.give_back(held)
    again = scratch.take()
    assert os.listdir(again) == []
    assert scratch.open() != first
    await scratch.close()
    assert not list((tmp_path / "scratch").iterdir())


async def test_a_process_that_begins_at_the_same_time_is_not_taken_for_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of one is removed by the other between its making and its lock."""
    lock, others = fcntl.flock, [Scratch(tmp_path)]

    def late(descriptor: int, how: int) -> None:
        if how == fcntl.LOCK_EX and others:
            others.pop().open()
        lock(descriptor, how)

    monkeypatch.setattr("rota.io.scratch.fcntl.flock", late)
    other, scratch = others[0], Scratch(tmp_path)
    folder = Path(scratch.take())
    assert folder.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([other.open().name, folder.parent.name])
    await scratch.close()
    await other.close()


@pytest.mark.parametrize("mode", [0o777, 0o770])
async def test_a_temp_folder_to_which_others_write_is_refused(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.io.scratch.tempfile.gettempdir", lambda: str(tmp_path))
    named = tmp_path / f"rota-scratch-{os.getuid()}"
    named.mkdir()
    named.chmod(mode)
    with pytest.raises(OSError, match="others may write to it"):
        Scratch(None).open()
    named.rmdir()
    named.symlink_to(tmp_path)
    with pytest.raises(OSError, match="others may write to it"):
        Scratch(None).take()
    named.unlink()
    scratch = Scratch(None)
    assert scratch.open().parent == named
    await scratch.close()


async def later_than(changed_ns: int, probe: Path) -> None:
    """Waits for the next tick of the file system's clock."""
    async with asyncio.timeout(30):
        while True:
            probe.touch()
            if probe.stat().st_ctime_ns > changed_ns:
                return
            await asyncio.sleep(0)
