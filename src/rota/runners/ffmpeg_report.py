"""What ffmpeg says while it runs: the end of its complaints, and how far it is. Pure: bytes in, words and numbers out.

Its stderr may be anything: a million lines, one line of a megabyte, carriage returns, bytes that are no text (S72).
What is kept is bounded and valid. A fraction is for people and nothing rests on it.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from rota.slots.output import lines_of

TAIL_BYTES: Final = 64 * 1024
TAIL_CHARACTERS: Final = 16_000
"""Below what a message takes as text; the last 150 lines or so."""
LINE_BYTES: Final = 4 * 1024

_DURATION: Final = re.compile(rb"^\s*Duration: (\d{1,9}):(\d\d):(\d\d(?:\.\d+)?)", re.MULTILINE)
_TIME: Final = re.compile(r"(?:(?:(\d{1,9}):)?(\d{1,9}):)?(\d{1,18}(?:\.\d*)?)(ms|us|s)?")
"""Longer numbers are no times of anything."""
_UNITS: Final = {"ms": 1e-3, "us": 1e-6, "s": 1.0}


class Complaints:
    """The stderr of one run.

    Attributes:
        duration_s: the longest length of an input that ffmpeg has named; None: none yet.
    """

    def __init__(self) -> None:
        self.duration_s: float | None = None
        self._tail = bytearray()
        self._line = b""

    def take(self, data: bytes) -> None:
        """What has come, cut anywhere."""
        self._tail += data[-TAIL_BYTES:]
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
        whole, _, rest = (self._line + data).rpartition(b"\n")
        self._line = rest[-LINE_BYTES:]
        for hours, minutes, seconds in _DURATION.findall(whole):
            length_s = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
            self.duration_s = max(self.duration_s or 0.0, length_s)

    @property
    def tail(self) -> str:
        """The last lines, as valid text without control characters."""
        return "\n".join(lines_of(bytes(self._tail[-TAIL_BYTES:])))[-TAIL_CHARACTERS:]


def expected_s(argv: Sequence[str], duration_s: float | None) -> float | None:
    """How much media a command is likely to write.

    Args:
        argv: its elements.
        duration_s: the longest input; None: unknown.

    Returns: seconds; None if neither tells.
    """
    named = {option: _seconds(value) for option, value in pairwise(argv) if option in _SPANS}
    start = named.get("-ss") or 0.0
    asked = named.get("-t")
    if asked is None and (end := named.get("-to")) is not None:
        asked = max(0.0, end - start)
    left = None if duration_s is None else max(0.0, duration_s - start)
    known = [span for span in (asked, left) if span]
    return min(known) if known else None


_SPANS: Final = frozenset({"-ss", "-t", "-to"})


def _seconds(text: str) -> float | None:
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    hours, minutes, seconds, unit = match.groups()
    return (int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds)) * _UNITS[unit or "s"]
