"""Times as they stand in messages: RFC 3339, in UTC, and nothing else. Pure.

Spec: runners, "Transport and envelope".
"""

import re
from datetime import UTC, datetime
from typing import Final

_UTC_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(\.\d+)?(?:[Zz]|\+00:00)", re.ASCII)


def stamp(wall: float) -> str:
    """An instant as it is written, to the millisecond.

    Args:
        wall: seconds since 1970.
    """
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse(text: str) -> float | None:
    """Seconds since 1970; None if this is no time, has no zone or another than UTC."""
    found = _UTC_TIME.fullmatch(text)
    if found is None:
        return None
    day, time, fraction = found.groups()
    if time == "23:59:60":  # a leap second, which the time of computers has not
        time, fraction = "23:59:59", ".999"
    try:
        whole = datetime.fromisoformat(f"{day}T{time}+00:00").timestamp()
    except ValueError:
        return None
    return whole + float(fraction or 0)
