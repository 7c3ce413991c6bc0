"""What a runner job costs: from its spec, which the platform wrote, and from how the platform saw it end. Pure.

Nothing that a runner reports has a way in here: no result, no metrics, no duration, no class that it claims (I11). The
spec's `requested` says what was asked for: `durationSec`, `width`, `height`.

Spec: runners, "Security invariants" (billing), "Error and failure classes".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from rota.runners.codes import FailureClass, JobType

FULL_HD: Final = 1920 * 1080
DURATION_S_MAX: Final = 24 * 3600
PIXELS_MAX: Final = 16384 * 16384
"""Above these a request is priced as if it were these; what is above is refused elsewhere or a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What is charged.

    Attributes:
        base: credits for a job, by its type; a type that is not here has `other`.
        per_minute: credits for each minute that was requested, at 1920×1080.
        desktop_share: the part that is charged for a job on a customer's own machine.
    """

    base: Mapping[str, Decimal] = field(
        default_factory=lambda: MappingProxyType(
            {JobType.COMPILE: Decimal(1), JobType.EXTRACT: Decimal(1), JobType.REMOTION: Decimal(5)}
        )
    )
    other: Decimal = Decimal(1)
    per_minute: Decimal = Decimal(1)
    desktop_share: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Usage:
    """One job's record."""

    units: Mapping[str, int | float]
    credits: Decimal


def usage_of(job_type: str, spec: Mapping[str, Any], *, target: str, failure_class: str | None, rates: Rates) -> Usage:
    """What a job that ran has used.

    Args:
        job_type: of the job.
        spec: as the engine wrote it.
        target: where it ran.
        failure_class: as the platform derived it; None: it did not fail. A failure of class `platform` is refunded.
        rates: what is charged.
    """
    requested = spec.get("requested")
    asked = requested if isinstance(requested, Mapping) else {}
    duration_s = _number(asked.get("durationSec"), DURATION_S_MAX)
    width, height = (_number(asked.get(side), PIXELS_MAX) for side in ("width", "height"))
    pixels = min(int(width * height), PIXELS_MAX) or FULL_HD
    minutes = Decimal(str(duration_s)) / 60
    full = rates.base.get(job_type, rates.other) + rates.per_minute * minutes * pixels / FULL_HD
    share = rates.desktop_share if target == "OrgRunner" else Decimal(1)
    charged = Decimal(0) if failure_class == FailureClass.PLATFORM else full * share
    return Usage({"jobs": 1, "seconds": duration_s, "pixels": pixels}, charged.quantize(Decimal("0.0001")))


def _number(value: object, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return 0
    return min(value, most)
