"""Logging: events with fields, not sentences.

    log = structlog.get_logger(__name__)
    log.info("segment committed", topic="users", partition=0, next_offset=36)

An event is lowercase, without a full stop; values that vary are in fields. The main program calls `configure` once to
select the format: JSON lines for machines or short lines for people. Libraries log in the same format, from WARNING up.
All logs go to standard error; standard output is for a command's data. Tracebacks have no local variables, which may
hold a secret.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from io import StringIO
from types import MappingProxyType
from typing import Final, TextIO

import structlog
from pydantic import SecretStr
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from keyfold.errors import ConfigError, KeyfoldError
from keyfold.runtime.log_level import LEVELS, asked_level
from keyfold.runtime.terminal import escaped

_PACKAGES: Final = (
    "keyfold",
    "keyfold_sink",
    "keyfold_compactor",
    "keyfold_replicator",
    "keyfold_server",
    "keyfold_demo",
    "__main__",
)
CONNECT_LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {"OFF": 60, "FATAL": 50, "ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10, "TRACE": 5}
)
"""Kafka Connect's level names and Python's numbers for them."""


def configure(*, json: bool, level: str = "info", stream: TextIO | None = None) -> None:
    """Set up logging for this process; a second call replaces the first.

    `level` (of `LEVELS`) applies to keyfold. A level that the command line or the environment asks for replaces it.
    """
    level = asked_level(os.environ) or level
    if level.lower() not in LEVELS:
        raise ConfigError("log.level", f"must be one of {', '.join(LEVELS)}, not {level!r}")
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _spell_out,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(json=json, stream=stream),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for package in _PACKAGES:
        logging.getLogger(package).setLevel(level.upper())


def _renderers(*, json: bool, stream: TextIO | None) -> list[Processor]:
    if json:
        without_locals = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        return [
            structlog.processors.ExceptionRenderer(without_locals),
            structlog.processors.JSONRenderer(default=str),
        ]
    colors = (stream or sys.stderr).isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    console = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_plain_traceback, pad_event_to=32)
    return [_make_harmless, console]


def _plain_traceback(stream: TextIO, exception: ExcInfo) -> None:
    text = StringIO()
    structlog.dev.plain_traceback(text, exception)
    stream.write("\n".join(map(escaped, text.getvalue().split("\n"))))


def _make_harmless(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape texts for a terminal: they may come from the bucket, Kafka or HTTP. JSON escapes them by itself."""
    return {name: escaped(value) if isinstance(value, str) else value for name, value in event.items()}


def _spell_out(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace errors in fields by their class and message; make secrets and byte strings safe to print."""
    for name, value in list(event.items()):
        if isinstance(value, KeyfoldError):
            event[name] = str(value)
            event.setdefault(f"{name}_kind", type(value).__name__)
        elif isinstance(value, BaseException) and name != "exc_info":
            event[name] = f"{type(value).__name__}: {value}"
        elif isinstance(value, SecretStr):
            event[name] = str(value)
        elif isinstance(value, bytes):
            event[name] = value.decode("utf-8", "backslashreplace")
    return event


def set_level(logger: str, level: str) -> list[str]:
    """Set a logger (empty: the root) and all existing loggers below it to a level of `CONNECT_LEVELS`, as Connect does.

    Returns the names of these loggers in order, with `root` for the root. Raises `KeyError` for other levels.
    """
    number = CONNECT_LEVELS[level]
    below = [name for name in _existing() if not logger or name == logger or name.startswith(f"{logger}.")]
    for name in {*below, logger}:
        logging.getLogger(name or None).setLevel(number)
    return sorted(name or "root" for name in {*below, logger})


def get_level(logger: str) -> str | None:
    """Return the effective level of a logger (empty: the root), from `CONNECT_LEVELS`; None for an unknown logger."""
    if logger and logger not in _existing():
        return None
    return _connect_level(logging.getLogger(logger or None).getEffectiveLevel())


def set_levels() -> dict[str, str]:
    """Return the levels that were set, by logger, with `root` for the root; other loggers inherit their level."""
    found = {name: logging.getLogger(name).level for name in _existing()}
    levels = {name: _connect_level(number) for name, number in found.items() if number != logging.NOTSET}
    return {**levels, "root": _connect_level(logging.getLogger().level)}


def _existing() -> list[str]:
    """Names of the loggers that exist."""
    known = logging.Logger.manager.loggerDict
    return [name for name, entry in list(known.items()) if isinstance(entry, logging.Logger)]


def _connect_level(number: int) -> str:
    return next((name for name, least in CONNECT_LEVELS.items() if number >= least), "TRACE")


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return a module's logger: `get_logger(__name__)`."""
    return structlog.stdlib.get_logger(name)


def bind(**fields: object) -> None:
    """Add fields, such as the task's number, to all later events of this thread."""
    structlog.contextvars.bind_contextvars(**fields)
