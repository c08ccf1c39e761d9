"""Options that every command of `keyfold` accepts: `-v`, `-q` and `--log-level`.

They say which events are logged on standard error. A service has its level in its configuration (`log.level`), which
is the default. The level is in the environment while the command runs, so that the processes that a service starts have
the same one.
"""

from __future__ import annotations

import os
from typing import Any, Final

import click

from keyfold.runtime.log_level import LEVEL_VARIABLE, LEVELS, asked_level

_NAMES: Final = ("_verbose", "_quiet", "_log_level")


def add_common_options(command: click.Command) -> click.Command:
    """Give a command, and all commands below it, the common options. Does nothing the second time.

    A command keeps an option of its own that has the same name: `compact run -v` reports every partition.
    """
    if not any(param.name in _NAMES for param in command.params):
        own = {name for param in command.params for name in param.opts}
        command.params.extend(option for option in _common_options() if own.isdisjoint(option.opts))
    if isinstance(command, click.Group):
        for below in command.commands.values():
            add_common_options(below)
    return command


def is_quiet() -> bool:
    """Return whether the command was asked for errors only, so without a progress bar."""
    return asked_level(os.environ) == "error"


def _common_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["-v", "--verbose", "_verbose"],
            is_flag=True,
            expose_value=False,
            callback=_flag("debug"),
            help="Log more: --log-level debug.",
        ),
        click.Option(
            ["-q", "--quiet", "_quiet"],
            is_flag=True,
            expose_value=False,
            callback=_flag("error"),
            help="Log errors only, and show no progress: --log-level error.",
        ),
        click.Option(
            ["--log-level", "_log_level"],
            type=click.Choice(LEVELS, case_sensitive=False),
            expose_value=False,
            callback=_set_level,
            help="Lowest level of events that are logged on standard error.",
        ),
    ]


def _flag(level: str) -> Any:
    return lambda context, param, is_given: _set_level(context, param, level if is_given else None)


def _set_level(context: click.Context, _param: click.Parameter, level: str | None) -> None:
    """Put the level in the environment until the command ends. Different levels contradict each other."""
    if level is None or context.resilient_parsing:
        return
    asked = context.meta.setdefault(LEVEL_VARIABLE, level)  # shared by all contexts of the command
    if asked != level:
        raise click.UsageError("-v, -q and --log-level contradict each other: give one of them", context)
    before = os.environ.get(LEVEL_VARIABLE)
    os.environ[LEVEL_VARIABLE] = level
    context.find_root().call_on_close(lambda: _restore(before))


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(LEVEL_VARIABLE, None)
    else:
        os.environ[LEVEL_VARIABLE] = before
