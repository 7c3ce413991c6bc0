"""Samples to medians, ratios, bars and one table. Pure.

A sample is one measured value under a key such as `drain.rota`. A line of the report sets the median of one key
against that of another, its base: the limit of raw SQL, or the same work without history.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

HEADINGS: Final = ("", "work", "Rota", "base", "ratio", "bar", "ok", "others' CPU")


class NotMeasured(Exception):
    """A measurement that did not come to its end, or lacks what it needs; its message says why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured value.

    Attributes:
        key: what was measured, and of whom.
        value: in the unit of its line.
        others: the share of all cores that others used meanwhile, 0 to 1.
        tries: how often it was measured to get the least disturbed one.
    """

    key: str
    value: float
    others: float = 0.0
    tries: int = 1


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure has to reach.

    Attributes:
        name: as it stands in the JSON.
        bound: the number.
        of_ratio: whether the ratio to the base has to reach it, or the value itself.
        below: whether the figure has to stay under it, or reach it.
    """

    name: str
    bound: float
    of_ratio: bool = True
    below: bool = False

    def ok(self, figure: float) -> bool:
        """Whether this figure is good enough; no figure (NaN) never is."""
        return figure < self.bound if self.below else figure >= self.bound


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report: `key` against `base`."""

    work: str
    what: str
    key: str
    base: str | None = None
    unit: str = "/s"
    digits: int = 0
    bar: Bar | None = None


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least this share (over 0, up to 1) of all values do not exceed."""
    ordered = sorted(values)
    assert ordered, "a quantile of something"
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def medians(samples: Iterable[Sample]) -> dict[str, float]:
    """The median of each key's samples."""
    found: dict[str, list[float]] = {}
    for sample in samples:
        found.setdefault(sample.key, []).append(sample.value)
    return {key: statistics.median(values) for key, values in found.items()}


def best(samples: Sequence[Sample], keys: Iterable[str], *, name: str, lowest: bool = False) -> list[Sample]:
    """The best of several as one more sample.

    Args:
        samples: all there are.
        keys: among whom.
        name: the key of the answer.
        lowest: whether less is better.

    Returns: one sample with the best median of these keys; none if none of them was measured.
    """
    middle = medians(samples)
    found = [(middle[key], key) for key in keys if key in middle]
    if not found:
        return []
    value, key = min(found) if lowest else max(found)
    others = statistics.median(sample.others for sample in samples if sample.key == key)
    return [Sample(name, value, others)]


def ratio(line: Line, middle: Mapping[str, float]) -> float | None:
    """The line's value as a multiple of its base; None where one is missing."""
    if line.base is None or line.key not in middle or not middle.get(line.base):
        return None
    return middle[line.key] / middle[line.base]


def bars(lines: Iterable[Line], samples: Iterable[Sample]) -> list[dict[str, Any]]:
    """Each bar whose figure was measured: name, value, bar, ok."""
    middle, reached = medians(samples), []
    for line in lines:
        if line.bar is None:
            continue
        value = ratio(line, middle) if line.bar.of_ratio else middle.get(line.key)
        if value is not None:
            reached.append(
                {
                    "name": line.bar.name,
                    "value": round(value, 3),
                    "bar": line.bar.bound,
                    "ok": line.bar.ok(value),
                }
            )
    return reached


def table(lines: Iterable[Line], samples: Sequence[Sample]) -> str:
    """All lines that were measured, as a table in Markdown that also reads well as text."""
    middle = medians(samples)
    rows = [list(HEADINGS)]
    rows += [_row(line, middle, samples) for line in lines if line.key in middle]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    written = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    written.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(written)


def _row(line: Line, middle: Mapping[str, float], samples: Iterable[Sample]) -> list[str]:
    value, base, share = middle[line.key], middle.get(line.base or ""), ratio(line, middle)
    bar = line.bar
    figure = share if bar is not None and bar.of_ratio else value
    return [
        line.work,
        line.what,
        f"{value:,.{line.digits}f} {line.unit}",
        "" if base is None else f"{base:,.{line.digits}f}",
        "" if share is None else f"{share:.2f}",
        "" if bar is None or figure is None else f"{'<' if bar.below else '≥'} {bar.bound:g}",
        "" if bar is None or figure is None else ("yes" if bar.ok(figure) else "NO"),
        f"{statistics.median(sample.others for sample in samples if sample.key in (line.key, line.base)):.0%}",
    ]


def disturbance(samples: Sequence[Sample], *, limit: float) -> str:
    """One sentence about how much others used the machine while it was measured on."""
    shares = [sample.others for sample in samples]
    disturbed = sum(share >= limit for share in shares)
    if not disturbed:
        return f"Quiet: others used less than {limit:.0%} of the CPU in each of {len(shares)} measurements."
    return (
        f"Disturbed: others used {limit:.0%} of the CPU or more in {disturbed} of {len(shares)} measurements "
        f"(median of all {statistics.median(shares):.0%}, worst {max(shares):.0%})."
    )
