"""`ctx.log`: a logger whose lines go where the program's logs go and, from `info` up, also stay with the job."""

import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rota.io.log import Events, redacted
from rota.queue.job import ClaimedJob
from rota.queue.payload import cut_text

TRACEBACK_BYTES_MAX: Final = 6000
"""Of a traceback, the end: it leaves room for the other fields of its line."""

Keep = Callable[[str, str, dict[str, Any]], None]
"""Takes level, event and fields of a line."""


def _keep_nothing(_level: str, _event: str, _fields: dict[str, Any]) -> None:
    return None


@dataclass(frozen=True, slots=True)
class JobEvents(Events):
    """A logger bound to one run of a job.

    Attributes:
        own: the fields that its user bound.
        keep: where lines go that stay with the job.
    """

    own: Mapping[str, Any] = field(default_factory=dict)
    keep: Keep = _keep_nothing

    def bind(self, **fields: Any) -> "JobEvents":
        """The same logger with more fields."""
        return JobEvents(self.name, {**self.fields, **fields}, {**self.own, **fields}, self.keep)

    def log(self, level: int, event: str, **fields: Any) -> None:
        """Says that something happened."""
        Events.log(self, level, event, **fields)
        if level >= logging.INFO:
            said = {**self.own, **fields}
            exc_info = said.pop("exc_info", None)
            if exc_info:
                said["traceback"] = _traceback(exc_info)
            # Without secrets, as every line (I10).
            kept = {key: redacted(value) for key, value in said.items()}
            self.keep(logging.getLevelName(level).lower(), str(redacted(event)), kept)


def job_events(job: ClaimedJob, *, keep: Keep) -> JobEvents:
    """The logger of a job."""
    bound = {"job_id": str(job.id), "kind": job.kind, "epoch": job.lease.epoch}
    return JobEvents("rota.job", bound, {}, keep)


def _traceback(exc_info: Any) -> str:
    error = exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1]
    lines = [] if error is None else traceback.format_exception(error)
    # Its end says what happened.
    text = "".join(lines)
    return cut_text(text[-TRACEBACK_BYTES_MAX:])
