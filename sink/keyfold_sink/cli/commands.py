"""The group `keyfold sink`."""

from __future__ import annotations

import click

from keyfold_sink.cli.control import flush, offsets, pause, restart, resume, status, stop
from keyfold_sink.cli.run import run
from keyfold_sink.cli.validate import validate


@click.group()
def sink() -> None:
    """Append Kafka topics to the log, exactly once.

    CONFIG is a file like Kafka Connect's: JSON ({"name", "config"}, or the flat map) or .properties. The other commands
    control a running sink through its REST API.

    \b
    Examples:
        keyfold sink validate users.json
        keyfold sink run users.json
        keyfold sink status users.json --watch
    """  # noqa: D301 - click wants the character


for command in (run, validate, status, pause, resume, stop, flush, restart, offsets):
    sink.add_command(command)
