"""The level of log events that the command line asks for, which takes precedence over a configuration's `log.level`.

It is in the environment, so that processes which a service starts have the same level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from keyfold.errors import ConfigError

LEVEL_VARIABLE: Final = "KEYFOLD_LOG_LEVEL"
LEVELS: Final = ("debug", "info", "warning", "error")


def asked_level(environ: Mapping[str, str]) -> str | None:
    """Return the level of `LEVEL_VARIABLE`, or None. Raise `ConfigError` if it is not one of `LEVELS`."""
    level = environ.get(LEVEL_VARIABLE, "")
    if level and level.lower() not in LEVELS:
        raise ConfigError(LEVEL_VARIABLE, f"must be one of {', '.join(LEVELS)}, not {level!r}")
    return level.lower() or None
