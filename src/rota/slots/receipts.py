"""How a command ended, in one receipt: from what was seen to what the caller is told. Pure."""

import os
import signal
from typing import Final

from msgspec import Struct

from rota.slots.messages import EndedBy, Receipt
from rota.slots.output import Stderr, Stdout

OUTSIDE: Final = frozenset({"SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGPWR"})
"""Signals that come from the system or a person rather than from the command's own fault: another try may go well."""
RETRYABLE: Final = frozenset({EndedBy.STOPPED, EndedBy.BROKEN})


class Reason(Struct, frozen=True):
    """Why a command was ended by the exec server; the first one counts."""

    ended_by: EndedBy
    error: str


class Facts(Struct, frozen=True):
    """What was seen of one command.

    Attributes:
        reason: why it was ended; None: it ended by itself.
        status: its wait status; None: it has none, because what ran it is gone.
        streamed: whether stdout was to go to a stream.
        delivered: whether the stream took all of it.
    """

    reason: Reason | None
    status: int | None
    stdout: Stdout
    stderr: Stderr
    bytes_in: int
    duration_s: float
    peak_memory_bytes: int
    streamed: bool
    delivered: bool


def receipt(facts: Facts) -> Receipt:
    """The receipt of a command that began."""
    exit_status, signal_name = _how(facts.status)
    ended_by = EndedBy.EXIT if facts.reason is None else facts.reason.ended_by
    well = facts.reason is None and exit_status == 0
    retryable = ended_by in RETRYABLE or (facts.reason is None and signal_name in OUTSIDE)
    return Receipt(
        ended_by=ended_by,
        exit=exit_status,
        signal=signal_name,
        stderr_line=None if well else facts.stderr.decisive_line,
        stdout_prefix=facts.stdout.prefix.decode("utf-8", "replace") or None,
        duration_s=round(facts.duration_s, 6),
        peak_memory_bytes=facts.peak_memory_bytes,
        bytes_in=facts.bytes_in,
        bytes_out=facts.stdout.count,
        digest=facts.stdout.digest,
        dropped_bytes=facts.stdout.dropped(delivered=facts.delivered, streamed=facts.streamed),
        error=None if facts.reason is None else facts.reason.error,
        retryable=retryable,
    )


def refused(error: str, *, retryable: bool = False) -> Receipt:
    """The receipt of a command that never began."""
    return Receipt(ended_by=EndedBy.REFUSED, error=error, retryable=retryable)


def went_well(status: int | None, reason: Reason | None) -> bool:
    """Whether a command's output may be committed: it ended by itself, with exit status 0."""
    return reason is None and status == 0


def _how(status: int | None) -> tuple[int | None, str | None]:
    if status is None:
        return None, None
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code, None
    try:
        return None, signal.Signals(-code).name
    except ValueError:
        return None, f"signal {-code}"
