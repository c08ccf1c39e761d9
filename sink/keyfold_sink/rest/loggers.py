"""`/admin/loggers`: change the log levels of this worker and its tasks at run time, until the worker is restarted."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import unquote

import structlog
from fastapi import APIRouter, Path, Query

from keyfold.http_server import errors
from keyfold.http_server.json_body import JSON_BODY
from keyfold.runtime import event_log
from keyfold_sink.rest import shapes
from keyfold_sink.rest.backend import Backend, Behind

router = APIRouter(prefix="/admin/loggers", tags=["admin"])

_ROOT: Final = "root"
_ALIASES: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_LONGEST_NAME: Final = 200
_Logger = Annotated[
    str,
    Path(
        alias="logger", description="A logger's name, such as `keyfold` or `keyfold.sink`; `root` is the parent of all."
    ),
]


@router.get("", operation_id="listLoggers")
def list_loggers(behind: Behind) -> dict[str, shapes.LoggerLevel]:
    """List the loggers whose level was set. Other loggers have the level of their parent."""
    return {name: _level(behind, name, level) for name, level in sorted(event_log.set_levels().items())}


@router.get("/{logger}", operation_id="getLogger")
def get_logger(behind: Behind, logger: _Logger) -> shapes.LoggerLevel:
    """Return the level of a logger, which may be its parent's."""
    name = unquote(logger)
    level = event_log.get_level(_python_name(name))
    if level is None:
        raise errors.not_found(f"Logger {name} not found.")
    return _level(behind, name, level)


@router.put("/{logger}", dependencies=[JSON_BODY], operation_id="setLoggerLevel")
def set_level(
    behind: Behind,
    logger: _Logger,
    request: shapes.LevelRequest,
    scope: Annotated[
        Literal["worker"], Query(description="Only `worker` is supported: send the request to each worker.")
    ] = "worker",
) -> list[str]:
    """Set the level of a logger and its children in this worker and its tasks. Return the names of the loggers set."""
    del scope
    name = unquote(logger)
    level = request.level.upper()
    level = _ALIASES.get(level, level)
    if level not in event_log.CONNECT_LEVELS:
        raise errors.not_found(f"invalid log level '{request.level}'.")
    python_name = _python_name(name)
    if len(name) > _LONGEST_NAME or not name.isprintable() or (python_name and not all(python_name.split("."))):
        raise errors.not_found(f"Logger {name} not found.")
    behind.service.set_log_level(python_name, level)
    changed = event_log.set_level(python_name, level)
    now_ms = behind.clock.now_ms()
    behind.levels_set_ms.update(dict.fromkeys(changed, now_ms))
    structlog.get_logger("keyfold.sink.rest").info("log level set", logger=name, level=level)
    return changed


def _python_name(name: str) -> str:
    return "" if name.lower() == _ROOT else name


def _level(behind: Backend, name: str, level: str) -> shapes.LoggerLevel:
    return shapes.LoggerLevel(level=level, last_modified=behind.levels_set_ms.get(name))
