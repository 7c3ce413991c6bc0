"""A tree of child processes: started again when they crash, stopped in time, and gone when their parent is."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.io import processes
from rota.io.backoff import Backoff
from rota.io.kill import PR_SET_CHILD_SUBREAPER
from rota.io.processes import Command, ProcessTree
from tests.integration.programs import WAIT_S, lives, nothing_runs, running, until

CHILD = """
import os
import signal
import subprocess
import sys
import time

name, how = sys.argv[1:]
with open(f"{name}.starts", "a") as file:
    file.write(f"{os.getpid()}\\n")
starts = len(open(f"{name}.starts").readlines())

def end(*_):
    with open(f"{name}.signals", "a") as file:
        file.write("SIGTERM\\n")
    if how == "stubborn":
        return
    if how == "second" and len(open(f"{name}.signals").readlines()) < 2:
        return
    sys.exit(5 if how == "ends with 5" else 0)

signal.signal(signal.SIGTERM, end)
print(f"{name} says {os.environ.get('WORD')}", flush=True)
print(f"{name} complains", file=sys.stderr, flush=True)
if how.startswith("has one of its own"):
    below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    with open(f"{name}.below", "a") as file:
        file.write(f"{below.pid}\\n")
    if how.endswith("and crashes") and starts < 2:
        os.kill(os.getpid(), signal.SIGKILL)
open(f"{name}.ready", "w").close()
if how.startswith("exits") and starts < 3:
    sys.exit(int(how.split()[1]))
if how == "kills itself" and starts < 3:
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    time.sleep(60)
"""

PARENT = """
import asyncio
import sys
from rota.io.processes import Command, ProcessTree

command = Command("kept", [sys.executable, "child.py", "kept", sys.argv[1]])
asyncio.run(ProcessTree([command], grace_s=30).run())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, with the programs in it; nothing runs there in the end."""
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "parent.py").write_text(PARENT)
    monkeypatch.chdir(tmp_path)
    # A wait before a restart is a matter for the tests of Backoff.
    monkeypatch.setattr(processes, "Backoff", lambda random, **_: Backoff(random, first_s=0.02, cap_s=0.02))
    yield tmp_path
    if sys.platform == "linux":
        # A tree makes its process the parent of orphans; other tests look for theirs elsewhere.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    nothing_runs(tmp_path)


def child(name: str, how: str = "waits", **options: Any) -> Command:
    return Command(name, [sys.executable, "child.py", name, how], **options)


def words(folder: Path, file: str) -> list[str]:
    """The lines of a file that a child wrote."""
    path = folder / file
    return path.read_text().split() if path.exists() else []


async def ready(folder: Path, name: str, *, starts: int = 1) -> None:
    """Returns when a child has been started so often and runs."""

    def there() -> bool:
        return len(words(folder, f"{name}.starts")) >= starts and (folder / f"{name}.ready").exists()

    await asyncio.to_thread(until, there, f"{starts} starts of {name}")


async def ended(run: Awaitable[int]) -> int:
    """The exit status of a tree that is about to end."""
    async with asyncio.timeout(WAIT_S):
        return await run


async def test_children_run_side_by_side_and_stop_when_they_are_told(folder: Path) -> None:
    tree = ProcessTree([child("one"), child("two")], grace_s=30)
    assert tree.pid("one") is None
    run = asyncio.create_task(tree.run())
    await ready(folder, "one")
    await ready(folder, "two")
    assert [str(tree.pid("one"))] == words(folder, "one.starts")
    tree.stop()
    assert await ended(run) == 0
    assert words(folder, "one.signals") == words(folder, "two.signals") == ["SIGTERM"]
    assert tree.pid("one") is None and tree.pid("other") is None


@pytest.mark.parametrize("how", ["exits 1", "exits 3", "kills itself"])
async def test_a_child_that_crashes_is_started_again(folder: Path, how: str) -> None:
    tree = ProcessTree([child("crashes", how), child("other")], grace_s=30)
    run = asyncio.create_task(tree.run())
    await ready(folder, "crashes", starts=3)
    await ready(folder, "other")
    pids = words(folder, "crashes.starts")
    assert len(set(pids)) == 3
    assert tree.pid("crashes") == int(pids[-1])
    assert len(words(folder, "other.starts")) == 1, "the others go on"
    tree.stop()
    assert await ended(run) == 0


@pytest.mark.parametrize(("how", "status"), [("exits 0", 0), ("exits 2", 2)])
async def test_a_child_that_ended_well_or_was_started_wrongly_stays_down(folder: Path, how: str, status: int) -> None:
    tree = ProcessTree([child("down", how)], grace_s=30)
    assert await ended(tree.run()) == status
    assert len(words(folder, "down.starts")) == 1


async def test_without_restarts_a_crash_is_the_end_of_that_child_alone(folder: Path) -> None:
    tree = ProcessTree([child("other"), child("crashes", "kills itself")], grace_s=30, restart=False)
    run = asyncio.create_task(tree.run())
    await ready(folder, "other")
    await asyncio.to_thread(until, lambda: tree.pid("crashes") is None and words(folder, "crashes.starts"), "a crash")
    assert not run.done()
    tree.stop()
    assert await ended(run) == 128 + signal.SIGKILL
    assert len(words(folder, "crashes.starts")) == 1


async def test_the_first_status_that_is_not_0_counts(folder: Path) -> None:
    tree = ProcessTree([child("fine"), child("not", "ends with 5")], grace_s=30)
    run = asyncio.create_task(tree.run())
    await ready(folder, "fine")
    await ready(folder, "not")
    tree.stop()
    assert await ended(run) == 5


async def test_a_child_that_does_not_stop_in_time_is_killed(folder: Path) -> None:
    tree = ProcessTree([child("fine"), child("stays", "stubborn")], grace_s=0.3)
    run = asyncio.create_task(tree.run())
    await ready(folder, "fine")
    await ready(folder, "stays")
    pid = tree.pid("stays")
    assert pid is not None
    tree.stop()
    assert await ended(run) == 128 + signal.SIGKILL
    assert words(folder, "stays.signals") == ["SIGTERM"], "it was asked first"
    assert not lives(pid)


async def test_a_second_stop_is_a_second_signal(folder: Path) -> None:
    tree = ProcessTree([child("waits", "second")], grace_s=60)
    run = asyncio.create_task(tree.run())
    await ready(folder, "waits")
    tree.stop()
    await asyncio.to_thread(until, lambda: words(folder, "waits.signals") == ["SIGTERM"], "the first")
    assert not run.done()
    tree.stop()
    assert await ended(run) == 0
    assert words(folder, "waits.signals") == ["SIGTERM", "SIGTERM"]


async def test_a_stop_before_a_child_has_begun_is_a_good_end(folder: Path) -> None:
    tree = ProcessTree([child("one"), child("two")], grace_s=30)
    run = asyncio.create_task(tree.run())
    await asyncio.sleep(0)
    tree.stop()
    assert await ended(run) == 0


async def test_a_stop_while_a_child_waits_to_be_started_again_is_a_good_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "Backoff", lambda random, **_: Backoff(random, first_s=3600, cap_s=3600))
    tree = ProcessTree([child("crashes", "exits 1")], grace_s=30)
    run = asyncio.create_task(tree.run())
    await ready(folder, "crashes")
    await asyncio.to_thread(until, lambda: tree.pid("crashes") is None, "its end")
    tree.stop()
    assert await ended(run) == 0


async def test_a_command_that_is_not_there_leaves_no_other_running(folder: Path) -> None:
    tree = ProcessTree([child("one"), Command("none", ["/nothing/here"])], grace_s=30)
    with pytest.raises(FileNotFoundError):
        await tree.run()
    assert tree.pid("one") is None


async def test_a_tree_that_is_cancelled_leaves_nothing_running(folder: Path) -> None:
    tree = ProcessTree([child("stays", "stubborn")], grace_s=60)
    run = asyncio.create_task(tree.run())
    await ready(folder, "stays")
    pid = tree.pid("stays")
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert pid is not None and not lives(pid)


async def test_what_a_child_says_goes_to_its_file(folder: Path) -> None:
    log = folder / "told.log"
    log.write_text("from before\n")
    tree = ProcessTree([child("told", environ={"WORD": "hello"}, log=log)], grace_s=30)
    run = asyncio.create_task(tree.run())
    await ready(folder, "told")
    tree.stop()
    await ended(run)
    assert log.read_text().splitlines() == ["from before", "told says hello", "told complains"]


async def test_without_a_file_it_goes_where_the_parents_output_goes(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD", "inherited")
    tree = ProcessTree([child("told")], grace_s=30)
    run = asyncio.create_task(tree.run())
    await ready(folder, "told")
    tree.stop()
    await ended(run)
    out, err = capfd.readouterr()
    assert out == "told says inherited\n"
    assert "told complains\n" in err


async def test_ctrl_c_in_a_terminal_reaches_a_child_through_its_parent_alone(folder: Path) -> None:
    tree = ProcessTree([child("apart")], grace_s=30)
    run = asyncio.create_task(tree.run())
    await ready(folder, "apart")
    pid = tree.pid("apart")
    assert pid is not None and os.getpgid(pid) == pid != os.getpgid(0)
    tree.stop()
    await ended(run)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")
async def test_what_a_crashed_child_had_started_is_killed_and_nothing_else(folder: Path) -> None:
    own = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)")
    tree = ProcessTree(
        [child("sound", "has one of its own"), child("crashes", "has one of its own and crashes")], grace_s=30
    )
    run = asyncio.create_task(tree.run())
    await ready(folder, "sound")
    await ready(folder, "crashes", starts=2)
    (sound,) = map(int, words(folder, "sound.below"))
    first, second = map(int, words(folder, "crashes.below"))
    assert not lives(first), "gone before the child was started again"
    assert lives(second) and lives(sound) and own.returncode is None
    tree.stop()
    await ended(run)
    for pid in (sound, second, own.pid):
        os.kill(pid, signal.SIGKILL)
    await own.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_parent_that_is_killed_leaves_no_child(folder: Path) -> None:
    with running([sys.executable, "parent.py", "waits"], folder=folder) as parent:
        until((folder / "kept.ready").exists, "the child runs")
        (pid,) = map(int, words(folder, "kept.starts"))
        parent.signal(signal.SIGKILL)
        parent.status()
        until(lambda: not lives(pid), "the child is gone")
    # The system may say it once for each thread of the parent that ends.
    assert set(words(folder, "kept.signals")) == {"SIGTERM"}, "it could end well"


# Readiness

STARTS = """
import os
import sys
import time

how, option, end = sys.argv[1:]
assert option == "--ready-to"
with open("starts", "a") as file:
    file.write(f"{os.getpid()}\\n")
while how == "hangs once" and len(open("starts").readlines()) < 2 or how == "waits" and not os.path.exists("go"):
    time.sleep(0.01)
os.write(int(end), b"ready")
os.close(int(end))
time.sleep(600)
"""


def starting(how: str, *, ready_s: float) -> Command:
    return Command("starts", [sys.executable, "-S", "-c", STARTS, how], ready_s=ready_s)


async def test_a_child_that_hangs_at_its_start_is_replaced(folder: Path) -> None:
    """S23: the tree does not take it for one that works."""
    tree = ProcessTree([starting("hangs once", ready_s=1.0)], grace_s=30)
    run = asyncio.create_task(tree.run())
    assert tree.not_ready == {"starts"}
    await asyncio.to_thread(until, lambda: not tree.not_ready, "the second start")
    pids = [int(word) for word in words(folder, "starts")]
    assert len(pids) >= 2 and not lives(pids[0])
    assert tree.pid("starts") == pids[-1]
    tree.stop()
    assert await ended(run) == 0


async def test_a_child_is_ready_when_it_says_so(folder: Path) -> None:
    """S23."""
    tree = ProcessTree([starting("waits", ready_s=WAIT_S)], grace_s=30)
    run = asyncio.create_task(tree.run())
    await asyncio.to_thread(until, lambda: words(folder, "starts"), "the start")
    assert tree.not_ready == {"starts"}
    (folder / "go").touch()
    await asyncio.to_thread(until, lambda: not tree.not_ready, "its word")
    tree.stop()
    assert await ended(run) == 0
    assert len(words(folder, "starts")) == 1


async def test_a_tree_may_stop_while_a_child_is_not_ready(folder: Path) -> None:
    tree = ProcessTree([starting("waits", ready_s=WAIT_S)], grace_s=30)
    run = asyncio.create_task(tree.run())
    await asyncio.to_thread(until, lambda: words(folder, "starts"), "the start")
    tree.stop()
    assert await ended(run) == 0
