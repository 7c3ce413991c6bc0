"""Logs as events with fields, through structlog over the standard library; secrets never reach a line.

A line is an event name and its fields: `job stalled  kind=build id=… epoch=3`. On a terminal it is text, elsewhere
JSON, one object a line, unless the settings say otherwise.
"""

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

import structlog

from rota.settings import Settings

_ADDRESS: Final = r"\b[a-z][a-z0-9+.-]*://"
_PASSWORD: Final = re.compile(rf"({_ADDRESS}[^\s/@:\"'<>]*):[^\s\"'<>]+@", re.IGNORECASE)
"""As far as the last @: a password that was not percent-encoded may hold anything."""
_QUERY: Final = re.compile(rf"({_ADDRESS}[^\s?\"'<>]+)\?[^\s\"'<>]+", re.IGNORECASE)
_KEYWORD: Final = re.compile(r"\b(\w*password\s*=\s*)('[^']*'|[^\s&]+)", re.IGNORECASE)


def redact(text: str) -> str:
    """Removes passwords, and the queries of addresses, which may be signatures or hold passwords (I10)."""
    if "://" in text:
        text = _QUERY.sub(r"\1?…", _PASSWORD.sub(r"\1:…@", text))
    return _KEYWORD.sub(r"\1…", text)


def setup(settings: Settings) -> None:
    """Sets up logging for a program that is Rota's own (the command line); a library user's logging is left alone."""
    text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
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
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
            if text
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.log_level.upper())),
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
        event[key] = _redacted(value)
    return event


def _redacted(value: Any) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case Mapping():
            return {str(key): _redacted(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_redacted(entry) for entry in value]
        case _:
            return redact(str(value))


def get_logger(name: str) -> Any:
    """A logger whose lines carry this name; it exists before `setup`, and follows it afterwards."""
    # Not `.bind`: that would make the logger now, before `setup`, and it would never follow.
    return structlog.get_logger(logger_name=name)
