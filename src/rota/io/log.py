"""Logs as events with fields, through structlog over the standard library; secrets never reach a line.

A line is an event name and its fields: `job stalled  kind=build id=… epoch=3`. On a terminal it is text, elsewhere
JSON, one object a line, unless the settings say otherwise.
"""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

from rota.settings import Settings

_PASSWORD: Final = re.compile(r"(?P<head>\b[a-z][a-z0-9+.-]*://[^\s/@:]*):[^\s/@]+@")
_QUERY: Final = re.compile(r"(?P<head>\bhttps?://[^\s?\"']+)\?[^\s\"']+")


def redact(text: str) -> str:
    """Removes passwords from addresses, and the queries of web addresses, which may be signatures (I10)."""
    return _QUERY.sub(r"\g<head>?…", _PASSWORD.sub(r"\g<head>:…@", text))


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
            *([] if text else [structlog.processors.format_exc_info]),
            _redact_fields,
            # Tracebacks without local variables: those may hold secrets (I10).
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
            if text
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.log_level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


def _redact_fields(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = redact(value)
    return event


def get_logger(name: str) -> Any:
    """A logger whose lines carry this name; it exists before `setup`, and follows it afterwards."""
    # Not `.bind`: that would make the logger now, before `setup`, and it would never follow.
    return structlog.get_logger(logger_name=name)
