"""How long ended jobs stay: by kind, and failed ones for longer where asked. Pure.

A kind's program says what it wants; every worker obeys all programs, so that none removes what another keeps. A rule is
worked off from where it came to the last time: what ended before that is gone, and is not read again and again.

Spec: job queue, "A server removes a job 7 days after it ended".
"""

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct


class Keep(Struct, frozen=True):
    """How long the ended jobs of a kind stay, in seconds, and its failed ones; None: as the settings say."""

    kind: str
    keep_s: float | None = None
    keep_failed_s: float | None = None


class Rule(Struct, frozen=True):
    """What one statement removes: jobs of one kind, or of all but `others`; failed ones, or all that did not fail."""

    kind: str | None
    failed: bool
    keep_s: float
    others: tuple[str, ...] = ()


class Pruned(Struct, frozen=True):
    """How many jobs were removed. What ended before `before` is gone, if none were left over."""

    removed: int
    before: datetime


def rules(keeps: Iterable[Keep], *, keep_s: float, keep_failed_s: float) -> list[Rule]:
    """What there is to remove.

    Args:
        keeps: the kinds with times of their own, each once.
        keep_s: how long others stay.
        keep_failed_s: how long failed jobs stay; never shorter than those that did not fail.

    Returns: the rules, the same for the same arguments; no job falls under two.
    """
    own = sorted(keeps, key=lambda keep: keep.kind)
    kinds = tuple(keep.kind for keep in own)
    found = [
        Rule(None, False, keep_s, kinds),
        Rule(None, True, max(keep_s, keep_failed_s), kinds),
    ]
    for keep in own:
        stays_s = keep_s if keep.keep_s is None else keep.keep_s
        failed_s = keep_failed_s if keep.keep_failed_s is None else keep.keep_failed_s
        found += [Rule(keep.kind, False, stays_s), Rule(keep.kind, True, max(stays_s, failed_s))]
    return found
