"""How much memory this process may use, and how much a tree of processes takes.

What the machine has is not what a container may use, and who goes beyond that is killed without a word. What is mapped
is not what is taken: an allocator reserves far more than it touches. So what is counted here is resident.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
_OF_VERSION_1: Final = "memory/memory.limit_in_bytes"


def memory_bytes(*, cgroups: Path = _CGROUPS, own: Path = _OWN) -> int:
    """What this process and those that it starts may use: the machine's memory, or the least that a control group above
    it allows.

    Args:
        cgroups, own: where the system shows control groups, and which of them is this process's.
    """
    return min([psutil.virtual_memory().total, *_limits(cgroups, own)])


def taken_bytes(pid: int) -> int:
    """The resident memory of what a process has started, directly or not, without its own."""
    taken = 0
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                taken += process.memory_info().rss
    return taken


def _limits(cgroups: Path, own: Path) -> Iterator[int]:
    names = [cgroups / _OF_VERSION_1]
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            if line.startswith("0::/"):
                group = cgroups / line.removeprefix("0::/")
                inside = [group, *(parent for parent in group.parents if parent.is_relative_to(cgroups))]
                names += [folder / "memory.max" for folder in inside]
    for name in names:
        # "max" is no number, and no limit.
        with contextlib.suppress(OSError, ValueError):
            yield int(name.read_text())
