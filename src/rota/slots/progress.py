"""Whether a command still moves: bytes, output and CPU time count, being alive does not. Pure."""

from dataclasses import dataclass
from typing import Final

CPU_STEP_S: Final = 0.02
"""CPU time that counts as a move; less is a process that only wakes up to look."""


@dataclass(frozen=True, slots=True)
class Moved:
    """How far a command is: bytes read from its caller and written by it so far, the newest line of stderr, and how
    often it was seen to move, so that one that only computes is seen to go on too."""

    bytes_in: int
    bytes_out: int
    line: str | None = None
    moves: int = 0


class Movement:
    """When a command moved last.

    Args:
        now: seconds of a clock that never steps.
    """

    def __init__(self, now: float) -> None:
        self._moved_at = now
        self._bytes = 0
        self._cpu_s = 0.0
        self.moves = 0

    def saw(self, *, bytes_count: int, cpu_s: float, now: float) -> None:
        """Takes what is known now: all bytes in any direction, and the CPU time of all processes that are there."""
        if bytes_count != self._bytes or cpu_s >= self._cpu_s + CPU_STEP_S:
            self._moved_at = now
            self.moves += 1
            self._bytes, self._cpu_s = bytes_count, cpu_s
        # A process that ended takes its CPU time out of the sum.
        self._cpu_s = min(self._cpu_s, cpu_s)

    def still_s(self, now: float) -> float:
        """For how long nothing moved."""
        return now - self._moved_at
