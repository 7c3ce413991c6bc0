"""Ends a process and everything that it started, also what has left its process group (setsid)."""

import contextlib
import ctypes
import os
import signal
import sys
from typing import Final, NoReturn

import psutil

PR_SET_CHILD_SUBREAPER: Final = 36
LOOKS_MAX: Final = 3
"""How often a tree is read before it is killed: what is stopped cannot grow, so the second look finds the late ones."""


def kill_tree(pid: int) -> None:
    """Kills a process and all its descendants, also those that left its process group."""
    try:
        root = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    found: dict[int, psutil.Process] = {}
    # Stopped first, so that nothing new is born between the look and the kill; a second look finds late ones.
    for _ in range(LOOKS_MAX):
        try:
            tree = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            break
        new = [process for process in tree if process.pid not in found]
        if not new:
            break
        for process in new:
            found[process.pid] = process
            with contextlib.suppress(psutil.Error):
                process.suspend()
    for process in reversed(found.values()):
        with contextlib.suppress(psutil.Error):
            process.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_own_tree() -> NoReturn:
    """Kills what this process has started, its process group, and with that itself; for a group leader."""
    for child in psutil.Process().children():
        kill_tree(child.pid)
    os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of whatever its descendants leave behind (Linux; elsewhere the system takes it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_descendants(number: signal.Signals) -> None:
    """Signals whatever this process has started, directly or not, in whatever process group."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def kill_descendants() -> None:
    """Kills whatever this process has started, directly or not. The caller reaps, and calls again while there are any:
    they become its own, see `adopt_orphans`.

    What goes on by leaving a child and ending is there for less than a millisecond: the whole table of processes would
    be read too late.
    """
    waiting = [os.getpid()]
    while waiting:
        children = _children(waiting.pop())
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        waiting += children


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except ProcessLookupError:
        pass  # it is gone, and its children are somebody else's
    except OSError:  # no Linux, or one that was built without these files
        with contextlib.suppress(psutil.Error):
            found = [child.pid for child in psutil.Process(pid).children()]
    return found


def kill_orphans(*, but: set[int]) -> list[int]:
    """Kills and reaps the children of this process that it did not start itself.

    Args:
        but: the process ids of those that it did start.

    Returns: the process ids of the others that were still running.
    """
    found = []
    for child in psutil.Process().children():
        if child.pid in but:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(child.pid)
        kill_tree(child.pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child.pid, 0)
    return found
