"""What a handler may return to say what becomes of its job. Pure.

Any other value is the job's result, and an exception is a failed try. `rota.queue.dispatcher` makes of each what is
written.
"""

from dataclasses import dataclass

# What no worker could do is refused where the handler says it, and not only once a worker reads it.


def _check_wait(outcome: str, seconds: object) -> None:
    if not isinstance(seconds, int | float):
        raise TypeError(f"rota.{outcome} waits for a number of seconds, and this is a {type(seconds).__name__}")


def _check_text(outcome: str, text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"rota.{outcome} takes a text, and this is a {type(text).__name__}")


@dataclass(frozen=True, slots=True)
class Retry:
    """This try failed; run again after `after_s` seconds (None: the kind's own wait). Counts a try.

    `after_s` is 0 seconds to a hundred years; `error` is kept as the job's last error."""

    after_s: float | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if self.after_s is not None:
            _check_wait("Retry", self.after_s)
        if self.error is not None:
            _check_text("Retry", self.error)


@dataclass(frozen=True, slots=True)
class Snooze:
    """Not now: run again after `after_s` seconds (0 to a hundred years). Counts no try."""

    after_s: float
    reason: str | None = None

    def __post_init__(self) -> None:
        _check_wait("Snooze", self.after_s)
        if self.reason is not None:
            _check_text("Snooze", self.reason)


@dataclass(frozen=True, slots=True)
class Again:
    """The run went well, and the same job runs again in `after_s` seconds (0 to a hundred years) with its tries
    at 0. No row is added."""

    after_s: float = 0.0

    def __post_init__(self) -> None:
        _check_wait("Again", self.after_s)


@dataclass(frozen=True, slots=True)
class Yield:
    """Somebody more urgent may go first: back to the queue, at its old place. Counts no try."""


@dataclass(frozen=True, slots=True)
class GiveBack:
    """This server cannot run the job now: back to the queue, not before `after_s` seconds (0 to a hundred years).
    Counts no try."""

    reason: str | None = None
    after_s: float = 1.0

    def __post_init__(self) -> None:
        _check_wait("GiveBack", self.after_s)
        if self.reason is not None:
            _check_text("GiveBack", self.reason)


@dataclass(frozen=True, slots=True)
class Fail:
    """The job failed for good, whatever tries are left."""

    reason: str

    def __post_init__(self) -> None:
        _check_text("Fail", self.reason)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job ended because somebody wanted it to."""

    reason: str | None = None

    def __post_init__(self) -> None:
        if self.reason is not None:
            _check_text("Cancelled", self.reason)


HandlerOutcome = Retry | Snooze | Again | Yield | GiveBack | Fail | Cancelled
