"""Counts jobs as they start, in a small file that the measuring process reads while the workers run.

Each worker process has a file of its own: how many jobs have started, when the first did, and how long each numbered
job waited for its start. The clock is the machine's monotonic one, which all processes share.
"""

import mmap
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

_HEAD: Final = struct.Struct("=qd")
_WAIT: Final = struct.Struct("=d")


class Meter:
    """The writing side.

    Args:
        path: the file to make.
        waits: how many jobs have a number, from 0, whose wait is kept.
    """

    def __init__(self, path: Path, *, waits: int = 0) -> None:
        path.write_bytes(bytes(_HEAD.size + waits * _WAIT.size))
        with path.open("r+b") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0))
        self._counts = view[:8].cast("q")
        self._times = view[8:].cast("d")
        self._count = 0

    def started(self) -> None:
        """Notes the start of a job."""
        if not self._count:
            self._times[0] = time.monotonic()
        self._count += 1
        self._counts[0] = self._count

    def handled(self, payload: Mapping[str, Any]) -> None:
        """Both, for a payload that is a plain object with `number` and `sent_at`."""
        now = time.monotonic()
        self.started()
        if payload["sent_at"]:
            self.waited(payload["number"], now - payload["sent_at"])

    def waited(self, number: int, seconds: float) -> None:
        """Notes how long a job waited; jobs beyond the kept numbers, and below 0, were only for warming up."""
        if 0 <= number < len(self._times) - 1:
            self._times[1 + number] = seconds


def started(paths: Iterable[Path]) -> tuple[int, float]:
    """How many jobs have started, and when the first did (infinity: none yet)."""
    total, first = 0, float("inf")
    for path in paths:
        head = path.read_bytes()[: _HEAD.size]
        if len(head) == _HEAD.size:
            count, at = _HEAD.unpack(head)
            total += count
            first = min(first, at) if count else first
    return total, first


def waits(path: Path) -> list[float]:
    """How long the numbered jobs waited, in seconds; those that have not started are left out."""
    return [wait for (wait,) in _WAIT.iter_unpack(path.read_bytes()[_HEAD.size :]) if wait]
