"""Logs as events with fields, through structlog over the standard library; secrets never reach a line.

A line is an event name and its fields: `job stalled  kind=build id=… epoch=3`. On a terminal it is text, elsewhere
JSON, one object a line, unless the settings say otherwise.
"""

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from rota.io.visible import visible
from rota.settings import Settings

_BREAKS: Final = re.compile(r"([\s\"'<>]+)")
"""What an address ends at. Text is cut there first, so that a long line costs time in proportion to its length."""
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
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Forward()], level=logging.WARNING)


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
    """A value as it may be shown: numbers as they are, containers part by part, the rest as text without secrets."""
    match value:
        case None | bool() | int() | float():
            return value
        case Mapping():
            return {str(key): redacted(entry) for key, entry in value.items()}
        case list() | tuple():
            return [redacted(entry) for entry in value]
        case _:
            return redact(str(value))


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
        if structlog.is_configured():
            structlog.get_logger(logger_name=self.name).log(level, event, **said)
            return
        logger = logging.getLogger(self.name)
        if logger.isEnabledFor(level):
            exc_info = said.pop("exc_info", None)
            words = [redact(event), *(f"{key}={redacted(value)!r}" for key, value in said.items())]
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
