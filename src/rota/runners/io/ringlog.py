"""What a runner has done, in files of a bounded size: the newest events, whatever happened in between.

A person who asks why their machine was busy reads it, and a desktop sends it with a report. It holds names of ops and
how they ended, never their arguments, addresses' queries, tokens or signatures (I10).
"""

import json
import logging
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

from rota.io.log import redact

FILE_NAME: Final = "runner.log"
FILE_BYTES_MAX: Final = 1024 * 1024
OLDER_COUNT: Final = 3
"""With the one that is written: 4 MiB, some 20,000 events."""
VALUE_CHARS_MAX: Final = 2000


class RingLog:
    """The events of one runner, in `folder`; without one they go nowhere.

    A disk that is full takes no event, and nothing else comes of that.
    """

    def __init__(self, folder: Path | None, *, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self._handler: logging.Handler | None = None
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._handler = _Quiet(
                folder / FILE_NAME, maxBytes=file_bytes_max, backupCount=OLDER_COUNT, encoding="utf-8", delay=True
            )
            self._handler.setFormatter(logging.Formatter("%(message)s"))

    def write(self, event: str, **fields: Any) -> None:
        """Adds an event."""
        if self._handler is None:
            return
        line: dict[str, object] = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
        line |= {name: value if isinstance(value, int | float) else _told(value) for name, value in fields.items()}
        record = logging.LogRecord("rota.runner", logging.INFO, "", 0, json.dumps(line), None, None)
        self._handler.handle(record)

    def close(self) -> None:
        """Closes its file; safe to repeat."""
        if self._handler is not None:
            self._handler.close()


class _Quiet(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """A log that cannot be written stops no work."""


def _told(value: object) -> str:
    return redact(str(value))[:VALUE_CHARS_MAX]
