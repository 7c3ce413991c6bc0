"""Numbers for a scraper, as plain values: a family is one name with its samples.

What they mean is said where they are made; how they become text is in `rota.io.metrics`, which needs a web server.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

FamilyType = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One value and its labels; of a histogram also the counts up to each bound, and `value` is the sum."""

    labels: Sequence[str]
    value: float
    buckets: Sequence[tuple[float, int]] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one name. A counter's name ends in `_total`."""

    name: str
    type: FamilyType
    help: str
    labels: Sequence[str] = ()
    samples: Sequence[Sample] = field(default_factory=list)
