"""What a program may give as a number or an id. Pure: the callers say in their own words what is wrong."""

from typing import Any, Final
from uuid import UUID

PRIORITY_MAX: Final = 2**31 - 1
"""Priorities go from its negative to this."""


def is_number(value: Any, lowest: float, highest: float, *, whole: bool = False) -> bool:
    """Whether this is a number from `lowest` to `highest`; NaN is none, and neither are True and False."""
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return False
    return lowest <= value <= highest


def as_uuid(value: Any) -> UUID | None:
    """The uuid that this is or says; None if it is none."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (TypeError, ValueError, AttributeError):
        return None
