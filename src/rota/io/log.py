"""Logs as events with fields, through structlog over the standard library; secrets never reach a line.

A line is an event name and its fields: `job stalled  kind=build id=… epoch=3`. On a terminal it is text, elsewhere
JSON, one object a line, unless the settings say otherwise.
"""

import contextlib
import io
import itertools
import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, TextIO, cast

from rota.io.visible import visible
from rota.settings import Settings

_BREAKS: Final = re.compile(r"([\s\"'<>]+)")
"""What an address ends at. Text is cut there first, so that a long line costs time in proportion to its length."""
CHARS_MAX: Final = 64 * 1024
"""Characters of one value in a line: an error may quote a whole file."""
PARTS_MAX: Final = 1000
"""Parts of one value, those of its parts included."""
DEPTH_MAX: Final = 20
NUMBER_MAX: Final = 1 << 64
"""Python writes no larger number out than it likes, and JSON has no infinity."""
_KEYWORD: Final = re.compile(r"\b(\w*password\s*=\s*)('[^']*'|[^\s&]+)", re.IGNORECASE)


def redact(text: str) -> str:
    """Removes passwords, and the queries of addresses, which may be signatures or hold passwords (I10)."""
    if "://" in text:
        text = "".join(_redacted_address(part) if "://" in part else part for part in _BREAKS.split(text))
    return _KEYWORD.sub(r"\1…", text)


def _redacted_address(address: str) -> str:
    scheme, _, rest = address.partition("://")
    # As far as the last @: a password that was not percent-encoded may hold anything.
    account, at, place = rest.rpartition("@")
    user, colon, _ = account.partition(":")
    if at and colon and "/" not in user:
        rest = f"{user}:…@{place}"
    path, _, query = rest.partition("?")
    return f"{scheme}://{path}?…" if query else f"{scheme}://{rest}"


SILENT: Final = logging.Logger("rota.silent", level=logging.CRITICAL + 1)
"""For a library that would log what passes through it, at a level that a program may turn on: headers and frames of
websockets hold tokens and signatures (I10)."""
_set_up: list[tuple[str, str]] = []
"""Format and level of the last `setup`; empty in a program that logs by its own means."""


def setup(settings: Settings) -> None:
    """Sets up logging for a program that is Rota's own (the command line); a library user's logging is left alone."""
    setup_as(settings.log_format, settings.log_level)


def log_settings() -> tuple[str | None, str]:
    """Format and level that this program was set up with, for its child processes; None: it was not."""
    return _set_up[-1] if _set_up else (None, "info")


def setup_as(log_format: str, log_level: str) -> None:
    """The same as `setup`, by the names of a format and a level."""
    import structlog  # noqa: PLC0415 - it loads a renderer of tracebacks, which a program that logs elsewhere can spare

    _set_up[:] = [(log_format, log_level)]
    text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if text else "iso", utc=not text),
    ]
    structlog.configure(
        processors=[
            *shared,
            # Tracebacks without local variables, and as text before they are redacted: both may hold secrets (I10).
            structlog.processors.format_exc_info,
            _redact_fields,
            *([_show_fields] if text else ()),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
            if text
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, log_level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=cast("TextIO", _Lines(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Forward()], level=logging.WARNING)


class _Lines(io.TextIOBase):
    """Where lines go. One that cannot be written, as on a full disk or after its reader ended, is lost: a worker goes
    on without its log."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.flush()


class _Forward(logging.Handler):
    """What other libraries log, in lines of the same form."""

    def emit(self, record: logging.LogRecord) -> None:
        get_logger(record.name).log(record.levelno, record.getMessage(), exc_info=record.exc_info)


def _redact_fields(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        event[key] = redacted(value)
    return event


def _show_fields(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Of the parts of a line that its renderer puts out as they are: the values of other fields it quotes."""
    for key, value in list(event.items()):
        raw = key in {"event", "exception", "logger_name"} and isinstance(value, str)
        event[visible(key)] = visible(event.pop(key)) if raw else event.pop(key)
    return event


def redacted(value: Any) -> Any:
    """A value as it may be shown: numbers as they are, containers part by part, the rest as text without secrets.

    Long texts lose their middle, large containers their end. What cannot be shown says so: a line is no reason for its
    job, or its worker, to fail.
    """
    return _redacted(value, _Room(), depth=0)


@dataclass(slots=True)
class _Room:
    """What is left for one value."""

    parts: int = PARTS_MAX
    chars: int = CHARS_MAX


def _redacted(value: Any, room: _Room, *, depth: int) -> Any:
    room.parts -= 1
    if depth > DEPTH_MAX or room.parts < 0 or room.chars < 0:
        return "…"
    try:
        match value:
            case None | bool():
                return value
            case int() | float() if abs(value) < NUMBER_MAX:
                return value
            case Mapping():
                some = itertools.islice(value.items(), room.parts + 1)
                return {redact_whole(str(key)): _redacted(part, room, depth=depth + 1) for key, part in some}
            case list() | tuple():
                return [_redacted(part, room, depth=depth + 1) for part in value[: room.parts + 1]]
            case _:
                text = redact_whole(str(value))
                room.chars -= len(text)
                return text
    except Exception as error:
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def redact_whole(text: str) -> str:
    """As `redact`, and a text of more than CHARS_MAX loses its middle."""
    if len(text) <= CHARS_MAX:
        return redact(text)
    # Of each end more than is kept, and no part of a word: half a secret does not look like one.
    head, tail = text[:CHARS_MAX].rsplit(None, 1), text[-CHARS_MAX:].split(None, 1)
    half = CHARS_MAX // 2
    return f"{redact(head[0])[:half]} … of {len(text):,} characters … {redact(''.join(tail[1:]))[-half:]}"


@dataclass(frozen=True, slots=True)
class Events:
    """A logger of events with fields. It goes where the program's structlog goes, and where that was never set up, as
    in most programs that use Rota as a library, to the standard library's logger of the same name."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def bind(self, **fields: Any) -> "Events":
        """The same logger with more fields."""
        return Events(self.name, {**self.fields, **fields})

    def log(self, level: int, event: str, **fields: Any) -> None:
        """Says that something happened."""
        said = {**self.fields, **fields}
        structlog = sys.modules.get("structlog")
        # Nobody can have set up what nobody has loaded.
        if structlog is not None and structlog.is_configured():
            try:
                structlog.get_logger(logger_name=self.name).log(level, event, **said)
            except Exception as error:
                # A processor of the program's own, say; whoever logs goes on.
                with contextlib.suppress(Exception):
                    sys.stderr.write(f"{redact_whole(event)} (its line could not be made: {type(error).__name__})\n")
            return
        logger = logging.getLogger(self.name)
        if logger.isEnabledFor(level):
            exc_info = said.pop("exc_info", None)
            words = [redact_whole(event), *(f"{key}={redacted(value)!r}" for key, value in said.items())]
            logger.log(level, "%s", " ".join(words), exc_info=exc_info)

    def debug(self, event: str, **fields: Any) -> None:
        """For whoever looks for a fault."""
        self.log(logging.DEBUG, event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        """As it should be."""
        self.log(logging.INFO, event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something to look at when it repeats."""
        self.log(logging.WARNING, event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Something did not work."""
        self.log(logging.ERROR, event, **fields)

    def critical(self, event: str, **fields: Any) -> None:
        """The process cannot go on."""
        self.log(logging.CRITICAL, event, **fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error with its traceback, from an `except` block."""
        self.log(logging.ERROR, event, exc_info=True, **fields)


def get_logger(name: str) -> Events:
    """A logger whose lines carry this name; it exists before `setup`, and follows it afterwards."""
    return Events(name)
