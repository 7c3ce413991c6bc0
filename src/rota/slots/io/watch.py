"""Looks at the processes of running commands: memory and CPU time of each tree, all in one look, in a thread.

A command that ends before the first look costs nothing here.
"""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import psutil

LOOK_S: Final = 0.25
"""Between two looks; a command is looked at when it is that old."""


@dataclass(frozen=True, slots=True)
class Look:
    """One tree now. `memory_bytes` counts what processes share once for each; `pids` are its processes."""

    cpu_s: float
    memory_bytes: int
    pids: tuple[int, ...]


NOTHING: Final = Look(0.0, 0, ())


def look_at(roots: Collection[int]) -> dict[int, Look]:
    """What is below each of these processes, themselves not counted."""
    children: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            children.setdefault(process.ppid(), []).append(process)
    return {root: _sum(_below(root, children)) for root in roots}


def shared_once_bytes(pids: Collection[int]) -> int:
    """The memory of these processes with shared pages divided among those that share them; slow and exact."""
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            facts = psutil.Process(pid).memory_full_info()
            total += getattr(facts, "pss", None) or facts.uss
    return total


def _below(root: int, children: dict[int, list[psutil.Process]]) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    waiting = [root]
    while waiting:
        here = children.pop(waiting.pop(), [])
        found += here
        waiting += [process.pid for process in here]
    return found


def _sum(processes: list[psutil.Process]) -> Look:
    cpu_s, memory_bytes = 0.0, 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            # With those of children that have ended and were waited for.
            cpu_s += times.user + times.system + times.children_user + times.children_system
            memory_bytes += process.memory_info().rss
    return Look(cpu_s, memory_bytes, tuple(process.pid for process in processes))
